"""Kineto's save without the interpreter lock.

torch 2.13 holds the lock while it writes a trace: 2-3 µs for each event, half a second for a window, in which the
training stands still. The method itself is an exported C++ function that touches nothing of Python, so it is called
directly where, and only where, it can be proven that we hold the right object; everywhere else torch's own binding is
used.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

_SAVE = "_ZN5torch8autograd8profiler14ProfilerResult4saveERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
_HEADER_BYTES = 16  # of a Python object
_TRIED_WITH = ("2.13.",)


class _String(ctypes.Structure):
    """libstdc++'s std::string, which the symbol's name vouches for, pointing to a buffer of ours."""

    _fields_ = (("data", ctypes.c_void_p), ("length", ctypes.c_size_t), ("local", ctypes.c_char * 16))


def _native_save() -> Any:
    """The C++ function; None where it has another name or place, or in a torch it was never tried with."""
    torch = sys.modules.get("torch")
    if not str(getattr(torch, "__version__", "")).startswith(_TRIED_WITH):
        return None
    library = Path(str(getattr(torch, "__file__", ""))).parent / "lib" / "libtorch_cpu.so"
    try:
        function = getattr(ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_NOW), _SAVE)
    except (OSError, AttributeError):
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
