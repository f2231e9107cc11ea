"""Synthetic fleets of thousands of workers in several process groups, in a few seconds.

A function is a handful of templates (a made row each), and every worker points at one of them, so that a row is encoded
once however many workers run it. Between the functions workers meet in collectives of their groups; who comes early
waits, and that is computed for every worker, execution by execution.

Array suffixes: W workers, I iterations, T templates, G groups, K executions of an iteration. Times are microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import (
    CollectiveRecord,
    FunctionKey,
    FunctionPattern,
    LinkUse,
    Neighbor,
    Phase,
    WorkerPattern,
)
from eroica.model.series import encode_series
from eroica.model.worker import ProcessGroup, Worker

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

#: How an iteration runs; garbage collections and other interruptions come first.
_PHASES: tuple[Phase, ...] = ("input", "other", "forward", "backward", "optimizer")
#: Distinct values of a resource per second of use: NVML renews its counters every 20 ms.
_VALUES_PER_S = 50.0
#: Members of a group leave a collective of a device within so many microseconds.
_EXIT_US = 20.0


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """A partition of all workers into process groups of one kind.

    Attributes:
        description: torch's description of these groups.
        of: Number of the group each worker is in. intp [W].
    """

    description: str
    of: Indices

    @property
    def groups(self) -> int:
        """How many."""
        return int(self.of.max()) + 1


def everybody(workers: int) -> Grouping:
    """The default group."""
    return Grouping(description="default_pg", of=np.zeros(workers, dtype=np.intp))


def neighbors_of(workers: int, size: int, description: str) -> Grouping:
    """Groups of `size` consecutive workers."""
    return Grouping(description=description, of=np.arange(workers, dtype=np.intp) // size)


def strided(workers: int, stride: int, description: str) -> Grouping:
    """`stride` groups of every `stride`-th worker."""
    return Grouping(description=description, of=np.arange(workers, dtype=np.intp) % stride)


@dataclass(frozen=True, kw_only=True)
class Work:
    """One function on all workers.

    Attributes:
        key: Which; its phase says when in an iteration it runs.
        time_us: Critical time. float64 [T, I].
        of: Template of each worker, -1 = the worker does not run it. intp [W].
        mu: Use of its resource. float64 [T].
        sigma: Its deviation. float64 [T].
        count: Executions per iteration.
        resource: Name of the resource; "" was never sampled.
    """

    key: FunctionKey
    time_us: Floats
    of: Indices
    mu: Floats
    sigma: Floats
    count: float = 1.0
    resource: str = "sm"

    @property
    def of_workers(self) -> Floats:
        """Time on each worker. float64 [W, I]."""
        padded = np.vstack([self.time_us, np.zeros(self.time_us.shape[1])])
        return np.asarray(padded[self.of])


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """One kind of collective, which everybody runs in its group of one grouping.

    Attributes:
        grouping: Which groups.
        name: Name of the kernel.
        kind: Kind of collective.
        phase: When it runs: spread evenly over that part of the iteration.
        times: Executions per iteration.
        transfer_us: What all executions of an iteration take once everybody is there. float64 [G, I].
        mu: Use of the resource on each worker. float64 [W].
        sigma: Its deviation. float64 [W].
        elements: Elements of the first input of one execution.
        resource: Name of the resource; "" was never sampled.
    """

    grouping: Grouping
    name: str
    kind: str
    phase: Phase
    times: int
    transfer_us: Floats
    mu: Floats
    sigma: Floats
    elements: int
    resource: str = "pcie"


@dataclass(kw_only=True)
class GroupedFleet:
    """A job to be synthesized.

    Attributes:
        workers: How many.
        iterations: Captured iterations.
        works: Functions.
        meetings: Collectives, in the order in which they run within a phase.
        seed: Of the uneven leaving of collectives.
        per_host: Workers of each host.
        window_id: Number of the window.
        neighbors: Other processes on the host of a worker.
        links: TCP traffic of a worker; NCCL has none of it.
        cores: Cores of each host.
        has_ends: Records tell when each execution ended, by a clock of the worker's own.
    """

    workers: int
    iterations: int
    works: list[Work] = field(default_factory=list)
    meetings: list[Meeting] = field(default_factory=list)
    seed: int = 0
    per_host: int = 8
    window_id: int = 1
    neighbors: Mapping[int, tuple[Neighbor, ...]] = field(default_factory=dict)
    links: Mapping[int, tuple[LinkUse, ...]] = field(default_factory=dict)
    cores: int = 160
    has_ends: bool = False

    def synthesize(self) -> list[WorkerPattern]:
        """Patterns of all workers."""
        spent = _run(self)
        rows = [_template_rows(self, work, spent.window_s) for work in self.works]
        return [_pattern(self, spent, rows, worker) for worker in range(self.workers)]


@dataclass(frozen=True, kw_only=True)
class _Spent:
    """Times of a fleet that ran: iterations, and one entry for each meeting.

    Attributes:
        iteration_us: float64 [W, I].
        duration_us: float64 [W, I, K] each.
        end_us: After the window's start. float64 [W, I, K] each.
        groups: All process groups by grouping, in order of number.
    """

    iteration_us: Floats
    duration_us: list[Floats]
    end_us: list[Floats]
    groups: dict[int, list[ProcessGroup]]

    @property
    def window_s(self) -> float:
        return float(self.iteration_us.sum(axis=1).mean()) / 1e6


def _run(fleet: GroupedFleet) -> _Spent:
    """Let everybody work and wait, iteration by iteration; clocks are carried over, nobody is set back to zero."""
    shape = (fleet.workers, fleet.iterations)
    noise = np.random.default_rng((fleet.seed, 7))
    clock = np.zeros(fleet.workers)
    iteration_WI = np.zeros(shape)
    durations, ends = ([np.zeros((*shape, meeting.times)) for meeting in fleet.meetings] for _ in range(2))
    busy = {phase: _busy(fleet, phase) for phase in _PHASES}
    for iteration in range(fleet.iterations):
        begun = clock.copy()
        for phase in _PHASES:
            parts = max((meeting.times for meeting in fleet.meetings if meeting.phase == phase), default=1)
            for part in range(parts):
                clock += busy[phase][:, iteration] / parts
                for at, meeting in enumerate(fleet.meetings):
                    place = part - (parts - meeting.times)
                    if meeting.phase == phase and place >= 0:
                        left = _meet(meeting, clock, iteration, noise)
                        durations[at][:, iteration, place] = left - clock
                        ends[at][:, iteration, place] = left
                        clock = left
        iteration_WI[:, iteration] = clock - begun
    return _Spent(iteration_us=iteration_WI, duration_us=durations, end_us=ends, groups=_process_groups(fleet))


def _busy(fleet: GroupedFleet, phase: Phase) -> Floats:
    total = np.zeros((fleet.workers, fleet.iterations))
    for work in fleet.works:
        if work.key.phase == phase:
            total += work.of_workers
    return total


def _meet(meeting: Meeting, clock: Floats, iteration: int, noise: np.random.Generator) -> Floats:
    """When each worker leaves: after the last of its group has come and the transfer is done. float64 [W]."""
    of = meeting.grouping.of
    last_G = np.full(meeting.grouping.groups, -np.inf)
    np.maximum.at(last_G, of, clock)
    done_G = last_G + meeting.transfer_us[:, iteration] / meeting.times
    return np.asarray(done_G[of] + noise.exponential(_EXIT_US, clock.size))


def _process_groups(fleet: GroupedFleet) -> dict[int, list[ProcessGroup]]:
    """Groups by identity of their grouping; the default group is number 0 whether anybody meets in it or not."""
    groupings = {id(meeting.grouping): meeting.grouping for meeting in fleet.meetings}
    world = ProcessGroup(
        name="0", description="default_pg", ranks=tuple(range(fleet.workers)), backend="cpu:gloo,cuda:nccl"
    )
    made: dict[int, list[ProcessGroup]] = {}
    name = 1
    for own, grouping in groupings.items():
        if grouping.groups == 1:
            made[own] = [world]
            continue
        made[own] = []
        for group in range(grouping.groups):
            ranks = tuple(np.flatnonzero(grouping.of == group).tolist())
            made[own].append(
                ProcessGroup(name=str(name), description=grouping.description, ranks=ranks, backend="nccl")
            )
            name += 1
    made.setdefault(-1, [world])
    return made


def _template_rows(fleet: GroupedFleet, work: Work, window_s: float) -> list[FunctionPattern]:
    """One row for each template."""
    return [
        _row(
            work.key,
            time_I,
            window_s,
            mu=float(work.mu[at]),
            sigma=float(work.sigma[at]),
            resource=work.resource,
            count=round(work.count * fleet.iterations),
        )
        for at, time_I in enumerate(work.time_us)
    ]


def _row(
    key: FunctionKey, time_I: Floats, window_s: float, *, mu: float, sigma: float, resource: str, count: int
) -> FunctionPattern:
    total_s = float(time_I.sum()) / 1e6
    return FunctionPattern(
        key=key,
        beta=min(total_s / window_s, 1.0),
        mu=mu,
        sigma=sigma,
        resource=resource,
        resource_samples=int(total_s * _VALUES_PER_S) if resource else 0,
        critical_s=total_s,
        total_s=total_s,
        count=count,
        max_s=float(time_I.max()) / 1e6,
        active_iterations=int(np.count_nonzero(time_I)),
        per_iteration_us=encode_series(time_I.astype(np.float32)),
    )


def _pattern(
    fleet: GroupedFleet, spent: _Spent, rows: Sequence[Sequence[FunctionPattern]], worker: int
) -> WorkerPattern:
    iteration_I = spent.iteration_us[worker]
    wait_I = np.sum([durations[worker].sum(axis=1) for durations in spent.duration_us], axis=0)
    own = [rows[at][work.of[worker]] for at, work in enumerate(fleet.works) if work.of[worker] >= 0]
    records: list[CollectiveRecord] = []
    for at, meeting in enumerate(fleet.meetings):
        group = _group_of(spent, meeting, worker)
        own.append(_meeting_row(fleet, spent, at, worker, group))
        record = _record(fleet, meeting, spent.duration_us[at][worker], group)
        if fleet.has_ends:
            record = msgspec.structs.replace(record, end_us=encode_series(spent.end_us[at][worker].ravel()))
        records.append(record)
    kept = sorted((row for row in own if row.total_s > 0), key=lambda row: (-row.beta, -row.total_s))
    world = spent.groups[-1][0] if -1 in spent.groups else None
    groups = {
        group.name: group for group in (world, *(_group_of(spent, one, worker) for one in fleet.meetings)) if group
    }
    window_s = float(iteration_I.sum()) / 1e6
    first = 1000 * fleet.window_id
    return WorkerPattern(
        worker=_worker(fleet, worker),
        window_id=fleet.window_id,
        first_iteration=first,
        last_iteration=first + fleet.iterations,
        duration_s=window_s,
        iteration_us=encode_series(iteration_I.astype(np.float32)),
        wait_us=encode_series(wait_I.astype(np.float32)),
        functions=tuple(kept),
        collectives=tuple(records),
        process_groups=tuple(groups.values()),
        idle_s=max(window_s - sum(row.critical_s for row in kept), 0.0),
        samples_used=int(window_s * 100),
        has_accelerator=True,
        host_facts={"cpu_count": float(fleet.cores), "run_queue_wait": 0.01, "stopped": 0.0, "throttled": 0.0},
        links=fleet.links.get(worker, ()),
        neighbors=fleet.neighbors.get(worker, ()),
        stall_s=0.4,
        summarize_s=1.0,
        raw_bytes=50_000_000,
    )


def _group_of(spent: _Spent, meeting: Meeting, worker: int) -> ProcessGroup:
    groups = spent.groups[id(meeting.grouping)]
    return groups[int(meeting.grouping.of[worker])]


def _worker(fleet: GroupedFleet, worker: int) -> Worker:
    local = worker % fleet.per_host
    return Worker(
        global_rank=worker,
        local_rank=local,
        world_size=fleet.workers,
        host=f"node-{worker // fleet.per_host}",
        pid=4000 + local,
        device=f"cuda:{local}",
    )


def _meeting_row(fleet: GroupedFleet, spent: _Spent, at: int, worker: int, group: ProcessGroup) -> FunctionPattern:
    meeting = fleet.meetings[at]
    return _row(
        FunctionKey(kind="collective", name=meeting.name, thread="collective", group=group.name),
        spent.duration_us[at][worker].sum(axis=1),
        float(spent.iteration_us[worker].sum()) / 1e6,
        mu=float(meeting.mu[worker]),
        sigma=float(meeting.sigma[worker]),
        resource=meeting.resource,
        count=meeting.times * fleet.iterations,
    )


def _record(fleet: GroupedFleet, meeting: Meeting, duration_IK: Floats, group: ProcessGroup) -> CollectiveRecord:
    """Numbers, iterations and sizes are the same for every worker."""
    executions = duration_IK.size
    shared = _shared_series(fleet.iterations, meeting.times, meeting.elements)
    duration = encode_series(duration_IK.ravel().astype(np.float32))
    return CollectiveRecord(
        group=group.name,
        kind=meeting.kind,
        paired_by="sequence",
        executions=executions,
        sequence=shared[0],
        iteration=shared[1],
        duration_us=duration,
        critical_us=duration,
        elements=shared[2],
    )


@lru_cache(maxsize=64)
def _shared_series(iterations: int, times: int, elements: int) -> tuple[bytes, bytes, bytes]:
    """Sequence numbers, iterations and elements of all executions."""
    count = iterations * times
    return (
        encode_series(np.arange(count, dtype=np.int64) + 500),
        encode_series(np.repeat(np.arange(iterations, dtype=np.int32), times)),
        encode_series(np.full(count, elements, dtype=np.int64)),
    )
