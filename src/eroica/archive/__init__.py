"""Run directories: what is kept on disk of windows, patterns and verdicts, and how it is read again."""
