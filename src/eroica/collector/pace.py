"""Keep a job's iteration times over its life, from the reports of its agents: pure bookkeeping, no I/O.

Reports come a few times a second from each host and say how long the iterations since the one before took. They are
added up worker by worker until a stretch of about a second is full, or, where iterations are longer, until everybody
has completed one. The newest stretches stay as they are, older ones are thinned evenly. Views draw them, and they say
whether the job ended slower than it had been. Each window, verdict, standstill and spell of triggers is marked beside
them with its time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from eroica.collector.intake import clean_text
from eroica.collector.ledger import News
from eroica.collector.participants import WorkerKey
from eroica.model.history import IterationHistory, Mark, MarkKind
from eroica.model.lost import Lost, lost_at_end
from eroica.model.window import Window
from eroica.wire.messages import WorkerStatus, WorkerTrigger

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

    Attributes:
        ordered: The window that was ordered or is open, and when: how far workers are tells its begin and end.
    """

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count
        self._marks: dict[Key, tuple[int, Mark]] = {}
        self._trigger: Key | None = None
        self.ordered: tuple[Window, float] | None = None
        self._open: dict[int, Key] = {}

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
        if self.ordered is None:
            return
        window, _ = self.ordered
        if window.window_id not in self._open and iteration >= window.first_iteration:
            self._begin(window, at_s)
        if iteration >= window.last_iteration:
            self.ordered = None
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
            self.ordered = window, at_s
        if news.phase not in _CAPTURED:
            return
        if self.ordered is not None and self.ordered[0].window_id == window.window_id:
            if window.window_id not in self._open and news.phase == "summarizing":
                self._begin(window, self.ordered[1])
            self.ordered = None
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


#: A stretch that lasts so long is due: it ends a moment later, after about a second.
_DUE_S = 0.75
#: Hosts report at least so often, and of a worker that is ahead of the others so many reports are kept.
_TOLD_S, _MOST_PIECES = 0.25, 64
#: Who completes nothing for so long while others do, or for this share of an iteration, is not waited for...
_PATIENCE_S, _PATIENCE_SHARE = 0.75, 0.25
#: ...nor after this, however long iterations are said to be.
_LONGEST_PATIENCE_S = 10.0
#: A stretch that ends so long after a window was in it, or in what follows the window.
_AFTER_WINDOW_S = 2.0
#: The newest stretches, which stay as they are (five minutes, where iterations are short), and most of all.
FINE, _MOST = 300, 2000


class PaceUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """Iteration times and marks that are new since a version.

    Attributes:
        version: Hand it to `Pace.since` next time.
        whole: `news` is everything there is; else stretches are to be added at the end, and each mark takes the place
            of the one with the same kind, window id and begin, or is a new one.
        news: The columns of new stretches; marks that are new or were changed.
    """

    version: int
    whole: bool
    news: IterationHistory


class Stretch(NamedTuple):
    """One value of each column of `IterationHistory`."""

    at_s: float
    iteration: int
    mean_ms: float
    slowest_ms: float
    slowest_worker: int


@dataclass
class _Course:
    """Iterations and seconds of a worker that no stretch holds yet, report by report."""

    rank: int
    pieces: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_MOST_PIECES))

    @property
    def count(self) -> int:
        """Iterations."""
        return sum(count for count, _ in self.pieces)

    def take(self, count: int) -> float:
        """Take away its first iterations, so many, which it has; return their seconds."""
        spent_s = 0.0
        while count:
            several, each_s = self.pieces.popleft()
            taken = min(several, count)
            if several > taken:
                self.pieces.appendleft((several - taken, each_s))
            spent_s += taken * each_s
            count -= taken
        return spent_s


@dataclass
class _Host:
    """Last report of a host's agent: of each process its completed iterations and triggers."""

    iterations: dict[int, int] = field(default_factory=dict)
    triggers: dict[int, int] = field(default_factory=dict)
    lowest: int | None = None


class Pace:
    """Iteration times of one job.

    Args:
        job: Its name.
        wall: Seconds since 1970, now.
        now: The same moment on the clock that all other calls use.

    Attributes:
        version: Grows with every stretch and every change of a mark, also beyond a restart of the collector.
    """

    def __init__(self, job: str, wall: float, now: float) -> None:
        self.version = self._whole_until = int(wall * 1000)
        self._job = job
        self._wall = wall
        self._now = now
        self._began = round(wall, 3)
        self._start = now
        self._stretches: list[tuple[int, Stretch]] = []
        self._marks = Marks(self._count)
        self._hosts: dict[str, _Host] = {}
        self._courses: dict[WorkerKey, _Course] = {}
        self._moved: set[WorkerKey] = set()
        self._closed_at = self._first_at = self._last_at = now
        self._reached = 0

    # ------------------------------------------------------------------ events in

    def reported(self, now: float, host: str, workers: Sequence[WorkerStatus]) -> None:
        """A host's agent told the state of its workers.

        Args:
            now: Seconds.
            host: Its name.
            workers: All workers of this host that are listened to.
        """
        if not workers:
            self._hosts.pop(host, None)
            return
        self._take(now, host, self._hosts.setdefault(host, _Host()), workers)
        self._close_if_due(now)

    def tick(self, now: float) -> None:
        """Time passed; this looks at all hosts, a report at its own only."""
        if self._marks.ordered is not None:
            self._marks.reached(self._at_s(now), self._lowest())
        self._close_if_due(now)

    def shown(self, now: float, news: News) -> None:
        """A window came into another phase."""
        self._marks.shown(self._at_s(now), self._lowest(), self._at_s(self._last_at), news)

    def resume(self, history: IterationHistory) -> None:
        """Go on with what a collector of the same job kept; before anything else."""
        last_s = max(history.at_s[-1:], default=0.0)
        since_s = max(self._wall - history.began, last_s)  # its clock may have been another one
        self._began = history.began
        self._start = self._now - since_s
        version = self._count()
        columns = (getattr(history, name) for name in Stretch._fields)
        self._stretches = [(version, Stretch._make(row)) for row in zip(*columns, strict=True)]
        self._make_room()
        self._reached = history.iteration[-1] if history.iteration else 0
        self._marks.resume(history.marks, last_s)

    # ------------------------------------------------------------------ views

    def loss(self, *, is_traced: bool) -> Lost | None:
        """Compare the end of the job with its best level, milliseconds; None where it was too short.

        Stretches in which windows were open do not count.

        Args:
            is_traced: A window traced devices, which leaves iterations longer: what was before it is no past.
        """
        opened = (mark for mark in self._marks.since(-1) if mark.kind in ("window", "baseline"))
        spans = [(mark.at_s, mark.until_s + _AFTER_WINDOW_S) for mark in opened if mark.until_s is not None]
        since = min((end for _, end in spans), default=0.0) if is_traced else 0.0
        free = (one for _, one in self._stretches if not any(start <= one.at_s <= end for start, end in spans))
        return lost_at_end([one.mean_ms for one in free if one.at_s >= since])

    def history(self) -> IterationHistory:
        """Everything, as it is kept on disk."""
        return self._record(-1)

    def since(self, version: int) -> PaceUpdate:
        """Return everything that is new since a version that an earlier call told; 0 for everything."""
        whole = not self._whole_until <= version <= self.version
        return PaceUpdate(version=self.version, whole=whole, news=self._record(-1 if whole else version))

    def _record(self, version: int) -> IterationHistory:
        newer = len(self._stretches)
        while newer and self._stretches[newer - 1][0] > version:
            newer -= 1
        found = [stretch for _, stretch in self._stretches[newer:]]
        columns = zip(*found, strict=True) if found else ((),) * len(Stretch._fields)
        return IterationHistory(
            job=self._job,
            began=self._began,
            **dict(zip(Stretch._fields, columns, strict=True)),
            marks=self._marks.since(version),
        )

    # ------------------------------------------------------------------ stretches

    def _take(self, now: float, name: str, host: _Host, workers: Sequence[WorkerStatus]) -> None:
        """Add up what was completed since the host's last report."""
        before, iterations, lowest = host.iterations, dict[int, int](), None
        for status in workers:
            worker, done = status.worker, status.iteration
            iterations[worker.pid] = done
            if not status.ended:
                lowest = done if lowest is None or done < lowest else lowest
            since, key = before.get(worker.pid, done - 1), (name, worker.pid)
            if worker.pid not in before:
                self._courses.setdefault(key, _Course(worker.global_rank))
            if status.latest_s is not None and done > since:
                self._last_at = now
                self._first_at = self._first_at if self._moved else now
                course = self._courses.setdefault(key, _Course(worker.global_rank))
                course.pieces.append((done - since, status.latest_s))
                self._moved.add(key)
            if status.trigger is not None and host.triggers.get(worker.pid) != status.trigger.count:
                host.triggers[worker.pid] = status.trigger.count
                self._marks.triggered(self._at_s(now), worker.global_rank, done, status.trigger)
        if len(host.triggers) > 2 * len(iterations):
            host.triggers = {pid: count for pid, count in host.triggers.items() if pid in iterations}
        host.iterations, host.lowest = iterations, lowest

    def _close_if_due(self, now: float) -> None:
        """End the stretch if it is long enough, and everybody is in it who will be.

        It holds equally many iterations of all workers: a host that reports right behind an iteration in which
        everybody paused tells of it, the others do so a moment later. What was completed beyond that is the next one's.
        """
        usual_s = self._stretches[-1][1].mean_ms / 1e3 if self._stretches else 0.0
        patience_s = min(max(_PATIENCE_S, _PATIENCE_SHARE * usual_s), _LONGEST_PATIENCE_S)
        waited_s = now - max(self._closed_at + _DUE_S, self._first_at) - _TOLD_S
        if not self._moved or waited_s < (patience_s if len(self._moved) < len(self._courses) else 0.0):
            return
        self._courses = {key: course for key, course in self._courses.items() if key in self._moved}
        count = min(course.count for course in self._courses.values())
        means_s = {course.rank: course.take(count) / count for course in self._courses.values()}
        self._moved = {key for key, course in self._courses.items() if course.pieces}
        slowest = max(means_s, key=means_s.__getitem__)
        stretch = Stretch(
            at_s=self._at_s(now),
            iteration=self._lowest(),
            mean_ms=round(1e3 * sum(means_s.values()) / len(means_s), 3),
            slowest_ms=round(1e3 * means_s[slowest], 3),
            slowest_worker=slowest,
        )
        self._stretches.append((self._count(), stretch))
        self._make_room()
        self._closed_at = self._first_at = now

    def _make_room(self) -> None:
        """Join neighbors among the older stretches, where there are too many, to lengths that leave a third free."""
        if len(self._stretches) <= _MOST:
            return
        older, newest = self._stretches[:-FINE], self._stretches[-FINE:]
        longest_s, start_s = 3 * older[-1][1].at_s / (_MOST - FINE), 0.0
        kept = [older[0]]
        for version, stretch in older[1:]:
            if stretch.at_s - start_s <= longest_s:
                kept[-1] = version, merged(kept[-1][1], stretch, start_s)
            else:
                start_s = kept[-1][1].at_s
                kept.append((version, stretch))
        self._stretches, self._whole_until = [*kept, *newest], kept[-1][0]

    def _lowest(self) -> int:
        """The lowest iteration that all living workers have completed; what it was last if none lives any more."""
        known = (host.lowest for host in self._hosts.values() if host.lowest is not None)
        self._reached = min(known, default=self._reached)
        return self._reached

    def _at_s(self, now: float) -> float:
        return round(now - self._start, 3)

    def _count(self) -> int:
        self.version += 1
        return self.version


def merged(first: Stretch, second: Stretch, start_s: float) -> Stretch:
    """Two neighbors as one: the mean weighted by time, the slowest of both.

    Args:
        first: The earlier one.
        second: The one after it.
        start_s: When the earlier one began.
    """
    lasted = max(first.at_s - start_s, 0.0), max(second.at_s - first.at_s, 0.0)
    weight = lasted[1] / sum(lasted) if sum(lasted) > 0 else 0.5
    slowest = max(first, second, key=lambda stretch: stretch.slowest_ms)
    return Stretch(
        at_s=second.at_s,
        iteration=second.iteration,
        mean_ms=round(first.mean_ms + weight * (second.mean_ms - first.mean_ms), 3),
        slowest_ms=slowest.slowest_ms,
        slowest_worker=slowest.slowest_worker,
    )
