"""The sections on exams, on hidden ranks and on the corpus: nothing is counted as better than it was."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def page(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("exam_page")


def run(job: str, right: bool = True, **changes: Any) -> dict[str, Any]:
    plain = {
        "folder": "exam_x", "job": job, "seed": 0, "fault": "python", "truth": "slow", "verdict": "slow",
        "right": right, "before_ms": 50.0, "after_ms": 100.0, "when": "2026-11-29T10:00:00Z", "revision": "0000000",
    }  # fmt: skip
    return {**plain, **changes}


def row(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"| {name} "))


def test_a_slow_job_that_is_called_healthy_is_told_as_that_and_a_missing_hypothesis_is_no_zero(
    page: ModuleType,
) -> None:
    lines = [
        run("a"), run("b", False, verdict="healthy"), run("c", False, cause="slow-link"),
        run("d", False, verdict="undetermined"),
    ]  # fmt: skip
    assert list(map(page.exam_outcome, lines)) == ["right", "missed", "wrong", "undetermined"]
    assert row("\n".join(page.exam(lines, [])), "`exam_x`").endswith("| yes | 1 of 4: 25 % (5-70) | ? | 1 | 1 | 1 |")
    known = [*lines[:3], {**lines[3], "is_among_best": True}]
    text = "\n".join(page.exam(known, []))
    assert row(text, "`exam_x`").endswith("| 1 of 4: 25 % (5-70) | 1 | 0 | 1 | 1 |")
    assert "right: 1 of 4: 25 % (5-70); healthy although slow, or wrong: 2 of 4" in text


def test_only_first_runs_of_faulty_jobs_count_and_paces_that_are_missing_are_said(page: ModuleType) -> None:
    lines = [
        run("a", False, cause="slow-link"), run("a"), run("a", seed=1), run("b", before_ms=None),
        run("healthy_c", truth="healthy", verdict="healthy"),
    ]  # fmt: skip
    text = "\n".join(page.exam(lines, []))
    assert "| 1 of 2: 50 % (9-91) |" in row(text, "`exam_x`")
    assert "1 second seeds of faulty jobs" in text and "1 runs made again" in text
    assert "1 faulty jobs state no pace" in text
    assert "Healthy jobs without a cause: 1 of 1" in text
    assert "0000000 (5, not in this repository)" in text


def test_a_job_that_was_itself_at_fault_counts_nowhere_and_is_told(page: ModuleType) -> None:
    flawed = run("a", False, verdict="blocked", cause="held-interpreter-lock", flaw="it hangs at its end")
    text = "\n".join(page.exam([flawed, run("a"), run("b")], []))
    assert "| 2 of 2: 100 %" in row(text, "`exam_x`") and "0 runs made again" in text
    assert "`a` (it hangs at its end; it was called blocked, held-interpreter-lock)" in text


def test_runs_of_before_the_one_account_stand_apart(page: ModuleType) -> None:
    old = run("a", when="2026-11-26T10:00:00Z")
    text = "\n".join(page.exam([old, run("b", False, cause="slow-link")], []))
    rows = [line for line in text.splitlines() if line.startswith("| `exam_x` ")]
    assert ["| no | 1 of 1" in rows[0], "| yes | 0 of 1" in rows[1]] == [True, True]


def test_classes_without_a_run_are_left_out_of_the_weights_and_that_is_said(page: ModuleType) -> None:
    lines = [run("a"), run("b", False, cause="slow-link", fault="collective")]
    text = "\n".join(page.exam_classes(lines))
    assert row(text, "hardware: network").endswith("| no run | no run |")
    assert row(text, "weighted over the classes that have runs").endswith("| 88.2 % (51 of the cases) |")


def test_hidden_ranks_are_counted_by_rank_and_cause(page: ModuleType) -> None:
    hidden = {"seed": 3, "layout": "ddp", "ranks": 4, "rank": 2, "fault": "loader", "workers": [1], "cause": "x"}
    lines = [
        run("h", **hidden, rank_first=False, cause_right=True), run("h", **hidden, rank_first=True, cause_right=True)
    ]  # fmt: skip
    text = "\n".join(page.hidden_rank(lines))
    assert row(text, "`loader`") == "| `loader` | 1 of 2 | 2 | 1 | 0 | 0 |"
    assert "The rank: 1 of 2" in text and "aim: 49 of 50" in text
    assert "Not run yet" in "\n".join(page.hidden_rank([]))
