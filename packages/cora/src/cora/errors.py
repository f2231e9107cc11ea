"""Everything that this package raises."""

from __future__ import annotations


class CoraError(Exception):
    """Base of all errors of this package."""


class BadProgram(CoraError, ValueError):
    """A network function breaks a rule of the DSL; the message names the step or table."""


class BadInput(CoraError, ValueError):
    """A file, setting or option cannot be used; the message says which would do."""


class NoPlan(CoraError):
    """No plan meets the limits; the message names the limit."""


class BuildError(CoraError):
    """Clang or the kernel's verifier refused the generated program; the message names the step."""


class DeviceError(CoraError):
    """A network device cannot be used; the message says what to do."""


class Unsupported(CoraError):
    """This machine lacks root, BPF or a tool; the message says which."""
