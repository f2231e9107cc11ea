"""Keep the verdicts on standstills that hold: until a worker moves, or the job is started again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from eroica.collector.resume import History
from eroica.collector.windows import Windows
from eroica.model.window import Window
from eroica.wire.messages import WorkerStatus

Fate = Literal["passed", "restarted"]


class Holding:
    """Verdicts on standstills of one job.

    Attributes:
        passed: Windows of standstills that ended by themselves; they make no final verdict.
        lapsed: These, and those of standstills after which the job was started again.
        outlived: How many verdicts of `passed` ended under this collector.
    """

    def __init__(self, windows: Windows) -> None:
        self.passed: set[int] = set()
        self.lapsed: set[int] = set()
        self.outlived = 0
        self._windows = windows
        self._standing: dict[int, Window] = {}
        self._earlier: set[int] = set()
        self._fates: dict[int, Fate] = {}

    @property
    def standing(self) -> frozenset[int]:
        """Windows of standstills in which no worker has moved since: those that are "blocked", else the unexplained."""
        return self.blocked or frozenset(self._standing)

    @property
    def blocked(self) -> frozenset[int]:
        """Windows of standstills that hold and whose cause is known."""
        return frozenset(i for i in self._standing if self._windows.verdicts[i].verdict == "blocked")

    def judged(self, window: Window) -> None:
        """The window has its verdict, which holds if nothing has become of the standstill meanwhile."""
        self._standing[window.window_id] = window
        fate = self._fates.pop(window.window_id, None)
        if fate is not None:
            self.seal(window.window_id, fate)

    def foretell(self, window_id: int, fate: Fate) -> None:
        """The verdict of this window, which is still being made, will not hold."""
        self._fates[window_id] = fate

    def is_foretold(self, window_id: int) -> bool:
        """Return whether it is known already that a verdict of this window does not hold."""
        return window_id in self._fates

    def seal(self, window_id: int, fate: Fate) -> None:
        """A verdict holds no longer: what stood still went on by itself, or the job was started again."""
        window = self._standing.pop(window_id, None)
        self._earlier.discard(window_id)
        if window is None:
            return
        self.lapsed.add(window_id)
        if fate == "passed":
            self.passed.add(window_id)
            self.outlived += 1
        self._windows.show(window, fate, self._windows.verdicts.get(window_id))

    def all_passed(self) -> None:
        """The job came to its end after all."""
        for window_id in sorted(self._standing):
            self.seal(window_id, "passed")

    def restarted(self) -> None:
        """A new generation of workers: what was found before stays found, but does not hold any more."""
        for window_id in sorted(self._standing):
            self._windows.note(f"window {window_id} says why the job stood still; after that it was started again")
            self.seal(window_id, "restarted")

    def outdate(self, workers: Iterable[WorkerStatus]) -> None:
        """Keep verdicts of a collector before this one until a worker gets further."""
        farthest = max((status.iteration for status in workers if not status.ended), default=-1)
        for window_id in sorted(self._earlier):
            last = self._standing[window_id].last_iteration
            if farthest > last:
                self._windows.note(f"window {window_id}: the job went on by itself after iteration {last}")
                self.seal(window_id, "passed")

    def resume(self, history: History) -> None:
        """Go on where a collector of the same job ended."""
        windows = {window.window_id: window for window in history.windows if window.purpose == "blocked"}
        phases = {line.window_id: line.phase for line in history.lines}
        for window_id, _ in history.verdicts:
            if phases.get(window_id) == "passed":
                self.passed.add(window_id)
            elif phases.get(window_id) != "restarted" and window_id in windows:
                self._standing[window_id] = windows[window_id]
                self._earlier.add(window_id)
