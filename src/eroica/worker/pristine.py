"""The interpreter's own threads, clock and system calls, whatever the user's process has put in their place.

gevent, eventlet and their like replace functions inside `_thread`, `threading`, `time`, `os` and `subprocess`: a
thread becomes a piece of the training thread, and a read that blocks it stops the training for ever. Libraries that
freeze time in tests replace clocks. Built-in modules can be made anew, beside those that everybody shares, and a new
one has what the interpreter was compiled with. What is of our own runs on these; nothing of the user's sees them.

`_signal` must never be made anew: doing that forgets the handlers of the process.
"""

from __future__ import annotations

import _imp
import contextlib
import sys
from collections.abc import Callable
from functools import partial
from importlib.machinery import BuiltinImporter, ModuleSpec
from itertools import islice
from types import FrameType
from typing import Any, cast

_signal: Any = __import__("_signal")
_FAULTS = {_signal.SIGSEGV, _signal.SIGBUS, _signal.SIGFPE, _signal.SIGILL, _signal.SIGABRT}
_block_signals = _signal.pthread_sigmask


def _anew(name: str) -> Any:
    """A new instance of a built-in module; the shared one in an interpreter that has it in a file."""
    if name not in sys.builtin_module_names:
        return __import__(name)
    module = _imp.create_builtin(ModuleSpec(name, cast("Any", BuiltinImporter), origin="built-in"))
    _imp.exec_builtin(module)
    return module


posix, _thread, _time = _anew("posix"), _anew("_thread"), _anew("time")
Lock: Callable[[], Any] = _thread.allocate_lock
Local: Callable[[], Any] = _thread._local
get_ident: Callable[[], int] = _thread.get_ident
get_native_id: Callable[[], int] = _thread.get_native_id
monotonic_ns: Callable[[], int] = _time.monotonic_ns
monotonic: Callable[[], float] = _time.monotonic
time_ns: Callable[[], int] = _time.time_ns
sleep: Callable[[float], None] = _time.sleep


class Flag:
    """Something that becomes true once, and that a thread can wait for."""

    def __init__(self) -> None:
        self._unset = Lock()
        self._unset.acquire()

    def set(self) -> None:
        """Make the flag true from here on. Idempotent."""
        with contextlib.suppress(RuntimeError):  # set already
            self._unset.release()

    def wait(self, timeout_s: float) -> bool:
        """Return whether the flag is true, or becomes so in time."""
        if not self._unset.acquire(True, timeout_s):
            return False
        self.set()
        return True


class Thread:
    """A kernel thread that no list of the user's shows, no tracer of theirs follows and no signal of theirs reaches.

    Like a daemon it ends with the process. Who looks at stacks knows it by its outermost function (`runs_ours`).

    Args:
        work: What it does. Exceptions must not leave it.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._living = Lock()  # held while it lives

    def start(self) -> None:
        """Begin.

        Raises:
            RuntimeError: The system gives no thread, or the interpreter shuts down.
        """
        self._living.acquire()
        begun: list[int] = []
        try:  # in one piece: a signal's handler that raises right after it must not hide that it has begun
            begun.extend(islice(iter(partial(_thread.start_new_thread, self._live, ()), begun), 1))
        except BaseException:
            if not begun:
                self._living.release()
            raise

    def join(self, timeout_s: float = -1) -> bool:
        """Wait for its end, for ever by default; False if it has not come in time."""
        if not self._living.acquire(True, timeout_s):
            return False
        self._living.release()
        return True

    def _live(self) -> None:
        try:
            _block_signals(_signal.SIG_BLOCK, set(_signal.valid_signals()) - _FAULTS)
            self._work()
        finally:
            self._living.release()


def runs_ours(frame: FrameType | None) -> bool:
    """Return whether the thread with this innermost frame is one of ours."""
    outermost = frame
    while frame is not None:
        outermost, frame = frame, frame.f_back
    return outermost is not None and outermost.f_code is Thread._live.__code__


def python_threads() -> list[Any]:
    """List the threads as `threading.enumerate` does, without its lock, which other code may hold or have replaced."""
    return list(getattr(sys.modules.get("threading"), "_active", {}).values())
