"""Two sets of patterns -> what got slower, where, and of which kind the change is."""
