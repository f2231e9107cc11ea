"""Trace files, folders and dumps that somebody else recorded -> verdicts."""
