"""What a job has always done, what only waits, and what differs though it uses no core: jobs nobody made rules for."""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest

from eroica.diagnosis.activities import activity_of
from eroica.model.pattern import CollectiveRecord, WorkerPattern
from eroica.model.series import decode_series, encode_series
from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from support import FleetPlan, SlowLink, Trouble, UnevenWork, synthesize, synthesize_window
from support.code_troubles import LOGGING, Calls
from support.fleet import Draft

EVERYBODY = (0, 1, 2, 3)
METRICS = ("collect (project/metrics.py:30)", "summarize (project/metrics.py:60)")
DEVICE = ("forward (project/model.py:30)", "synchronize (project/device.py:12)")
ROLLOUT = ("rollout (project/play.py:40)",)
RECEIVE = ("exchange (project/ring.py:20)", "recv_exact (project/ring.py:44)")
SCORE = ("score (project/reward.py:25)",)
seeds = pytest.mark.parametrize("seed", range(3))


def verdict_on(
    *troubles: Trouble,
    seed: int,
    purpose: str = "slow",
    before: tuple[Trouble, ...] = (),
    healthy_iterations: int = 40,
    **plan: object,
) -> Verdict:
    healthy = synthesize(FleetPlan(seed=seed + 10_000, **{**plan, "iterations": healthy_iterations}), before, 1)
    patterns = synthesize(FleetPlan(seed=seed, **plan), troubles, 2)
    return analyze("job", synthesize_window(patterns, purpose, healthy), patterns, healthy)


def causes(verdict: Verdict) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.cause, one.workers) for one in verdict.findings if one.role == "cause"]


@dataclass(frozen=True)
class Everything:
    """All that all workers do takes longer."""

    factor: float

    def apply(self, draft: Draft) -> None:
        for key in draft.time_us:
            draft.time_us[key] = self.factor * draft.time_us[key]


# --- what has always been so ---


@seeds
@pytest.mark.parametrize("frames", [METRICS, LOGGING], ids=["metrics", "logging"])
def test_what_one_worker_has_always_done_more_has_not_made_the_job_slower(seed: int, frames: tuple[str, ...]) -> None:
    duty = Calls(frames, (0,), 9)
    assert (0,) in [workers for _, workers in causes(verdict_on(duty, seed=seed, purpose="manual"))]
    verdict = verdict_on(duty, Everything(1.18), seed=seed, before=(duty,))
    assert (verdict.verdict, causes(verdict)) == ("undetermined", []), verdict.summary


@seeds
def test_beside_it_the_new_cause_stands_alone(seed: int) -> None:
    duty = Calls(METRICS, (0,), 9)
    verdict = verdict_on(duty, Calls(SCORE, (2,), 30), seed=seed, before=(duty,))
    assert causes(verdict) == [("python-on-critical-path", (2,))], verdict.summary


@seeds
def test_what_has_grown_since_is_a_cause_though_it_was_there(seed: int) -> None:
    verdict = verdict_on(Calls(METRICS, (0,), 40), seed=seed, before=(Calls(METRICS, (0,), 22),))
    assert causes(verdict) == [("python-on-critical-path", (0,))], verdict.summary


@seeds
def test_of_what_was_there_in_part_only_the_rest_is_gained(seed: int) -> None:
    now = (Calls(METRICS, (0,), 70), SlowLink(56))
    verdict = verdict_on(*now, seed=seed, before=(Calls(METRICS, (0,), 40),))
    found = {cause: one.gain for one in verdict.findings if one.role == "cause" for cause in [one.cause]}
    assert set(found) == {"python-on-critical-path", "slow-collective-everywhere"}, verdict.summary
    assert found["python-on-critical-path"] == pytest.approx(30 / 190, abs=0.07)
    assert any("of it per iteration is older" in text for one in verdict.findings for text in one.evidence)


@seeds
def test_what_is_above_what_was_usual_then_is_not_discounted_again(seed: int) -> None:
    """Beside a device Python is held against what may be expected, or what it took when all was well."""
    everybody = tuple(range(4))
    before = Calls(SCORE, everybody, 8, use=0.9)
    verdict = verdict_on(
        before, Calls(SCORE, everybody, 6, use=0.9), SlowLink(14), seed=seed, before=(before,), accelerator=True
    )
    found = {one.cause: one for one in verdict.findings if one.role == "cause"}
    assert "python-on-critical-path" in found, verdict.summary
    assert (found["python-on-critical-path"].gain or 0) >= 0.04


# --- what uses no core ---


@seeds
@pytest.mark.parametrize("workers", [(1,), EVERYBODY])
def test_a_wait_for_a_device_that_lasts_a_third_longer_is_named(seed: int, workers: tuple[int, ...]) -> None:
    healthy = Calls(DEVICE, EVERYBODY, 80, use=0.03)
    verdict = verdict_on(healthy, Calls(DEVICE, workers, 28, use=0.03), seed=seed, before=(healthy,), iterations=100)
    assert causes(verdict) == [("python-on-critical-path", workers)], verdict.summary
    assert verdict.cause is not None and verdict.cause.function.name in ("forward", "synchronize")


@seeds
@pytest.mark.parametrize("workers", [(1,), EVERYBODY])
def test_of_a_function_that_computes_a_third_more_is_within_what_busy_cores_do(
    seed: int, workers: tuple[int, ...]
) -> None:
    healthy = Calls(DEVICE, EVERYBODY, 80, use=0.95)
    verdict = verdict_on(healthy, Calls(DEVICE, workers, 28, use=0.95), seed=seed, before=(healthy,), iterations=100)
    assert "python-on-critical-path" not in [cause for cause, _ in causes(verdict)], verdict.summary


@dataclass(frozen=True)
class Queued:
    """Training threads of all workers wait longer for a core."""

    share: float

    def apply(self, draft: Draft) -> None:
        for facts in draft.facts:
            facts["run_queue_wait"] += self.share


@seeds
def test_short_waits_that_end_in_the_run_queue_are_no_slower_device(seed: int) -> None:
    healthy = Calls(DEVICE, EVERYBODY, 80, use=0.03)
    now = Calls(DEVICE, EVERYBODY, 28, use=0.03)
    verdict = verdict_on(healthy, now, Queued(0.2), seed=seed, before=(healthy,), iterations=100)
    assert "python-on-critical-path" not in [cause for cause, _ in causes(verdict)], verdict.summary


# --- who only waits ---


@seeds
def test_who_waits_outside_of_collectives_is_not_taken_for_the_cause(seed: int) -> None:
    healthy = Calls(RECEIVE, EVERYBODY, 5, use=0.02)
    waiting = Calls(RECEIVE, (1, 2, 3), 50, use=0.02)
    verdict = verdict_on(healthy, waiting, Calls(SCORE, (0,), 50, use=0.9), seed=seed, before=(healthy,))
    assert causes(verdict) == [("python-on-critical-path", (0,))], verdict.summary
    assert verdict.cause is not None and verdict.cause.function.name == "score"
    assert any("recv_exact" in sentence for sentence in verdict.cause.evidence)
    assert verdict.cause.gain == pytest.approx(50 / 120, abs=0.12)


@seeds
def test_where_nobody_is_known_to_be_waited_for_who_waits_is_named_in_doubt_at_most(seed: int) -> None:
    healthy = Calls(RECEIVE, EVERYBODY, 5, use=0.02)
    waiting = Calls(RECEIVE, (1, 2, 3), 50, use=0.02)
    verdict = verdict_on(healthy, waiting, UnevenWork((0,), 1.2), seed=seed, before=(healthy,))
    assert verdict.findings, verdict.summary
    assert all(one.confidence <= 0.5 for one in verdict.findings if one.workers != (0,)), verdict.summary


@seeds
def test_where_both_sides_only_wait_nobody_is_named_for_sure(seed: int) -> None:
    """Three workers ask a service that has become slow, and the first one waits for what they answer."""
    healthy = (Calls(SCORE, (1, 2, 3), 5, use=0.02), Calls(RECEIVE, (0,), 5, use=0.02))
    now = (Calls(SCORE, (1, 2, 3), 55, use=0.02), Calls(RECEIVE, (0,), 55, use=0.02))
    verdict = verdict_on(*now, seed=seed, before=healthy)
    assert verdict.findings, verdict.summary
    assert all(one.workers != (0,) and one.confidence <= 0.5 for one in verdict.findings), verdict.summary


def never_meeting(patterns: list[WorkerPattern]) -> list[WorkerPattern]:
    """Workers that have nothing to do with each other."""
    apart = []
    for one in patterns:
        wait_I, iteration_I = decode_series(one.wait_us, np.float32), decode_series(one.iteration_us, np.float32)
        rows = tuple(row for row in one.functions if row.key.kind != "collective")
        iteration, none = encode_series(iteration_I - wait_I), encode_series(np.zeros_like(wait_I))
        apart.append(msgspec.structs.replace(one, wait_us=none, iteration_us=iteration, functions=rows, collectives=()))
    return apart


@seeds
def test_nobody_waits_for_who_meets_nobody(seed: int) -> None:
    patterns = never_meeting(synthesize(FleetPlan(seed=seed), (Calls(SCORE, (2,), 30),), 2))
    assert causes(analyze("job", synthesize_window(patterns, "manual"), patterns)) == []


def meeting_every(patterns: list[WorkerPattern], every: int) -> list[WorkerPattern]:
    """The same job if its workers met in every so many iterations only, and waited then for all that they are ahead."""
    apart = []
    for one in patterns:
        wait_I, iteration_I = decode_series(one.wait_us, np.float32), decode_series(one.iteration_us, np.float32)
        meets_I = np.arange(wait_I.size) % every == every - 1
        waits_I = np.where(meets_I, np.add.accumulate(wait_I), 0.0)
        waits_I[meets_I] = np.diff(waits_I[meets_I], prepend=0.0)
        series = encode_series(waits_I.astype(np.float32))
        rows = tuple(
            msgspec.structs.replace(row, per_iteration_us=series) if row.key.kind == "collective" else row
            for row in one.functions
        )
        iteration = encode_series((iteration_I - wait_I + waits_I).astype(np.float32))
        apart.append(
            msgspec.structs.replace(one, wait_us=series, iteration_us=iteration, functions=rows, collectives=())
        )
    return apart


@seeds
@pytest.mark.parametrize("every", [16, 20, 40])
def test_workers_that_meet_seldom_wait_for_a_slow_one_all_the_same(seed: int, every: int) -> None:
    healthy = meeting_every(synthesize(FleetPlan(seed=seed + 10_000), (), 1), every)
    patterns = meeting_every(synthesize(FleetPlan(seed=seed, iterations=200), (Calls(SCORE, (2,), 30),), 2), every)
    verdict = analyze("job", synthesize_window(patterns, "slow", healthy), patterns, healthy)
    assert causes(verdict) == [("python-on-critical-path", (2,))], verdict.summary
    assert verdict.cause is not None and verdict.cause.gain == pytest.approx(30 / 92, abs=0.1)
    (recomputed,) = (text for text in verdict.cause.evidence if " instead of " in text)
    without, now = (float(number) for number in re.findall(r"([0-9.]+) ms", recomputed))
    assert now == pytest.approx(92, rel=0.15) and without == pytest.approx(62, rel=0.15), recomputed


@seeds
def test_and_blame_nobody_where_none_is_slow(seed: int) -> None:
    healthy = meeting_every(synthesize(FleetPlan(seed=seed + 10_000), (), 1), 20)
    patterns = meeting_every(synthesize(FleetPlan(seed=seed, iterations=200), (), 2), 20)
    verdict = analyze("job", synthesize_window(patterns, "manual", healthy), patterns, healthy)
    assert causes(verdict) == [], verdict.summary


# --- now and then ---


@seeds
def test_one_worker_that_takes_longer_in_what_all_do_every_fourth_iteration_is_named(seed: int) -> None:
    healthy = Calls(ROLLOUT, EVERYBODY, 240, every=4, use=0.05)
    longer = Calls(ROLLOUT, (2,), 180, every=4, use=0.05)
    verdict = verdict_on(healthy, longer, seed=seed, before=(healthy,), iterations=160)
    assert causes(verdict) == [("python-on-critical-path", (2,))], verdict.summary
    assert verdict.cause is not None and verdict.cause.gain == pytest.approx(45 / 167, abs=0.08)
    assert verdict.cause.duration.peers_ms == pytest.approx(60, rel=0.15)


@seeds
def test_and_beside_another_cause_too(seed: int) -> None:
    healthy = Calls(ROLLOUT, EVERYBODY, 240, every=4, use=0.05)
    now = (healthy, Calls(ROLLOUT, (2,), 180, every=4, use=0.05), SlowLink(40))
    verdict = verdict_on(*now, seed=seed, before=(healthy,), iterations=160)
    assert ("python-on-critical-path", (2,)) in causes(verdict), verdict.summary


@seeds
def test_an_evaluation_that_the_healthy_window_was_too_short_for_is_not_new(seed: int) -> None:
    evaluation = Calls(("evaluate (project/train.py:80)",), EVERYBODY, 300, every=40)
    verdict = verdict_on(evaluation, seed=seed, purpose="manual", healthy_iterations=12, iterations=80)
    assert causes(verdict) == [], verdict.summary


# --- without a healthy window ---


@seeds
def test_a_function_far_larger_than_the_slowdown_does_not_explain_it(seed: int) -> None:
    device = Calls(DEVICE, EVERYBODY, 160, use=0.02)
    healthy = synthesize(FleetPlan(seed=seed + 10_000), (device,), 1)
    patterns = synthesize(FleetPlan(seed=seed), (device, SlowLink(60)), 2)
    verdict = analyze("job", synthesize_window(patterns, "slow", healthy), patterns)
    assert causes(verdict) == [], verdict.summary


# --- collectives ---


@dataclass(frozen=True)
class Busy:
    """The hosts' cores are in use for a share of the time."""

    share: float

    def apply(self, draft: Draft) -> None:
        for facts in draft.facts:
            facts["host_busy"] = self.share


@seeds
@pytest.mark.parametrize(("busy", "named"), [(0.6, True), (1.0, False)])
def test_a_slower_network_is_told_on_few_cores_where_these_were_idle(seed: int, busy: float, named: bool) -> None:
    verdict = verdict_on(SlowLink(45), Busy(busy), seed=seed, before=(SlowLink(20), Busy(busy)), cores=4)
    assert (("slow-collective-everywhere", EVERYBODY) in causes(verdict)) == named, verdict.summary


def exchanging(pattern: WorkerPattern, apart_us: float, calls: int = 30, each_us: float = 800.0) -> WorkerPattern:
    """The same time in collectives as so many small ones per iteration, each so long after the one before it."""
    iterations = pattern.last_iteration - pattern.first_iteration
    old, kept = pattern.collectives[0], calls * iterations
    record = CollectiveRecord(
        group=old.group,
        kind=old.kind,
        paired_by="sequence",
        executions=kept,
        sequence=encode_series(np.arange(kept, dtype=np.int64)),
        iteration=encode_series((np.arange(kept) // calls).astype(np.int32)),
        duration_us=encode_series(np.full(kept, each_us, dtype=np.float32)),
        critical_us=encode_series(np.full(kept, each_us, dtype=np.float32)),
        elements=encode_series(np.full(kept, 8192, dtype=np.int64)),
        end_us=encode_series((each_us + np.arange(kept) * (each_us + apart_us)).astype(np.float64)),
    )
    rows = tuple(
        msgspec.structs.replace(row, count=kept) if row.key.kind == "collective" else row for row in pattern.functions
    )
    return msgspec.structs.replace(pattern, collectives=(record,), functions=rows)


def of_all_sizes(pattern: WorkerPattern) -> WorkerPattern:
    """The same exchanges, of gradients."""
    record = pattern.collectives[0]
    sizes = np.resize(np.asarray([8192, 64, 4096, 128, 12_000, 256], dtype=np.int64), record.executions)
    return msgspec.structs.replace(
        pattern, collectives=(msgspec.structs.replace(record, elements=encode_series(sizes)),)
    )


def routed(patterns: list[WorkerPattern]) -> list[WorkerPattern]:
    """The same exchanges as all-to-alls of all sizes, in a group of each half of the workers."""
    made = []
    for worker, one in enumerate(of_all_sizes(exchanging(one, 1500.0)) for one in patterns):
        half = worker * 2 // len(patterns)
        record = msgspec.structs.replace(one.collectives[0], group=str(1 + half), kind="all_to_all")
        rows = tuple(
            msgspec.structs.replace(
                row, key=msgspec.structs.replace(row.key, name="gloo:all_to_all", group=str(1 + half))
            )
            if row.key.kind == "collective"
            else row
            for row in one.functions
        )
        made.append(msgspec.structs.replace(one, collectives=(record,), functions=rows))
    return made


@seeds
@pytest.mark.parametrize("purpose", ["early", "manual", "slow"])
def test_data_that_is_routed_to_experts_again_and_again_is_how_they_work(seed: int, purpose: str) -> None:
    healthy = routed(synthesize(FleetPlan(seed=seed + 10_000), (SlowLink(21),), 1))
    patterns = routed(synthesize(FleetPlan(seed=seed), (SlowLink(21),), 2))
    past = () if purpose == "early" else healthy
    verdict = analyze("job", synthesize_window(patterns, purpose, healthy), patterns, past)
    assert "fragmented-collectives" not in [cause for cause, _ in causes(verdict)], verdict.summary


@seeds
def test_gradients_that_are_exchanged_one_by_one_could_be_sent_together(seed: int) -> None:
    before = synthesize(FleetPlan(seed=seed + 10_000), (SlowLink(21),), 1)
    now = synthesize(FleetPlan(seed=seed), (SlowLink(21),), 2)
    healthy, patterns = ([of_all_sizes(exchanging(one, 1500.0)) for one in each] for each in (before, now))
    verdict = analyze("job", synthesize_window(patterns, "manual", healthy), patterns, healthy)
    assert ("fragmented-collectives", EVERYBODY) in causes(verdict), verdict.summary


@seeds
@pytest.mark.parametrize("purpose", ["manual", "slow"])
@pytest.mark.parametrize(("apart_us", "named"), [(100.0, True), (1500.0, False)])
def test_small_exchanges_with_work_between_them_cannot_be_one(
    seed: int, purpose: str, apart_us: float, named: bool
) -> None:
    before = synthesize(FleetPlan(seed=seed + 10_000), (SlowLink(21),), 1)
    now = synthesize(FleetPlan(seed=seed), (SlowLink(21),), 2)
    healthy, patterns = ([exchanging(one, apart_us) for one in each] for each in (before, now))
    verdict = analyze("job", synthesize_window(patterns, purpose, healthy), patterns, healthy)
    assert (("fragmented-collectives", EVERYBODY) in causes(verdict)) == named, verdict.summary


def meeting_in_turn(patterns: list[WorkerPattern], each_us: float) -> list[WorkerPattern]:
    """The same job with as many collectives in an iteration as there are workers: another one is last in each."""
    made = []
    for worker, one in enumerate(patterns):
        iterations, calls = one.last_iteration - one.first_iteration, len(patterns)
        durations = np.tile(np.where(np.arange(calls) == worker, 50.0, each_us), iterations)
        wait_I, iteration_I = (decode_series(data, np.float32) for data in (one.wait_us, one.iteration_us))
        more_us = each_us * (calls - 1)
        count = calls * iterations
        record = CollectiveRecord(
            group=one.collectives[0].group,
            kind="all_reduce",
            paired_by="sequence",
            executions=count,
            sequence=encode_series(np.arange(count, dtype=np.int64)),
            iteration=encode_series(np.repeat(np.arange(iterations, dtype=np.int32), calls)),
            duration_us=encode_series(durations.astype(np.float32)),
            critical_us=encode_series(durations.astype(np.float32)),
            elements=encode_series(np.full(count, 50_000, dtype=np.int64)),
        )
        series = encode_series((wait_I + more_us).astype(np.float32))
        waits_s = float((wait_I + more_us).sum()) / 1e6
        rows = tuple(
            msgspec.structs.replace(row, per_iteration_us=series, critical_s=waits_s, total_s=waits_s, count=count)
            if row.key.kind == "collective"
            else row
            for row in one.functions
        )
        made.append(
            msgspec.structs.replace(
                one,
                duration_s=one.duration_s + more_us * iterations / 1e6,
                wait_us=series,
                iteration_us=encode_series((iteration_I + more_us).astype(np.float32)),
                functions=rows,
                collectives=(record,),
            )
        )
    return made


@seeds
def test_workers_that_meet_more_often_wait_for_each_other_in_turn(seed: int) -> None:
    healthy = synthesize(FleetPlan(seed=seed + 10_000), (), 1)
    patterns = meeting_in_turn(synthesize(FleetPlan(seed=seed), (), 2), 12_000)
    verdict = analyze("job", synthesize_window(patterns, "slow", healthy), patterns, healthy)
    assert causes(verdict) == [("slow-collective-everywhere", EVERYBODY)], verdict.summary
    assert verdict.cause is not None and "wait for each other more often" in verdict.summary
    assert verdict.cause.gain == pytest.approx(36 / 100, abs=0.08)
    assert "smaller group" in verdict.cause.next_step


# --- loggers around the loop ---

WRAPPED = ("<module> (train.py:1)", "catch_wrapper (loguru/_logger.py:1280)", "main (train.py:90)")
PATCHED = ("main (train.py:90)", "safe_patch_function (mlflow/utils/autologging_utils/safety.py:450)")


@pytest.mark.parametrize(
    ("stack", "activity"),
    [
        ((*WRAPPED, "train_step (train.py:40)"), ""),
        (
            (*WRAPPED, "train_step (train.py:40)", "info (loguru/_logger.py:2000)", "emit (loguru/_handler.py:130)"),
            "log",
        ),
        (("main (train.py:9)", "catch_wrapper (loguru/_logger.py:1280)", "fit (train.py:90)", "step (train.py:4)"), ""),
        ((*PATCHED, "fit (lightning/pytorch/trainer/trainer.py:530)", "training_step (model.py:30)"), ""),
        ((*PATCHED, "fit (train.py:30)", "_call_impl (torch/nn/modules/module.py:1750)", "forward (model.py:9)"), ""),
        (
            ("main (train.py:90)", "report (train.py:80)", "log (wandb/sdk/wandb_run.py:1700)", "sink (train.py:5)"),
            "log",
        ),
        (("<module> (train.py:1)", "info (loguru/_logger.py:2000)", "emit (loguru/_handler.py:130)"), "log"),
    ],
)
def test_a_logger_around_the_loop_does_not_make_everything_logging(stack: tuple[str, ...], activity: str) -> None:
    assert activity_of(stack) == activity


# --- what a stage is for ---


@seeds
@pytest.mark.parametrize("workers", [2, 4])
def test_the_longest_stage_is_not_accused_of_what_it_is_for(seed: int, workers: int) -> None:
    first, last = tuple(range(0, workers, 2)), tuple(range(1, workers, 2))
    stages = (
        Calls(("embed (project/stages.py:9)",), first, 130, use=0.03),
        Calls(("decode (project/stages.py:40)",), last, 150, use=0.03),
    )
    patterns = synthesize(FleetPlan(seed=seed, workers=workers, stages=2), stages, 2)
    assert causes(analyze("job", synthesize_window(patterns, "manual"), patterns)) == []


@seeds
def test_what_is_added_to_a_stage_is_named_though_it_is_shorter_otherwise(seed: int) -> None:
    hook = Calls(("check_shapes (project/stages.py:70)",), (1, 3), 70, use=0.9)
    patterns = synthesize(FleetPlan(seed=seed, workers=4, stages=2), (hook,), 2)
    verdict = analyze("job", synthesize_window(patterns, "manual"), patterns)
    assert causes(verdict) == [("python-on-critical-path", (1, 3))], verdict.summary
