"""Run directories: what is kept on disk of windows, patterns and verdicts, and how it is read again.

`store` writes and reads what is known to be ours, one window at a time; `load` makes sense of whatever path a user
points at, and `check` refuses what could not have been measured.
"""
