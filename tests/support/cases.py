"""The case studies of the paper as synthetic jobs: what it measured of β and μ, on as many workers as it had.

Each constructor documents what is the paper's and what is our choice. Ours are the process groups (the paper names
collectives, seldom the groups they ran in), the model's kernels, and the length of the window: twenty seconds hold two
to five such iterations, here four. Iterations come out of the parts; they are near the paper's, not equal to them.

A function is a handful of templates (a made row each), and every worker points at one of them, so that a row is encoded
once however many workers run it. Between the functions workers meet in collectives of their groups; who comes early
waits, and that is computed for every worker, execution by execution. With `has_ends` collectives also tell when each
execution ended, by a clock of each worker's own.

Source:
    EROICA, section 6 and appendices A and B.

Array suffixes: W workers, I iterations, T templates, G groups, K executions of an iteration. Constructors state times
in seconds, fleets hold microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from eroica.model.look import Blockage
from eroica.model.pattern import CollectiveRecord, FunctionKey, FunctionPattern, Neighbor, Phase, WorkerPattern
from eroica.model.series import encode_series
from eroica.model.worker import ProcessGroup, Worker
from support.standstill import Standstill

__all__ = ["reinforcement_learning", "robotics", "text_to_picture", "text_to_video", "video_generation"]

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

#: How an iteration runs; garbage collections and other interruptions come first.
_PHASES: tuple[Phase, ...] = ("input", "other", "forward", "backward", "optimizer")
#: Distinct values of a resource per second of use: NVML renews its counters every 20 ms.
_VALUES_PER_S = 50.0
#: Members of a group leave a collective of a device within so many microseconds.
_EXIT_US = 20.0
_PER_HOST = 8
_ITERATIONS = 4


class _Grouping:
    """A partition of all workers into process groups of one kind; a single one is the default group.

    Args:
        description: torch's description of these groups.
        of: Number of the group each worker is in. intp [W].
    """

    def __init__(self, description: str, of: Indices) -> None:
        self.of, self.count = of, int(of.max()) + 1
        if self.count == 1:
            world = tuple(range(of.size))
            self.groups = [ProcessGroup(name="0", description="default_pg", ranks=world, backend="cpu:gloo,cuda:nccl")]
            return
        members = [tuple(np.flatnonzero(of == group).tolist()) for group in range(self.count)]
        self.groups = [
            ProcessGroup(name=f"{description} {at}", description=description, ranks=ranks, backend="nccl")
            for at, ranks in enumerate(members)
        ]


def _everybody(workers: int) -> _Grouping:
    """The default group."""
    return _Grouping("default_pg", np.zeros(workers, dtype=np.intp))


@dataclass(frozen=True, kw_only=True)
class _Work:
    """One function on all workers.

    Attributes:
        key: Which; its phase says when in an iteration it runs.
        time_us: Critical time. float64 [T, I].
        of: Template of each worker, -1 = the worker does not run it. intp [W].
        mu: Use of its resource. float64 [T].
        sigma: Its deviation. float64 [T].
        count: Executions per iteration.
        resource: Name of the resource.
    """

    key: FunctionKey
    time_us: Floats
    of: Indices
    mu: Floats
    sigma: Floats
    count: float = 1.0
    resource: str = "sm"


@dataclass(frozen=True, kw_only=True)
class _Meeting:
    """One kind of collective, which everybody runs in its group of one grouping.

    Attributes:
        grouping: Which groups.
        name: Name of the kernel.
        kind: Kind of collective.
        phase: When it runs: spread evenly over that part of the iteration.
        times: Executions per iteration.
        transfer_us: What all executions of an iteration take once everybody is there. float64 [G, I].
        mu: Use of PCIe on each worker. float64 [W].
        sigma: Its deviation. float64 [W].
    """

    grouping: _Grouping
    name: str
    kind: str
    phase: Phase
    times: int
    transfer_us: Floats
    mu: Floats
    sigma: Floats


@dataclass(kw_only=True)
class _Fleet:
    """A job to be synthesized.

    Attributes:
        workers: How many.
        works: Functions.
        meetings: Collectives, in the order in which they run within a phase.
        seed: Of the uneven leaving of collectives.
        window_id: Number of the window.
        neighbors: Other processes on the host of a worker.
        has_ends: Records tell when each execution ended, by a clock of the worker's own.
    """

    workers: int
    works: list[_Work] = field(default_factory=list)
    meetings: list[_Meeting] = field(default_factory=list)
    seed: int = 0
    window_id: int = 1
    neighbors: Mapping[int, tuple[Neighbor, ...]] = field(default_factory=dict)
    has_ends: bool = False

    def synthesize(self) -> list[WorkerPattern]:
        """Patterns of all workers."""
        iteration_WI, durations, ends = self._run()
        window_s = float(iteration_WI.sum(axis=1).mean()) / 1e6
        rows = [
            [
                _row(work.key, time_I, window_s, mu, sigma, work.resource, round(work.count * _ITERATIONS))
                for time_I, mu, sigma in zip(work.time_us, work.mu, work.sigma, strict=True)
            ]
            for work in self.works
        ]
        world = _everybody(self.workers).groups[0]
        patterns = []
        for worker in range(self.workers):
            own = [rows[at][work.of[worker]] for at, work in enumerate(self.works) if work.of[worker] >= 0]
            spent = [(duration[worker], end[worker]) for duration, end in zip(durations, ends, strict=True)]
            patterns.append(self._pattern(worker, iteration_WI[worker], own, spent, world))
        return patterns

    def _run(self) -> tuple[Floats, list[Floats], list[Floats]]:
        """Let everybody work and wait, iteration by iteration; clocks are carried over, nobody is set back to zero.

        Returns:
            Iterations, float64 [W, I]; durations and ends of each meeting, float64 [W, I, K] each.
        """
        shape = (self.workers, _ITERATIONS)
        noise = np.random.default_rng((self.seed, 7))
        clock = np.zeros(self.workers)
        iteration_WI = np.zeros(shape)
        durations, ends = ([np.zeros((*shape, meeting.times)) for meeting in self.meetings] for _ in range(2))
        busy = {phase: self._busy(phase) for phase in _PHASES}
        for iteration in range(_ITERATIONS):
            begun = clock.copy()
            for phase in _PHASES:
                parts = max((meeting.times for meeting in self.meetings if meeting.phase == phase), default=1)
                for part in range(parts):
                    clock += busy[phase][:, iteration] / parts
                    for at, meeting in enumerate(self.meetings):
                        place = part - (parts - meeting.times)
                        if meeting.phase == phase and place >= 0:
                            left = _meet(meeting, clock, iteration, noise)
                            durations[at][:, iteration, place] = left - clock
                            ends[at][:, iteration, place] = left
                            clock = left
            iteration_WI[:, iteration] = clock - begun
        return iteration_WI, durations, ends

    def _busy(self, phase: Phase) -> Floats:
        """Time of a phase's functions. float64 [W, I]."""
        total = np.zeros((self.workers, _ITERATIONS))
        for work in self.works:
            if work.key.phase == phase:
                total += np.vstack([work.time_us, np.zeros(_ITERATIONS)])[work.of]
        return total

    def _pattern(
        self,
        worker: int,
        iteration_I: Floats,
        own: list[FunctionPattern],
        spent: Sequence[tuple[Floats, Floats]],
        world: ProcessGroup,
    ) -> WorkerPattern:
        window_s = float(iteration_I.sum()) / 1e6
        wait_I = np.sum([duration.sum(axis=1) for duration, _ in spent], axis=0)
        groups = {world.name: world}
        records = []
        for meeting, (duration, end) in zip(self.meetings, spent, strict=True):
            group = meeting.grouping.groups[meeting.grouping.of[worker]]
            groups[group.name] = group
            records.append(self._record(meeting, group, duration, end))
            key = FunctionKey(kind="collective", name=meeting.name, thread="collective", group=group.name)
            use, count = (float(meeting.mu[worker]), float(meeting.sigma[worker])), meeting.times * _ITERATIONS
            own.append(_row(key, duration.sum(axis=1), window_s, *use, "pcie", count))
        kept = sorted((row for row in own if row.total_s > 0), key=lambda row: (-row.beta, -row.total_s))
        local, first = worker % _PER_HOST, 1000 * self.window_id
        return WorkerPattern(
            worker=Worker(
                global_rank=worker, local_rank=local, world_size=self.workers, host=f"node-{worker // _PER_HOST}",
                pid=4000 + local, device=f"cuda:{local}",
            ),
            window_id=self.window_id,
            first_iteration=first,
            last_iteration=first + _ITERATIONS,
            duration_s=window_s,
            iteration_us=encode_series(iteration_I.astype(np.float32)),
            wait_us=encode_series(wait_I.astype(np.float32)),
            functions=tuple(kept),
            collectives=tuple(records),
            process_groups=tuple(groups.values()),
            idle_s=max(window_s - sum(row.critical_s for row in kept), 0.0),
            samples_used=int(window_s * 100),
            has_accelerator=True,
            host_facts={"cpu_count": 160.0, "run_queue_wait": 0.01, "stopped": 0.0, "throttled": 0.0},
            neighbors=self.neighbors.get(worker, ()),
            stall_s=0.4,
            summarize_s=1.0,
            raw_bytes=50_000_000,
        )  # fmt: skip

    def _record(self, meeting: _Meeting, group: ProcessGroup, duration_IK: Floats, end_IK: Floats) -> CollectiveRecord:
        """Numbers, iterations and sizes are the same for every worker."""
        sequence, iteration, elements = _shared_series(_ITERATIONS, meeting.times)
        duration = encode_series(duration_IK.ravel().astype(np.float32))
        return CollectiveRecord(
            group=group.name,
            kind=meeting.kind,
            paired_by="sequence",
            executions=duration_IK.size,
            sequence=sequence,
            iteration=iteration,
            duration_us=duration,
            critical_us=duration,
            elements=elements,
            end_us=encode_series(end_IK.ravel()) if self.has_ends else b"",
        )


def _meet(meeting: _Meeting, clock: Floats, iteration: int, noise: np.random.Generator) -> Floats:
    """When each worker leaves: after the last of its group has come and the transfer is done. float64 [W]."""
    of = meeting.grouping.of
    last_G = np.full(meeting.grouping.count, -np.inf)
    np.maximum.at(last_G, of, clock)
    done_G = last_G + meeting.transfer_us[:, iteration] / meeting.times
    return np.asarray(done_G[of] + noise.exponential(_EXIT_US, clock.size))


def _row(
    key: FunctionKey, time_I: Floats, window_s: float, mu: float, sigma: float, resource: str, count: int
) -> FunctionPattern:
    total_s = float(time_I.sum()) / 1e6
    return FunctionPattern(
        key=key,
        beta=min(total_s / window_s, 1.0),
        mu=float(mu),
        sigma=float(sigma),
        resource=resource,
        resource_samples=int(total_s * _VALUES_PER_S),
        critical_s=total_s,
        total_s=total_s,
        count=count,
        max_s=float(time_I.max()) / 1e6,
        active_iterations=int(np.count_nonzero(time_I)),
        per_iteration_us=encode_series(time_I.astype(np.float32)),
    )


@lru_cache(maxsize=64)
def _shared_series(iterations: int, times: int) -> tuple[bytes, bytes, bytes]:
    """Sequence numbers, iterations and elements of all executions."""
    count = iterations * times
    return (
        encode_series(np.arange(count, dtype=np.int64) + 500),
        encode_series(np.repeat(np.arange(iterations, dtype=np.int32), times)),
        encode_series(np.full(count, 8_388_608, dtype=np.int64)),
    )


# ---------------------------------------------------------------------- parts of the paper's jobs

#: Variants of each function: workers differ as these do.
_VARIANTS = 24
#: Spread of a healthy device kernel from iteration to iteration, and of σ from worker to worker.
_JITTER = 0.01
_SIGMA_SPREAD = 0.3
#: SM clock of a healthy device and its highest one, MHz (H800).
_CLOCK_MHZ = 1380.0
_HIGHEST_MHZ = 1980.0

#: Use of a core by a function that waits for data.
_WAITING = 0.05

_LOOP = ("<module> (project/train.py:1)", "main (project/train.py:40)")
_NEXT = (
    "__next__ (torch/utils/data/dataloader.py:630)",
    "_next_data (torch/utils/data/dataloader.py:674)",
    "fetch (torch/utils/data/_utils/fetch.py:51)",
)
_MODULE = "_call_impl (torch/nn/modules/module.py:1500)"

#: Kernels of a step: name, part of the iteration, share of all compute time, executions.
_KERNELS: tuple[tuple[str, Phase, float, int], ...] = (
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "forward", 0.16, 192),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_nt_n_tilesize128x256x64", "backward", 0.26, 384),
    ("flash_fwd_kernel", "forward", 0.11, 48),
    ("flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", "backward", 0.19, 48),
    ("vectorized_layer_norm_kernel", "forward", 0.05, 96),
    ("layer_norm_grad_input_kernel_vectorized", "backward", 0.06, 96),
    ("chunk_cat_cuda_kernel<float, BFloat16>", "backward", 0.05, 48),
    ("vectorized_elementwise_kernel<4, GeluCUDAKernelImpl>", "forward", 0.05, 48),
    ("multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimizer", 0.07, 16),
)


class _Noise:
    """Draws templates and who follows which; one for each job."""

    def __init__(self, seed: int, workers: int) -> None:
        self.draw = np.random.default_rng(seed)
        self.workers = workers

    def steady(self, variants: int = _VARIANTS, spread: float = _JITTER) -> Floats:
        """Factors near one. float64 [T, I]."""
        return np.exp(self.draw.normal(0, spread, (variants, _ITERATIONS)))

    def anyone(self, variants: int = _VARIANTS) -> Indices:
        """A template for each worker. intp [W]."""
        return self.draw.integers(0, variants, self.workers).astype(np.intp)

    def around(self, mean: float, spread: float, size: int) -> Floats:
        """Utilizations, 0-1. float64 [size]."""
        return np.asarray(np.clip(mean * np.exp(self.draw.normal(0, spread, size)), 0.0, 1.0))


def _kernels(noise: _Noise, compute_s: float, mu: float = _CLOCK_MHZ / _HIGHEST_MHZ) -> list[_Work]:
    """The model on a healthy device: all kernels at the same clock, equally often. σ differs by 30 % among workers."""
    return [
        _Work(
            key=FunctionKey(kind="compute", name=name, phase=phase, thread="device"),
            time_us=share * compute_s * 1e6 * noise.steady(),
            of=noise.anyone(),
            mu=noise.around(mu, 0.01, _VARIANTS),
            sigma=noise.around(0.05, _SIGMA_SPREAD, _VARIANTS),
            count=count,
        )
        for name, phase, share, count in _KERNELS
    ]


def _python(
    noise: _Noise,
    frames: Sequence[str],
    phase: Phase,
    mean_s: Floats | float,
    of: Indices,
    spread: float = 0.1,
    mu: float = 0.6,
) -> _Work:
    """A Python function; `mean_s` for each template, about which its iterations vary. `mu` of a core is used."""
    stack = (*_LOOP, *frames)
    means_T1 = np.broadcast_to(np.asarray(mean_s, dtype=np.float64), (int(of.max()) + 1,))[:, None]
    factors_TI = noise.steady(means_T1.shape[0], spread)
    return _Work(
        key=FunctionKey(kind="python", name=stack[-1].rsplit(" (", 1)[0], stack=stack, phase=phase),
        time_us=means_T1 * 1e6 * factors_TI,
        of=of,
        mu=noise.around(mu, 0.1, means_T1.shape[0]),
        sigma=noise.around(0.1, _SIGMA_SPREAD, means_T1.shape[0]),
        resource="cpu",
    )


def _healthy_python(noise: _Noise, scale_s: float) -> list[_Work]:
    """What any job runs between kernels: far less than 1 % each."""
    parts: tuple[tuple[tuple[str, ...], Phase, float], ...] = (
        ((*_NEXT, "default_collate (torch/utils/data/_utils/collate.py:340)"), "input", 0.001),
        ((_MODULE, "forward (project/model.py:210)"), "forward", 0.003),
        (("wrapper (torch/optim/optimizer.py:480)", "_fused_adamw (torch/optim/adamw.py:640)"), "optimizer", 0.001),
        ((), "other", 0.001),
    )
    return [_python(noise, frames, phase, share * scale_s, noise.anyone(), 0.2) for frames, phase, share in parts]


#: Kernel, kind of collective, part of the iteration, executions per iteration.
_Kind = tuple[str, str, Phase, int]
_ALL_GATHER: _Kind = (
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather", "forward", 4
)  # fmt: skip
_REDUCE_SCATTER: _Kind = (
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce_scatter", "backward", 4
)  # fmt: skip
_ALL_REDUCE: _Kind = (
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce", "backward", 1
)  # fmt: skip
_SEND_RECEIVE: _Kind = ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "all_to_all", "forward", 4)


def _meeting(noise: _Noise, grouping: _Grouping, what: _Kind, transfer_s: Floats | float, mu: Floats) -> _Meeting:
    """A collective; `transfer_s` per iteration for each of its groups, which vary by 2 % from one to the next."""
    name, kind, phase, times = what
    seconds_G1 = np.broadcast_to(np.asarray(transfer_s, dtype=np.float64), (grouping.count,))[:, None]
    return _Meeting(
        grouping=grouping,
        name=name,
        kind=kind,
        phase=phase,
        times=times,
        transfer_us=seconds_G1 * 1e6 * noise.steady(grouping.count, 0.02),
        mu=mu,
        sigma=noise.around(0.08, _SIGMA_SPREAD, noise.workers),
    )


def healthy_job(workers: int, seed: int = 0, shard: int = 16, has_ends: bool = False) -> list[WorkerPattern]:
    """A healthy hybrid-sharded job: `shard` workers share a model, an iteration takes about 4 s, nothing is wrong.

    Kernels differ by 1 % from iteration to iteration, groups by 2 % in their transfers, σ by 30 % among workers.
    """
    noise = _Noise(seed, workers)
    fleet = _Fleet(workers=workers, seed=seed, has_ends=has_ends)
    fleet.works = [*_kernels(noise, 2.8), *_healthy_python(noise, 4.0)]
    fleet.meetings = _hybrid(noise, min(shard, workers), 0.5, 0.2, noise.around(0.12, 0.1, workers))
    return fleet.synthesize()


def _hybrid(noise: _Noise, shard: int, gather_s: Floats | float, reduce_s: float, gather_mu: Floats) -> list[_Meeting]:
    """All-gathers in shard groups of consecutive workers, an all-reduce among equal shards."""
    within = _Grouping("mesh_dp_shard", np.arange(noise.workers) // shard)
    across = _Grouping("mesh_dp_replicate", np.arange(noise.workers) % shard)
    mu = noise.around(0.24, 0.1, noise.workers)
    return [
        _meeting(noise, within, _ALL_GATHER, gather_s, gather_mu),
        _meeting(noise, across, _ALL_REDUCE, reduce_s, mu),
    ]


def text_to_video(has_ends: bool = False) -> list[WorkerPattern]:
    """Case 1: 3,072 workers, 5 s an iteration where 3.5 s were expected (section 6.1).

    The paper's: the data loader's `recv_into` holds up to 0.06 of the window on many workers (slow object store);
    Python's forward up to 0.03; garbage collections on random workers, for which the others wait. Ours: fully sharded
    over all workers (its functions are FSDP's), so one process group; a worker collects in one of ten iterations, for
    0.5 to 0.8 s, and with so many of them somebody always does.
    """
    workers = 3072
    noise = _Noise(0, workers)
    fleet = _Fleet(workers=workers, has_ends=has_ends)
    world = _everybody(workers)
    reading = (*_NEXT, "__getitem__ (project/video.py:88)", "readinto (socket.py:706)", "recv_into (ssl.py:1166)")
    scoring = (_MODULE, "forward (project/model.py:210)", "build_masks (project/model.py:261)")
    collected = noise.draw.random((96, _ITERATIONS)) < 0.1
    fleet.works = [
        *_kernels(noise, 2.4),
        *_healthy_python(noise, 5.0),
        _python(noise, reading, "input", np.linspace(0.02, 0.056, _VARIANTS) * 5.0, noise.anyone(), mu=_WAITING),
        _python(noise, scoring, "forward", np.linspace(0.02, 0.03, _VARIANTS) * 5.0, noise.anyone(), 0.02),
        _Work(
            key=FunctionKey(kind="gc", name="garbage collection"),
            time_us=collected * noise.draw.uniform(0.5e6, 0.8e6, collected.shape),
            of=noise.anyone(96),
            mu=np.full(96, 0.99),
            sigma=np.full(96, 0.01),
            count=0.1,
            resource="cpu",
        ),
    ]
    mu = noise.around(0.24, 0.1, workers)
    fleet.meetings = [
        _meeting(noise, world, _ALL_GATHER, 0.35, mu),
        _meeting(noise, world, _REDUCE_SCATTER, 0.45, mu),
    ]
    return fleet.synthesize()


#: Case 2: the workers of the new host, and those who pin memory.
VIDEO_SLOW_HOST = tuple(range(3392, 3400))
VIDEO_PINNING = (417, 1503, 2890)


def video_generation(has_ends: bool = False) -> list[WorkerPattern]:
    """Case 2: 3,400 workers, 10.5 s an iteration where 8.5 s were expected (section 6.2).

    The paper's: `SendRecv` at 9 to 16 % where equal times were expected (6 %); 40 workers at 20 to 23 %, of which five
    use their PCIe link less (7 % against 24 %) and one less still (4 %), for a network interface of their host is down;
    `pin_memory` at 23 to 33 % on three workers; kernels at the same clock with other β: the busiest device has 46 %
    more to compute than the idlest, by videos of different length. Ours: the 40 are one of 85 groups of five hosts that
    exchange sequences, gradients are reduced among equal places of these groups; the six with the lower μ sit on one
    host; lengths are drawn anew for every iteration, their kernels run equally often, and the optimizer's take the same
    time whatever the length.
    """
    workers, size = 3400, 40
    noise = _Noise(0, workers)
    fleet = _Fleet(workers=workers, has_ends=has_ends)
    sequence = _Grouping("sequence_parallel", np.arange(workers) // size)
    replicas = _Grouping("data_parallel", np.arange(workers) % size)
    lengths_TI = noise.draw.uniform(0.82, 1.20, (64, _ITERATIONS))
    of = noise.anyone(64)
    kernels = [
        _Work(
            key=work.key,
            time_us=float(work.time_us.mean())
            * (lengths_TI if work.key.phase != "optimizer" else 1.0)
            * noise.steady(64),
            of=of,
            mu=noise.around(_CLOCK_MHZ / _HIGHEST_MHZ, 0.01, 64),
            sigma=noise.around(0.05, _SIGMA_SPREAD, 64),
            count=work.count,
        )
        for work in _kernels(noise, 4.5)
    ]
    pinning = np.full(workers, -1, dtype=np.intp)
    pinning[list(VIDEO_PINNING)] = range(3)
    pin = (*_NEXT[:2], "pin_memory (torch/utils/data/_utils/pin_memory.py:60)")
    fleet.works = [
        *kernels,
        *_healthy_python(noise, 10.0),
        _python(noise, pin, "input", np.asarray([0.23, 0.28, 0.33]) * 10.5, pinning, 0.03),
    ]
    mu = noise.around(0.24, 0.05, workers)
    mu[list(VIDEO_SLOW_HOST[:6])] = noise.around(0.07, 0.05, 6)
    mu[VIDEO_SLOW_HOST[5]] = 0.04
    seconds_G = np.append(noise.draw.permutation(np.linspace(0.09, 0.16, workers // size - 1)), 0.22) * 10.5
    fleet.meetings = [
        _meeting(noise, sequence, _SEND_RECEIVE, seconds_G, mu),
        _meeting(noise, replicas, _ALL_REDUCE, 0.8, noise.around(0.3, 0.05, workers)),
    ]
    return fleet.synthesize()


#: Case 3: who sits in its loading thread.
ROBOTICS_STUCK = 77


def robotics() -> Blockage:
    """Case 3: 128 workers that stand still (section 6.3).

    The paper's: one worker's loading thread sits in `queue.put()` in `dynamic_robot_dataset._preload()`, the others are
    idle or wait in JAX. Ours: they wait in a collective of torch's, 8 workers a host.
    """
    job = Standstill(128, hosts=16, device="cuda")
    thread = ("Thread._bootstrap (threading.py:1002)", "Thread.run (threading.py:982)")
    preload = "DynamicRobotDataset._preload (project/dynamic_robot_dataset.py:212)"
    job.wait((rank for rank in range(128) if rank != ROBOTICS_STUCK), "nccl:all_gather")
    job.sit(
        ROBOTICS_STUCK,
        (
            *_LOOP,
            "sample (project/dynamic_robot_dataset.py:140)",
            "Queue.get (queue.py:171)",
            "wait (threading.py:327)",
        ),
    )
    job.add_thread(ROBOTICS_STUCK, "preload", (*thread, preload, "Queue.put (queue.py:140)", "wait (threading.py:327)"))
    return job.blockage()


#: Case 4: groups of 16 whose all-gather leaves NVLink, and the worker of each that shows it.
PICTURE_FALLBACK_GROUPS = (31, 88, 139)
PICTURE_FALLBACK = (31 * 16 + 5, 88 * 16 + 11, 139 * 16 + 2)
#: ... and the hosts of a delivery with devices that throttle.
PICTURE_THROTTLED_HOSTS = tuple(range(96, 137))


def throttled_workers(seed: int = 0) -> tuple[int, ...]:
    """Case 4: which 304 of the 328 workers on these hosts are throttled in this window; another seed, another set."""
    on_hosts = np.concatenate([np.arange(8) + 8 * host for host in PICTURE_THROTTLED_HOSTS])
    return tuple(sorted(np.random.default_rng((seed, 4)).choice(on_hosts, 304, replace=False).tolist()))


def text_to_picture(seed: int = 0, has_ends: bool = False) -> list[WorkerPattern]:
    """Case 4: 2,560 workers, 9 s an iteration where 5 s were expected (appendix A).

    The paper's: `GEMM` and other kernels on 300 and more workers of 40 and more hosts at β 0.036 against 0.030, with an
    SM clock of 490 against 1,380 MHz; `AllGather_RING` at β 0.5 against 0.2 on 48 workers, three data-parallel groups
    of 16, in which three workers use more of their PCIe link (30 to 37 % against 10 to 15 %). Ours: hybrid sharding, so
    the other 157 groups wait for the three in an all-reduce among equal shards; all kernels are slower alike.
    """
    workers = 2560
    noise = _Noise(seed, workers)
    fleet = _Fleet(workers=workers, seed=seed, has_ends=has_ends)
    slow = np.isin(np.arange(workers), throttled_workers(seed))
    works = _kernels(noise, 3.6)
    fleet.works = [*(_throttled(noise, work, slow) for work in works), *_healthy_python(noise, 9.0)]
    gather_s = np.full(workers // 16, 0.2 * 9.0)
    gather_s[list(PICTURE_FALLBACK_GROUPS)] = 0.5 * 9.0
    mu = noise.draw.uniform(0.10, 0.15, workers)
    mu[list(PICTURE_FALLBACK)] = (0.30, 0.34, 0.37)
    fleet.meetings = _hybrid(noise, 16, gather_s, 0.4, mu)
    return fleet.synthesize()


def _throttled(noise: _Noise, work: _Work, slow_W: NDArray[np.bool_]) -> _Work:
    """The same with further templates for slow devices: 1.2 times as long at a third of the clock."""
    return _Work(
        key=work.key,
        time_us=np.vstack([work.time_us, 1.2 * work.time_us]),
        of=np.where(slow_W, work.of + _VARIANTS, work.of),
        mu=np.concatenate([work.mu, work.mu * 490.0 / _CLOCK_MHZ]),
        sigma=np.concatenate([work.sigma, noise.around(0.06, _SIGMA_SPREAD, _VARIANTS)]),
        count=work.count,
    )


def reinforcement_learning() -> tuple[list[WorkerPattern], list[WorkerPattern]]:
    """Case 5: 8 workers, version A at 22 s and version B at 26 s an iteration (appendix B, which it did not solve).

    The paper's: most kernels and collectives are slightly longer in B, equally many, at the same μ; the cause are
    inference processes on the same host that had come to use its devices. Ours: they are there in both versions, and
    take a sixth of each device's time in B.

    Returns:
        Patterns of A and of B.
    """
    made = []
    for window_id, factor, share in ((1, 1.0, 0.0), (2, 26 / 22, 0.15)):
        noise = _Noise(window_id, 8)
        fleet = _Fleet(workers=8, window_id=window_id)
        fleet.works = [*_kernels(noise, 17.0 * factor), *_healthy_python(noise, 22.0)]
        world = _everybody(8)
        mu = noise.around(0.2, 0.05, 8)
        fleet.meetings = [
            _meeting(noise, world, _ALL_GATHER, 2.0 * factor, mu),
            _meeting(noise, world, _REDUCE_SCATTER, 2.5 * factor, mu),
        ]
        fleet.neighbors = {worker: (_inference(worker, share),) for worker in range(8)}
        made.append(fleet.synthesize())
    return made[0], made[1]


def _inference(device: int, share: float) -> Neighbor:
    """A server that was left running on this device."""
    return Neighbor(
        name="reward_server",
        pid=900 + device,
        cpu_cores=0.3 if share else 0.0,
        device=f"cuda:{device}",
        device_utilization=share,
    )
