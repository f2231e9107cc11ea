"""Confidence depends on what a window can tell, and windows that tell too little accuse nobody."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from eroica.model.pattern import FunctionPattern, WorkerPattern
from eroica.model.series import decode_series, encode_series
from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from support import BackwardHook, FleetPlan, SlowCompute, Trouble, synthesize, synthesize_window


def judge(patterns: list[WorkerPattern]) -> Verdict:
    return analyze("job", synthesize_window(patterns), patterns)


def confidence(*troubles: Trouble, **plan: object) -> float:
    found = judge(synthesize(FleetPlan(**plan), troubles)).cause
    assert found is not None
    return found.confidence


def test_five_workers_and_ten_iterations_are_no_certainty() -> None:
    assert confidence(BackwardHook((1,), 200), workers=5, iterations=10) < 0.9


def test_confidence_grows_with_iterations_and_with_peers() -> None:
    by_iterations = [confidence(BackwardHook((1,), 100), workers=4, iterations=n) for n in (3, 6, 12, 40)]
    assert by_iterations == sorted(by_iterations)
    assert by_iterations[-1] - by_iterations[0] > 0.15
    by_peers = [confidence(BackwardHook((1,), 100), workers=n, iterations=20) for n in (2, 4, 32)]
    assert by_peers == sorted(by_peers)
    assert by_peers[0] < 0.85


@pytest.mark.parametrize("iterations", [2, 3])
def test_a_few_samples_of_a_function_in_a_short_window_accuse_nobody(iterations: int) -> None:
    """One sample in each of two iterations is as steady as can be, and says nearly nothing."""
    for seed in range(30):
        verdict = judge(synthesize(FleetPlan(workers=4, iterations=iterations, seed=seed)))
        assert not [one for one in verdict.findings if one.function.kind == "python"], verdict.summary


def test_what_a_short_window_cannot_tell_from_noise_is_told_as_undetermined_with_what_would_settle_it() -> None:
    verdict = judge(synthesize(FleetPlan(workers=4, iterations=3, seed=2), [BackwardHook((1,), 15)]))
    assert verdict.verdict == "undetermined"
    assert "3 iterations are too few to tell it from noise; take a longer window" in verdict.summary


@pytest.mark.parametrize(("samples", "is_told"), [(1, False), (400, True)])
def test_a_resource_that_was_sampled_too_seldom_carries_no_claim(samples: int, is_told: bool) -> None:
    patterns = [
        msgspec.structs.replace(
            one,
            functions=tuple(msgspec.structs.replace(row, resource_samples=min(samples, 400)) for row in one.functions),
        )
        for one in synthesize(FleetPlan(workers=4), [BackwardHook((1,), 60)])
    ]
    verdict = judge(patterns)
    assert verdict.cause is not None
    assert (verdict.cause.resource is not None) == is_told
    assert ("It keeps a core busy" in verdict.summary) == is_told


def late_for_no_function(mu: float) -> list[WorkerPattern]:
    """Worker 2 is late by 60 ms that no function holds; its use of the processor inside operators is `mu`."""
    patterns = synthesize(FleetPlan(workers=4, seed=3))

    def used(row: FunctionPattern) -> FunctionPattern:
        return msgspec.structs.replace(row, mu=mu) if row.key.kind == "compute" else row

    late_us = 60_000.0
    for rank, own in enumerate(patterns):
        times = decode_series(own.iteration_us, np.float32) + np.float32(late_us)
        waits = decode_series(own.wait_us, np.float32) + np.float32(late_us * (rank != 2))
        patterns[rank] = msgspec.structs.replace(own, iteration_us=encode_series(times), wait_us=encode_series(waits))
    own = patterns[2]
    patterns[2] = msgspec.structs.replace(own, functions=tuple(map(used, own.functions)))
    return patterns


def test_a_worker_late_for_no_function_is_told_how_its_hardware_differs() -> None:
    found = judge(late_for_no_function(0.3)).cause
    assert found is not None and (found.cause, found.workers) == ("unknown", (2,))
    assert any("use of cpu is 30 %, that of the peers 90 %: look at that hardware" in line for line in found.evidence)
    same = judge(late_for_no_function(0.9)).cause
    assert same is not None and (same.cause, same.workers) == ("unknown", (2,))
    assert not any("hardware" in line for line in same.evidence)


def test_a_slow_worker_among_many_over_many_iterations_is_near_certain() -> None:
    assert confidence(SlowCompute((2,), 2.0), workers=32, iterations=60) > 0.9


def test_one_of_four_that_waits_for_the_others_says_so_and_how_they_become_workers() -> None:
    """As the learner of reinforcement learning, whose actors step no optimizer."""
    patterns = synthesize(FleetPlan(workers=4), [BackwardHook((2,), 400)])[:1]
    verdict = analyze("job", synthesize_window(patterns), patterns, expected_workers=4)
    assert verdict.verdict == "undetermined"
    assert "only 1 of 4 workers reported, and it waits" in verdict.summary
    assert "call eroica.step() once per iteration on all of them" in verdict.summary
