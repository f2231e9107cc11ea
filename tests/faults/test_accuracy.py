"""What many runs say together, and the page drawn from them: the arithmetic, on runs made up for it."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def run(seed: int, right: bool = True, **changes: Any) -> dict[str, Any]:
    """Of a slow loader in the middle: 50 ms an iteration before, 100 ms after."""
    said = {
        "verdict": "slow", "cause": "slow-data-loading" if right else "compute-slow", "gain": 0.4, "confidence": 0.8,
    }  # fmt: skip
    plain = {
        "kind": "run", "key": f"slow-loader/ddp/middle/{seed}", "fault": "slow-loader", "layout": "ddp",
        "onset": "middle", "seed": seed, "renamed": bool(seed % 2), "right": right, "said": said,
        "expected": {"verdict": "slow", "causes": ["slow-data-loading"]},
        "parts": dict.fromkeys(("verdict", "cause", "workers", "file", "function"), right),
        "paces_ms": [90.0, *[50.0] * 5, 75.0, *[100.0] * 4], "expected_iteration_s": None, "asked_by_hand": False,
        "onset_to_trigger_s": 6.0, "trigger_to_verdict_s": 12.0, "when": f"2000-01-{1 + seed:02}T00:00:00Z",
        "machine": {"cores": 2},
    }  # fmt: skip
    return {**plain, **changes}


def healthy(found: bool = False) -> dict[str, Any]:
    said = {"verdict": "slow", "cause": "unknown", "confidence": 0.5, "gain": 0.1} if found else {"verdict": "healthy"}
    changes = {"key": "none/ddp/start/0", "fault": "none", "onset": "start", "expected": {"verdict": "healthy"}}
    return run(0, right=not found, **{**changes, "said": said, "asked_by_hand": True})


def test_shares_gains_and_confidences_are_counted() -> None:
    accuracy = importlib.import_module("accuracy")
    low, high = accuracy.Share(9, 10).interval  # Wilson's
    assert (round(low, 3), round(high, 3)) == (0.596, 0.982)
    assert accuracy.Share(0, 0).interval == (0.0, 1.0) and math.isnan(accuracy.Share(0, 0).value)
    assert accuracy.true_gain(run(0)) == pytest.approx(0.5)
    assert accuracy.gain_errors([run(0), run(1, right=False)]) == [pytest.approx(0.2)]
    pairs = accuracy.judged([run(0), run(1), run(2, right=False), healthy(), healthy(found=True)])
    assert pairs == [(0.8, True), (0.8, True), (0.8, False), (0.5, False)]
    assert accuracy.brier(pairs) == pytest.approx((2 * 0.04 + 0.64 + 0.25) / 4)


def test_of_a_run_that_was_done_again_the_last_counts_and_the_first_is_told() -> None:
    accuracy, page = importlib.import_module("accuracy"), importlib.import_module("accuracy_page")
    lines = [run(0, right=False), run(0, when="2000-02-01T00:00:00Z"), {"kind": "pace", "key": "x"}]
    assert [line["right"] for line in accuracy.latest(lines)] == [True]
    assert [line["right"] for line in accuracy.first_tries(lines)] == [False]
    first = [run(seed, right=seed >= 10) for seed in range(30)]
    text = "\n".join(page.page(first[::-1], {}, first=first[::-1]))
    assert "| 1-25 | 15 of 25: 60 %" in text and "| 26-30 | 5 of 5: 100 %" in text


def test_the_page_tells_what_was_right_and_why_the_rest_was_not() -> None:
    runs = [run(0), run(1), run(2, right=False), healthy(), healthy(found=True)]
    text = "\n".join(importlib.import_module("accuracy_page").page(runs, {"slow-loader/ddp/middle/2": "it was noon"}))
    assert "| faulty runs right | 2 of 3: 66.7 %" in text
    assert "| healthy runs without a cause | 1 of 2: 50 %" in text
    assert "| `slow-loader/ddp/middle/2` | compute-slow | verdict, cause, workers, file | it was noon |" in text
    assert "not explained yet" in text  # the false alarm
    assert "| `slow-loader` | 40 % | 50 % | 20 % |" in text
