"""Keep the workers that take part, as agents report them: bounded, and each host speaks for its own workers only.

Iterations of all workers must mean the same (`SameIterations`). A learner steps an optimizer and its actors do not.
Each of them counts what it has, so they would differ; but all of them exchange data once an iteration. See
`docs/decisions/iterations.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from eroica.collector.intake import MAX_WORKERS
from eroica.model.words import worker_list
from eroica.wire import beat
from eroica.wire.messages import AgentReport, WorkerStatus

#: What workers count, in words.
_WORDS = {
    beat.BATCHES: "batches of its loader",
    beat.EXCHANGES: "exchanges with other workers",
    beat.BACKWARD: "backward passes",
    beat.OPTIMIZER: "steps of optimizers",
    beat.ANNOUNCED: "calls of eroica.step()",
}
#: Sources that workers can be ordered to count, best first.
_SHARED = (beat.OPTIMIZER, beat.EXCHANGES)
#: Workers drift apart if one has completed less than this share of another one's iterations...
_BEHIND = 0.7
#: ...and is so many behind; less may be the time between two reports.
_LEAST_BEHIND = 100
#: Seconds for which workers have to differ: they begin to step at different moments.
_PATIENCE_S = 10.0
_REMEDY = "call eroica.step() once an iteration on all ranks"
WorkerKey = tuple[str, int]
AGENT_SILENT_S = 10.0
_MAX_HOSTS = 50_000
_DISPUTE_S = 2.0
_GATHER_S = 10.0


class SameIterations:
    """Follows what the workers of one job count: a state machine without I/O.

    Attributes:
        count_by: Source that all workers shall count; 0 = each as it does.
    """

    def __init__(self) -> None:
        self.count_by = beat.NO_SOURCE
        self._differ_since: float | None = None
        self._has_told = False

    def tick(self, now: float, living: Sequence[WorkerStatus]) -> str:
        """Time passed. Return what people should know, once; else ""."""
        wanted, told = source_for_all(living), "" if self._has_told else difference(living)
        if not wanted and not told:
            self._differ_since, self.count_by = None, beat.NO_SOURCE
            return ""
        self._differ_since = now if self._differ_since is None else self._differ_since
        if now - self._differ_since < _PATIENCE_S:
            return ""
        self.count_by = wanted
        self._has_told = self._has_told or bool(told)
        return told


def counting(living: Sequence[WorkerStatus]) -> list[WorkerStatus]:
    """Workers that have iterations, or learn them: not those where nothing has repeated yet."""
    return [status for status in living if status.source != beat.NO_SOURCE or status.state != "learning"]


def source_for_all(living: Sequence[WorkerStatus]) -> int:
    """Return the source by which workers shall count: the best that all have; 0 if they agree, or none have one."""
    workers = counting(living)
    shown = {status.source for status in workers}
    if len(shown) < 2 or beat.ANNOUNCED in shown:
        return beat.NO_SOURCE
    known = -1
    for status in workers:
        known &= status.known
    return next((source for source in _SHARED if known >> source & 1), beat.NO_SOURCE)


def difference(living: Sequence[WorkerStatus]) -> str:
    """Say how workers' iterations differ where nothing can be done about it; "" where they do not."""
    workers = counting(living)
    told = [status for status in workers if status.state != "learning" and status.source != beat.NO_SOURCE]
    by_source: dict[int, list[int]] = {}
    for status in told:
        by_source.setdefault(status.source, []).append(status.worker.global_rank)
    if len(by_source) > 1:
        if len(told) < len(workers) or source_for_all(living):
            return ""
        who = "; ".join(f"{worker_list(by_source[one])}: {_WORDS[one]}" for one in sorted(by_source, reverse=True))
        return f"workers count different things as iterations ({who}); {_REMEDY}"
    if not told:
        return ""
    last, first = (edge(told, key=lambda status: status.iteration) for edge in (min, max))
    behind = first.iteration - last.iteration
    if behind < _LEAST_BEHIND or last.iteration > _BEHIND * first.iteration or not last.iteration:
        return ""
    return (
        f"iterations of workers drift apart: worker {first.worker.global_rank} is at {first.iteration}, worker "
        f"{last.worker.global_rank} at {last.iteration}; to compare them, {_REMEDY}"
    )


@dataclass
class _Host:
    """One agent's last report."""

    heard_at: float
    agent_pid: int
    event_budget: int = 0
    former_pids: tuple[int, ...] = ()
    workers: dict[int, WorkerStatus] = field(default_factory=dict)


class Roll:
    """All workers by host and process id.

    Args:
        note: Where to say what people should know.

    Attributes:
        last_heard: Time of the last report of any agent; 0 if none ever reported.
        joined_at: Time at which a worker reported that had not before.
        world_size: Largest that any worker told; 0 before the first.
        ever: Workers that ever reported.
    """

    def __init__(self, note: Callable[[str], object]) -> None:
        self.last_heard = 0.0
        self.joined_at = float("-inf")
        self.world_size = 0
        self._note = note
        self._hosts: dict[str, _Host] = {}
        self._waiting: set[str] = set()
        self._size = 0
        self.ever: set[WorkerKey] = set()
        self._disputes: dict[WorkerKey, float] = {}
        self._owners: dict[int, str] = {}

    def reported(self, now: float, report: AgentReport) -> None:
        """Take in a clean report; see `eroica.collector.intake`."""
        host = self._hosts.get(report.host)
        if host is None:
            if len(self._hosts) >= _MAX_HOSTS:
                self._note(f"more than {_MAX_HOSTS} hosts report; the others are not listened to")
                return
            host = self._hosts[report.host] = _Host(now, report.pid)
        elif host.agent_pid != report.pid:
            if report.pid in host.former_pids and now - host.heard_at <= AGENT_SILENT_S:  # so both are there
                self._note(f"two hosts are called {report.host}, one is not listened to; name them with EROICA_HOST")
                return
            self._note(f"{report.host}: its agent was started again")
            host.former_pids = (*host.former_pids[-7:], host.agent_pid)
        host.heard_at, host.agent_pid = now, report.pid
        (self._waiting.add if report.waiting else self._waiting.discard)(report.host)
        host.event_budget = report.event_budget or host.event_budget
        self.last_heard = now
        self._replace_workers(now, report, host)

    def _replace_workers(self, now: float, report: AgentReport, host: _Host) -> None:
        room = MAX_WORKERS - (self._size - len(host.workers))
        if len(report.workers) > room:
            self._note(f"more than {MAX_WORKERS} workers; the rest is left out")
        mine = {s.worker.pid: s for s in report.workers[:room] if s.ended or self._may_claim(now, report.host, s)}
        for status in host.workers.values():
            if self._owners.get(status.worker.global_rank) == report.host:
                del self._owners[status.worker.global_rank]
        self._size += len(mine) - len(host.workers)
        host.workers = mine
        for status in mine.values():
            if not status.ended:
                self._owners[status.worker.global_rank] = report.host
            if (report.host, status.worker.pid) not in self.ever:
                self.joined_at = now
            if len(self.ever) < 2 * MAX_WORKERS:
                self.ever.add((report.host, status.worker.pid))
            self.world_size = max(self.world_size, status.worker.world_size)

    def _may_claim(self, now: float, host: str, status: WorkerStatus) -> bool:
        """A rank that lives on another host, whose agent is well, is not for this one."""
        rank = status.worker.global_rank
        owner = self._owners.get(rank)
        if owner is None or owner == host:
            self._disputes.pop((host, rank), None)
            return True
        if now - self._hosts[owner].heard_at > AGENT_SILENT_S:
            theirs = self._hosts[owner].workers
            for pid in [pid for pid, s in theirs.items() if s.worker.global_rank == rank and not s.ended]:
                del theirs[pid]
                self._size -= 1
            return True
        if len(self._disputes) < MAX_WORKERS and now - self._disputes.setdefault((host, rank), now) > _DISPUTE_S:
            self._note(f"{host} tells of worker {rank}, who lives on {owner}; not listened to")
        return False

    # ------------------------------------------------------------------ views

    def __iter__(self) -> Iterator[WorkerStatus]:
        for host in self._hosts.values():
            yield from host.workers.values()

    def __len__(self) -> int:
        return self._size

    @property
    def living(self) -> list[WorkerStatus]:
        """Workers whose process is there."""
        return [status for status in self if not status.ended]

    @property
    def slowed(self) -> float:
        """Largest ratio of a worker's last mean iteration to its best one; 1 where no ratio is known."""
        ratios = [s.current_s / s.baseline_s for s in self if s.current_s and s.baseline_s]
        return max(ratios, default=1.0)

    @property
    def hosts(self) -> frozenset[str]:
        """Hosts whose agent ever reported."""
        return frozenset(self._hosts)

    @property
    def host_count(self) -> int:
        """Number of `hosts`."""
        return len(self._hosts)

    def knows(self, host: str) -> bool:
        """The host's agent reported at least once."""
        return host in self._hosts

    @property
    def event_budget(self) -> float:
        """Fewest trace events that any host has room for; infinite where none says."""
        return min((one.event_budget for one in self._hosts.values() if one.event_budget > 0), default=math.inf)

    def hears(self, host: str, now: float) -> bool:
        """The host's agent reported lately."""
        known = self._hosts.get(host)
        return known is not None and now - known.heard_at <= AGENT_SILENT_S

    def report_ages(self, now: float) -> dict[str, float]:
        """Host on which a worker lives -> seconds since its agent's last report."""
        return {host: max(now - self._hosts[host].heard_at, 0.0) for host in self.hosts_with_living()}

    def gathering(self, now: float) -> bool:
        """Return whether a worker joined (or the job restarted) a moment ago, and not all are in full swing yet."""
        if now - self.joined_at >= _GATHER_S:
            return False
        return sum(status.baseline_s is not None for status in self.living) < self.world_size

    def agent_pid(self, host: str) -> int:
        """Process id of the host's agent; 0 if none ever reported."""
        known = self._hosts.get(host)
        return 0 if known is None else known.agent_pid

    def waiting(self, now: float) -> bool:
        """Some agent still looks for the collector of the whole job, which may not be this one."""
        return any(now - self._hosts[name].heard_at <= AGENT_SILENT_S for name in self._waiting)

    def workers_of(self, host: str) -> list[WorkerStatus]:
        """Statuses of a host's workers in its last report."""
        known = self._hosts.get(host)
        return [] if known is None else list(known.workers.values())

    def hosts_with_living(self) -> frozenset[str]:
        """Hosts on which a worker trains."""
        return frozenset(
            name for name, host in self._hosts.items() if any(not status.ended for status in host.workers.values())
        )


def key_of(status: WorkerStatus) -> WorkerKey:
    """The worker, as long as its process lives."""
    return status.worker.host, status.worker.pid
