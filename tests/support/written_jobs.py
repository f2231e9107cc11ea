"""Jobs whose recordings are written as PyTorch's profiler writes them, with a known truth, and mishaps of them.

    job = WrittenJob(ranks=4, slow={2: 2.25})
    folder = write_job(job, tmp_path)           # rank0.json ...
    job.truth.late                              # {2}

A step of every rank is `layers` pairs of a compute kernel and a collective that nobody leaves before the last has
come, so who is slow, how much the others wait and how long a step lasts follow from the numbers given. Mishaps change
what was recorded and not what happened: a cut file, lost kernels, other steps, another library's collectives.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Literal, get_args

Event = dict[str, Any]
Trace = dict[str, Any]

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
#: When every recording begins, microseconds since 1970.
START_US = 1_700_000_000_000_000.0
_LAUNCH_US = 150.0
_DEVICE = "some device"
_OPERATORS, _HOST_THREAD, _COMPUTE_STREAM, _COLLECTIVE_STREAM = "aten::mm", 1, 7, 20


@dataclass(frozen=True)
class Truth:
    """What is true of a job, whatever was recorded of it.

    Attributes:
        late: Ranks that the others wait for.
        wait_share: Share of a step that the others spend waiting for somebody, beyond the transfer.
    """

    late: frozenset[int]
    wait_share: float


@dataclass(frozen=True)
class WrittenJob:
    """A data-parallel job.

    Attributes:
        ranks: Workers.
        steps: Recorded steps.
        first_step: Number of the first one.
        layers: Pairs of compute and collective in each step.
        compute_us: Time of a rank's compute kernels in a step.
        transfer_us: What the collectives of a step take when all have come.
        slow: Rank -> how many times as long it computes.
        rotating: Another rank is slow in each step, by so many times; 0 for none.
        held_us: Rank -> how long its host is in a Python function in each step, while the device does the first half.
        stacks: Python functions are recorded.
        jitter: Relative standard deviation of each kernel.
        kernel: Name of the collectives' kernels.
        marks: "profiler" steps, "optimizer" steps, or none.
        phases: Forward, backward and optimizer are recorded as operators.
        stages: Pipeline stages; of several, replica r of stage s is rank `s * replicas + r`, and the first and the last
            stage of each replica meet in a group of two ("tied embeddings") before everybody meets.
        long_stage: How many times as long the last stage computes.
        groups: Entries of "pg_config", () for none.
        clock_us: How far the clocks of two ranks may differ.
        seed: Of all that is random.
    """

    ranks: int = 4
    steps: int = 6
    first_step: int = 10
    layers: int = 1
    compute_us: float = 40_000.0
    transfer_us: float = 4_600.0
    slow: Mapping[int, float] = field(default_factory=dict)
    rotating: float = 0.0
    held_us: Mapping[int, float] = field(default_factory=dict)
    stacks: bool = False
    jitter: float = 0.01
    kernel: str = NCCL
    marks: Literal["profiler", "optimizer", "none"] = "profiler"
    phases: bool = False
    stages: int = 1
    long_stage: float = 1.0
    groups: tuple[Mapping[str, Any], ...] = ()
    clock_us: float = 0.0
    seed: int = 1

    @property
    def truth(self) -> Truth:
        """What the numbers mean."""
        most = max((*self.slow.values(), self.rotating or 1.0, 1.0))
        late = frozenset(rank for rank, factor in self.slow.items() if factor >= most > 1)
        return Truth(late, self.compute_us * (most - 1) / (self.compute_us * most + self.transfer_us))

    @property
    def replicas(self) -> int:
        """Workers of each stage."""
        return self.ranks // self.stages

    def pairs(self) -> list[tuple[int, int]]:
        """First and last stage of each replica."""
        last = (self.stages - 1) * self.replicas
        return [(one, last + one) for one in range(self.replicas)] if self.stages > 1 else []

    def process_groups(self) -> tuple[Mapping[str, Any], ...]:
        """Entries of "pg_config"."""
        if self.stages == 1:
            return self.groups
        everybody = {"pg_name": "0", "pg_desc": "default_pg", "ranks": list(range(self.ranks))}
        lanes = [list(range(one, self.ranks, self.replicas)) for one in range(self.replicas)]
        tied = [
            {"pg_name": f"e{at}", "pg_desc": "EMBEDDING_GROUP", "ranks": list(pair)}
            for at, pair in enumerate(self.pairs())
        ]
        pipes = [
            {"pg_name": f"pp{at}", "pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": lane}
            for at, lane in enumerate(lanes)
        ]
        return (everybody, *tied, *pipes)

    def record(self) -> dict[int, Trace]:
        """What the profiler of each rank writes."""
        random = Random(self.seed)
        clocks = [random.uniform(-self.clock_us, self.clock_us) for _ in range(self.ranks)]
        recorders = [_Recorder(self, rank, clocks[rank]) for rank in range(self.ranks)]
        now = START_US
        for step in range(self.steps):
            begun = now
            for layer in range(self.layers):
                ends = [recorder.compute(now, self._compute_us(random, step, recorder.rank), layer)
                        for recorder in recorders]  # fmt: skip
                for at, pair in enumerate(self.pairs()):
                    met = max(ends[rank] for rank in pair) + self.transfer_us / 4
                    for rank in pair:
                        recorders[rank].meet(ends[rank], met, f"e{at}")
                        ends[rank] = met
                transfer = self.transfer_us / self.layers * _vary(random, self.jitter)
                now = max(ends) + transfer
                for recorder, end in zip(recorders, ends, strict=True):
                    recorder.meet(end, now, "0" if self.stages > 1 else "")
            for recorder in recorders:
                recorder.close_step(self.first_step + step, begun, now)
        return {recorder.rank: recorder.trace() for recorder in recorders}

    def _compute_us(self, random: Random, step: int, rank: int) -> float:
        factor = self.slow.get(rank, 1.0)
        if self.stages > 1 and rank // self.replicas == self.stages - 1:
            factor *= self.long_stage
        if self.rotating and (step * 7 + 3) % self.ranks == rank:
            factor = self.rotating
        return self.compute_us / self.layers * factor * _vary(random, self.jitter)


def _vary(random: Random, jitter: float) -> float:
    return max(0.5, random.gauss(1.0, jitter))


class _Recorder:
    """One rank's profiler."""

    def __init__(self, job: WrittenJob, rank: int, clock_us: float) -> None:
        self.rank = rank
        self._job = job
        self._clock_us = clock_us
        self._host: list[Event] = []
        self._device: list[Event] = []
        self._launches = 0

    def compute(self, now: float, length: float, layer: int) -> float:
        """A compute kernel from now on; when it ends."""
        name = _OPERATORS
        if self._job.phases and layer == self._job.layers - 1:
            name = "autograd::engine::evaluate_function: MmBackward0"
        self._operator(name, now)
        held = self._job.held_us.get(self.rank, 0.0) if layer == 0 else 0.0
        if not held:
            return self._gemm("gemm_kernel", now, length)
        if self._job.stacks:
            self._add(
                self._host, "python_function", "prepare.py(7): tokenize", self._pid, _HOST_THREAD, now + 200, held
            )
        half = self._gemm("gemm_kernel", now, length / 2)
        return self._gemm("gemm_kernel", max(half, now + 200 + held), length / 2)

    def _gemm(self, name: str, now: float, length: float) -> float:
        """A kernel that is launched now; when it ends."""
        self._kernel(name, _COMPUTE_STREAM, now + _LAUNCH_US, length - _LAUNCH_US, now + 50)
        return now + length

    def meet(self, begin: float, end: float, group: str = "") -> None:
        """A collective of a group between these two moments."""
        said = {"Collective name": "allreduce", "In msg nelems": 500, "Process Group Name": group} if group else {}
        self._kernel(self._job.kernel, _COLLECTIVE_STREAM, begin + 2, end - begin - 2, begin - 100, said)

    def close_step(self, number: int, begun: float, ended: float) -> None:
        """The step's marks."""
        if self._job.marks == "profiler":
            self._add(
                self._host,
                "user_annotation",
                f"ProfilerStep#{number}",
                self._pid,
                _HOST_THREAD,
                begun,
                ended - begun - 5,
            )
        if self._job.phases or self._job.marks == "optimizer":
            self._add(self._host, "user_annotation", "Optimizer.step#SGD.step", self._pid, _HOST_THREAD, ended - 80, 60)

    def trace(self) -> Trace:
        """The file's content: host events first, then the device's, as Kineto writes them."""
        info: dict[str, Any] = {"backend": "nccl", "rank": self.rank, "world_size": self._job.ranks}
        groups = self._job.process_groups()
        if groups:
            info["pg_config"] = [dict(one) for one in groups]
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": _DEVICE}],
            "distributedInfo": info,
            "traceEvents": [*sorted(self._host, key=lambda one: float(one["ts"])), *self._device],
            "traceName": f"rank{self.rank}.json",
        }

    @property
    def _pid(self) -> int:
        return 100 + self.rank

    def _operator(self, name: str, now: float) -> None:
        self._add(self._host, "cpu_op", name, self._pid, _HOST_THREAD, now + 20, 110)

    def _kernel(
        self,
        name: str,
        stream: int,
        begin: float,
        length: float,
        launched: float,
        said: Mapping[str, Any] | None = None,
    ) -> None:
        self._launches += 1
        link = {"correlation": self._launches}
        self._add(self._host, "cuda_runtime", "cudaLaunchKernel", self._pid, _HOST_THREAD, launched, 40, link)
        place = {"device": 0, "stream": stream, **link, **(said or {})}
        self._add(self._device, "kernel", name, 0, stream, begin, max(length, 1.0), place)

    def _add(
        self, events: list[Event], category: str, name: str, pid: int, tid: int, ts: float, dur: float,
        args: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid,
                 "ts": round(ts + self._clock_us, 3), "dur": round(dur, 3)}  # fmt: skip
        events.append({**event, "args": dict(args)} if args else event)


# ---------------------------------------------------------------------- mishaps


def is_device(event: Event) -> bool:
    """Whether an event ran on a device."""
    return event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")


def without_device(trace: Trace) -> Trace:
    """Recorded with the CPU's activities only."""
    return _with_events(trace, lambda event: not is_device(event) and event.get("cat") != "cuda_runtime")


def without_some_kernels(trace: Trace, share: float, random: Random) -> Trace:
    """Each device event lost by chance."""
    return _with_events(trace, lambda event: not is_device(event) or random.random() >= share)


def without_later_kernels(trace: Trace, share: float) -> Trace:
    """The device's buffer was full after this share of the device's events."""
    begins = sorted(float(event["ts"]) for event in trace["traceEvents"] if is_device(event))
    last = begins[int(len(begins) * share)] if share < 1 else float("inf")
    return _with_events(trace, lambda event: not is_device(event) or float(event["ts"]) < last)


def only_steps(trace: Trace, first: int, last: int) -> Trace:
    """What a profiler that recorded fewer steps would have written: all that began in these steps."""
    spans = {
        int(event["name"].partition("#")[2]): (event["ts"], event["ts"] + event["dur"])
        for event in trace["traceEvents"]
        if str(event.get("name")).startswith("ProfilerStep#")
    }
    kept = [span for number, span in spans.items() if first <= number <= last]
    if not kept:
        return _with_events(trace, lambda event: False)
    begin, end = min(span[0] for span in kept), max(span[1] for span in kept) + 5
    return _with_events(trace, lambda event: begin - 1 <= event["ts"] < end)


def _with_events(trace: Trace, wanted: Callable[[Event], bool]) -> Trace:
    return {**trace, "traceEvents": [event for event in trace["traceEvents"] if wanted(event)]}


def encoded(trace: Trace) -> bytes:
    """The text of a file."""
    return json.dumps(trace, separators=(",", ":")).encode()


def cut(data: bytes, share: float) -> bytes:
    """What is left of a file of which only this share was written."""
    return data[: max(1, int(len(data) * share))]


def write_files(folder: Path, files: Mapping[int, bytes]) -> Path:
    """A file for each rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, data in files.items():
        (folder / f"rank{rank}.json").write_bytes(data)
    return folder


def write_job(job: WrittenJob, folder: Path) -> Path:
    """A job's recordings as they should be."""
    return write_files(folder, {rank: encoded(trace) for rank, trace in job.record().items()})


# ---------------------------------------------------------------------- folders at random

Mishap = Literal[
    "none", "cut", "cpu only", "no kernels", "some kernels", "later kernels", "no collectives", "other steps", "no file"
]
MISHAPS: tuple[Mishap, ...] = get_args(Mishap)


@dataclass(frozen=True)
class Folder:
    """A folder of recordings, made at random.

    Attributes:
        job: What happened.
        victims: Ranks whose files met with something, and with what.
        files: Rank -> content.
    """

    job: WrittenJob
    victims: Mapping[int, Mishap]
    files: Mapping[int, bytes]


def random_job(random: Random, kernels: tuple[str, ...] = (NCCL,)) -> WrittenJob:
    """A job of two to eight ranks: healthy, with a slow rank, another one in each step, or with a long last stage."""
    kind = random.choice(("healthy", "slow", "slow", "rotating", "stages"))
    ranks = random.choice((4, 6, 8) if kind == "stages" else (2, 3, 4, 4, 6, 8))
    slow: dict[int, float] = {}
    if kind == "slow":
        slow = {random.randrange(ranks): random.uniform(1.4, 3.0)}
    return WrittenJob(
        ranks=ranks,
        steps=random.randrange(5, 13),
        first_step=random.randrange(0, 40),
        layers=random.choice((1, 1, 2, 4)),
        compute_us=random.choice((8_000.0, 40_000.0, 150_000.0)),
        transfer_us=random.choice((400.0, 2_000.0, 4_600.0)),
        slow=slow,
        rotating=random.uniform(1.5, 2.5) if kind == "rotating" and ranks > 3 else 0.0,
        jitter=random.choice((0.002, 0.01, 0.02)),
        kernel=random.choice(kernels),
        marks=random.choice(("profiler", "profiler", "profiler", "optimizer")),
        phases=random.random() < 0.3,
        stages=2 if kind == "stages" else 1,
        long_stage=random.uniform(1.0, 2.0) if kind == "stages" else 1.0,
        clock_us=random.choice((0.0, 0.0, 300.0)),
        seed=random.randrange(1 << 30),
    )


def random_folder(random: Random, kernels: tuple[str, ...] = (NCCL,), mishaps: tuple[Mishap, ...] = MISHAPS) -> Folder:
    """A job and at most half of its files damaged."""
    job = random_job(random, kernels)
    mishap = random.choice(mishaps)
    if mishap == "other steps":
        job = replace(job, marks="profiler")  # which steps they are is told by the profiler's marks
    recorded = job.record()
    count = 0 if mishap == "none" else random.randint(1, max(1, job.ranks // 2 - 1))
    victims: dict[int, Mishap] = dict.fromkeys(random.sample(range(job.ranks), count), mishap)
    files = {rank: encoded(trace) for rank, trace in recorded.items()}
    for rank in victims:
        changed = _damaged(recorded[rank], job, mishap, random)
        if changed is None:
            del files[rank]
        else:
            files[rank] = changed
    return Folder(job, victims, files)


def _damaged(trace: Trace, job: WrittenJob, mishap: Mishap, random: Random) -> bytes | None:
    if mishap == "no file":
        return None
    if mishap == "cut":
        return cut(encoded(trace), random.random())
    if mishap == "other steps":
        by = random.randint(1, max(1, job.steps - 1))
        last = job.first_step + job.steps - 1
        shifted = only_steps(trace, job.first_step + by, last) if random.random() < 0.5 else None
        return encoded(shifted or only_steps(trace, job.first_step, last - by))
    ways: dict[str, Callable[[], Trace]] = {
        "cpu only": lambda: without_device(trace),
        "no kernels": lambda: _with_events(trace, lambda event: not is_device(event)),
        "some kernels": lambda: without_some_kernels(trace, random.uniform(0.2, 0.9), random),
        "later kernels": lambda: without_later_kernels(trace, random.uniform(0.1, 0.9)),
        "no collectives": lambda: _with_events(trace, lambda event: event.get("name") != job.kernel),
    }
    return encoded(ways[mishap]())
