"""Everything that this package raises."""

from __future__ import annotations

from pathlib import Path


class PythiaError(Exception):
    """Base of all errors of this package."""


class BadConfig(PythiaError, ValueError):
    """A configuration or option that cannot be used."""


class BadFile(PythiaError, ValueError):
    """A file that cannot be read or written; the message names the file and the first bad line."""

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")


class Refused(PythiaError):
    """A request that the gateway answers itself; the message says what to change.

    Attributes:
        status: HTTP status.
        kind: Type of the error in the body.
        retry_s: Seconds after which another try makes sense; None for no `Retry-After`.
    """

    def __init__(
        self, message: str, status: int = 400, kind: str = "invalid_request_error", retry_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.retry_s = status, kind, retry_s


class EngineError(PythiaError, RuntimeError):
    """An engine that cannot be started or reached."""
