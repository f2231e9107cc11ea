"""The border between Eroica and the user's loop: nothing of ours passes it."""

from __future__ import annotations

import inspect
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from eroica.wire.places import places, private_directory, private_file
from eroica.worker.limits import spared

Value = TypeVar("Value")


def log_of_this_process() -> Path:
    """Path of the log in which this process writes down a failure of ours."""
    return places(os.environ).run / "log" / f"worker-{os.getpid()}.log"


def raised_by_signal_handler(error: BaseException) -> bool:
    """Return whether a signal's handler raised the error beneath the calling function.

    Such are a time limit, a preemption, or a loader child that died.

    The interpreter hands a handler the frame that it interrupts, which no ordinary call does. Handlers that are not
    written in Python cannot be told apart.
    """
    trace = error.__traceback__ and error.__traceback__.tb_next
    while trace is not None:
        if _was_handed_its_caller(trace.tb_frame):
            return True
        trace = trace.tb_next
    return False


def _was_handed_its_caller(frame: FrameType) -> bool:
    caller, code = frame.f_back, frame.f_code
    if caller is None:
        return False
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    variables = frame.f_locals
    for name in code.co_varnames[:count]:
        given = variables.get(name)
        if given is caller or (type(given) is tuple and any(one is caller for one in given)):
            return True
    return False


class Guard:
    """Runs our code; keeps the first failure with its stack, logs it once, and runs nothing any more after it.

    Except what is owed: a profiler of ours that stands when something fails still has to go.

    KeyboardInterrupt, SystemExit and the like are the user's and pass, and so does what a signal's handler raises while
    our code runs: neither counts as our failure.

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
        except Exception as error:  # this is the border
            if self.passes(error):
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
                except Exception as error:  # this is the border, too
                    if self.passes(error):
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

    def passes(self, error: Exception) -> bool:
        """Return whether the user's code gets to see the error; write it down if it is ours."""
        if raised_by_signal_handler(error):
            return True
        self._fail(error)
        return self._raises

    def _fail(self, error: Exception) -> None:
        self.failure = f"{type(error).__name__}: {error}"
        self.stack = "".join(traceback.format_exception(error))
        for act in (self._log, self._tell):
            try:
                act()
            except Exception as second:  # noqa: BLE001 - nowhere left to report to but here
                self.stack += f"\nand then {type(second).__name__}: {second}"

    def _pay(self) -> None:
        act, self._owed = self._owed, None  # it may lead here again itself
        try:
            if act is not None and not act():
                self._owed = act
        except Exception as error:
            if raised_by_signal_handler(error):
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
