"""Keep a job's iteration times over its life, from the reports of its agents: pure bookkeeping, no I/O.

Reports come a few times a second from each host and say how long the iterations since the one before took. They are
added up worker by worker until a stretch of about a second is full, or, where iterations are longer, until everybody
has completed one. Views draw it, and it says whether the job ended slower than it had been.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from eroica.collector.ledger import News
from eroica.collector.marks import Marks
from eroica.collector.participants import WorkerKey
from eroica.collector.rounds import Round
from eroica.collector.thinned_times import Stretch, Stretches
from eroica.model.history import IterationHistory
from eroica.model.lost import Lost, lost_at_end
from eroica.wire.messages import WorkerStatus

#: A stretch that lasts so long is due: it ends a moment later, after about a second.
_DUE_S = 0.75
#: Who is not where the others are after so long, or after this share of an iteration, is not waited for...
_PATIENCE_S, _PATIENCE_SHARE = 0.75, 0.25
#: ...nor after this, however long iterations are said to be.
_LONGEST_PATIENCE_S = 10.0
#: A stretch that ends so long after a window was in it, or in what follows the window.
_AFTER_WINDOW_S = 2.0


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


class _Host:
    """Last report of a host's agent: of each process its completed iterations and triggers."""

    __slots__ = ("iterations", "lowest", "triggers")

    def __init__(self) -> None:
        self.iterations: dict[int, int] = {}
        self.triggers: dict[int, int] = {}
        self.lowest: int | None = None


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
        self.version = self._first_version = int(wall * 1000)
        self._job = job
        self._wall = wall
        self._now = now
        self._began = round(wall, 3)
        self._start = now
        self._stretches = Stretches()
        self._marks = Marks()
        self._hosts: dict[str, _Host] = {}
        self._round = Round()
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
        known = self._hosts.get(host)
        if not workers:
            self._hosts.pop(host, None)
            return
        if known is None:
            known = self._hosts[host] = _Host()
        self._take(now, host, known, workers)
        self._close_if_due(now)

    def tick(self, now: float) -> None:
        """Time passed; this looks at all hosts, a report at its own only."""
        if self._marks.awaits:
            at_s = round(now - self._start, 3)
            self._count(self._marks.reached(at_s, self.version + 1, self._lowest()))
        self._close_if_due(now)

    def shown(self, now: float, news: Iterable[News]) -> None:
        """Windows came into other phases."""
        for one in news:
            at_s, still_s = (round(moment - self._start, 3) for moment in (now, self._last_at))
            self._count(self._marks.shown(at_s, self.version + 1, self._lowest(), still_s, one))

    def resume(self, history: IterationHistory) -> None:
        """Go on with what a collector of the same job kept; before anything else."""
        last_s = max(history.at_s[-1:], default=0.0)
        since_s = max(self._wall - history.began, last_s)  # its clock may have been another one
        self._began = history.began
        self._start = self._now - since_s
        self.version += 1
        self._stretches.resume(self.version, history)
        self._reached = history.iteration[-1] if history.iteration else 0
        self._marks.resume(history.marks, last_s)

    # ------------------------------------------------------------------ views

    @property
    def latest(self) -> Stretch | None:
        """The newest stretch."""
        return self._stretches.last

    def loss(self, *, is_traced: bool) -> Lost | None:
        """Compare the end of the job with its best level, milliseconds; None where it was too short.

        Stretches in which windows were open do not count.

        Args:
            is_traced: A window traced devices, which leaves iterations longer: what was before it is no past.
        """
        opened = (mark for mark in self._marks.all() if mark.kind in ("window", "baseline"))
        spans = [(mark.at_s, mark.until_s + _AFTER_WINDOW_S) for mark in opened if mark.until_s is not None]
        since = min((end for _, end in spans), default=0.0) if is_traced else 0.0
        free = (one for one in self._stretches.all() if not any(start <= one.at_s <= end for start, end in spans))
        return lost_at_end([one.mean_ms for one in free if one.at_s >= since])

    def history(self) -> IterationHistory:
        """Everything, as it is kept on disk."""
        return self._record(self._stretches.all(), whole=True, version=0)

    def since(self, version: int) -> PaceUpdate:
        """Return everything that is new since a version that an earlier call told; 0 for everything."""
        newer = self._stretches.since(version) if self._first_version <= version <= self.version else None
        whole = newer is None
        found = self._stretches.all() if newer is None else newer
        return PaceUpdate(version=self.version, whole=whole, news=self._record(found, whole, version))

    def _record(self, found: Sequence[Stretch], whole: bool, version: int) -> IterationHistory:
        columns = zip(*found, strict=True) if found else ((),) * len(Stretch._fields)
        return IterationHistory(
            job=self._job,
            began=self._began,
            **dict(zip(Stretch._fields, columns, strict=True)),
            marks=self._marks.all() if whole else self._marks.since(version),
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
            if status.latest_s is not None:
                since = before.get(worker.pid, done - 1)
                if done > since:
                    self._last_at = now
                    if self._round.is_empty:
                        self._first_at = now
                    self._round.add((name, worker.pid), worker.global_rank, since, done, status.latest_s)
            if status.trigger is not None and host.triggers.get(worker.pid) != status.trigger.count:
                host.triggers[worker.pid] = status.trigger.count
                at_s = round(now - self._start, 3)
                told = self._marks.triggered(at_s, self.version + 1, worker.global_rank, done, status.trigger)
                self._count(told)
        if len(host.triggers) > 2 * len(iterations):
            host.triggers = {pid: count for pid, count in host.triggers.items() if pid in iterations}
        host.iterations, host.lowest = iterations, lowest

    def _close_if_due(self, now: float) -> None:
        """End the stretch if it is long enough, and everybody is in it who will be."""
        due_s = now - max(self._closed_at + _DUE_S, self._first_at)
        if self._round.is_empty or due_s < 0 or not self._round.is_over(due_s, self._patience_s, self._everybody()):
            return
        means = self._round.close()
        slowest, slowest_s = means.slowest
        stretch = Stretch(
            at_s=round(now - self._start, 3),
            iteration=self._lowest(),
            mean_ms=round(1e3 * means.mean_s, 3),
            slowest_ms=round(1e3 * slowest_s, 3),
            slowest_worker=slowest,
        )
        self.version += 1
        self._stretches.add(self.version, stretch)
        self._closed_at = self._first_at = now

    @property
    def _patience_s(self) -> float:
        last = self._stretches.last
        usual_s = last.mean_ms / 1e3 if last is not None else 0.0
        return min(max(_PATIENCE_S, _PATIENCE_SHARE * usual_s), _LONGEST_PATIENCE_S)

    def _everybody(self) -> Iterator[tuple[WorkerKey, int]]:
        for name, host in self._hosts.items():
            for pid, done in host.iterations.items():
                yield (name, pid), done

    def _lowest(self) -> int:
        """The lowest iteration that all living workers have completed; what it was last if none lives any more."""
        known = (host.lowest for host in self._hosts.values() if host.lowest is not None)
        self._reached = min(known, default=self._reached)
        return self._reached

    def _count(self, changed: bool) -> None:
        self.version += changed
