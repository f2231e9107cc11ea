"""End our own recording of operators, and no other.

torch's public switch (`_enable_record_function`) silences every observer of a thread, the user's
`ExecutionTraceObserver` among them; its switch for one profiler (`_toggle_collection_dynamic`) writes a warning into
the training's output. Beneath both, the state of a profiler takes its one callback off. Its methods are exported C++
functions of a pointer, called directly in versions of torch that they were tried with; elsewhere the public switch
has to do.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from eroica.worker.kineto import library

_GET = "_ZN5torch8profiler4impl17ProfilerStateBase3getEb"
_POP = "_ZN5torch8profiler4impl17ProfilerStateBase3popEb"
_REMOVE = "_ZN5torch8profiler4impl17ProfilerStateBase14removeCallbackEv"
_TRIED_WITH = ("2.13.",)


def _library() -> Any:
    torch = sys.modules.get("torch")
    if not str(getattr(torch, "__version__", "")).startswith(_TRIED_WITH):
        return None
    return library()


def take_callback_off() -> bool:
    """Let the profiler of this thread record no further operators; it goes on standing.

    Returns:
        False if that is not possible here, and nothing was done.
    """
    library = _library()
    get, remove = getattr(library, _GET, None), getattr(library, _REMOVE, None)
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
    pop = getattr(_library(), _POP, None)
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
