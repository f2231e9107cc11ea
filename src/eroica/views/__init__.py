"""Pictures, pages, metrics and traces of what is on record; nothing in here computes a conclusion."""
