"""The interpreter's own threads, clock and system calls, whatever the user's process has put in their place.

gevent, eventlet and their like replace functions inside `_thread`, `threading`, `time`, `os` and `subprocess`: a
thread becomes a piece of the training thread, and a read that blocks it stops the training for ever. Libraries that
freeze time in tests replace clocks. Built-in modules can be made anew, beside those that everybody shares, and a new
one has what the interpreter was compiled with. What is of our own runs on these; nothing of the user's sees them.

A watchdog of the user's may look up every frame that the interpreter lists (`sys._current_frames`) in the list of
threads, or wait until that list is empty. So a thread of ours that lives long has no frame (`Listener`), and one that
does work for a moment stands in the list meanwhile (`Thread`).

`_signal` must never be made anew: doing that forgets the handlers of the process.
"""

from __future__ import annotations

import _imp
import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from importlib.machinery import BuiltinImporter, ModuleSpec, PathFinder
from importlib.util import module_from_spec
from itertools import chain, islice
from types import FrameType
from typing import Any, cast

_signal: Any = __import__("_signal")
_FAULTS = {_signal.SIGSEGV, _signal.SIGBUS, _signal.SIGFPE, _signal.SIGILL, _signal.SIGABRT}
_block_signals = _signal.pthread_sigmask


def _anew(name: str) -> Any:
    """A new instance of a module that is compiled; the shared one where there can be only one."""
    if name in sys.builtin_module_names:
        module = _imp.create_builtin(ModuleSpec(name, cast("Any", BuiltinImporter), origin="built-in"))
        _imp.exec_builtin(module)
        return module
    spec = PathFinder.find_spec(name)
    if spec is None or spec.loader is None:
        return __import__(name)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


posix, _thread, _time = _anew("posix"), _anew("_thread"), _anew("time")
_select = _anew("select")
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


class _Listed(threading.Thread):
    """A thread of ours as the user's list of threads shows it while it works: a daemon that can be waited for."""

    def __init__(self, living: Any) -> None:  # not that of `Thread`, whose locks may be anything by now
        self._living = living
        self._known_as = get_ident(), get_native_id()

    name = "eroica"
    daemon = property(lambda self: True)
    ident = property(lambda self: self._known_as[0])
    native_id = property(lambda self: self._known_as[1])

    def __repr__(self) -> str:
        return f"<Thread(eroica, {self._known_as[0]})>"

    def is_alive(self) -> bool:
        """It works; the list forgets it at its end."""
        return threads_by_ident().get(self._known_as[0]) is self

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        if self._living.acquire(True, -1 if timeout is None else max(0.0, timeout)):
            self._living.release()

    def _nothing(self, *_: object, **__: object) -> None:
        """Do nothing where `threading` resets its threads in a forked child."""

    _reset_internal_locks = _stop = _after_fork = _nothing


def threads_by_ident() -> dict[int, Any]:
    """The list of Python's threads, without its lock, which other code may hold or have replaced."""
    found: dict[int, Any] = getattr(sys.modules.get("threading"), "_active", {})
    return found


@contextlib.contextmanager
def listed(living: Any) -> Iterator[None]:
    """Stand in the list of threads meanwhile.

    Args:
        living: A lock that is held until then.
    """
    threads, ident = threads_by_ident(), get_ident()
    threads[ident] = _Listed(living)
    try:
        yield
    finally:
        threads.pop(ident, None)


class Thread:
    """A kernel thread that no tracer of the user's follows and no signal of theirs reaches.

    Like a daemon it ends with the process. Who looks at stacks knows it by its outermost function (`runs_ours`).

    Args:
        work: What it does. Exceptions must not leave it.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self._work: Callable[[], object] | None = work
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
            with listed(self._living):
                _block_signals(_signal.SIG_BLOCK, set(_signal.valid_signals()) - _FAULTS)
                work, self._work = self._work, None  # which may hold objects of the training's, as `threading` does
                if work is not None:
                    work()
        finally:
            self._living.release()


class Listener:
    """A kernel thread that sleeps until a file can be read, and then calls a function.

    It consists of parts in C: one that pauses and one that waits, iterators that call them for ever, a `map` that calls
    the function, and a `deque` that keeps nothing. So there is no frame of Python's while it sleeps. No signal reaches
    it.

    Args:
        file: To be read.
        call: Returns whether the file is to be waited for again. Exceptions must not leave it, nor the next one.
        at_end: Called in the thread when it ends.
        pause_s: Before it waits, and after each call.
    """

    def __init__(self, file: int, call: Callable[[], bool], at_end: Callable[[], object], pause_s: float) -> None:
        self._file, self._call, self._at_end, self._pause_s = file, call, at_end, pause_s
        self._living, self._going_on = Lock(), Lock()

    def start(self) -> None:
        """Begin.

        Raises:
            RuntimeError: The system gives no thread.
        """
        poll = _select.poll()
        poll.register(self._file, _select.POLLIN)
        pauses = iter(partial(self._going_on.acquire, True, self._pause_s), True)
        heard = map(self._heard, chain(zip(pauses, iter(poll.poll, None), strict=False), (None,)))
        for lock in (self._living, self._going_on):
            lock.acquire()
        before = _block_signals(_signal.SIG_BLOCK, set(_signal.valid_signals()) - _FAULTS)  # which it inherits
        try:
            _thread.start_new_thread(deque, (heard, 0))
        except BaseException:
            self._living.release()
            raise
        finally:
            _block_signals(_signal.SIG_SETMASK, before)

    def ask_to_end(self) -> None:
        """Let it end at its next pause; one that waits for the file has to be woken by it. Once."""
        self._going_on.release()

    def join(self, timeout_s: float) -> bool:
        """Wait for its end; False if it has not come in time."""
        if not self._living.acquire(True, timeout_s):
            return False
        self._living.release()
        return True

    def _heard(self, something: object) -> None:
        with listed(self._living):
            goes_on = something is not None and self._call()
            if not goes_on:
                self._at_end()
        if not goes_on:
            self._living.release()
            raise SystemExit  # which ends a thread without a word


_OURS = {Thread._live.__code__, Listener._heard.__code__}


def runs_ours(frame: FrameType | None) -> bool:
    """Return whether the thread with this innermost frame is one of ours."""
    outermost = frame
    while frame is not None:
        outermost, frame = frame, frame.f_back
    return outermost is not None and outermost.f_code in _OURS


def python_threads() -> list[Any]:
    """List the user's threads as `threading.enumerate` does."""
    return [one for one in list(threads_by_ident().values()) if not isinstance(one, _Listed)]
