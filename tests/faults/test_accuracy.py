"""What many runs say together, and the page drawn from them: the arithmetic, on runs made up for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

PARTS = ("verdict", "cause", "workers", "file", "function")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def accuracy(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("accuracy")


@pytest.fixture(scope="module")
def page(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("accuracy_page")


def run(seed: int, right: bool = True, **changes: Any) -> dict[str, Any]:
    """Of a slow loader in the middle: 50 ms an iteration before, 100 ms after."""
    said = {
        "verdict": "slow",
        "cause": "slow-data-loading" if right else "compute-slow",
        "gain": 0.4,
        "confidence": 0.8,
    }
    plain = {
        "kind": "run", "key": f"slow-loader/ddp/middle/{seed}", "fault": "slow-loader", "layout": "ddp",
        "onset": "middle", "seed": seed, "renamed": bool(seed % 2), "right": right, "said": said,
        "expected": {"verdict": "slow", "causes": ["slow-data-loading"]}, "parts": dict.fromkeys(PARTS, right),
        "paces_ms": [90.0, *[50.0] * 5, 75.0, *[100.0] * 4], "expected_iteration_s": None, "asked_by_hand": False,
        "onset_to_trigger_s": 6.0, "trigger_to_verdict_s": 12.0, "when": "2000-01-01T00:00:00Z",
        "machine": {"cores": 2},
    }  # fmt: skip
    return {**plain, **changes}


def healthy(found: bool = False) -> dict[str, Any]:
    said = {"verdict": "slow", "cause": "unknown", "confidence": 0.5, "gain": 0.1} if found else {"verdict": "healthy"}
    changes = {"key": "none/ddp/start/0", "fault": "none", "onset": "start", "expected": {"verdict": "healthy"}}
    return run(0, right=not found, **{**changes, "said": said, "asked_by_hand": True})


def test_the_interval_of_a_share_is_wilsons(accuracy: ModuleType) -> None:
    low, high = accuracy.Share(9, 10).interval
    assert (round(low, 3), round(high, 3)) == (0.596, 0.982)
    assert accuracy.Share(0, 0).interval == (0.0, 1.0) and math.isnan(accuracy.Share(0, 0).value)


def test_the_true_gain_is_the_trainings_own_pace_before_and_after(accuracy: ModuleType) -> None:
    assert accuracy.true_gain(run(0)) == pytest.approx(0.5)
    assert accuracy.gain_errors([run(0), run(1, right=False)]) == [pytest.approx(0.2)]
    from_start = run(0, onset="start", expected_iteration_s=0.02, paces_ms=[99.0, 40.0, 40.0])
    assert accuracy.true_gain(from_start) == pytest.approx(0.5)
    assert accuracy.true_gain(run(0, paces_ms=[])) is None


def test_a_constant_confidence_is_no_better_than_the_share_that_is_right(accuracy: ModuleType) -> None:
    pairs = accuracy.judged([run(0), run(1), run(2, right=False), healthy(), healthy(found=True)])
    assert pairs == [(0.8, True), (0.8, True), (0.8, False), (0.5, False)]
    assert accuracy.brier(pairs) == pytest.approx((2 * 0.04 + 0.64 + 0.25) / 4)
    assert accuracy.brier_of_a_constant(pairs) == 0.25
    assert [(one.low, one.right.good, one.right.total) for one in accuracy.reliability(pairs)] == [
        (0.5, 0, 1),
        (0.8, 2, 3),
    ]


def test_of_a_run_that_was_done_again_the_last_counts(accuracy: ModuleType) -> None:
    lines = [run(0, right=False), run(0), {"kind": "pace", "key": "x"}]
    assert [line["right"] for line in accuracy.latest(lines)] == [True]
    assert [line["right"] for line in accuracy.first_tries(lines)] == [False]


def test_first_tries_stand_on_the_page_in_their_order(page: ModuleType) -> None:
    first = [run(seed, right=seed >= 10, when=f"2000-01-{1 + seed:02}T00:00:00Z") for seed in range(30)]
    text = "\n".join(page.page(first[::-1], {}, first=first[::-1]))
    assert "| 1-25 | 15 of 25: 60 %" in text and "| 26-30 | 5 of 5: 100 %" in text


def test_the_page_tells_what_was_right_and_why_the_rest_was_not(page: ModuleType) -> None:
    runs = [run(0), run(1), run(2, right=False), healthy(), healthy(found=True)]
    text = "\n".join(page.page(runs, {"slow-loader/ddp/middle/2": "it was noon"}))
    assert "| faulty runs right | 2 of 3: 66.7 %" in text
    assert "| healthy runs without a cause | 1 of 2: 50 %" in text
    assert "| `slow-loader` | slow-data-loading | compute-slow (1) |" in text
    assert "| `slow-loader/ddp/middle/2` | compute-slow | verdict, cause, workers, file | it was noon |" in text
    assert "not explained yet" in text  # the false alarm
    assert "| `slow-loader` | 40 % | 50 % | 20 % |" in text


def test_a_part_that_is_right_whatever_was_said_is_not_counted(page: ModuleType) -> None:
    runs = [run(0), run(1, right=False)]
    assert [page.told(runs, part) for part in ("workers", "function")] == ["1", "–"]
    expected = {"verdict": "slow", "causes": ["sibling-process"], "scope": "any", "function": "busy"}
    runs = [{**one, "fault": "unheard-of", "expected": expected} for one in runs]
    assert [page.told(runs, part) for part in ("workers", "function")] == ["–", "1"]
    assert page.wanted(runs) == "sibling-process"
    assert page.wanted([run(0, fault="burners")]).startswith("sibling-process or ")


def test_what_was_wrong_and_was_mended_stays_on_the_page(page: ModuleType, accuracy: ModuleType) -> None:
    before = run(0, right=False, revision="aaa", when="2000-01-01T00:00:00Z")
    after = run(0, revision="bbb", when="2000-01-02T00:00:00Z")
    lines = [after, before, run(1), run(2, right=False)]
    assert [one["right"] for one in accuracy.latest(lines)] == [True, True, False]
    text = "\n".join(page.page(accuracy.latest(lines), {}, (), accuracy.mended(lines)))
    assert "| `slow-loader/ddp/middle/0` | compute-slow | aaa | slow-data-loading | bbb |" in text


def test_the_page_tells_what_windows_on_healthy_jobs_said(page: ModuleType, accuracy: ModuleType) -> None:
    lines = [
        {"kind": "window", "key": f"none/ddp/busy/{at}", "layout": "ddp", "busy": True, "right": at != 1,
         "said": {"cause": "cpu-contention"} if at == 1 else {}}
        for at in range(4)
    ]  # fmt: skip
    again = {**lines[1], "right": True, "said": {"verdict": "healthy"}}
    mended = "\n".join(page.page([run(0)], {}, accuracy.windows([*lines, again])))
    assert "1 of them named a cause when they were first made" in mended and "4 of 4: 100 %" in mended
    text = "\n".join(page.page([run(0)], {}, accuracy.windows([*lines, lines[0]])))
    assert "when they were first made" not in text
    assert "| windows opened by hand on healthy jobs, without a cause | 3 of 4: 75 %" in text
    assert "| ddp | busy | 3 of 4: 75 %" in text
    assert "Wrong: `none/ddp/busy/1`: cpu-contention." in text


def test_the_reliability_diagram_shows_each_bin(page: ModuleType, accuracy: ModuleType) -> None:
    bins = accuracy.reliability(accuracy.judged([run(0), run(1), run(2, right=False)]))
    picture = ElementTree.fromstring(page.diagram(bins))
    titles = [title.text for title in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["stated 0.80: 2 of 3 right"]


def test_what_the_minute_before_a_window_was_like_is_a_multiple_of_the_usual(
    benchmark_module: Callable[[str], ModuleType],
) -> None:
    healthy_hour = benchmark_module("healthy")
    values = [(float(at), 3.0 if 100 <= at < 160 else 2.0) for at in range(600)]
    assert [healthy_hour.longer_before(moment, values) for moment in (60.0, 159.0)] == [1.0, 1.5]
    assert healthy_hour.longer_before(1000.0, values) is None
    assert healthy_hour.fixed_work_ms() > 0


def test_classes_count_as_often_as_the_papers_cases(accuracy: ModuleType) -> None:
    one_of_each = [run(0, fault=(kind.faults or ("heavy-collate",))[0]) for kind in accuracy.PAPERS_CLASSES.values()]
    groups = accuracy.by_papers_class([*one_of_each, run(1, fault="hang", expected={"verdict": "blocked"})])
    assert {name: len(runs) for name, runs in groups.items()} == dict.fromkeys(accuracy.PAPERS_CLASSES, 1)
    assert accuracy.weighted_share(groups) == 1.0
    groups["user code"] = [run(0, right=False)]
    assert accuracy.weighted_share(groups) == pytest.approx(25 / 70)
    assert math.isnan(accuracy.weighted_share({**groups, "hardware: GPU": []}))
