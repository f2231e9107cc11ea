"""Pauses every so many iterations in the job's own code, and what is none: by mechanism, not by names."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import pytest

from eroica.diagnosis.activities import activity_of
from eroica.diagnosis.reading import Doing, python_cause
from eroica.localize.fleet import build_fleet, with_all_iterations
from eroica.model.verdict import Finding, Verdict
from eroica.pipeline import analyze
from eroica.settings import Settings
from support import FleetPlan, Trouble, synthesize, synthesize_window
from support.code_troubles import LOGGING, SAVING, Calls
from support.fleet import Draft

OWN = ("dump_state (project/train.py:30)", "_write_blocks (project/train.py:60)")
POST = (
    "score (project/reward.py:30)",
    "post (requests/api.py:115)",
    "request (requests/sessions.py:589)",
    "recv_into (socket.py:700)",
)
COPY = ("stage (project/train.py:30)", "copyfile (shutil.py:260)", "_fastcopy_sendfile (shutil.py:150)")
EVERYBODY = (0, 1, 2, 3)
seeds = pytest.mark.parametrize("seed", range(3))
purposes = pytest.mark.parametrize("purpose", ["manual", "slow"])


def verdict_on(
    *troubles: Trouble, seed: int, purpose: str = "manual", before: tuple[Trouble, ...] = (), **plan: object
) -> Verdict:
    healthy = synthesize(FleetPlan(seed=seed + 10_000, **plan), before, 1)
    patterns = synthesize(FleetPlan(seed=seed, **plan), troubles, 2)
    return analyze("job", synthesize_window(patterns, purpose, healthy), patterns, healthy)


def only_cause(verdict: Verdict, cause: str, workers: tuple[int, ...]) -> Finding:
    causes = [one for one in verdict.findings if one.role == "cause"]
    assert [(one.cause, one.workers) for one in causes] == [(cause, workers)], verdict.summary
    assert verdict.verdict == "slow"
    return causes[0]


@seeds
@purposes
@pytest.mark.parametrize(("every", "iterations"), [(5, 20), (5, 40), (20, 100)])
def test_a_pause_of_one_worker_is_found_with_its_rhythm(seed: int, purpose: str, every: int, iterations: int) -> None:
    verdict = verdict_on(Calls(OWN, (0,), 400, every=every), seed=seed, purpose=purpose, iterations=iterations)
    found = only_cause(verdict, "python-on-critical-path", (0,))
    assert found.function.name in ("dump_state", "_write_blocks")
    assert found.gain == pytest.approx(400 / every / (62 + 400 / every), rel=0.35)
    assert f"about every {every} iterations" in verdict.summary
    assert "the other 3 workers wait for it" in verdict.summary


@seeds
@purposes
@pytest.mark.parametrize("iterations", [20, 40])
def test_a_pause_of_all_workers_is_found_against_the_baseline_window(seed: int, purpose: str, iterations: int) -> None:
    verdict = verdict_on(Calls(OWN, EVERYBODY, 200, every=4), seed=seed, purpose=purpose, iterations=iterations)
    assert only_cause(verdict, "python-on-critical-path", EVERYBODY).scope == "all"
    assert "about every 4 iterations" in verdict.summary


@seeds
def test_what_all_workers_always_did_every_fourth_iteration_is_how_the_job_is(seed: int) -> None:
    steps = Calls(OWN, EVERYBODY, 200, every=4)
    assert verdict_on(steps, seed=seed, before=(steps,)).verdict == "healthy"


@seeds
def test_a_pause_of_one_worker_after_another_blames_nobody(seed: int) -> None:
    verdict = verdict_on(Calls(OWN, EVERYBODY, 200, every=4, rotates=True), seed=seed)
    assert only_cause(verdict, "python-on-critical-path", ()).scope == "rotating"


@seeds
@pytest.mark.parametrize(("frames", "cause"), [(SAVING, "blocking-checkpoint"), (LOGGING, "blocking-logging")])
def test_known_frames_choose_the_name_and_nothing_else(seed: int, frames: tuple[str, ...], cause: str) -> None:
    known = only_cause(verdict_on(Calls(frames, (0,), 400, every=5), seed=seed), cause, (0,))
    own = only_cause(verdict_on(Calls(OWN, (0,), 400, every=5), seed=seed), "python-on-critical-path", (0,))
    assert own.gain == pytest.approx(known.gain, abs=0.02)
    assert own.confidence == pytest.approx(known.confidence, abs=0.1)


@seeds
@purposes
@pytest.mark.parametrize(("every", "iterations"), [(200, 200), (50, 200), (60, 40), (60, 25)])
def test_an_evaluation_now_and_then_is_healthy(seed: int, purpose: str, every: int, iterations: int) -> None:
    verdict = verdict_on(Calls(OWN, (0,), 400, every=every), seed=seed, purpose=purpose, iterations=iterations)
    assert verdict.verdict == "healthy", verdict.summary
    assert not verdict.findings


@dataclass(frozen=True)
class AnywhereHeldUp:
    """One worker is held up in every fifth iteration, in another function each time."""

    ms: float = 150

    def apply(self, draft: Draft) -> None:
        keys = [key for key in draft.time_us if key.kind in ("compute", "python")]
        for iteration in range(0, draft.shape[1], 5):
            draft.time_us[keys[int(draft.noise.integers(len(keys)))]][0, iteration] += self.ms * 1e3


@seeds
def test_hold_ups_anywhere_are_no_functions_fault_but_not_healthy_either(seed: int) -> None:
    verdict = verdict_on(AnywhereHeldUp(), seed=seed)
    assert "python-on-critical-path" not in {one.cause for one in verdict.findings}
    assert verdict.verdict != "healthy", verdict.summary


# --- what is carried is no purpose ---


def test_a_transport_tells_neither_logging_nor_saving() -> None:
    assert activity_of(POST) == "service"
    assert activity_of(COPY) == "file"
    assert activity_of(("log (project/a.py:1)", "log (wandb/sdk/wandb_run.py:1)", *POST[1:])) == "log"
    assert activity_of(("keep (project/a.py:1)", "save (torch/serialization.py:9)", *COPY[1:])) == "save"


@seeds
@pytest.mark.parametrize("every", [1, 5])
def test_asking_a_reward_server_is_no_logging(seed: int, every: int) -> None:
    verdict = verdict_on(Calls(POST, (0,), 20 * every, every=every, use=0.02), seed=seed)
    assert only_cause(verdict, "python-on-critical-path", (0,)).function.name == "score"
    assert "logging" not in verdict.summary


@seeds
def test_copying_a_file_is_no_saving_of_state(seed: int) -> None:
    verdict = verdict_on(Calls(COPY, (0,), 30, use=0.02), seed=seed)
    only_cause(verdict, "slow-storage-read", (0,))
    assert "saving state" not in verdict.summary


# --- a crowded host ---


def test_a_thread_that_stands_in_the_run_queue_does_not_wait_for_storage() -> None:
    reads = Doing(activity="file", busy=0.2, on_disk=0.0, allowed=0.95)
    crowded = Doing(activity="file", busy=0.2, on_disk=0.0, allowed=0.22)
    assert python_cause(reads, is_input=True) == "slow-storage-read"
    assert python_cause(crowded, is_input=True) == "slow-data-loading"
    assert crowded.computes
    assert not reads.computes


@pytest.mark.parametrize(("queued", "cause"), [(0.25, "slow-storage-read"), (0.85, "python-on-critical-path")])
def test_low_use_of_a_core_on_a_crowded_host_is_no_read(queued: float, cause: str) -> None:
    frames = ("count (project/train.py:70)", "load (numpy/lib/_npyio_impl.py:310)")
    patterns = synthesize(FleetPlan(seed=1), (Calls(frames, (1,), 40, use=0.12),), 2)
    facts = {**patterns[1].host_facts, "run_queue_wait": queued}
    patterns[1] = msgspec.structs.replace(patterns[1], host_facts=facts)
    verdict = analyze("job", synthesize_window(patterns, "manual"), patterns, ())
    assert cause in [one.cause for one in verdict.findings if one.role == "cause"], verdict.summary


def test_all_iterations_are_the_windows_with_the_slowest() -> None:
    fleet = build_fleet(synthesize(FleetPlan(seed=1, iterations=50), (), 1), Settings())
    whole = with_all_iterations(fleet)
    assert fleet.columns.shape[1] < whole.columns.shape[1] == 50
    assert np.asarray(whole.iteration_us).max() > fleet.iteration_us.max()
