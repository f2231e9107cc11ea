"""Agents that are not there: what those of a whole job would tell its collector, iteration by iteration.

No process trains and nothing is captured; the reports are real, and so are the answers to orders.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from eroica.model.pattern import WorkerPattern
from eroica.model.worker import Worker
from eroica.wire.messages import AgentReport, CollectorReply, OrderResult, WorkerStatus


def _host_name(number: int) -> str:
    return f"node{number:03d}"


@dataclass
class Agents:
    """All agents of a job.

    Attributes:
        hosts: How many.
        workers_per_host: On each.
        iteration_s: Mean iteration of a healthy one.
        name: Number of a host -> its name.
        change: A worker's status -> what is told instead: silent, ended, slow.
    """

    hosts: int = 1
    workers_per_host: int = 8
    iteration_s: float = 0.4
    seed: int = 0
    name: Callable[[int], str] = _host_name
    change: Callable[[WorkerStatus], WorkerStatus] = lambda status: status
    iteration: int = 0
    _result: OrderResult = field(default_factory=OrderResult)
    _latest_s: float | None = None
    _spare_s: float = 0.0

    def __post_init__(self) -> None:
        """Iteration times vary a little."""
        self._random = random.Random(self.seed)

    @property
    def world_size(self) -> int:
        """Workers of all hosts."""
        return self.hosts * self.workers_per_host

    def advance(self, seconds: float) -> None:
        """Train for so long."""
        self._spare_s += seconds
        times = []
        while self._spare_s >= (next_s := self.iteration_s * self._random.uniform(0.98, 1.03)):
            self._spare_s -= next_s
            times.append(next_s)
        self.iteration += len(times)
        self._latest_s = sum(times) / len(times) if times else None

    def report(self, host: int) -> AgentReport:
        """What the agent of a host says now."""
        ranks = range(host * self.workers_per_host, (host + 1) * self.workers_per_host)
        return AgentReport(host=self.name(host), pid=10 + host, workers=tuple(self._status(r) for r in ranks))

    def obey(self, reply: CollectorReply) -> None:
        """Do at once what is ordered; the next reports say that it is done."""
        order = reply.order
        if order is not None and (order.window_id, order.kind) != (self._result.window_id, self._result.kind):
            self.iteration = max(self.iteration, order.last_iteration)
            self._result = OrderResult(window_id=order.window_id, status="done", kind=order.kind, events=1000)

    def pattern(self, rank: int) -> WorkerPattern:
        """An empty pattern of the last window."""
        return WorkerPattern(
            worker=self._worker(rank), window_id=self._result.window_id, first_iteration=1, last_iteration=2,
            duration_s=0.1, iteration_us=b"", wait_us=b"", functions=(),
        )  # fmt: skip

    def _worker(self, rank: int) -> Worker:
        host, local = divmod(rank, self.workers_per_host)
        return Worker(
            global_rank=rank, local_rank=local, world_size=self.world_size, host=self.name(host), pid=4000 + rank,
            device=f"cuda:{local}",
        )  # fmt: skip

    def _status(self, rank: int) -> WorkerStatus:
        latest_s = self._latest_s
        status = WorkerStatus(
            worker=self._worker(rank),
            state="steady",
            iteration=self.iteration,
            current_s=self.iteration_s * (1 + 0.01 * ((rank * 7) % 5) / 5),
            baseline_s=self.iteration_s * 0.99,
            steady=True,
            latest_s=None if latest_s is None else latest_s * (1 + 0.002 * ((rank * 5) % 7)),
            result=self._result,
            silent_s=0.1,
        )
        return self.change(status)

    def encoded(self, host: int) -> bytes:
        """The same as on the wire."""
        return msgspec.msgpack.encode(self.report(host))
