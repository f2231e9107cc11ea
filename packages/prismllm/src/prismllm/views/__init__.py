"""Pictures and files of what was replayed; nothing here concludes anything."""
