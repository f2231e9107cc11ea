"""The border between Eroica and the user's loop: nothing of ours passes it."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Value = TypeVar("Value")


class Guard:
    """Runs our code; keeps the first failure with its stack, logs it once, and runs nothing any more after it.

    KeyboardInterrupt, SystemExit and the like are the user's and pass.

    Args:
        log_path: Says where to write the failure down; asked only then.
        on_failure: Called once with the failure's one-line text, to make it visible to the agent.
        raises: Raise the failure as well. For our own tests.
    """

    def __init__(self, log_path: Callable[[], Path], on_failure: Callable[[str], None], raises: bool = False) -> None:
        self.failure: str | None = None
        self.stack = ""
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
            self._fail(error)
            if self._raises:
                raise
            return None

    def border(self, function: Callable[[Any], object]) -> Callable[..., None]:
        """`function` of one argument behind the border, for the hot path; further arguments are ignored."""

        def guarded(argument: Any = None, *_ignored: Any) -> None:
            if self.failure is None:
                try:
                    function(argument)
                except Exception as error:  # this is the border, too
                    self._fail(error)
                    if self._raises:
                        raise

        return guarded

    def clear(self) -> None:
        """Forget the failure: a forked child starts afresh."""
        self.failure, self.stack = None, ""

    def _fail(self, error: Exception) -> None:
        self.failure = f"{type(error).__name__}: {error}"
        self.stack = "".join(traceback.format_exception(error))
        for act in (self._log, self._tell):
            try:
                act()
            except Exception as second:  # noqa: BLE001 - nowhere left to report to but here
                self.stack += f"\nand then {type(second).__name__}: {second}"

    def _tell(self) -> None:
        self._on_failure(self.failure or "")

    def _log(self) -> None:
        path = self._log_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} Eroica stops watching this worker:\n{self.stack}\n")
