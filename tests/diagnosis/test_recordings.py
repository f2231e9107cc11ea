"""What may be said of recorded traces: who is late in short ones, what is noise, what a missing trace leaves open."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from eroica.model.pattern import FunctionKey, FunctionPattern, WorkerPattern
from eroica.model.series import encode_series
from eroica.model.verdict import Verdict
from eroica.model.window import Window
from eroica.model.worker import ProcessGroup, Worker
from eroica.pipeline import analyze
from support import FleetPlan, SlowLoader, synthesize
from support.fleet import accused, causes
from support.recordings import meet, recorded_collective, recorded_worker
from support.troubles import Trouble

KERNEL = FunctionKey(kind="compute", name="gemm", thread="device")


def recorded(patterns: Sequence[WorkerPattern]) -> Verdict:
    first, last = patterns[0].first_iteration, patterns[0].last_iteration
    window = Window(window_id=1, purpose="trace", kind="trace", reason="", first_iteration=first, last_iteration=last)
    return analyze("job", window, patterns)


def trace(plan: FleetPlan, *troubles: Trouble) -> list[WorkerPattern]:
    return synthesize(plan, troubles)


# --- one iteration ---


def test_one_recorded_iteration_is_judged_with_less_confidence_than_many() -> None:
    one, many = (recorded(trace(FleetPlan(seed=3, iterations=n), SlowLoader((2,), 120))) for n in (1, 40))
    assert [(cause.cause, cause.workers) for cause in causes(one)] == [("slow-data-loading", (2,))]
    assert causes(one)[0].confidence < 0.75 * causes(many)[0].confidence
    assert any("one iteration only: its noise is unknown" in sentence for sentence in causes(one)[0].evidence)
    assert any("record more steps" in note for note in one.coverage.notes)


@pytest.mark.parametrize("seed", range(12))
def test_one_recorded_iteration_of_a_healthy_job_accuses_nobody(seed: int) -> None:
    for accelerator in (False, True):
        assert not recorded(trace(FleetPlan(seed=seed, iterations=1, accelerator=accelerator))).findings


@pytest.mark.parametrize("iterations", [2, 3, 5])
def test_few_recorded_iterations_of_healthy_jobs_accuse_nobody(iterations: int) -> None:
    plans = [FleetPlan(seed=seed, iterations=iterations, accelerator=bool(seed % 2)) for seed in range(20)]
    assert [finding.cause for plan in plans for finding in causes(recorded(trace(plan)))] == []


# --- latecomers ---


def late_fleet(late_us: np.ndarray, iterations: int = 5, each: int = 3) -> list[WorkerPattern]:
    """Workers whose arrivals at `each` collectives an iteration are shifted by `late_us` (float64 [M])."""
    noise = np.random.default_rng(1)
    count = iterations * each
    arrival = np.arange(count) * 20_000.0 / each + noise.uniform(0, 30, (len(late_us), count)) + late_us[:, None]
    end, duration = meet(arrival)
    which = np.repeat(np.arange(iterations), each)
    return [
        recorded_worker(
            rank,
            [recorded_collective(end[rank] - 1000 * rank, duration[rank], which)],
            iterations=iterations,
            world=len(late_us),
            rows=[(KERNEL, 19_500.0 - each * float(late_us.max()))],
        )
        for rank in range(len(late_us))
    ]


def test_who_comes_last_again_and_again_is_named_though_nothing_in_its_trace_explains_it() -> None:
    verdict = recorded(late_fleet(np.array([0, 0, 0, 2000.0])))
    assert [(cause.cause, cause.workers) for cause in causes(verdict)] == [("unknown", (3,))]
    assert verdict.summary.startswith("Worker 3 comes last to 15 of 15 matched collectives (all_reduce): the other 3")
    assert "its step began late already" in verdict.summary
    assert [finding.workers for finding in verdict.findings if finding.role == "symptom"] == [(0, 1, 2)]


def test_over_several_iterations_every_wait_counts_and_in_one_a_delay_that_is_carried_on_counts_once() -> None:
    """Who comes 2 ms late to three collectives an iteration: over five iterations it costs 6 ms of 20, in one 2 ms."""
    many, one = (recorded(late_fleet(np.array([0, 0, 0, 2000.0]), iterations)) for iterations in (5, 1))
    assert causes(many)[0].gain == pytest.approx(0.3, abs=0.01)
    assert causes(one)[0].gain == pytest.approx(0.1, abs=0.01)
    assert causes(one)[0].confidence < causes(many)[0].confidence


def test_who_is_late_because_it_waits_for_others_elsewhere_is_not_named() -> None:
    """Worker 1 waits 5.5 ms in a pipeline of its own, and so is last to the all-reduce with the others."""
    patterns = late_fleet(np.array([0.0, 5600.0, 0.0, 0.0]), iterations=5, each=1)
    group = ProcessGroup(name="p", description="elsewhere", ranks=(1, 9), backend="nccl")
    waits = recorded_collective(
        np.arange(5) * 20_000.0 + 5500, np.full(5, 5500.0), range(5), group="p", kind="recv", paired_by="none"
    )
    own = patterns[1]
    wait_us = encode_series(np.full(5, 5500 + 10, dtype=np.float32), exact=True)
    patterns[1] = msgspec.structs.replace(
        own,
        collectives=(*own.collectives, waits),
        process_groups=(*own.process_groups, group),
        wait_us=wait_us,
    )
    assert not causes(recorded(patterns))


# --- one rank of many ---


def test_one_rank_of_many_is_worth_a_verdict_on_itself_with_less_confidence() -> None:
    everybody = trace(FleetPlan(workers=4, seed=3, accelerator=True), SlowLoader((0, 1, 2, 3), 30))
    alone, together = recorded(everybody[1:2]), recorded(everybody)
    assert [(cause.cause, cause.workers) for cause in causes(alone)] == [("slow-data-loading", (1,))]
    assert alone.summary.startswith("Worker 1 spends")
    assert causes(alone)[0].confidence < causes(together)[0].confidence - 0.2
    assert alone.coverage.missing == (0, 2, 3)
    assert any(
        "There is no trace of workers 0, 2 and 3, and nothing is said of them" in n for n in alone.coverage.notes
    )


def lone(rows: Sequence[tuple[FunctionKey, float]], waits_us: float = 0.0, world: int = 2) -> list[WorkerPattern]:
    """One rank with ten iterations of 20 ms."""
    ends = np.arange(10) * 20_000.0 + 15_000
    records = [recorded_collective(ends, np.full(10, waits_us), range(10))] if waits_us else []
    return [recorded_worker(0, records, iterations=10, world=world, rows=rows)]


# --- the host ---


def host(name: str, phase: str, kind: str = "other") -> FunctionKey:
    stack = ("<module> (train.py:1)", f"{name} (model.py:7)") if kind == "python" else ()
    return FunctionKey(kind=kind, name=name, phase=phase, stack=stack)  # type: ignore[arg-type]


# --- numbers that a trace may state ---


def test_an_absurd_number_of_workers_is_not_believed() -> None:
    own = lone([(KERNEL, 19_000.0)])[0]
    absurd = msgspec.structs.replace(own, worker=msgspec.structs.replace(own.worker, world_size=10**15))
    verdict = recorded([absurd])
    assert verdict.coverage.workers_expected == 1
    assert any("which is not believed" in note for note in verdict.coverage.notes)


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


# --- two who take turns ---


@pytest.mark.parametrize("iterations", [6, 9, 16])
def test_of_two_whose_work_varies_nobody_is_late_for_being_last_in_a_few_iterations_more(iterations: int) -> None:
    found = [recorded(steps(workers=2, iterations=iterations, varies=0.3, seed=seed)) for seed in range(25)]
    wrong = [verdict.summary for verdict in found if accused(verdict)]
    assert len(wrong) <= 2, wrong  # by chance one of them is late in all iterations now and then


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


def test_what_only_lacks_iterations_is_doubted_and_not_called_healthy() -> None:
    verdict = recorded(steps(iterations=3, varies=0.5, seed=2, late_us=30_000))
    assert verdict.verdict == "undetermined"
    assert "seems to cost" in verdict.summary
    assert "3 iterations are too few to tell it from noise; record more steps" in verdict.summary


# --- libraries on the host ---


def test_gloo_leaves_within_milliseconds_and_pairs_all_the_same() -> None:
    verdict = recorded(steps(late_us=30_000, backend="gloo", leaving_us=1500))
    assert accused(verdict) == [("unknown", (3,))]
    assert not any("does not pair" in note for note in verdict.coverage.notes)
