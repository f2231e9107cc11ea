"""Who is late in short recordings, what is only noise, and what a missing trace leaves open."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from eroica.model.pattern import FunctionKey, FunctionPattern, WorkerPattern
from eroica.model.series import encode_series
from eroica.model.verdict import Verdict
from eroica.model.window import Window
from eroica.model.worker import ProcessGroup, Worker
from eroica.pipeline import analyze
from support.fleet import accused, causes
from support.recordings import recorded_collective, recorded_worker

GEMM = FunctionKey(kind="compute", name="gemm", thread="device")
COPY = FunctionKey(kind="compute", name="elementwise", thread="device")
REDUCE = FunctionKey(kind="collective", name="nccl:all_reduce", thread="collective", group="0")
STEP = FunctionKey(kind="other", name="ProfilerStep", thread="training")
EACH = 4


def row(key: FunctionKey, time_i: np.ndarray, count: int, window_us: float) -> FunctionPattern:
    total = float(time_i.sum())
    return FunctionPattern(
        key=key,
        beta=total / window_us,
        critical_s=total / 1e6,
        total_s=total / 1e6,
        count=count * time_i.size,
        active_iterations=time_i.size,
        per_iteration_us=encode_series(time_i.astype(np.float32), exact=True),
    )


def steps(  # noqa: PLR0913
    workers: int = 4,
    iterations: int = 5,
    *,
    seed: int = 1,
    noise: float = 0.02,
    varies: float = 0.0,
    late_us: float = 0.0,
    shown: FunctionKey | None = None,
    more: float = 0.0,
    missing: tuple[int, ...] = (),
    backend: str = "nccl",
    leaving_us: float = 2.0,
) -> list[WorkerPattern]:
    """Steps of 100 ms in which the last worker takes `late_us` longer; four collectives each, the last after all work.

    `varies` is how much each worker's work differs from iteration to iteration, a standard deviation of its logarithm;
    `shown` is the row that holds what is late, and runs `more` times as often.
    """
    random = np.random.default_rng(seed)
    work = 25_000 * np.exp(random.normal(0, noise, (workers, iterations, EACH)))
    if varies:
        work *= np.exp(random.normal(0, varies, (workers, iterations, 1)))
    work[-1] += late_us / EACH
    now = np.zeros(workers)
    ends = np.zeros((workers, iterations, EACH))
    waits = np.zeros_like(ends)
    length = np.zeros((workers, iterations))
    for i in range(iterations):
        start = now
        for k in range(EACH):
            arrival = now + work[:, i, k]
            now = arrival.max() + 100 + random.exponential(leaving_us, workers)
            ends[:, i, k], waits[:, i, k] = now, now - arrival
        length[:, i] = now - start
    which = np.repeat(np.arange(iterations), EACH)
    group = ProcessGroup(name="0", description="default_pg", ranks=tuple(range(workers)), backend=backend)
    patterns = []
    for rank in (rank for rank in range(workers) if rank not in missing):
        window_us = float(length[rank].sum())
        wait_i = waits[rank].sum(axis=1)
        own_i = work[rank].sum(axis=1)
        late_i = np.full(iterations, late_us if rank == workers - 1 else 0.0)
        rows = [row(REDUCE, wait_i, EACH, window_us), row(COPY, 0.3 * (own_i - late_i), 20, window_us)]
        gemm_i, count = 0.7 * (own_i - late_i), 50
        if shown == GEMM and rank == workers - 1:
            gemm_i, count = gemm_i + late_i, int(50 * (1 + more))
        elif shown is not None and rank == workers - 1:
            rows.append(row(shown, late_i, 1, window_us))
        rows.append(row(GEMM, gemm_i, count, window_us))
        patterns.append(
            WorkerPattern(
                found_by="profiler steps",
                worker=Worker(global_rank=rank, world_size=workers, device="cuda:0" if backend == "nccl" else "cpu"),
                window_id=1,
                first_iteration=0,
                last_iteration=iterations,
                duration_s=window_us / 1e6,
                iteration_us=encode_series(length[rank].astype(np.float32), exact=True),
                wait_us=encode_series(wait_i.astype(np.float32), exact=True),
                functions=tuple(sorted(rows, key=lambda one: -one.beta)),
                collectives=(recorded_collective(ends[rank].ravel(), waits[rank].ravel(), which),),
                process_groups=(group,),
                has_accelerator=backend == "nccl",
            )
        )
    return patterns


def recorded(patterns: list[WorkerPattern]) -> Verdict:
    first, last = patterns[0].first_iteration, patterns[0].last_iteration
    window = Window(window_id=1, purpose="trace", kind="trace", reason="", first_iteration=first, last_iteration=last)
    return analyze("job", window, patterns)


# --- two who take turns ---


@pytest.mark.parametrize("iterations", [6, 9, 16])
def test_of_two_whose_work_varies_nobody_is_late_for_being_last_in_a_few_iterations_more(iterations: int) -> None:
    found = [recorded(steps(workers=2, iterations=iterations, varies=0.3, seed=seed)) for seed in range(25)]
    wrong = [verdict.summary for verdict in found if accused(verdict)]
    assert len(wrong) <= 2, wrong  # by chance one of them is late in all iterations now and then


@pytest.mark.parametrize("workers", [4, 16])
def test_of_many_whose_work_varies_nobody_is_late_for_being_last_more_often_than_others(workers: int) -> None:
    found = [recorded(steps(workers=workers, iterations=6, varies=0.3, seed=seed)) for seed in range(15)]
    assert not [verdict.summary for verdict in found if accused(verdict)]


@pytest.mark.parametrize("workers", [4, 16])
def test_of_many_the_one_that_is_always_late_is_found_though_work_varies(workers: int) -> None:
    found = [recorded(steps(workers=workers, iterations=6, varies=0.05, late_us=40_000, seed=n)) for n in range(10)]
    assert all([who for _, who in accused(verdict)] == [(workers - 1,)] for verdict in found)


# --- a trace is missing ---


@pytest.mark.parametrize("workers", [2, 4])
def test_a_job_that_waits_for_a_worker_without_a_trace_is_not_called_healthy(workers: int) -> None:
    verdict = recorded(steps(workers, late_us=30_000, missing=(workers - 1,)))
    assert verdict.verdict == "undetermined"
    assert f"or worker {workers - 1}, of which there is no trace" in verdict.summary
    assert not verdict.findings


# --- work that is late ---


def test_a_device_that_idles_outside_of_operators_names_no_function() -> None:
    verdict = recorded([recorded_worker(0, [], iterations=5, world=1, rows=[(GEMM, 5000.0), (STEP, 15_000.0)])])
    assert [cause.cause for cause in causes(verdict)] == ["host-bound"]
    assert "most of all in the host outside any recorded operator" in verdict.summary
    assert "ProfilerStep" not in verdict.to_json().decode()


# --- few iterations ---


def test_noise_in_two_iterations_accuses_nobody() -> None:
    verdicts = [recorded(steps(2, 2, seed=seed, noise=0.05)) for seed in range(25)]
    assert [accused(verdict) for verdict in verdicts if causes(verdict)] == []
    assert sum(verdict.verdict == "undetermined" for verdict in verdicts) <= 5


def test_in_one_iteration_a_small_wait_accuses_nobody() -> None:
    verdicts = [recorded(steps(iterations=1, seed=seed, noise=0.05)) for seed in range(25)]
    assert [accused(verdict) for verdict in verdicts if causes(verdict)] == []


def test_what_only_lacks_iterations_is_doubted_and_not_called_healthy() -> None:
    loader = FunctionKey(
        kind="python", name="__next__", stack=("__next__ (torch/utils/data/dataloader.py:720)",), phase="input"
    )
    made = recorded_worker(0, [], world=1, rows=[(GEMM, 12_000.0), (loader, 8_000.0)])
    verdict = recorded([msgspec.structs.replace(made, has_accelerator=False)])
    assert verdict.verdict == "undetermined"
    assert "seems to cost" in verdict.summary
    assert "on worker 0, but 1 iteration is too few to tell it from noise; record more steps" in verdict.summary


# --- libraries on the host ---


def test_gloo_leaves_within_milliseconds_and_pairs_all_the_same() -> None:
    verdict = recorded(steps(late_us=30_000, backend="gloo", leaving_us=1500))
    assert accused(verdict) == [("unknown", (3,))]
    assert not any("does not pair" in note for note in verdict.coverage.notes)
