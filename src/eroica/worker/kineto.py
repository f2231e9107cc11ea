"""Kineto's own log, which goes to standard error: not a word of it for what is ours, every word for what is the user's.

How much is logged is one number in torch's library. Where that cannot be found, Kineto is told through its environment
variable to be silent for good, before it starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from eroica.worker.pristine import get_ident

_LEVEL = "_ZN9libkineto6Logger14severityLevel_E"
_API = "_ZN9libkineto3apiEv"
_API_NUMBERS = 12  # 32-bit ones at the beginning of its object, among them the thread that torch was imported in
_TRIED_WITH = ("2.13.",)
_VARIABLE = "KINETO_LOG_LEVEL"
_NOTHING = 99


@functools.cache
def library() -> ctypes.CDLL | None:
    """Torch's library, which the process has loaded."""
    path = Path(str(getattr(sys.modules.get("torch"), "__file__", ""))).parent / "lib" / "libtorch_cpu.so"
    try:
        return ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None


@functools.cache
def _number() -> ctypes.c_int | None:
    try:
        return ctypes.c_int.in_dll(library() or ctypes.CDLL(None), _LEVEL)
    except ValueError:
        return None


def find_in_torch() -> None:
    """Look up what windows need of torch's library, so that nothing fails later in the training's thread."""
    _number()


def _level() -> ctypes.c_int | None:
    number = _number()
    return number if number is not None and 0 <= number.value <= _NOTHING else None


def may_begin_here(used: bool) -> bool:
    """Return whether Kineto starts in this thread without a word on standard error.

    When it is used for the first time it compares the thread with the one that torch was imported in, and writes a
    line if it is another one; nothing else depends on that. The number that it compares is set to this thread where it
    is found: in torch 2.13, and only if exactly one number of the object is that of the importing thread.

    Args:
        used: A profiler was used in this process before.
    """
    here = _number_of(get_ident())
    if used or here == _importer:
        return True
    api = getattr(library(), _API, None)
    version = str(getattr(sys.modules.get("torch"), "__version__", ""))
    if api is None or not _importer or not version.startswith(_TRIED_WITH):
        return False
    api.argtypes, api.restype = (), ctypes.POINTER(ctypes.c_int32)
    numbers = api()
    places = [at for at in range(_API_NUMBERS) if numbers[at] == _importer]
    if len(places) == 1:
        numbers[places[0]] = here
    return len(places) == 1


_importer = 0  # number of the thread that torch was imported in; 0 = unknown


def torch_is_imported_here() -> None:
    """Remember the thread that imports torch, if it is seen to."""
    global _importer  # noqa: PLW0603 - one fact of the process
    _importer = _number_of(get_ident())


def _number_of(thread: int) -> int:
    """The lower half of the thread's identity, as Kineto keeps it."""
    return ctypes.c_int32(thread & 0xFFFFFFFF).value


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
