"""Run directories: what is kept on disk of windows, patterns and verdicts, and how it is read again.

`store` writes what is ours; `load` reads it again, makes sense of whatever path a user points at, and refuses what
could not have been measured.
"""
