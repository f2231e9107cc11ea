"""The training itself; it is copied into a directory of its own before it runs, as a user's project would lie there."""
