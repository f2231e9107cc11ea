"""Synthetic fleets: patterns of workers that train together, with seeded noise and real waiting in their collectives.

A draft holds the time of every function on every worker in every iteration; troubles change it. Then everybody waits in
the iteration's collectives for the last to arrive, stack samples are drawn from the Python times, and patterns are made
as a worker's host would make them.

Array suffixes: W workers, I iterations. All times are microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import (
    CollectiveRecord,
    FunctionKey,
    FunctionPattern,
    LinkUse,
    Phase,
    ThreadRole,
    WorkerPattern,
)
from eroica.model.series import encode_series
from eroica.model.verdict import Finding, Verdict
from eroica.model.window import Window, WindowPurpose
from eroica.model.worker import ProcessGroup, Worker
from support.troubles import Trouble

Floats = NDArray[np.float64]

_SAMPLING_HZ = 100
_LOOP = ("<module> (project/train.py:1)", "main (project/train.py:20)")
_MODULE = "_call_impl (torch/nn/modules/module.py:1770)"
_NEXT = (
    "__next__ (torch/utils/data/dataloader.py:720)",
    "_next_data (torch/utils/data/dataloader.py:780)",
    "fetch (torch/utils/data/_utils/fetch.py:46)",
)
_CHILD = (
    "_bootstrap (multiprocessing/process.py:300)",
    "run (multiprocessing/process.py:100)",
    "_worker_loop (torch/utils/data/_utils/worker.py:240)",
)
_ENGINE = ("backward (torch/_tensor.py:570)", "_engine_run_backward (torch/autograd/graph.py:820)")

#: Operators: name, phase, microseconds and executions per iteration of a step of about 60 ms.
_OPERATORS: tuple[tuple[str, Phase, float, int], ...] = (
    ("aten::addmm", "forward", 9000, 25),
    ("aten::_scaled_dot_product_flash_attention_for_cpu", "forward", 4000, 4),
    ("aten::native_layer_norm", "forward", 1500, 9),
    ("aten::gelu", "forward", 1400, 4),
    ("aten::embedding", "forward", 300, 2),
    ("aten::_log_softmax", "forward", 900, 1),
    ("aten::mm", "backward", 19000, 50),
    ("aten::native_layer_norm_backward", "backward", 2600, 9),
    ("aten::gelu_backward", "backward", 2200, 4),
    ("aten::add_", "backward", 700, 30),
    ("aten::_foreach_add_", "optimizer", 2500, 4),
    ("aten::_foreach_sqrt", "optimizer", 1800, 2),
)
#: Python between them: stack below the loop, phase, microseconds.
_PYTHON: tuple[tuple[tuple[str, ...], Phase, float], ...] = (
    ((_MODULE, "forward (project/model.py:60)", _MODULE, "forward (torch/nn/modules/linear.py:120)"), "forward", 1600),
    ((_MODULE, "forward (project/model.py:60)"), "forward", 700),
    ((_MODULE, "forward (project/model.py:60)", "layer_norm (torch/nn/functional.py:2880)"), "forward", 600),
    (_ENGINE, "backward", 1500),
    (("wrapper (torch/optim/optimizer.py:480)", "_multi_tensor_adamw (torch/optim/adamw.py:600)"), "optimizer", 1200),
    ((), "other", 400),
    ((*_NEXT, "__getitem__ (project/dataset.py:41)"), "input", 500),
    ((*_NEXT, "default_collate (torch/utils/data/_utils/collate.py:340)"), "input", 300),
)


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    """A healthy fleet.

    Attributes:
        workers: How many; a multiple of `stages`.
        iterations: Captured iterations.
        seed: Of all noise.
        draw: Another window of the same fleet: 1, 2, ... keep the workers' lasting speeds and draw all else anew.
        stages: Pipeline stages; each is a role of its own, the last one is a third longer.
        accelerator: Device kernels were seen: Python is short, noise is small, groups run NCCL.
        loader_workers: Data-loader processes of each worker; with any, the dataset runs there.
        scale: Factor on all times.
        unevenness: Standard deviation of the workers' lasting speeds (0.04: they differ by 5-10 %).
        jitter: Standard deviation of each iteration's speed on each worker.
        pauses: Share of iterations in which a worker is pushed aside by something else for some milliseconds.
        per_host: Workers of each host. With several hosts, patterns tell the traffic between them.
        named: Names of frames and operators, changed as given ("dataset.py" -> "reader.py").
    """

    workers: int = 4
    iterations: int = 40
    seed: int = 0
    draw: int = 0
    stages: int = 1
    accelerator: bool = False
    loader_workers: int = 0
    scale: float = 1.0
    unevenness: float = 0.04
    jitter: float = 0.08
    pauses: float = 0.1
    per_host: int = 8
    named: tuple[tuple[str, str], ...] = ()


@dataclass
class Draft:
    """Times before anybody waits; troubles change it in place.

    Attributes:
        plan: The healthy fleet.
        noise: Where troubles draw from.
        time_us: Critical time of each function. float64 [W, I] each.
        count: Executions per iteration. float64 [W] each.
        utilization: Mean use of the resource that bounds a function. float64 [W] each.
        child_us: Time of functions in loader processes, summed over them. float64 [W, I] each.
        transfer_us: Time the collectives of an iteration need by themselves. float64 [I].
        facts: Facts of each worker's host.
        link_us: What the slow link of a host (its number) costs per iteration; kept for the traffic alone.
    """

    plan: FleetPlan
    noise: np.random.Generator
    time_us: dict[FunctionKey, Floats] = field(default_factory=dict)
    count: dict[FunctionKey, Floats] = field(default_factory=dict)
    utilization: dict[FunctionKey, Floats] = field(default_factory=dict)
    child_us: dict[FunctionKey, Floats] = field(default_factory=dict)
    transfer_us: Floats = field(default_factory=lambda: np.zeros(0))
    facts: list[dict[str, float]] = field(default_factory=list)
    link_us: dict[int, float] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """Workers and iterations."""
        return self.plan.workers, self.plan.iterations

    def add(self, key: FunctionKey, time_WI: Floats, count: float, utilization: float) -> None:
        """More of a function, which may be new.

        Args:
            key: Which.
            time_WI: Additional critical time. float64 [W, I].
            count: Additional executions per iteration on workers that have any of this time.
            utilization: Use of its resource, if it is new.
        """
        touched_W = time_WI.any(axis=1)
        self.time_us[key] = self.time_us.get(key, np.zeros(self.shape)) + time_WI
        self.count[key] = self.count.get(key, np.zeros(self.shape[0])) + count * touched_W
        self.utilization.setdefault(key, np.full(self.shape[0], utilization))

    def loop_frame(self, *frames: str, phase: Phase) -> FunctionKey:
        """Key of a Python function below the training loop, names as planned."""
        stack = tuple(_named(self.plan, frame) for frame in (*_LOOP, *frames))
        return FunctionKey(kind="python", name=stack[-1].rsplit(" (", 1)[0], stack=stack, phase=phase)

    def loader_frame(self, *frames: str) -> FunctionKey:
        """Key of a function that reads data: inside next, or inside a loader process where the plan has some."""
        if not self.plan.loader_workers:
            return self.loop_frame(*_NEXT, *frames, phase="input")
        stack = tuple(_named(self.plan, frame) for frame in (*_CHILD, _NEXT[-1], *frames))
        name = stack[-1].rsplit(" (", 1)[0]
        return FunctionKey(kind="python", name=name, stack=stack, phase="input", thread="loader")

    def wait_for_batch(self) -> FunctionKey:
        """Key of the training thread's wait for a loader process."""
        return self.loop_frame(
            *_NEXT[:2],
            "_try_get_data (torch/utils/data/dataloader.py:1250)",
            "get (multiprocessing/queues.py:100)",
            "poll (multiprocessing/connection.py:250)",
            phase="input",
        )

    def backward_frame(self, *frames: str) -> FunctionKey:
        """Key of a Python function that the autograd engine calls."""
        return self.loop_frame(*_ENGINE, *frames, phase="backward")

    def forward_frame(self, *frames: str) -> FunctionKey:
        """Key of a Python function that the model's forward calls."""
        return self.loop_frame(_MODULE, *frames, phase="forward")


def _named(plan: FleetPlan, text: str) -> str:
    for old, new in plan.named:
        text = text.replace(old, new)
    return text


def draft_fleet(plan: FleetPlan) -> Draft:
    """The healthy fleet's times."""
    noise = np.random.default_rng(plan.seed)
    draft = Draft(plan=plan, noise=noise)
    size = draft.shape
    calm = 0.2 if plan.accelerator else 1.0
    lasting_W = np.exp(noise.normal(0, plan.unevenness * calm, size[0]))
    if plan.draw:
        noise = draft.noise = np.random.default_rng((plan.seed, plan.draw))
    speed_WI = lasting_W[:, None] * np.exp(noise.normal(0, plan.jitter * calm, size))
    work_W = np.where(_stage(plan) == plan.stages - 1, 1.33, 1.0) if plan.stages > 1 else np.ones(size[0])
    for name, phase, time, count in _OPERATORS:
        thread: ThreadRole = "device" if plan.accelerator else "training"
        key = FunctionKey(kind="compute", name=_named(plan, name), phase=phase, thread=thread)
        own_WI = np.exp(noise.normal(0, 0.06 * calm, size)) * speed_WI * work_W[:, None]
        draft.add(key, time * plan.scale * own_WI, count, 0.9)
    _draft_python(draft, speed_WI)
    _draft_pauses(draft)
    draft.transfer_us = 3000 * plan.scale * np.exp(noise.normal(0, 0.1, size[1]))
    draft.facts = [
        {
            "cpu_count": 16.0,
            "run_queue_wait": float(noise.uniform(0.2, 0.3)),
            "stopped": 0.0,
            "throttled": 0.0,
        }
        for _ in range(size[0])
    ]
    return draft


def _stage(plan: FleetPlan) -> NDArray[np.intp]:
    return np.arange(plan.workers) % plan.stages


def _draft_python(draft: Draft, speed_WI: Floats) -> None:
    plan, size = draft.plan, draft.shape
    share = 0.05 if plan.accelerator else 1.0
    for frames, phase, time in _PYTHON:
        if phase == "input" and plan.loader_workers:
            continue
        key = draft.loop_frame(*frames, phase=phase)
        own_WI = np.exp(draft.noise.normal(0, 0.3, size)) * speed_WI
        draft.add(key, time * plan.scale * share * own_WI, 1.0, 0.9)
    if plan.loader_workers:
        draft.add(draft.wait_for_batch(), np.full(size, 200.0 * plan.scale * share), 1.0, 0.05)
        child = draft.loader_frame("__getitem__ (project/dataset.py:41)")
        draft.child_us[child] = np.full(size, 4000.0 * plan.scale)
        idle = FunctionKey(
            kind="python",
            name="get",
            stack=(*_CHILD, "get (multiprocessing/queues.py:100)"),
            phase="input",
            thread="loader",
        )
        draft.child_us[idle] = np.full(size, 50_000.0 * plan.loader_workers * plan.scale)


def _draft_pauses(draft: Draft) -> None:
    """Healthy interruptions: the collector now and then (about 1 % of the time), and other processes."""
    plan, size, noise = draft.plan, draft.shape, draft.noise
    collector = FunctionKey(kind="gc", name="garbage collection")
    collected = (noise.random(size) < 0.05) * noise.uniform(6000, 14000, size) * plan.scale
    draft.add(collector, collected * (0.1 if plan.accelerator else 1.0), 0.05, 1.0)
    if plan.accelerator:
        return
    pushed = (noise.random(size) < plan.pauses) * noise.exponential(6000 * plan.scale, size)
    keys = [key for key in draft.time_us if key.kind in ("compute", "python")]
    owner = noise.integers(0, len(keys), size)
    for at, key in enumerate(keys):
        draft.time_us[key] += pushed * (owner == at)


def synthesize(plan: FleetPlan, troubles: Sequence[Trouble] = (), window_id: int = 1) -> list[WorkerPattern]:
    """Patterns of a fleet in one window.

    Args:
        plan: The healthy fleet and the seed.
        troubles: What is wrong with it.
        window_id: Number of the window; first iterations lie 1,000 apart.
    """
    draft = draft_fleet(plan)
    for trouble in troubles:
        trouble.apply(draft)
    busy_WI = np.sum(list(draft.time_us.values()), axis=0)
    noise = draft.noise
    wait_WI = busy_WI.max(axis=0) - busy_WI + draft.transfer_us
    skew = 40.0 if plan.accelerator else 2000.0
    iteration_WI = busy_WI + wait_WI + np.abs(noise.normal(0, 150, draft.shape))
    collectives = _collectives(draft, busy_WI, wait_WI, noise.exponential(skew, (2, *draft.shape)))
    return [
        _pattern(draft, worker, window_id, iteration_WI[worker], wait_WI[worker], collectives[worker])
        for worker in range(plan.workers)
    ]


def synthesize_window(
    patterns: Sequence[WorkerPattern], purpose: WindowPurpose = "manual", baseline: Sequence[WorkerPattern] = ()
) -> Window:
    """The window these patterns answer; its means are those of the patterns, as a trigger would state them."""
    means = [
        max(pattern.duration_s / (pattern.last_iteration - pattern.first_iteration) for pattern in some)
        if some
        else None
        for some in (baseline, patterns)
    ]
    return Window(
        window_id=patterns[0].window_id,
        purpose=purpose,
        reason="asked for by hand" if purpose == "manual" else "iterations are slower than the best",
        first_iteration=patterns[0].first_iteration,
        last_iteration=patterns[0].last_iteration,
        baseline_iteration_s=means[0],
        current_iteration_s=means[1],
    )


# --- collectives ---


def _groups(plan: FleetPlan) -> list[ProcessGroup]:
    """The default group, and with stages a data-parallel group for each and a pipeline through all of them."""
    backend = "nccl" if plan.accelerator else "gloo"
    groups = [ProcessGroup(name="0", description="default_pg", ranks=tuple(range(plan.workers)), backend=backend)]
    if plan.stages > 1:
        data = [tuple(range(stage, plan.workers, plan.stages)) for stage in range(plan.stages)]
        pipes = [tuple(range(first, first + plan.stages)) for first in range(0, plan.workers, plan.stages)]
        for kind, members in (("mesh_dp", data), ("mesh_pp", pipes)):
            start = len(groups)
            groups += [
                ProcessGroup(name=str(start + at), description=kind, ranks=ranks, backend=backend)
                for at, ranks in enumerate(members)
            ]
    return groups


def _collectives(draft: Draft, busy_WI: Floats, wait_WI: Floats, skew_2WI: Floats) -> list[CollectiveRecord]:
    """Two all-reduces an iteration over the default group: one hidden behind backward, one at its end."""
    transfer_I = draft.transfer_us / 2
    early_WI = busy_WI * 0.6
    durations = np.stack([early_WI.max(axis=0) - early_WI, wait_WI - draft.transfer_us]) + transfer_I + skew_2WI
    critical = np.stack([np.zeros(draft.shape), wait_WI])
    iterations = np.repeat(np.arange(draft.shape[1], dtype=np.int32), 2)
    sequence = np.arange(iterations.size, dtype=np.int64) + 500
    return [
        CollectiveRecord(
            group="0",
            kind="all_reduce",
            paired_by="sequence",
            executions=int(iterations.size),
            sequence=encode_series(sequence),
            iteration=encode_series(iterations),
            duration_us=encode_series(durations[:, worker].T.ravel().astype(np.float32)),
            critical_us=encode_series(critical[:, worker].T.ravel().astype(np.float32)),
            elements=encode_series(np.tile(np.asarray([131_584, 66_048], dtype=np.int64), draft.shape[1])),
        )
        for worker in range(draft.shape[0])
    ]


# --- patterns ---


def _pattern(
    draft: Draft, worker: int, window_id: int, iteration_I: Floats, wait_I: Floats, collective: CollectiveRecord
) -> WorkerPattern:
    plan = draft.plan
    window_s = float(iteration_I.sum()) / 1e6
    rows = [_row(draft, key, worker, window_s) for key in draft.time_us]
    rows += [_child_row(key, time[worker]) for key, time in draft.child_us.items()]
    rows.append(_collective_row(draft, wait_I, collective, window_s))
    kept = sorted((row for row in rows if row.total_s > 0), key=lambda row: (-row.beta, -row.total_s))
    first = 1000 * window_id
    return WorkerPattern(
        worker=_worker(plan, worker),
        window_id=window_id,
        first_iteration=first,
        last_iteration=first + plan.iterations,
        duration_s=window_s,
        iteration_us=encode_series(iteration_I.astype(np.float32)),
        wait_us=encode_series(wait_I.astype(np.float32)),
        functions=tuple(kept),
        collectives=(collective,),
        process_groups=tuple(group for group in _groups(plan) if worker in group.ranks),
        idle_s=max(window_s - sum(row.critical_s for row in kept), 0.0),
        samples_used=int(window_s * _SAMPLING_HZ),
        has_accelerator=plan.accelerator,
        host_facts=draft.facts[worker],
        links=_links(draft.shape, plan.per_host, plan.seed, draft.link_us, window_s).get(worker, ()),
        stall_s=0.3,
        summarize_s=0.5,
        raw_bytes=2_000_000,
    )


def _worker(plan: FleetPlan, worker: int) -> Worker:
    device = f"cuda:{worker % 8}" if plan.accelerator else "cpu"
    return Worker(
        global_rank=worker,
        local_rank=worker % plan.per_host,
        world_size=plan.workers,
        host=f"node-{worker // plan.per_host}",
        pid=4000 + worker,
        device=device,
    )


def _row(draft: Draft, key: FunctionKey, worker: int, window_s: float) -> FunctionPattern:
    time_I = draft.time_us[key][worker]
    period_us = 1e6 / _SAMPLING_HZ
    error = 0.0
    if key.kind == "python":
        hits_I = np.floor(time_I / period_us + draft.noise.random(time_I.size))
        time_I = hits_I * period_us
        error = float(np.sqrt(hits_I.sum())) * period_us / 1e6 / window_s
    total_s = float(time_I.sum()) / 1e6
    return FunctionPattern(
        key=key,
        beta=min(total_s / window_s, 1.0),
        mu=float(draft.utilization[key][worker]),
        sigma=0.05,
        resource="cpu",
        resource_samples=int(total_s * 100),
        critical_s=total_s,
        total_s=total_s,
        count=round(float(draft.count[key][worker]) * time_I.size) if total_s else 0,
        max_s=float(time_I.max()) / 1e6,
        active_iterations=int(np.count_nonzero(time_I)),
        beta_error=error,
        per_iteration_us=encode_series(time_I.astype(np.float32)),
    )


def _child_row(key: FunctionKey, time_I: Floats) -> FunctionPattern:
    return FunctionPattern(key=key, beta=0.0, total_s=float(time_I.sum()) / 1e6, count=time_I.size)


def _collective_row(draft: Draft, wait_I: Floats, record: CollectiveRecord, window_s: float) -> FunctionPattern:
    name = "nccl:all_reduce" if draft.plan.accelerator else "gloo:all_reduce"
    critical_s = float(wait_I.sum()) / 1e6
    return FunctionPattern(
        key=FunctionKey(kind="collective", name=name, thread="collective", group=record.group),
        beta=critical_s / window_s,
        critical_s=critical_s,
        total_s=critical_s * 1.3,
        count=record.executions,
        max_s=float(wait_I.max()) / 1e6,
        active_iterations=wait_I.size,
        per_iteration_us=encode_series(wait_I.astype(np.float32)),
    )


def causes(verdict: Verdict) -> list[Finding]:
    """The causes that a verdict names."""
    return [finding for finding in verdict.findings if finding.role == "cause"]


def accused(verdict: Verdict) -> list[tuple[str, tuple[int, ...]]]:
    """The causes that a verdict names, each with its workers."""
    return [(finding.cause, finding.workers) for finding in causes(verdict)]


# --- traffic between hosts: a ring in which data waits where a link is slow ---

_LINK_BYTES = 1e6
_LINK_RATE = 400e6


def _links(
    shape: tuple[int, int], per_host: int, seed: int, slow_us: Mapping[int, float], window_s: float
) -> dict[int, tuple[LinkUse, ...]]:
    """Links of each worker.

    The last worker of each host sends a megabyte an iteration to the first one of the next host. Over the link of a
    slow host it is under way for 70 to 100 % of what the link costs, in either direction; elsewhere for milliseconds.

    Args:
        shape: Workers and iterations.
        per_host: Workers of a host.
        seed: Of the noise, which is not the fleet's own.
        slow_us: Host -> what its link costs per iteration, microseconds.
        window_s: Length of the window.
    """
    workers, iterations = shape
    hosts = -(-workers // per_host)
    if hosts < 2:
        return {}
    noise = np.random.default_rng(seed)
    found: dict[tuple[int, int], LinkUse] = {}
    for source in range(hosts):
        target = (source + 1) % hosts
        cost_us = max(slow_us.get(source, 0.0), slow_us.get(target, 0.0))
        healthy_us = _LINK_BYTES / (_LINK_RATE * np.exp(noise.normal(0, 0.3))) * 1e6
        busy_s = min(float(iterations * max(cost_us * noise.uniform(0.7, 1.0), healthy_us)) / 1e6, window_s)
        sender, receiver = min((source + 1) * per_host, workers) - 1, target * per_host
        sent = _use(found, sender, source, target)
        found[sender, target] = msgspec.structs.replace(
            sent,
            sent_bytes=_LINK_BYTES * iterations,
            busy_s=busy_s,
            queued_bytes=150e3 if cost_us else 2e3,
            rtt_s=0.02 if cost_us else 2e-4,
        )
        got = _use(found, receiver, target, source)
        found[receiver, source] = msgspec.structs.replace(got, received_bytes=_LINK_BYTES * iterations)
    links: dict[int, tuple[LinkUse, ...]] = {}
    for (owner, _), use in sorted(found.items()):
        links[owner] = (*links.get(owner, ()), use)
    return links


def _use(found: Mapping[tuple[int, int], LinkUse], worker: int, here: int, there: int) -> LinkUse:
    return found.get((worker, there)) or LinkUse(local=f"10.0.0.{here + 1}", remote=f"10.0.0.{there + 1}")
