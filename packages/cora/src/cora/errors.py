"""Everything that this package raises.

CoraError
├── BadProgram      a network function that breaks a rule of the DSL; the message names the step or table
├── BadInput        a file, setting or option that cannot be used; the message says which would do
├── NoPlan          no plan meets the limits; the message names the limit
├── BuildError      clang or the kernel's verifier refused the generated program; the message names the step
├── DeviceError     a network device cannot be used; the message says what to do
└── Unsupported     this machine lacks root, BPF or a tool; the message says which
"""

from __future__ import annotations


class CoraError(Exception):
    """Base of all errors of this package."""


class BadProgram(CoraError, ValueError):
    """A network function breaks a rule of the DSL."""


class BadInput(CoraError, ValueError):
    """A file, setting or option cannot be used."""


class NoPlan(CoraError):
    """No plan meets the limits."""


class BuildError(CoraError):
    """The compiler or the verifier refused the generated program."""


class DeviceError(CoraError):
    """A network device cannot be used."""


class Unsupported(CoraError):
    """This machine lacks root, BPF or a tool."""
