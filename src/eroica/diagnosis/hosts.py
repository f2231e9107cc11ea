"""Compare hosts: what processes beside the job take there, against other hosts and the baseline window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from eroica.diagnosis.view import View
from eroica.model.pattern import Neighbor, WorkerPattern

MOST_NAMED = 4
"""Names of processes, and ids of one name, in one sentence."""
#: Processes that use this share of what all beside the job do stand for them.
_MOSTLY = 0.8
#: A thread that waits for a core nearly all the time could hardly wait longer.
_ALWAYS = 0.95


class Hosts:
    """Workers and patterns of each host, now and in the baseline window.

    Attributes:
        view: The window.
        workers: Workers (indices) of each host.
        before: Patterns of each host in the baseline window.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        self.workers: dict[str, list[int]] = {}
        self.before: dict[str, list[WorkerPattern]] = {}
        for at, pattern in enumerate(view.fleet.patterns):
            self.workers.setdefault(pattern.worker.host, []).append(at)
        for pattern in view.suspects.baseline.patterns if view.suspects.baseline is not None else ():
            self.before.setdefault(pattern.worker.host, []).append(pattern)


class Others:
    """Reference of accused workers: their peers, and one worker of each host on which nobody is accused.

    Attributes:
        hosts: All hosts.
        peers: Workers that are not accused; none where the baseline window is what they are compared with.
        elsewhere: One worker of each host without accused workers.
    """

    def __init__(self, hosts: Hosts, accused: Iterable[int], reference: str) -> None:
        patterns, guilty = hosts.view.fleet.patterns, set(accused)
        theirs = {patterns[worker].worker.host for worker in guilty}
        self.hosts = hosts
        self.peers: list[WorkerPattern] = []
        self.elsewhere: list[WorkerPattern] = []
        if reference == "peers":
            self.peers = [one for at, one in enumerate(patterns) if at not in guilty]
            self.elsewhere = [patterns[members[0]] for host, members in hosts.workers.items() if host not in theirs]
        self._of_peers: dict[str, float] = {}
        self._of_elsewhere: dict[str, float] = {}

    def of_peers(self, name: str) -> float:
        """Return the median of a fact over the peers; there must be some."""
        return _remembered(self._of_peers, name, self.peers)

    def of_elsewhere(self, name: str) -> float:
        """Return the median of a fact over the other hosts; there must be some."""
        return _remembered(self._of_elsewhere, name, self.elsewhere)

    @cached_property
    def namesakes(self) -> dict[str, float]:
        """Cores that processes of a name use on the median other host; names that most hosts lack are left out."""
        used: dict[str, list[float]] = {}
        for there in self.elsewhere:
            cores: dict[str, float] = {}
            for one in there.neighbors:
                cores[one.name] = cores.get(one.name, 0.0) + one.cpu_cores
            for name, total in cores.items():
                used.setdefault(name, []).append(total)
        hosts = len(self.elsewhere)
        return {
            name: float(np.median([*found, *[0.0] * (hosts - len(found))]))
            for name, found in used.items()
            if 2 * len(found) >= hosts
        }


class Compared:
    """Facts of a host against hosts of workers that are not accused, and against the baseline window."""

    def __init__(self, others: Others, host: str) -> None:
        self._view = others.hosts.view
        self._own = [self._view.fleet.patterns[at] for at in others.hosts.workers[host]]
        self._past = others.hosts.before.get(host, [])
        self._others = others

    @property
    def is_compared(self) -> bool:
        """True if there is something to compare with."""
        return bool(self._others.elsewhere or self._past)

    def more_on_host(self, name: str) -> float:
        """Return the excess of a host's fact over the others' median and its own in the baseline window."""
        return _mean(self._own, name) - self._reference(name)

    def more(self, worker: int, name: str) -> float:
        """Return the excess of a worker's fact over workers that are not accused and itself in the baseline window."""
        now = fact(self._view.fleet.patterns[worker], name)
        rank = self._view.fleet.ranks[worker]
        usual = [fact(one, name) for one in self._past if one.worker.global_rank == rank]
        if self._others.peers:
            usual.append(self._others.of_peers(name))
        return now - max(usual, default=0.0)

    def queued(self, worker: int) -> float:
        """Return the share of the time to run in that is lost to a longer wait for a core than usual."""
        now = min(fact(self._view.fleet.patterns[worker], "run_queue_wait"), 1.0)
        usual = min(now - self.more(worker, "run_queue_wait"), _ALWAYS)
        return max(1 - (1 - now) / (1 - usual), 0.0)

    def usual(self, name: str) -> str:
        """Describe the value of a fact on other hosts and in the baseline window."""
        parts = []
        if self._others.elsewhere:
            parts.append(f"on the hosts of its peers such processes use {self._others.of_elsewhere(name):.1f}")
        if self._past:
            parts.append(f"in the {self._view.past_window} such processes used {_mean(self._past, name):.1f}")
        return " and ".join(parts) or f"there is no other host and no {self._view.past_window} to compare with"

    def newcomers(self, neighbors: Sequence[Neighbor]) -> list[Neighbor]:
        """List the processes that use more than their like does elsewhere or did before, the heaviest first."""
        grown = [(one.cpu_cores - self._like(one), one) for one in neighbors]
        most = max((more for more, _ in grown), default=0.0)
        kept = [(more, one) for more, one in grown if more >= max(0.1, 0.1 * most)]
        return [one for _, one in sorted(kept, key=lambda pair: -pair[0])]

    def grown(self, neighbors: Sequence[Neighbor]) -> float:
        """Count cores that processes use beyond their like elsewhere or before; others may have left meanwhile."""
        return sum(max(one.cpu_cores - self._like(one), 0.0) for one in neighbors)

    def _like(self, one: Neighbor) -> float:
        before = [other.cpu_cores for past in self._past[:1] for other in past.neighbors if other.pid == one.pid]
        return max(*before, self._others.namesakes.get(one.name, 0.0), 0.0)

    def _reference(self, name: str) -> float:
        known = [self._others.of_elsewhere(name)] if self._others.elsewhere else []
        if self._past:
            known.append(_mean(self._past, name))
        return max(known, default=0.0)


def fact(pattern: WorkerPattern, name: str, default: float = 0.0) -> float:
    """Return one fact of a worker's host."""
    return pattern.host_facts.get(name, default)


def _remembered(known: dict[str, float], name: str, patterns: Sequence[WorkerPattern]) -> float:
    if name not in known:
        known[name] = float(np.median([fact(one, name) for one in patterns]))
    return known[name]


def _mean(patterns: Sequence[WorkerPattern], name: str) -> float:
    return float(np.mean([fact(one, name) for one in patterns])) if patterns else 0.0


def list_processes(neighbors: Sequence[Neighbor], *more: str) -> str:
    """List processes by name and id, those of one name together, in the order of the names; then `more`."""
    groups: dict[str, list[int]] = {}
    for one in neighbors:
        groups.setdefault(one.name, []).append(one.pid)
    names = [*(f"{name} ({_ids(pids)})" for name, pids in list(groups.items())[:MOST_NAMED]), *more]
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def _ids(pids: Sequence[int]) -> str:
    if len(pids) == 1:
        return f"pid {pids[0]}"
    listed = [str(pid) for pid in sorted(pids)]
    if len(listed) > MOST_NAMED:
        return f"pids {', '.join(listed[:MOST_NAMED])}, ..."
    return f"pids {', '.join(listed[:-1])} and {listed[-1]}"


def name_use(neighbors: Sequence[Neighbor], total: float, cores: float) -> str:
    """Say which processes use how many of a host's cores, as a clause.

    Args:
        neighbors: Processes to name.
        total: Cores of all processes beside the job.
        cores: Cores of the host, 0 if unknown.
    """
    named = sum(one.cpu_cores for one in neighbors)
    of_all = f" of {cores:.0f}" if cores else ""
    if not neighbors:
        return f"many small processes use {total:.1f}{of_all} cores"
    if named < _MOSTLY * total:
        return f"{list_processes(neighbors, 'smaller processes')} use {total:.1f}{of_all} cores"
    return f"{list_processes(neighbors)} use{'s' if len(neighbors) == 1 else ''} {named:.1f}{of_all} cores"
