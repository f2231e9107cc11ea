"""Every exception Eroica raises on purpose.

    EroicaError
    ├── UsageError      the command or call was given something it cannot use   (exit code 2)
    ├── InputError      a file or message is not what it should be              (exit code 1)
    ├── CaptureError    a window could not be captured on a worker
    └── UnavailableError  something Eroica leans on is missing or forbidden here

Nothing of this is ever raised into a training loop: `eroica.worker.guard` is the border.
Lost data is a result, not an exception: it becomes a coverage note of the verdict.
"""


class EroicaError(Exception):
    """Base of all errors raised on purpose; its text says what happened and what to do."""


class UsageError(EroicaError):
    """The caller asked for something impossible; the text names the value and the way out."""


class InputError(EroicaError):
    """A file or message is truncated, foreign or hostile; the text names it and the way out."""


class CaptureError(EroicaError):
    """A window could not be captured on one worker; the worker is left out of the comparison."""


class UnavailableError(EroicaError):
    """A library, permission or device is missing; the text says what Eroica does without it."""
