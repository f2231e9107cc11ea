"""Mark each window, verdict, standstill and spell of triggers of a job with its time. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from eroica.collector.intake import clean_text
from eroica.collector.ledger import News
from eroica.model.history import Mark
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


class Marks:
    """Marks of one job by what tells them apart: kind, window and begin."""

    def __init__(self) -> None:
        self._marks: dict[Key, Mark] = {}
        self._versions: dict[Key, int] = {}
        self._trigger: Key | None = None
        self._ordered: tuple[Window, float] | None = None
        self._open: dict[int, Key] = {}

    @property
    def awaits(self) -> bool:
        """A window was ordered, or is open: how far all workers are tells when it begins and ends."""
        return self._ordered is not None

    def all(self) -> tuple[Mark, ...]:
        """All marks in order of time."""
        return _in_order(self._marks.values())

    def since(self, version: int) -> tuple[Mark, ...]:
        """Marks that are newer than a version, or were changed later."""
        return _in_order(mark for key, mark in self._marks.items() if self._versions[key] > version)

    def resume(self, marks: Iterable[Mark], until_s: float) -> None:
        """Marks of a collector before this one; what was open then ended with it."""
        for mark in marks:
            lasts = mark.kind in ("window", "baseline", "blocked") and mark.until_s is None
            self._put(msgspec.structs.replace(mark, until_s=max(until_s, mark.at_s)) if lasts else mark, 0)
            if mark.kind == "trigger":
                self._trigger = _key(mark)

    # ------------------------------------------------------------------ events in

    def triggered(self, at_s: float, version: int, rank: int, iteration: int, trigger: WorkerTrigger) -> bool:
        """Mark a trigger; one soon after another makes the same mark longer.

        Returns:
            Whether anything changed.
        """
        known = self._marks.get(self._trigger) if self._trigger is not None else None
        if known is not None:
            last_s = known.until_s or known.at_s
            if at_s - last_s < max(_SPELL_S, _SPELL_ITERATIONS * trigger.current_s):
                if at_s - last_s < _STEP_S:
                    return False
                self._put(msgspec.structs.replace(known, until_s=at_s), version)
                return True
        mark = Mark(kind="trigger", at_s=at_s, iteration=iteration, text=clean_text(f"worker {rank}: {trigger.reason}"))
        self._trigger = self._put(mark, version)
        return True

    def reached(self, at_s: float, version: int, iteration: int) -> bool:
        """All workers have completed this iteration.

        Returns:
            Whether anything changed.
        """
        if self._ordered is None:
            return False
        window, _ = self._ordered
        began = window.window_id not in self._open and iteration >= window.first_iteration
        if began:
            self._begin(window, at_s, version)
        if iteration >= window.last_iteration:
            self._ordered = None
            self._end(window.window_id, at_s, version)
            return True
        return began

    def shown(self, at_s: float, version: int, iteration: int, still_since_s: float, news: News) -> bool:
        """A window, or the look at a standstill, came into another phase.

        Args:
            at_s: When.
            version: What the marks it makes carry.
            iteration: The lowest that all workers had completed then.
            still_since_s: When anybody last completed an iteration.
            news: What changed.

        Returns:
            Whether anything changed.
        """
        if news.window.kind == "blocked":
            changed = self._stood(at_s, version, still_since_s, news)
        else:
            changed = self._captured(at_s, version, news)
        if news.verdict is not None and news.phase == "done":
            text, window_id = clean_text(news.verdict.summary), news.window.window_id
            self._put(Mark(kind="verdict", at_s=at_s, iteration=iteration, window_id=window_id, text=text), version)
            return True
        return changed

    # ------------------------------------------------------------------ windows and standstills

    def _captured(self, at_s: float, version: int, news: News) -> bool:
        window = news.window
        if news.phase == "window":
            self._ordered = window, at_s
            return False
        if news.phase not in _CAPTURED:
            return False
        if self._ordered is not None and self._ordered[0].window_id == window.window_id:
            if window.window_id not in self._open and news.phase == "summarizing":
                self._begin(window, self._ordered[1], version)
            self._ordered = None
        return self._end(window.window_id, at_s, version)

    def _stood(self, at_s: float, version: int, still_since_s: float, news: News) -> bool:
        window = news.window
        if window.window_id not in self._open and news.phase in ("looking", "examining"):
            self._open[window.window_id] = self._put(
                Mark(
                    kind="blocked",
                    at_s=min(still_since_s, at_s),
                    iteration=window.first_iteration,
                    window_id=window.window_id,
                    text=clean_text(window.reason),
                ),
                version,
            )
            return True
        is_over = news.phase in _MOVING or (news.phase == "done" and news.verdict is None)
        return is_over and self._end(window.window_id, at_s, version)

    def _begin(self, window: Window, at_s: float, version: int) -> None:
        mark = Mark(
            kind="baseline" if window.purpose == "baseline" else "window",
            at_s=at_s,
            iteration=window.first_iteration,
            last_iteration=window.last_iteration,
            window_id=window.window_id,
            text=clean_text(window.reason),
        )
        self._open[window.window_id] = self._put(mark, version)

    def _end(self, window_id: int, at_s: float, version: int) -> bool:
        mark = self._marks.get(self._open.pop(window_id, ("", 0, 0.0)))
        if mark is None:
            return False
        self._put(msgspec.structs.replace(mark, until_s=max(at_s, mark.at_s)), version)
        return True

    # ------------------------------------------------------------------ room

    def _put(self, mark: Mark, version: int) -> Key:
        key = _key(mark)
        self._marks[key], self._versions[key] = mark, version
        if len(self._marks) > MOST_MARKS:
            self._forget_oldest()
        return key

    def _forget_oldest(self) -> None:
        """Triggers go first: each of them that counted left a window, too."""
        oldest = min(self._marks, key=lambda key: (key[0] != "trigger", key[2]))
        del self._marks[oldest], self._versions[oldest]


def _key(mark: Mark) -> Key:
    return mark.kind, mark.window_id, mark.at_s


def _in_order(marks: Iterable[Mark]) -> tuple[Mark, ...]:
    return tuple(sorted(marks, key=lambda mark: mark.at_s))
