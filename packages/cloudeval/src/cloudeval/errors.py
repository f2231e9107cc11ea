"""The exceptions of the package: all derive from CloudEvalError, whose message the CLI prints without a traceback."""


class CloudEvalError(Exception):
    """An error with a message that says what happened and what to do."""


class ReadError(CloudEvalError):
    """Text that is not YAML or JSON as kubectl reads it."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message if line is None else f"line {line}: {message}")


class ProblemError(CloudEvalError):
    """A problem folder that does not follow the documented layout."""


class UsageError(CloudEvalError):
    """Wrong arguments or settings."""


class EndpointError(CloudEvalError):
    """A model endpoint that cannot be used at all."""


class RunnerError(CloudEvalError):
    """The machine failed, not the answer. The test is repeated and never counts as wrong."""


class NotCoveredError(RunnerError):
    """The answer uses something that no runner here implements, so it cannot be judged by behaviour."""
