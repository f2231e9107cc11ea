"""Kineto's own log, which goes to standard error: not a word of it for what is ours, every word for what is the user's.

How much is logged is one number in torch's library. Where that cannot be found, Kineto is told through its environment
variable to be silent for good, before it starts.

Two more things are asked of that library, in versions of torch that they were tried with: to end our own recording of
operators and no other, and to save a trace without the interpreter lock.

- torch's public switch (`_enable_record_function`) silences every observer of a thread, the user's
  `ExecutionTraceObserver` among them; its switch for one profiler (`_toggle_collection_dynamic`) writes a warning into
  the training's output. Beneath both, the state of a profiler takes its one callback off. Elsewhere the public switch
  has to do.
- torch holds the lock while it writes a trace: 2-3 µs for each event, half a second for a window, in which the training
  stands still. The method itself touches nothing of Python. It is called directly where, and only where, it can be
  proven that we hold the right object; everywhere else torch's own binding is used.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    api = getattr(_tried_library(), _API, None)
    if api is None or not _importer:
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


_GET = "_ZN5torch8profiler4impl17ProfilerStateBase3getEb"
_POP = "_ZN5torch8profiler4impl17ProfilerStateBase3popEb"
_REMOVE = "_ZN5torch8profiler4impl17ProfilerStateBase14removeCallbackEv"


def _tried_library() -> ctypes.CDLL | None:
    """Torch's library, in a version that what follows was tried with."""
    version = str(getattr(sys.modules.get("torch"), "__version__", ""))
    return library() if version.startswith(_TRIED_WITH) else None


def take_callback_off() -> bool:
    """Let the profiler of this thread record no further operators; it goes on standing.

    Returns:
        False if that is not possible here, and nothing was done.
    """
    torch = _tried_library()
    get, remove = getattr(torch, _GET, None), getattr(torch, _REMOVE, None)
    if get is None or remove is None:
        return False
    get.argtypes, get.restype = (ctypes.c_bool,), ctypes.c_void_p
    remove.argtypes, remove.restype = (ctypes.c_void_p,), None
    state = get(False)
    if state:
        remove(state)
    return bool(state)


#: States of profilers that were left: what still reports to one of them finds its memory.
_left: list[Any] = []


def leave_for_good() -> None:
    """Take the profiler of this thread out of torch without stopping it; keep what it holds until the process ends."""
    take_callback_off()
    pop = getattr(_tried_library(), _POP, None)
    if pop is None:
        return
    kept = (ctypes.c_void_p * 2)()  # a shared pointer, which nobody ever gives back
    pop.argtypes, pop.restype = (ctypes.c_void_p, ctypes.c_bool), ctypes.c_void_p
    pop(ctypes.addressof(kept), False)
    _left.append(kept)


class Silence:
    """Switch that keeps a profiler from recording, and takes back what it changed."""

    def __init__(self) -> None:
        self._everybody = False

    def begin(self) -> None:
        """Record no further operators of this thread for our profiler; microseconds."""
        if not take_callback_off():
            self._everybody = True
            sys.modules["torch.autograd"]._enable_record_function(False)

    def end(self) -> None:
        """Our profiler is down. Idempotent."""
        if self._everybody:
            self._everybody = False
            sys.modules["torch.autograd"]._enable_record_function(True)


_SAVE = "_ZN5torch8autograd8profiler14ProfilerResult4saveERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
_HEADER_BYTES = 16  # of a Python object


class _String(ctypes.Structure):
    """libstdc++'s std::string, which the symbol's name vouches for, pointing to a buffer of ours."""

    _fields_ = (("data", ctypes.c_void_p), ("length", ctypes.c_size_t), ("local", ctypes.c_char * 16))


def _native_save() -> Any:
    """The C++ function; None where it has another name or place, or in a torch it was never tried with."""
    function = getattr(_tried_library(), _SAVE, None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    function.restype = None
    return function


def _native_object(results: Any) -> int | None:
    """Address of the C++ object behind torch's `_ProfilerResult`; None unless it proves to be it.

    The binding keeps the address right after the object's header, and the object begins with the trace's start time:
    both must fit. Memory is read through the kernel, so that a wrong address is an error, not a crash.
    """
    if object.__basicsize__ != _HEADER_BYTES or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    if type(results).__basicsize__ < _HEADER_BYTES + 8:
        return None
    memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        address = int.from_bytes(os.pread(memory, 8, id(results) + _HEADER_BYTES), sys.byteorder)
        begins_with = int.from_bytes(os.pread(memory, 8, address), sys.byteorder)
    except (OSError, OverflowError):
        return None
    finally:
        os.close(memory)
    start_ns = results.trace_start_ns()
    return address if start_ns > 0 and begins_with == start_ns else None


def save_unlocked(results: Any, path: Path) -> bool:
    """Write the trace as JSON with the interpreter lock released.

    Args:
        results: torch's `_ProfilerResult`, kept alive by the caller.
        path: The file.

    Returns:
        False if this is not possible here, and nothing was done.
    """
    try:
        save, address = _native_save(), _native_object(results)
    except OSError:
        return False
    if save is None or address is None:
        return False
    name = os.fsencode(path)
    buffer = ctypes.create_string_buffer(name)
    text = _String(ctypes.addressof(buffer), len(name))
    save(address, ctypes.addressof(text))
    return True
