"""The border between Eroica and the user's loop: nothing of ours passes it.

Nor does what we write or open exceed the limits of the user's process.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from eroica.wire.places import places, private_directory, private_file
from eroica.worker.errors_of_users import raised_by_user, without_us

_signal: Any = __import__("_signal")
_TOO_LARGE = {_signal.SIGXFSZ}
_FEWEST_FILES = 16  # of Kineto, of a thread's stacks, of the training meanwhile
_LEAST_FILE_BYTES = 64_000_000  # a trace
_LEAST_MEMORY_BYTES = 1_000_000_000  # a window's events, twice
RESIDENT = 1
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def spared() -> Iterator[None]:
    """Let a file of ours that may not grow be an error, where the system would end the process for it (SIGXFSZ).

    The kernel sends that signal to the thread that writes. Here it waits until it is taken back.
    """
    if resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY:
        yield
        return
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, _TOO_LARGE)
    try:
        yield
    finally:
        if not before & _TOO_LARGE:
            while _TOO_LARGE & _signal.sigpending():
                _signal.sigtimedwait(_TOO_LARGE, 0)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, before)


def lack_of_files() -> str:
    """Tell in a clause why no file is to be opened beside those of the training; "" where there is room."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        used = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names only
        Path("/proc/self/comm").read_bytes()  # Kineto reads it, and says so aloud where it cannot
    except OSError as error:
        if raised_by_user(error):
            raise
        return f"/proc cannot be read ({error.strerror})"
    if most != resource.RLIM_INFINITY and most - used < _FEWEST_FILES:
        return f"the process may open only {max(0, most - used)} more files"
    return ""


def lack_for_a_window() -> str:
    """Tell in a clause why a window is not to be captured here; "" where there is room."""
    most_bytes = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if most_bytes != resource.RLIM_INFINITY and most_bytes < _LEAST_FILE_BYTES:
        return f"files of the process may have only {most_bytes} bytes"
    for name, limit, field in (("address space", resource.RLIMIT_AS, 0), ("data", resource.RLIMIT_DATA, 5)):
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY and most - memory_bytes(field) < _LEAST_MEMORY_BYTES:
            return f"the limit of the process's {name}, {most} bytes, leaves too little room"
    return lack_of_files()


def memory_bytes(field: int = RESIDENT) -> int:
    """Memory of this process, 0 where that cannot be read.

    Args:
        field: Which column of `/proc/self/statm`.
    """
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[field]) * _PAGE_BYTES
    except (OSError, ValueError, LookupError) as error:
        if raised_by_user(error):
            raise
        return 0


Value = TypeVar("Value")


def log_of_this_process() -> Path:
    """Path of the log in which this process writes down a failure of ours."""
    return places(os.environ).run / "log" / f"worker-{os.getpid()}.log"


class Guard:
    """Runs our code; keeps the first failure with its stack, logs it once, and runs nothing any more after it.

    Except what is owed: a profiler of ours that stands when something fails still has to go.

    What the user's code raises while ours runs passes, and does not count as our failure: see `raised_by_user`.

    Args:
        log_path: Says where to write the failure down; asked only then.
        on_failure: Called once with the failure's one-line text, to make it visible to the agent.
        raises: Raise the failure as well. For our own tests.
    """

    def __init__(self, log_path: Callable[[], Path], on_failure: Callable[[str], None], raises: bool = False) -> None:
        self.failure: str | None = None
        self.stack = ""
        self._owed: Callable[[], bool] | None = None
        self._log_path = log_path
        self._on_failure = on_failure
        self._raises = raises

    def run(self, function: Callable[..., Value], *arguments: Any) -> Value | None:
        """Call `function`, unless something has failed before; None then and when it fails."""
        if self.failure is not None:
            return None
        try:
            return function(*arguments)
        except BaseException as error:  # this is the border
            if self.passes(error):
                without_us(error)
                raise
            return None

    def border(self, function: Callable[[Any], object]) -> Callable[..., None]:
        """`function` of one argument behind the border, for the hot path; further arguments are ignored.

        torch.compile calls it as it is, between two graphs, and does not look into it.
        """

        def guarded(argument: Any = None, *_ignored: Any) -> None:
            if self.failure is None:
                try:
                    function(argument)
                except BaseException as error:  # this is the border, too
                    if self.passes(error):
                        without_us(error)
                        raise
            elif self._owed is not None:
                self._pay()

        guarded._torchdynamo_disable = True  # type: ignore[attr-defined]
        return guarded

    def owe(self, act: Callable[[], bool]) -> None:
        """Keep an act that was begun before a failure and must end after it; called by `border` until it is True."""
        self._owed = act

    def clear(self) -> None:
        """Forget the failure: a forked child starts afresh."""
        self.failure, self.stack, self._owed = None, "", None

    def passes(self, error: BaseException) -> bool:
        """Return whether the user's code gets to see the error; write it down if it is ours."""
        if not isinstance(error, Exception) or raised_by_user(error):
            return True
        self._fail(error)
        return self._raises

    def _fail(self, error: Exception) -> None:
        self.failure = f"{type(error).__name__}: {error}"
        self.stack = "".join(traceback.format_exception(error))
        for act in (self._log, self._tell):
            try:
                act()
            except Exception as second:  # nowhere left to report to but here
                if raised_by_user(second):
                    raise
                self.stack += f"\nand then {type(second).__name__}: {second}"

    def _pay(self) -> None:
        act, self._owed = self._owed, None  # it may lead here again itself
        try:
            if act is not None and not act():
                self._owed = act
        except Exception as error:
            if raised_by_user(error):
                self._owed = act
                raise
            self.stack += f"\nand at last {type(error).__name__}: {error}"

    def _tell(self) -> None:
        self._on_failure(self.failure or "")

    def _log(self) -> None:
        path = self._log_path()
        private_directory(path.parent)
        appending = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with (
            spared(),
            os.fdopen(private_file(path, appending), "a", encoding="utf-8", errors="backslashreplace") as file,
        ):
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} Eroica stops watching this worker:\n{self.stack}\n")
