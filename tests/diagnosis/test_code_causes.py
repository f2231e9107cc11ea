"""Causes read from what code does: the right one, on the right workers, whatever the user's functions are called."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import pytest

from eroica.model.pattern import LAUNCHING, FunctionKey, Phase, WorkerPattern
from eroica.model.verdict import Finding, Verdict
from eroica.model.window import WindowPurpose
from eroica.pipeline import analyze
from support import FleetPlan, SlowLoader, SlowPython, Trouble, synthesize, synthesize_window
from support.fleet import Draft, accused
from support.troubles import ARRAYS, HTTP, LOGGING, SAVING, Calls, Reads

RENAMED = (("train.py", "run_it.py"), ("dataset.py", "x1.py"), ("project/", "elsewhere/"), ("save_state", "f1"),
           ("report (", "g2 ("), ("_fetch", "h3"), ("__getitem__", "pull"), ("main (", "go ("))  # fmt: skip
seeds = pytest.mark.parametrize("seed", range(2))


def verdict_on(
    *troubles: Trouble,
    seed: int = 0,
    purpose: str = "slow",
    baseline: bool = True,
    loader_use: float = 0.0,
    **plan: object,
) -> Verdict:
    healthy = synthesize(FleetPlan(seed=seed + 10_000, **plan), (), 1)
    patterns = synthesize(FleetPlan(seed=seed, **plan), troubles, 2)
    if loader_use:
        patterns = [with_loader_use(pattern, loader_use) for pattern in patterns]
    window = synthesize_window(patterns, purpose, healthy if baseline else ())
    return analyze("job", window, patterns, healthy if baseline else ())


def with_loader_use(pattern: WorkerPattern, use: float) -> WorkerPattern:
    """The same pattern with a figure of processor use for functions in loader processes."""
    rows = tuple(
        msgspec.structs.replace(row, mu=use, resource="cpu", resource_samples=100)
        if row.key.thread == "loader"
        else row
        for row in pattern.functions
    )
    return msgspec.structs.replace(pattern, functions=rows)


def only_cause(verdict: Verdict, cause: str, workers: tuple[int, ...]) -> Finding:
    assert accused(verdict) == [(cause, workers)], verdict.summary
    assert verdict.verdict == "slow"
    found = verdict.cause
    assert found is not None
    return found


# --- saving and logging ---


@seeds
@pytest.mark.parametrize(("frames", "cause"), [(SAVING, "blocking-checkpoint"), (LOGGING, "blocking-logging")])
@pytest.mark.parametrize("accelerator", [False, True])
def test_what_rank_0_does_in_every_iteration_is_named_by_the_users_function(
    seed: int, frames: tuple[str, ...], cause: str, accelerator: bool
) -> None:
    verdict = verdict_on(Calls(frames, (0,), 15), seed=seed, accelerator=accelerator)
    found = only_cause(verdict, cause, (0,))
    assert found.scope == "some"
    assert found.function.name == frames[0].split(" (")[0]
    assert found.gain == pytest.approx(0.2, abs=0.06)
    assert any(frames[-1] in sentence for sentence in found.evidence)
    assert "the other 3 workers wait for it" in verdict.summary


@seeds
@pytest.mark.parametrize("every", [5, 10, 20])
@pytest.mark.parametrize("iterations", [40, 100, 200])
def test_a_checkpoint_every_so_many_iterations_is_found_although_the_slowest_are_left_out_elsewhere(
    seed: int, every: int, iterations: int
) -> None:
    verdict = verdict_on(Calls(SAVING, (0,), 400, every=every), seed=seed, iterations=iterations)
    found = only_cause(verdict, "blocking-checkpoint", (0,))
    assert found.gain == pytest.approx(400 / every / (62 + 400 / every), rel=0.35)
    assert f"every {every} iterations" in verdict.summary


@seeds
@pytest.mark.parametrize(("frames", "ms", "every"), [(LOGGING, 20, 50), (SAVING, 60, 60), (LOGGING, 0.5, 1)])
def test_healthy_logging_and_checkpoints_stay_silent(seed: int, frames: tuple[str, ...], ms: float, every: int) -> None:
    verdict = verdict_on(Calls(frames, (0,), ms, every=every), seed=seed, iterations=200, purpose="manual")
    assert verdict.verdict == "healthy", verdict.summary


@seeds
@pytest.mark.parametrize("frames", [SAVING, LOGGING, HTTP[1:]])
def test_names_and_places_of_user_code_decide_nothing(seed: int, frames: tuple[str, ...]) -> None:
    plain = verdict_on(Calls(frames, (0,), 20, use=0.1), seed=seed).cause
    moved = verdict_on(Calls(frames, (0,), 20, use=0.1), seed=seed, named=RENAMED).cause
    assert plain is not None
    assert moved is not None
    assert moved.function.name != plain.function.name
    for field in ("cause", "workers", "scope", "gain", "confidence"):
        assert getattr(plain, field) == getattr(moved, field)


# --- reading ---


@seeds
@pytest.mark.parametrize("frames", [HTTP, ARRAYS])
@pytest.mark.parametrize("loader_workers", [0, 2])
def test_waiting_in_a_read_is_slow_storage(seed: int, frames: tuple[str, ...], loader_workers: int) -> None:
    verdict = verdict_on(Reads(frames, (2,), 40), seed=seed, loader_workers=loader_workers, loader_use=0.05)
    found = only_cause(verdict, "slow-storage-read", (2,))
    assert found.function.stack[-1] == frames[-1]
    assert found.function.name in ("__getitem__", "_fetch")
    assert ("in a loader process" in verdict.summary) == bool(loader_workers)
    assert any(frames[-1] in sentence for sentence in found.evidence)


# --- what runs elsewhere ---


@pytest.mark.parametrize("use", [0.03, 0.85])
def test_how_busy_the_loader_process_is_is_told_not_the_thread_that_waits_for_it(use: float) -> None:
    verdict = verdict_on(SlowLoader((2,), 60), loader_workers=2, loader_use=use)
    found = only_cause(verdict, "slow-data-loading", (2,))
    assert found.resource is not None and found.resource.mean == pytest.approx(use, abs=0.01)
    assert ("It waits rather than computes" in verdict.summary) == (use < 0.3), verdict.summary
    assert ("It keeps a core busy" in verdict.summary) == (use > 0.7)


# --- hosts that keep their devices waiting for launches: what is a finding and what is how eager code runs ---


@dataclass(frozen=True)
class Launching:
    """The host launches in one part of the iteration for `ms` in which the device has no work."""

    ms: float
    count: float
    phase: Phase = "forward"

    def apply(self, draft: Draft) -> None:
        key = FunctionKey(kind="other", name=LAUNCHING, phase=self.phase)
        time_I = self.ms * 1e3 * np.exp(draft.noise.normal(0, 0.05, draft.shape[1]))
        draft.add(key, np.tile(time_I, (draft.shape[0], 1)), self.count, 0.9)


@dataclass(frozen=True)
class SlowLoop:
    """Python of the training loop itself, in no part of the iteration."""

    ms: float

    def apply(self, draft: Draft) -> None:
        key = draft.loop_frame("tokenize (project/text.py:5)", phase="other")
        draft.add(key, np.full(draft.shape, self.ms * 1e3), 1.0, 0.9)


def eager(forward: float = 12.0, backward: float = 20.0) -> tuple[Launching, Launching]:
    """How code runs that launches many small kernels."""
    return Launching(forward, 200), Launching(backward, 400, "backward")


@seeds
def test_python_that_far_exceeds_what_lies_between_launches_is_one(seed: int) -> None:
    patterns = synthesize(FleetPlan(draw=2, seed=seed, accelerator=True), [*eager(4, 6), SlowPython(30.0)], 2)
    verdict = analyze("job", synthesize_window(patterns, "manual"), patterns)
    assert verdict.cause is not None and verdict.cause.cause == "python-on-critical-path", verdict.summary
    assert verdict.cause.function.name == "_score_tokens"


@seeds
@pytest.mark.parametrize("purpose", ["baseline", "manual"])
def test_what_recording_itself_may_take_is_no_python_of_the_jobs(seed: int, purpose: WindowPurpose) -> None:
    """18 ms of Python are a cause in iterations as long as outside of the window, and none in those 20 ms longer."""
    patterns = synthesize(FleetPlan(seed=seed, accelerator=True), [*eager(), SlowLoop(18.0)], 2)
    window = synthesize_window(patterns, purpose)
    assert window.current_iteration_s is not None
    for recording_s, is_told in ((0.0, True), (0.02, False)):
        asked = msgspec.structs.replace(window, current_iteration_s=window.current_iteration_s - recording_s)
        verdict = analyze("job", asked, patterns)
        assert (verdict.cause is not None) == is_told, verdict.summary
