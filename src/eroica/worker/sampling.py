"""Sample Python stacks from inside, for one window, where no process may look in from outside."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from eroica.wire.places import write_private
from eroica.worker.pristine import Flag, Thread, get_ident, monotonic, monotonic_ns, python_threads

Stack = tuple[CodeType, ...]


def _stack(frame: FrameType | None) -> Stack:
    """Code of all frames, outermost first."""
    codes = []
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back
    codes.reverse()
    return tuple(codes)


class StackSampler:
    """A thread that notes every thread's stack at a fixed rate, and only what has changed since the last time.

    Args:
        rate_hz: Samples per second.
        run: Runs our code behind the guest's border.

    Attributes:
        failure: Why sampling ended before it was told to; empty if it did not.
    """

    def __init__(self, rate_hz: int, run: Callable[..., Any]) -> None:
        self._period_s = 1.0 / rate_hz
        self._rate_hz = rate_hz
        self._stop = Flag()
        self._start_ns = 0
        self._last: dict[int, Stack] = {}
        self._changes: list[tuple[int, int, Stack]] = []  # time, thread ident, stack from then on
        self._names: dict[int, str] = {}
        self._end_ns: int | None = None  # since the start; until sampling failed there is none
        self.failure = ""
        self._thread = Thread(functools.partial(run, self._sample_if_possible))

    def start(self) -> None:
        """Sample until `stop`."""
        self._start_ns = monotonic_ns()
        self._thread.start()

    def stop(self) -> None:
        """Take no more samples; does not wait."""
        self._stop.set()

    def save(self, directory: Path) -> Path:
        """Write `stacks.json` and `stacks.meta.json` in py-spy's chrometrace form.

        Raises:
            OSError: The directory cannot be written.
        """
        self._thread.join(1.0)
        path = directory / "stacks.json"
        write_private(path, json.dumps(list(self._events())).encode())
        meta = {"start_monotonic_ns": self._start_ns, "rate_hz": self._rate_hz, "source": "thread"}
        write_private(directory / "stacks.meta.json", json.dumps(meta).encode())
        return path

    def _sample_if_possible(self) -> None:
        try:
            self._sample_until_stopped()
        except Exception as error:  # noqa: BLE001 - costs this window its stacks, not the worker its watching
            self._end_ns = monotonic_ns() - self._start_ns
            self.failure = f"{type(error).__name__}: {error}"

    def _sample_until_stopped(self) -> None:
        due = monotonic()
        while not self._stop.wait(max(0.0, due - monotonic())):
            self._sample()
            due = max(due + self._period_s, monotonic() - 10 * self._period_s)

    def _sample(self) -> None:
        now = monotonic_ns() - self._start_ns
        frames = sys._current_frames()
        frames.pop(get_ident(), None)
        for ident, frame in frames.items():
            stack = _stack(frame)
            if self._last.get(ident) != stack:
                self._note(now, ident, stack)
        for ident in self._last.keys() - frames.keys():
            self._note(now, ident, ())
        frames.clear()

    def _note(self, now: int, ident: int, stack: Stack) -> None:
        self._changes.append((now, ident, stack))
        if not stack:
            self._last.pop(ident, None)
            return
        self._last[ident] = stack
        if ident not in self._names:
            named = (thread for thread in python_threads() if thread.ident == ident)
            self._names[ident] = next((f"thread ({t.native_id}): {t.name}" for t in named), f"thread ({ident})")

    # ------------------------------------------------------------------ what py-spy would have written

    def _events(self) -> Iterator[dict[str, Any]]:
        end = self._end_ns if self._end_ns is not None else monotonic_ns() - self._start_ns
        before: dict[int, Stack] = {}
        closing = [(end, ident, ()) for ident in self._last]
        for moment, ident, stack in [*self._changes, *closing]:
            old = before.get(ident, ())
            shared = next((i for i, (a, b) in enumerate(zip(old, stack, strict=False)) if a is not b), None)
            kept = min(len(old), len(stack)) if shared is None else shared
            for code in reversed(old[kept:]):
                yield self._event("E", moment, ident, *_names_of(code))
            if old and not stack:
                yield from (self._event("E", moment, ident, name) for name in reversed(self._outermost(ident)))
            if stack and not old:
                yield from (self._event("B", moment, ident, name) for name in self._outermost(ident))
            for code in stack[kept:]:
                yield self._event("B", moment, ident, *_names_of(code))
            before[ident] = stack

    def _outermost(self, ident: int) -> tuple[str, str]:
        return f'process {os.getpid()}:"{" ".join(sys.argv)}"', self._names.get(ident, f"thread ({ident})")

    @staticmethod
    def _event(phase: str, moment_ns: int, ident: int, name: str, file: str = "", line: int = 0) -> dict[str, Any]:
        return {
            "args": {"filename": file, "line": line},
            "cat": "eroica",
            "name": name,
            "ph": phase,
            "pid": os.getpid(),
            "tid": ident,
            "ts": moment_ns // 1000,
        }


def _names_of(code: CodeType) -> tuple[str, str, int]:
    return getattr(code, "co_qualname", code.co_name), code.co_filename, code.co_firstlineno
