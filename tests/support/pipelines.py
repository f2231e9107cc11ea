"""Synthetic jobs with pipelines, data parallel groups and broadcasts: patterns made from programs that are played out.

Each worker runs a program of steps; playing it out tells when each one leaves which collective, by its own clock. So
the true times are known, and so is what they would be if somebody were faster.

Array suffixes: none; all times are microseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from eroica.model.pattern import CollectiveRecord, FunctionKey, FunctionPattern, WorkerPattern
from eroica.model.series import encode_series
from eroica.model.worker import ProcessGroup, Worker

_TRANSFER_US = 200.0
_TOGETHER = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})


class Step(NamedTuple):
    """One step of a worker's program.

    Attributes:
        does: "work", "iteration" (its end), "start" (a collective beside the main line), "finish" (wait for all that
            were started), or a kind of collective that it calls and waits for.
        time_us: Of work; of a collective: its transfer.
        group: Name of the process group.
        peer: For a send or receive the other side's rank; for a broadcast or reduce the root's, which no record tells.
        kind: What is started.
    """

    does: str
    time_us: float = 0.0
    group: str = ""
    peer: int = -1
    kind: str = ""


class _Run(NamedTuple):
    kind: str
    group: str
    peer: int
    start: float
    end: float
    critical: float
    iteration: int
    number: int


class Played(NamedTuple):
    """What one worker did.

    Attributes:
        runs: Its executions.
        edges: Boundaries of its iterations on the common clock.
    """

    runs: list[_Run]
    edges: list[float]

    @property
    def iteration_us(self) -> float:
        """Its mean iteration."""
        return (self.edges[-1] - self.edges[0]) / (len(self.edges) - 1)


def play(
    programs: Sequence[Sequence[Step]],
    groups: Sequence[ProcessGroup],
    starts: Sequence[float] = (),
    buffered: bool = True,
) -> list[Played]:
    """Play programs out, one worker each, until all are done.

    Args:
        programs: Steps of each rank.
        groups: All groups of the job.
        starts: When each worker's window begins.
        buffered: A send is over when it has left; else when the receiver has come for it, too.

    Raises:
        ValueError: They wait for each other in a circle.
    """
    return _Stage(programs, groups, starts, buffered).play()


class _Stage:
    def __init__(
        self,
        programs: Sequence[Sequence[Step]],
        groups: Sequence[ProcessGroup],
        starts: Sequence[float],
        buffered: bool,
    ) -> None:
        self.buffered = buffered
        self.programs, self.members = programs, {group.name: group.ranks for group in groups}
        self.clock = list(starts) or [0.0] * len(programs)
        self.played = [Played([], [start]) for start in self.clock]
        self.at = [0] * len(programs)
        self.came: dict[tuple[object, ...], dict[int, float]] = defaultdict(dict)
        self.counts: dict[tuple[object, ...], int] = defaultdict(int)
        self.open: list[list[tuple[tuple[object, ...], Step]]] = [[] for _ in programs]
        self.called: dict[int, tuple[object, ...]] = {}

    def play(self) -> list[Played]:
        moved = True
        while moved:
            moved = False
            for rank in range(len(self.programs)):
                while self.at[rank] < len(self.programs[rank]) and self._step(rank):
                    self.at[rank] += 1
                    moved = True
        if any(at < len(program) for at, program in zip(self.at, self.programs, strict=True)):
            raise ValueError("these programs wait for each other in a circle")
        return self.played

    def _step(self, rank: int) -> bool:
        """One step of one worker; False if it has to wait for others first."""
        step = self.programs[rank][self.at[rank]]
        if step.does == "work":
            self.clock[rank] += step.time_us
        elif step.does == "iteration":
            self.played[rank].edges.append(self.clock[rank])
        elif step.does == "start":
            self.open[rank].append((self._come(rank, step._replace(does=step.kind)), step._replace(does=step.kind)))
        elif step.does == "finish":
            return self._finish(rank)
        else:
            return self._call(rank, step)
        return True

    def _come(self, rank: int, step: Step) -> tuple[object, ...]:
        pair = (rank, step.peer) if step.does == "send" else (step.peer, rank) if step.does == "recv" else ()
        kind = "send" if step.does == "recv" else step.does
        counter = (rank, step.group, step.does, step.peer if pair else -1)
        key = (step.group, kind, pair, self.counts[counter])
        self.counts[counter] += 1
        self.came[key][rank] = self.clock[rank]
        return key

    def _call(self, rank: int, step: Step) -> bool:
        key = self.called.setdefault(rank, ()) or self._come(rank, step)
        self.called[rank] = key
        end = self._end(rank, key, step)
        if end is None:
            return False
        self._leave(rank, key, step, end, end - self.came[key][rank])
        self.clock[rank] = end
        self.called[rank] = ()
        return True

    def _finish(self, rank: int) -> bool:
        ends = [self._end(rank, key, step) for key, step in self.open[rank]]
        if any(end is None for end in ends):
            return False
        before = 0.0
        for (key, step), end in zip(self.open[rank], ends, strict=True):
            over = max(end or 0.0, before + step.time_us)
            self._leave(rank, key, step, over, max(over - max(self.clock[rank], before), 0.0), before)
            self.clock[rank], before = max(self.clock[rank], over), over
        self.open[rank].clear()
        return True

    def _end(self, rank: int, key: tuple[object, ...], step: Step) -> float | None:
        """When an execution ends for one worker; None if that is not known yet."""
        came = self.came[key]
        if step.does in _TOGETHER:
            whom = self.members[step.group]
        else:
            alone = step.peer == rank or (step.does == "send" and self.buffered)
            whom = (rank,) if alone else (rank, step.peer)
        if step.does == "reduce":  # its root waits for all, and the others for nobody
            whom = self.members[step.group] if step.peer == rank else (rank,)
        return max(came[one] for one in whom) + step.time_us if all(one in came for one in whom) else None

    def _leave(
        self, rank: int, key: tuple[object, ...], step: Step, end: float, critical: float, free: float = 0.0
    ) -> None:
        """Note an execution; it runs only when the one before it in its queue is over (`free`)."""
        number = int(str(key[-1]))
        iteration = len(self.played[rank].edges) - 1
        start = max(self.came[key][rank], free)
        run = _Run(step.does, step.group, step.peer, start, end, critical, iteration, number)
        self.played[rank].runs.append(run)


Pairing = Literal["sequence", "order"]


def patterns_of_played(
    played: Sequence[Played], groups: Sequence[ProcessGroup], recorded: bool = False, pairing: Pairing = "sequence"
) -> list[WorkerPattern]:
    """Patterns as the workers' hosts would make them, each by its own clock.

    Args:
        played: Of all ranks.
        groups: Process groups of the job.
        recorded: As from recorded traces instead of a window that was captured online.
        pairing: What pairs collectives; sends and receives pair by order.
    """
    return [_pattern(rank, one, groups, recorded, pairing, len(played)) for rank, one in enumerate(played)]


def _pattern(
    rank: int, played: Played, groups: Sequence[ProcessGroup], recorded: bool, pairing: Pairing, world: int
) -> WorkerPattern:
    times = np.diff(np.asarray(played.edges))
    by_kind: dict[tuple[str, str], list[_Run]] = defaultdict(list)
    for run in played.runs:
        by_kind[run.group, run.kind].append(run)
    wait = np.bincount(
        [run.iteration for run in played.runs], weights=[run.critical for run in played.runs], minlength=times.size
    )
    window_us = played.edges[-1] - played.edges[0]
    work = FunctionPattern(
        key=FunctionKey(kind="compute", name="aten::mm", phase="forward"),
        beta=float((times - wait).sum() / window_us),
        critical_s=float((times - wait).sum()) / 1e6,
        total_s=float((times - wait).sum()) / 1e6,
        count=10 * times.size,
        active_iterations=times.size,
        per_iteration_us=encode_series((times - wait).astype(np.float32)),
    )
    return WorkerPattern(
        worker=Worker(global_rank=rank, world_size=world),
        window_id=1,
        first_iteration=0,
        last_iteration=times.size,
        duration_s=window_us / 1e6,
        iteration_us=encode_series(times.astype(np.float32), exact=True),
        wait_us=encode_series(wait.astype(np.float32), exact=True),
        functions=(work, *(_row(key, runs, window_us) for key, runs in by_kind.items())),
        collectives=tuple(_record(key, runs, played.edges[0], pairing) for key, runs in by_kind.items()),
        process_groups=tuple(group for group in groups if rank in group.ranks),
        found_by="profiler steps" if recorded else "",
    )


def _row(key: tuple[str, str], runs: Sequence[_Run], window_us: float) -> FunctionPattern:
    critical = sum(run.critical for run in runs)
    return FunctionPattern(
        key=FunctionKey(kind="collective", name=f"gloo:{key[1]}", thread="collective", group=key[0]),
        beta=critical / window_us,
        critical_s=critical / 1e6,
        total_s=sum(run.end - run.start for run in runs) / 1e6,
        count=len(runs),
    )


def _record(key: tuple[str, str], runs: Sequence[_Run], begin: float, pairing: Pairing) -> CollectiveRecord:
    group, kind = key
    count = len(runs)
    peers = np.asarray([run.peer for run in runs], dtype=np.int32)
    return CollectiveRecord(
        group=group,
        kind=kind,
        paired_by="order" if kind in ("send", "recv") else pairing,
        executions=count,
        sequence=encode_series(np.asarray([run.number for run in runs], dtype=np.int64)),
        iteration=encode_series(np.asarray([run.iteration for run in runs], dtype=np.int32)),
        duration_us=encode_series(np.asarray([run.end - run.start for run in runs], dtype=np.float32), exact=True),
        critical_us=encode_series(np.asarray([run.critical for run in runs], dtype=np.float32), exact=True),
        elements=encode_series(np.full(count, 64, dtype=np.int64)),
        peers=encode_series(peers) if kind in ("send", "recv") else b"",
        end_us=encode_series(np.asarray([run.end - begin for run in runs], dtype=np.float64)),
    )


def pipeline_programs(
    work_us: Sequence[Sequence[float]], iterations: int, microbatches: int = 4
) -> tuple[list[list[Step]], list[ProcessGroup]]:
    """Programs of a data parallel job with pipelines: forward passes, then backward passes, then gradients.

    Args:
        work_us: Time of a microbatch's forward on each replica (outer) and stage (inner); the backward takes twice
            that. Ranks count stages first.
        iterations: How many.
        microbatches: Passes through the pipeline in an iteration.

    Returns:
        Programs and groups.
    """
    stages = len(work_us[0])
    world = stages * len(work_us)
    groups = [ProcessGroup(name="0", description="default_pg", ranks=tuple(range(world)), backend="gloo")]
    for replica in range(len(work_us)):
        ranks = tuple(replica * stages + stage for stage in range(stages))
        groups.append(ProcessGroup(name=f"pp{replica}", description="mesh_pp", ranks=ranks, backend="gloo"))
    for stage in range(stages):
        ranks = tuple(replica * stages + stage for replica in range(len(work_us)))
        groups.append(ProcessGroup(name=f"dp{stage}", description="mesh_dp", ranks=ranks, backend="gloo"))
    programs = []
    for rank in range(world):
        replica, stage = divmod(rank, stages)
        link = f"pp{replica}"
        forward, backward = [], []
        if stage > 0:
            forward.append(Step("recv", _TRANSFER_US, link, rank - 1))
            backward.append(Step("send", _TRANSFER_US, link, rank - 1))
        forward.append(Step("work", work_us[replica][stage]))
        backward.insert(0, Step("work", 2 * work_us[replica][stage]))
        if stage < stages - 1:
            forward.append(Step("send", _TRANSFER_US, link, rank + 1))
            backward.insert(0, Step("recv", _TRANSFER_US, link, rank + 1))
        once = [*forward * microbatches, *backward * microbatches]
        if len(work_us) > 1:
            once.append(Step("all_reduce", 1_000.0, f"dp{stage}"))
        programs.append([*once, Step("work", 100.0), Step("iteration")] * iterations)
    return programs, groups
