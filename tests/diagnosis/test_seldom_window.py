"""Windows opened for long iterations, far apart: what they hold is named, with the cost that the workers saw."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from support import FleetPlan, Trouble, synthesize, synthesize_window
from support.code_troubles import SAVING, Calls
from support.fleet import Draft

OWN = ("dump_state (project/train.py:30)", "_write_blocks (project/train.py:60)")
EVERYBODY = (0, 1, 2, 3)
EVERY, LONG_MS = 50, 3000.0
seeds = pytest.mark.parametrize("seed", range(3))


def verdict_on(*troubles: Trouble, seed: int, iterations: int = 62, purpose: str = "seldom") -> Verdict:
    healthy = synthesize(FleetPlan(seed=seed + 10_000), (), 1)
    patterns = synthesize(FleetPlan(seed=seed, iterations=iterations), troubles, 2)
    usual_s = 0.062
    window = msgspec.structs.replace(
        synthesize_window(patterns, "manual", healthy),
        purpose=purpose,
        reason=f"every {EVERY} iterations one takes much longer, 4 times so far, which costs 49 % of the time",
        baseline_iteration_s=usual_s,
        current_iteration_s=usual_s + LONG_MS / 1e3 / EVERY,
        period_s=EVERY * usual_s + LONG_MS / 1e3,
    )
    return analyze("job", window, patterns, healthy)


@seeds
@pytest.mark.parametrize(
    ("frames", "workers", "cause"),
    [
        (SAVING, (0,), "blocking-checkpoint"),
        (OWN, (0,), "python-on-critical-path"),
        (OWN, EVERYBODY, "python-on-critical-path"),
    ],
)
def test_one_long_iteration_is_enough(frames: tuple[str, ...], workers: tuple[int, ...], cause: str, seed: int) -> None:
    verdict = verdict_on(Calls(frames, workers, LONG_MS, every=EVERY), seed=seed)
    found = verdict.findings[0]
    assert (verdict.verdict, found.cause, found.workers) == ("slow", cause, workers), verdict.summary
    assert found.gain == pytest.approx(0.49, abs=0.06)
    assert f"every {EVERY} iterations" in verdict.summary


@seeds
def test_a_window_by_hand_says_nothing_of_it(seed: int) -> None:
    """It comes as seldom as an evaluation, and nobody has seen whether it is new."""
    verdict = verdict_on(Calls(OWN, (0,), LONG_MS, every=EVERY), seed=seed, iterations=40, purpose="manual")
    assert verdict.verdict != "slow", verdict.summary


@dataclass(frozen=True)
class Evaluates:
    """All workers compute for three seconds in one iteration of fifty."""

    def apply(self, draft: Draft) -> None:
        key = next(key for key in draft.time_us if key.kind == "compute")
        draft.time_us[key][:, EVERY - 1 :: EVERY] += LONG_MS * 1e3


@seeds
def test_a_short_call_does_not_stand_for_what_all_wait_for(seed: int) -> None:
    """Who calls a long collective spends a moment in its own lines."""
    verdict = verdict_on(Evaluates(), Calls(OWN, EVERYBODY, 60.0, every=EVERY), seed=seed)
    assert verdict.verdict == "undetermined", verdict.summary
