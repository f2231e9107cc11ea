"""Culprits that change from iteration to iteration: found without blaming anybody; healthy jitter stays silent."""

from __future__ import annotations

import re

import msgspec
import numpy as np
import pytest

from eroica.model.pattern import FunctionKey, WorkerPattern
from eroica.model.verdict import Finding, Verdict
from eroica.model.window import WindowPurpose
from eroica.pipeline import analyze
from support import BackwardHook, FleetPlan, Trouble, synthesize, synthesize_window
from support.code_troubles import Calls
from support.fleet import Draft
from support.scope_troubles import VariableLengths, WanderingHold, WanderingPause


def judge(
    *troubles: Trouble, seed: int = 0, purpose: WindowPurpose = "slow", baseline: bool = True, **plan: object
) -> Verdict:
    before = synthesize(FleetPlan(seed=seed, **plan), (), 1) if baseline else []
    patterns = synthesize(FleetPlan(seed=seed, draw=1, **plan), troubles, 2)
    return analyze("job", synthesize_window(patterns, purpose, before), patterns, before)


def only_cause(verdict: Verdict) -> Finding:
    (found,) = [finding for finding in verdict.findings if finding.role == "cause"]
    assert (found.scope, found.workers) == ("rotating", ()), verdict.summary
    return found


TURNS = r"In (?P<led>\d+) of (?P<of>\d+) iterations one worker takes .*: (?P<named>worker .*)\."
fleets = pytest.mark.parametrize(("workers", "accelerator"), [(4, False), (8, True), (32, False)])
known = pytest.mark.parametrize("baseline", [True, False])


@fleets
@known
def test_a_function_that_wanders_is_named_and_nobody_is_blamed(workers: int, accelerator: bool, baseline: bool) -> None:
    pause = WanderingPause(60, frame="shuffle (project/mix.py:5)")
    verdict = judge(pause, baseline=baseline, workers=workers, accelerator=accelerator)
    found = only_cause(verdict)
    assert (found.cause, found.function.name) == ("python-on-critical-path", "shuffle")
    assert verdict.summary.startswith("One worker after another spends time in shuffle (mix.py:5)")
    assert found.gain is not None and found.gain > 0.2


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("workers", [3, 4])
def test_what_somebody_does_in_each_iteration_is_told_once_and_as_wandering(workers: int, seed: int) -> None:
    """On average all do it, longer than when the job was healthy; who waits for whom tells more."""
    pause = WanderingPause(60, chance=1.0, frame="shuffle (project/mix.py:5)")
    found = only_cause(judge(pause, seed=seed, workers=workers))
    assert found.function is not None and found.function.name == "shuffle"
    assert found.gain == pytest.approx(0.47, abs=0.05)


COPY = FunctionKey(kind="compute", name="aten::copy_", phase="forward")
VACUUM = ("one (project/job.py:7)", "vacuum (project/tables.py:82)")


class WanderingCopies:
    """In each iteration another worker copies for `ms`, in a function that hardly does anything else."""

    def __init__(self, ms: float, stack: tuple[str, ...] = VACUUM) -> None:
        self.ms = ms
        self.stack = stack

    def apply(self, draft: Draft) -> None:
        on_WI = np.zeros(draft.shape)
        on_WI[draft.noise.integers(0, draft.shape[0], draft.shape[1]), np.arange(draft.shape[1])] = 1e3
        draft.add(COPY, self.ms * on_WI, 40.0, 0.9)
        draft.add(draft.loop_frame(*self.stack, phase="other"), 2 * on_WI, 0.2, 0.9)


COMPACT = "compact (project/tables.py:30)"


class Compacting:
    """All do what the other one calls, too, and always have."""

    def apply(self, draft: Draft) -> None:
        draft.add(draft.loop_frame(COMPACT, phase="other"), np.full(draft.shape, 400.0), 1, 0.9)


def sampled(patterns: list[WorkerPattern], frame: str = VACUUM[-1]) -> list[WorkerPattern]:
    """As a sampler sees them: stacks of the function are there during its copies, too."""
    copied_s = [sum(row.total_s for row in one.functions if row.key == COPY) for one in patterns]
    return [
        msgspec.structs.replace(
            one,
            functions=tuple(
                msgspec.structs.replace(row, total_s=row.total_s + more_s) if frame in row.key.stack else row
                for row in one.functions
            ),
        )
        for one, more_s in zip(patterns, copied_s, strict=True)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_the_new_function_is_named_and_not_what_it_calls_like_others(seed: int) -> None:
    before = synthesize(FleetPlan(seed=seed), (Compacting(),), 1)
    copies = WanderingCopies(50, (*VACUUM, COMPACT))
    patterns = sampled(synthesize(FleetPlan(seed=seed, draw=1), (copies, Compacting()), 2))
    verdict = analyze("job", synthesize_window(patterns, "slow", before), patterns, before)
    assert only_cause(verdict).function.name == "vacuum", verdict.summary


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("in_function", [True, False])
def test_operators_that_one_new_function_calls_in_turns_are_told_as_that_function(seed: int, in_function: bool) -> None:
    before = synthesize(FleetPlan(seed=seed), (), 1)
    patterns = synthesize(FleetPlan(seed=seed, draw=1), (WanderingCopies(50),), 2)
    patterns = sampled(patterns) if in_function else patterns
    verdict = analyze("job", synthesize_window(patterns, "slow", before), patterns, before)
    first = verdict.findings[0]
    assert first.scope == "rotating", verdict.summary
    told = first.function.name == "vacuum"
    assert told == in_function
    if in_function:
        found = only_cause(verdict)
        assert found.cause == "python-on-critical-path"
        assert "vacuum (tables.py:82) calls, aten::copy_ first" in " ".join(found.evidence)
        assert found.gain is not None and found.gain == pytest.approx(0.45, abs=0.1)


@known
def test_reads_that_wander_are_slow_storage(baseline: bool) -> None:
    """The same as slow loading, but the stack says that it reads a socket, on no processor time."""

    class WanderingRead(WanderingPause):
        def apply(self, draft: Draft) -> None:
            hit_WI = draft.noise.random(draft.shape[1]) < self.chance
            time_WI = np.zeros(draft.shape)
            time_WI[np.arange(draft.shape[1]) % draft.shape[0], np.arange(draft.shape[1])] = self.ms * 1e3 * hit_WI
            draft.add(draft.loader_frame(*self.frame.split("|")), time_WI, 0.1, 0.02)

    reads = "_read_block (project/dataset.py:70)|recv_into (ssl.py:1166)"
    found = only_cause(judge(WanderingRead(60, frame=reads), baseline=baseline, workers=8))
    assert found.cause == "slow-storage-read"
    assert any("reads a socket" in line for line in found.evidence)
    found = only_cause(judge(WanderingRead(60, frame="decode (project/dataset.py:90)"), baseline=baseline, workers=8))
    assert found.cause == "slow-data-loading"


@fleets
def test_contention_that_wanders_shows_in_the_run_queues(workers: int, accelerator: bool) -> None:
    found = only_cause(judge(WanderingHold(1.8, queue=0.1), workers=workers, accelerator=accelerator))
    assert found.cause == ("compute-slow" if accelerator else "cpu-contention")
    (turns,) = [line for line in found.evidence if "one worker takes at least" in line]
    turn = re.fullmatch(TURNS, turns)
    assert turn is not None, turns
    led, named = int(turn["led"]), [int(count) for count in re.findall(r"worker \d+ in (\d+)", turn["named"])]
    assert 0.5 * int(turn["of"]) <= led <= int(turn["of"]) <= 40
    assert len(named) == min(workers, 4)
    assert max(named) <= led / 2
    assert sum(named) == led or "others in the rest" in turns
    queue = "Training threads are ready but without a core"
    assert any(line.startswith(queue) for line in found.evidence) == (not accelerator)


def test_hold_ups_while_run_queues_are_as_before_are_no_contention() -> None:
    assert only_cause(judge(WanderingHold(1.8), workers=8)).cause == "compute-slow"


@fleets
@known
def test_samples_of_different_length_are_uneven_loads(workers: int, accelerator: bool, baseline: bool) -> None:
    spread = 0.25 if accelerator else 0.5
    verdict = judge(VariableLengths(spread), workers=workers, accelerator=accelerator, baseline=baseline)
    found = only_cause(verdict)
    assert found.cause == "load-imbalance"
    assert "different amounts of work at the same speed, another one the most each time" in verdict.summary
    assert any("the optimizer's operators by" in line for line in found.evidence)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("workers", "accelerator"), [(2, False), (4, False), (8, True)])
def test_samples_of_different_length_are_the_job_itself_where_nobody_finds_it_slow(
    workers: int, accelerator: bool, seed: int
) -> None:
    """Up to what waiting may take by the paper; a job whose samples cost it more is slow from the start."""
    plan = {"seed": seed, "workers": workers, "accelerator": accelerator, "baseline": False}
    for purpose in ("baseline", "early"):
        usual = judge(VariableLengths(0.25), purpose=purpose, **plan)  # type: ignore[arg-type]
        assert usual.verdict == "healthy", usual.summary
    if workers > 2:  # of two workers the longer one is never far above the mean
        uneven = judge(VariableLengths(1.0), purpose="baseline", **plan)  # type: ignore[arg-type]
        assert only_cause(uneven).cause == "load-imbalance"


@pytest.mark.parametrize("seed", range(3))
def test_what_all_workers_wait_for_at_once_is_no_part_of_what_they_lose_in_turns(seed: int) -> None:
    report = Calls(("train (project/train.py:9)", "report (project/train.py:60)"), (0, 1), 400, every=2, use=0.02)
    verdict = judge(WanderingHold(1.8), report, seed=seed, baseline=False, workers=2)
    turns = [one.gain or 0.0 for one in verdict.findings if one.scope == "rotating"]
    assert all(gain < 0.25 for gain in turns), verdict.summary


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("purpose", ["manual", "slow"])
def test_differences_no_larger_than_what_waiting_for_a_core_makes_are_no_uneven_loads(
    seed: int, purpose: WindowPurpose
) -> None:
    """Threads of these fleets wait for a core 20 to 30 % of the time."""
    verdict = judge(VariableLengths(0.15), seed=seed, purpose=purpose, workers=4, cores=8)
    assert [one.cause for one in verdict.findings if one.role == "cause"] == [], verdict.summary


def test_loads_that_were_as_uneven_when_the_job_was_healthy_are_not_what_made_it_slow() -> None:
    plan = {"workers": 8, "accelerator": True}
    before = synthesize(FleetPlan(seed=1, **plan), [VariableLengths(0.2)], 1)
    patterns = synthesize(FleetPlan(seed=1, draw=1, **plan), [VariableLengths(0.2), BackwardHook((3,), 60)], 2)
    verdict = analyze("job", synthesize_window(patterns, "slow", before), patterns, before)
    assert [(one.cause, one.workers) for one in verdict.findings if one.role == "cause"] == [
        ("python-on-critical-path", (3,))
    ]


def test_one_worker_that_is_late_now_and_then_is_not_everybody_in_turn() -> None:
    """Bursts on one worker: whoever is last does not change."""

    class Bursts(WanderingHold):
        def apply(self, draft: object) -> None:
            hit = draft.noise.random(draft.shape[1]) < 0.6
            for key in draft.time_us:
                draft.time_us[key][2, hit] *= 1.8

    verdict = judge(Bursts(1.8), workers=4)
    assert all(one.scope != "rotating" for one in verdict.findings)


@pytest.mark.parametrize(("workers", "count"), [(2, 20), (4, 20), (8, 20), (64, 4)])
@pytest.mark.parametrize("accelerator", [False, True])
def test_healthy_jitter_is_nobodys_turn(workers: int, count: int, accelerator: bool) -> None:
    found = []
    for seed in range(count):
        for baseline in (True, False):
            verdict = judge(
                seed=seed, purpose="manual", baseline=baseline, workers=workers, accelerator=accelerator, iterations=20
            )
            found += [(seed, verdict.summary) for one in verdict.findings if one.role == "cause"]
    assert found == []


def test_workers_that_take_turns_on_too_few_cores_are_healthy_without_a_past() -> None:
    verdict = judge(WanderingHold(1.8), purpose="manual", baseline=False, workers=4, cores=2)
    assert verdict.findings == ()


def test_a_few_iterations_do_not_show_that_the_culprit_changes() -> None:
    verdict = judge(WanderingHold(1.8, queue=0.1), workers=4, iterations=6)
    assert all(one.scope != "rotating" for one in verdict.findings)


class OneThenAnother:
    """Worker 0 spends 60 ms in a function in half of the iterations; worker 1 is a third as late in the others."""

    def apply(self, draft: Draft) -> None:
        """By turns."""
        odd_WI = np.zeros(draft.shape)
        odd_WI[0, ::2] = 60e3
        draft.add(draft.loop_frame("save_shard (project/checkpoint.py:30)", phase="other"), odd_WI, 0.5, 0.1)
        even_WI = np.zeros(draft.shape)
        even_WI[1, 1::2] = 20e3
        for key in draft.time_us:
            if key.kind == "compute":
                draft.time_us[key] += even_WI / 6


@pytest.mark.parametrize("seed", range(3))
def test_a_function_of_one_worker_alone_is_not_one_worker_after_another(seed: int) -> None:
    """In a pipeline those behind it are late in turns, too, because they wait for it."""
    verdict = judge(OneThenAnother(), workers=2, seed=seed)
    assert not [one for one in verdict.findings if one.scope == "rotating"], verdict.summary
    assert verdict.cause is None or verdict.cause.workers == (0,)


class WanderingData:
    """In each iteration another worker has a batch several times as large; the optimizer does not mind."""

    def apply(self, draft: Draft) -> None:
        """Longer forward and backward, by turns."""
        factor_WI = np.ones(draft.shape)
        turns = draft.noise.integers(0, draft.shape[0], draft.shape[1])
        factor_WI[turns, np.arange(draft.shape[1])] = 4.0
        for key in draft.time_us:
            if key.kind == "compute" and key.phase in ("forward", "backward"):
                draft.time_us[key] = draft.time_us[key] * factor_WI


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("baseline", [False, True])
def test_data_that_wanders_from_the_start_is_told_from_a_crowded_host(baseline: bool, seed: int) -> None:
    plan = FleetPlan(workers=4, cores=2, seed=seed)
    before = synthesize(plan, [WanderingData()], 1) if baseline else []
    patterns = synthesize(FleetPlan(workers=4, cores=2, seed=seed, draw=1), [WanderingData()], 2)
    found = only_cause(analyze("job", synthesize_window(patterns, "manual", before), patterns, before))
    assert found.cause == "load-imbalance"


@pytest.mark.parametrize("seed", range(3))
def test_of_many_devices_a_few_iterations_are_enough_not_to_call_wandering_pauses_healthy(seed: int) -> None:
    plan = {"workers": 256, "accelerator": True, "iterations": 4, "seed": seed, "baseline": False}
    verdict = judge(WanderingPause(60, frame="shuffle (project/mix.py:5)"), purpose="manual", **plan)  # type: ignore[arg-type]
    assert verdict.verdict != "healthy"
    assert "shuffle" in verdict.summary
    calm = judge(purpose="manual", **plan)  # type: ignore[arg-type]
    assert calm.verdict == "healthy", calm.summary


@pytest.mark.parametrize("seed", range(3))
def test_workers_that_share_a_device_take_turns_on_it_for_no_reason(seed: int) -> None:
    plan = FleetPlan(seed=seed, workers=4, accelerator=True)
    patterns = synthesize(plan, [WanderingHold(1.3)], 2)
    assert only_cause(analyze("job", synthesize_window(patterns), patterns, ())).cause in ("compute-slow", "unknown")
    for uuids, word in ((("a",) * 4, "healthy"), (("a", "a", "b", "c"), "slow"), (("",) * 4, "slow")):
        on_them = [
            msgspec.structs.replace(
                one, worker=msgspec.structs.replace(one.worker, device="cuda:0", device_uuid=uuids[rank])
            )
            for rank, one in enumerate(patterns)
        ]
        verdict = analyze("job", synthesize_window(on_them), on_them, ())
        assert verdict.verdict == word, (uuids, verdict.summary)
