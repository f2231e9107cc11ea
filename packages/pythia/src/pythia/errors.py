"""Everything that this package raises."""

from __future__ import annotations

from pathlib import Path


class PythiaError(Exception):
    """Base of all errors of this package."""


class BadConfig(PythiaError, ValueError):
    """A configuration or option that cannot be used."""


class BadFile(PythiaError, ValueError):
    """A file that cannot be read.

    Attributes:
        path: The file.
        row: The first bad line, counted from 1; None if the whole file is bad.
    """

    def __init__(self, path: Path | str, problem: str, *, row: int | None = None) -> None:
        super().__init__(f"{path}{'' if row is None else f', line {row}'}: {problem}")
        self.path, self.row, self.problem = Path(path), row, problem


class BadRequest(PythiaError, ValueError):
    """A request that the gateway refuses; the message says what to change."""


class EngineError(PythiaError, RuntimeError):
    """An engine that cannot be started or reached."""


class MissingExtra(PythiaError, ImportError):
    """An optional dependency that is not installed."""
