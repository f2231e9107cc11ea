"""Everything that this package raises.

ServeGenError
├── BadRequest    an option or argument that cannot be used; the message names a way out
├── BadFile       a pool, log, rate or workload file that cannot be read; names file, row and field
├── ServerError   a server under test that cannot be reached or does not speak the protocol
└── MissingExtra  an optional dependency that is not installed
"""

from __future__ import annotations

from pathlib import Path


class ServeGenError(Exception):
    """Base of all errors of this package."""


class BadRequest(ServeGenError, ValueError):
    """An option or argument that cannot be used."""


class BadFile(ServeGenError, ValueError):
    """A file that cannot be read.

    Its `row` or line counts from 1; `row` and `field` are None if the whole file or row is bad.
    """

    def __init__(self, path: Path | str, problem: str, *, row: int | None = None, field: str | None = None) -> None:
        where = [str(path)]
        if row is not None:
            where.append(f"row {row}")
        if field is not None:
            where.append(f"field {field!r}")
        super().__init__(f"{', '.join(where)}: {problem}")
        self.path, self.row, self.field, self.problem = Path(path), row, field, problem


class ServerError(ServeGenError, RuntimeError):
    """A server under test that cannot be reached or does not speak the protocol."""


class MissingExtra(ServeGenError, ImportError):
    """An optional dependency that is not installed."""
