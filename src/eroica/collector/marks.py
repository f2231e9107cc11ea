"""Mark each window, verdict, standstill and spell of triggers of a job with its time. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from eroica.collector.intake import clean_text
from eroica.collector.ledger import News
from eroica.model.history import Mark, MarkKind
from eroica.model.window import Window
from eroica.wire.messages import WorkerTrigger

MOST_MARKS = 500
#: Workers that ask again within this, or within so many iterations, still ask for the same reason.
_SPELL_S, _SPELL_ITERATIONS = 60.0, 100
#: A spell of triggers that goes on is not written down more often.
_STEP_S = 1.0
#: The capture is over, whatever became of it.
_CAPTURED = frozenset({"summarizing", "analysis", "done", "failed", "given up", "lost"})
#: Nobody stands still any more, or nobody ever did.
_MOVING = frozenset({"passed", "restarted", "given up", "failed"})

Key = tuple[str, int, float]
_NO_KEY: Key = ("", 0, 0.0)


class Marks:
    """Marks of one job by what tells them apart: kind, window and begin.

    Args:
        count: Called for each change; returns the version that the mark carries from then on.
    """

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count
        self._marks: dict[Key, tuple[int, Mark]] = {}
        self._trigger: Key | None = None
        self._ordered: tuple[Window, float] | None = None
        self._open: dict[int, Key] = {}

    @property
    def awaits(self) -> bool:
        """A window was ordered, or is open: how far all workers are tells when it begins and ends."""
        return self._ordered is not None

    def since(self, version: int) -> tuple[Mark, ...]:
        """Marks that are newer than a version, or were changed later, in order of time."""
        found = (mark for own, mark in self._marks.values() if own > version)
        return tuple(sorted(found, key=lambda mark: mark.at_s))

    def resume(self, marks: Iterable[Mark], until_s: float) -> None:
        """Marks of a collector before this one; what was open then ended with it."""
        for mark in marks:
            lasts = mark.kind in ("window", "baseline", "blocked") and mark.until_s is None
            key = self._put(msgspec.structs.replace(mark, until_s=max(until_s, mark.at_s)) if lasts else mark)
            if mark.kind == "trigger":
                self._trigger = key

    # ------------------------------------------------------------------ events in

    def triggered(self, at_s: float, rank: int, iteration: int, trigger: WorkerTrigger) -> None:
        """Mark a trigger; one soon after another makes the same mark longer."""
        _, known = self._marks.get(self._trigger or _NO_KEY, (0, None))
        if known is not None:
            quiet_s = at_s - (known.until_s or known.at_s)
            if quiet_s < max(_SPELL_S, _SPELL_ITERATIONS * trigger.current_s):
                if quiet_s >= _STEP_S:
                    self._put(msgspec.structs.replace(known, until_s=at_s))
                return
        mark = Mark(kind="trigger", at_s=at_s, iteration=iteration, text=clean_text(f"worker {rank}: {trigger.reason}"))
        self._trigger = self._put(mark)

    def reached(self, at_s: float, iteration: int) -> None:
        """All workers have completed this iteration."""
        if self._ordered is None:
            return
        window, _ = self._ordered
        if window.window_id not in self._open and iteration >= window.first_iteration:
            self._begin(window, at_s)
        if iteration >= window.last_iteration:
            self._ordered = None
            self._end(window.window_id, at_s)

    def shown(self, at_s: float, iteration: int, still_since_s: float, news: News) -> None:
        """A window, or the look at a standstill, came into another phase.

        Args:
            at_s: When.
            iteration: The lowest that all workers had completed then.
            still_since_s: When anybody last completed an iteration.
            news: What changed.
        """
        if news.window.kind == "blocked":
            self._stood(at_s, still_since_s, news)
        else:
            self._captured(at_s, news)
        if news.verdict is not None and news.phase == "done":
            text, window_id = clean_text(news.verdict.summary), news.window.window_id
            self._put(Mark(kind="verdict", at_s=at_s, iteration=iteration, window_id=window_id, text=text))

    # ------------------------------------------------------------------ windows and standstills

    def _captured(self, at_s: float, news: News) -> None:
        window = news.window
        if news.phase == "window":
            self._ordered = window, at_s
        if news.phase not in _CAPTURED:
            return
        if self._ordered is not None and self._ordered[0].window_id == window.window_id:
            if window.window_id not in self._open and news.phase == "summarizing":
                self._begin(window, self._ordered[1])
            self._ordered = None
        self._end(window.window_id, at_s)

    def _stood(self, at_s: float, still_since_s: float, news: News) -> None:
        window = news.window
        if window.window_id not in self._open and news.phase in ("looking", "examining"):
            self._begin(window, min(still_since_s, at_s), "blocked")
        elif news.phase in _MOVING or (news.phase == "done" and news.verdict is None):
            self._end(window.window_id, at_s)

    def _begin(self, window: Window, at_s: float, kind: MarkKind = "window") -> None:
        mark = Mark(
            kind="baseline" if window.purpose == "baseline" else kind,
            at_s=at_s,
            iteration=window.first_iteration,
            last_iteration=window.last_iteration if kind == "window" else None,
            window_id=window.window_id,
            text=clean_text(window.reason),
        )
        self._open[window.window_id] = self._put(mark)

    def _end(self, window_id: int, at_s: float) -> None:
        _, mark = self._marks.get(self._open.pop(window_id, _NO_KEY), (0, None))
        if mark is not None:
            self._put(msgspec.structs.replace(mark, until_s=max(at_s, mark.at_s)))

    def _put(self, mark: Mark) -> Key:
        """Keep it; where there are too many, the oldest go, triggers first: each that counted left a window, too."""
        key = mark.kind, mark.window_id, mark.at_s
        self._marks[key] = self._count(), mark
        if len(self._marks) > MOST_MARKS:
            del self._marks[min(self._marks, key=lambda key: (key[0] != "trigger", key[2]))]
        return key
