"""Frozen records that cross a border between processes or stages. No I/O, nothing heavier than msgspec."""
