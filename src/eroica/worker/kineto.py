"""Kineto's own log, which goes to standard error: not a word of it for what is ours, every word for what is the user's.

How much is logged is one number in torch's library. Where that cannot be found, Kineto is told through its environment
variable to be silent for good, before it starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_LEVEL = "_ZN9libkineto6Logger14severityLevel_E"
_VARIABLE = "KINETO_LOG_LEVEL"
_NOTHING = 99


def _level() -> ctypes.c_int | None:
    torch = sys.modules.get("torch")
    library = Path(str(getattr(torch, "__file__", ""))).parent / "lib" / "libtorch_cpu.so"
    try:
        number = ctypes.c_int.in_dll(ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_NOW), _LEVEL)
    except (OSError, ValueError):
        return None
    return number if 0 <= number.value <= _NOTHING else None


def quiet_for_good() -> None:
    """Silence Kineto where `quiet` cannot, unless the user has said how much they want to hear.

    Before the training has threads of its own: changing the environment beside them is not safe.
    """
    if _level() is None:
        os.environ.setdefault(_VARIABLE, str(_NOTHING))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence Kineto for what is done inside."""
    level = None if _VARIABLE in os.environ else _level()
    if level is None:
        yield
        return
    before, level.value = level.value, _NOTHING
    try:
        yield
    finally:
        if level.value == _NOTHING:  # else Kineto has just started and set it
            level.value = before
