"""Records of hosts as they come, matched and added up: which endpoint is whose, which host sends what to which."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from eroica.model.communication import Flow, HostCommunication, KernelTime, PortCount, WorkerOperations
from eroica.model.worker import ProcessGroup

_MOST_ENDS = 500_000
_MOST_GROUPS = 4096
#: Kept of the past, seconds.
KEPT_S = 64.0
Cell = tuple[str, str]


@dataclass
class CellSum:
    """What one host sent to another; times of the busiest connection, of each record.

    `arriving_s` is what the receiver's agent saw; all else the sender's.
    """

    arriving_s: float = 0.0
    unsent_byte_s: float = 0.0
    sent_bytes: int = 0
    waiting_byte_s: float = 0.0
    busy_s: float = 0.0
    held_s: float = 0.0
    retransmits: int = 0

    def add(self, other: CellSum) -> None:
        """Another stretch of the same cell."""
        self.arriving_s += other.arriving_s
        self.unsent_byte_s += other.unsent_byte_s
        self.sent_bytes += other.sent_bytes
        self.waiting_byte_s += other.waiting_byte_s
        self.busy_s += other.busy_s
        self.held_s += other.held_s
        self.retransmits += other.retransmits

    def beside(self, flow: Flow) -> None:
        """Another connection in the same stretch."""
        self.sent_bytes += flow.sent_bytes
        self.waiting_byte_s += flow.waiting_byte_s
        self.unsent_byte_s += flow.unsent_byte_s
        self.retransmits += flow.retransmits
        if flow.busy_s > self.busy_s:
            self.busy_s, self.held_s = flow.busy_s, flow.held_s


@dataclass(frozen=True)
class Matched:
    """A connection whose both ends are workers."""

    flow: Flow
    host: str
    peer_host: str
    peer: int


@dataclass(frozen=True)
class Second:
    """One record of one host, matched.

    Attributes:
        at: When it came, the collector's seconds.
        host: Whose.
        interval_s: How long it reaches back.
        operations: Of each worker.
        cells: What the host sent to others.
        matched: Connections between workers, those inside the host included.
        iterations: Global rank -> iterations completed.
        ports: RDMA ports of the host.
        kernels: NCCL's collectives of its workers.
        elsewhere: Global rank -> bytes sent to and received from others than workers.
    """

    at: float
    host: str
    interval_s: float
    operations: tuple[WorkerOperations, ...]
    cells: Mapping[Cell, CellSum]
    matched: tuple[Matched, ...]
    iterations: Mapping[int, int]
    ports: tuple[PortCount, ...] = ()
    kernels: tuple[KernelTime, ...] = ()
    elsewhere: Mapping[int, int] = field(default_factory=dict)


@dataclass
class Ledger:
    """All records of the last minute.

    Attributes:
        groups: Communicators by name.
        hosts: Global rank -> host, of whoever was ever recorded.
        latest: Host -> its last record.
    """

    groups: dict[str, ProcessGroup] = field(default_factory=dict)
    hosts: dict[int, str] = field(default_factory=dict)
    latest: dict[str, Second] = field(default_factory=dict)
    _seconds: deque[Second] = field(default_factory=deque)
    _ends: dict[str, tuple[str, int]] = field(default_factory=dict)

    def take(self, now: float, host: str, record: HostCommunication, iterations: Mapping[int, int]) -> Second:
        """Another record."""
        for group in record.groups:
            if len(self.groups) < _MOST_GROUPS or group.name in self.groups:
                self._add_group(group)
        for one in record.workers:
            self.hosts[one.worker] = host
        if len(self._ends) < _MOST_ENDS:
            self._ends.update({flow.local: (host, flow.worker) for flow in record.flows})
        matched = tuple(self._matched(host, record.flows))
        cells = cells_of(matched)
        second = Second(
            now, host, record.interval_s, record.workers, cells, matched, dict(iterations), record.ports,
            record.kernels, self._elsewhere(record.flows),
        )  # fmt: skip
        self._seconds.append(second)
        self.latest[host] = second
        while self._seconds and self._seconds[0].at < now - KEPT_S:
            self._seconds.popleft()
        return second

    def _add_group(self, group: ProcessGroup) -> None:
        """Subgroups of different members may carry one name on different workers: those are kept apart by number."""
        known = self.groups.get(group.name)
        if known is None or len(group.ranks) > len(known.ranks) or set(group.ranks) == set(known.ranks):
            self.groups[group.name] = group

    def _elsewhere(self, flows: Iterable[Flow]) -> dict[int, int]:
        found: dict[int, int] = {}
        for flow in flows:
            if flow.remote not in self._ends:
                found[flow.worker] = found.get(flow.worker, 0) + flow.sent_bytes + flow.received_bytes
        return found

    def _matched(self, host: str, flows: Iterable[Flow]) -> Iterator[Matched]:
        for flow in flows:
            peer = self._ends.get(flow.remote)
            if peer is not None and peer[1] != flow.worker:
                yield Matched(flow, host, peer[0], peer[1])

    def between(self, first: float, last: float) -> list[Second]:
        """Records that came after `first`, up to `last`."""
        return [second for second in self._seconds if first < second.at <= last]

    def forget(self) -> None:
        """The job was started again: nothing of before is compared with what comes."""
        self._seconds.clear()
        self._ends.clear()
        self.latest.clear()
        self.hosts.clear()
        self.groups.clear()


def cells_of(matched: Iterable[Matched]) -> dict[Cell, CellSum]:
    """What a host's connections with other hosts add up to: sent, and arriving."""
    cells: dict[Cell, CellSum] = {}
    for one in matched:
        if one.host != one.peer_host:
            cells.setdefault((one.host, one.peer_host), CellSum()).beside(one.flow)
            back = cells.setdefault((one.peer_host, one.host), CellSum())
            back.arriving_s = max(back.arriving_s, one.flow.arriving_s)
    return cells
