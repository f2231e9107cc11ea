"""One process of ours beside the user's command: started, started again when it dies, ended without long waits."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable

from eroica.hardware.cpu import read_stat
from eroica.start import COLLECTOR_NICENESS, isolated

RESTART_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)
#: Starts of a process that each time ended by itself, in error: what it lacks (memory, disk) seldom comes back.
_MOST_FAILURES = 2
_LAST_WAIT_S = 2.0


class Helper:
    """One process of ours: the collector or the agent.

    Args:
        name: Which.
        environment: Of the process.
        mask: Signal mask of the process.
    """

    def __init__(self, name: str, environment: dict[str, str], mask: Iterable[int]) -> None:
        self.name = name
        self.problems: list[str] = []
        self.due: float | None = None
        self._environment = environment
        self._mask = set(mask)
        self._starts = self._failures = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, why: str = "") -> None:
        """Start it.

        Args:
            why: What became of the one before.

        Raises:
            OSError: No process can be started.
        """
        self.due = None
        self._starts += 1
        self._process = subprocess.Popen(
            isolated(f"eroica.{self.name}", niceness=COLLECTOR_NICENESS if self.name == "collector" else 0),
            env={**self._environment, **({"EROICA_RESUME": why} if why else {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # the terminal's Ctrl-C is for the training
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, self._mask) and None,  # noqa: PLW1509 - no threads here
        )

    def tend(self, now: float) -> None:
        """Notice its end; start it again when that is due. One that ended in order stays ended."""
        if self.due is None:
            if self.running or self.ended_in_order or self._process is None:
                return
            self._plan(now, self._end_in_words())
        elif now >= self.due:
            try:
                self.start(self.problems[-1])
            except OSError as error:
                self._plan(now, f"could not be started: {error.strerror}")

    def revive(self) -> None:
        """Start it again at once if it died, however often it did."""
        if self.due is not None or not (self.running or self.ended_in_order):
            with contextlib.suppress(OSError):
                self.start(self.problems[-1] if self.problems else self._end_in_words())

    def _plan(self, now: float, why: str) -> None:
        """Start it again after a pause that grows, or not at all any more."""
        self._end_group()
        self._failures += self._process is not None and (self._process.poll() or 0) > 0
        if self._starts > len(RESTART_PAUSES_S) or self._failures >= _MOST_FAILURES:
            self._process = None
            self.problems = [f"the {self.name} {why}; it was started {self._starts} times and is left alone now"]
            return
        times = f" (start {self._starts + 1})" if self._starts > 1 else ""
        self.problems = [f"the {self.name} {why}, and was started again{times}"]
        self.due = now + RESTART_PAUSES_S[self._starts - 1]

    # ------------------------------------------------------------------ how it is

    @property
    def pid(self) -> int:
        """Its process id; 0 without one."""
        return 0 if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        """It has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def ended_in_order(self) -> bool:
        """It ended because it was done."""
        return self._process is not None and self._process.poll() == 0

    @property
    def stopped(self) -> bool:
        """Somebody sent it SIGSTOP, or holds it in a debugger."""
        return self._process is not None and read_stat(self._process.pid)[:1] in ([b"T"], [b"t"])

    def _end_in_words(self) -> str:
        from eroica.model.words import signal_name

        status = None if self._process is None else self._process.poll()
        if status is None:
            return "could not be started"
        return f"ended with status {status}" if status >= 0 else f"was ended by {signal_name(-status)}"

    # ------------------------------------------------------------------ its end

    def end(self, patience_s: float, grace_s: float = 1.5) -> None:
        """Wait for it, then ask it to end, then kill it; one that is stopped is killed at once."""
        self.due = None
        process = self._process
        if process is None:
            return
        for wait_s, ask in ((patience_s, process.terminate), (grace_s, self._end_group)):
            end = time.monotonic() + wait_s
            while process.poll() is None and time.monotonic() < end and not self.stopped:
                time.sleep(0.02)
            if process.poll() is not None:
                return
            ask()
        with contextlib.suppress(subprocess.TimeoutExpired):  # not even SIGKILL ends who waits for a dead disk
            process.wait(_LAST_WAIT_S)

    def drop(self) -> None:
        """End it at once: nothing that it could still do is wanted."""
        self._end_group()
        self.end(0.0, 0.0)
        self._process = None

    def ask_to_end(self) -> None:
        """It has nothing more to wait for."""
        if self._process is not None:
            self._process.terminate()

    def _end_group(self) -> None:
        """Kill it with the samplers that it started; they are in its session."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
