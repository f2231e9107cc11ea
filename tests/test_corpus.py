"""The corpus of kept windows can be read, by us and by anybody, and judged."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from corpus_entry import ENTRIES, Truth, entry_files, marks, read_entry, write_entry  # noqa: E402
from corpus_judge import OUTCOMES, baselines, figures, judged, outcome  # noqa: E402
from corpus_judge import verdict_of as judge  # noqa: E402
from eroica.model.verdict import (  # noqa: E402
    Coverage,
    Finding,
    FindingFunction,
    IterationTimes,
    Verdict,
)
from eroica.model.words import milliseconds  # noqa: E402
from eroica.report.text import build_why, draw, render_verdict  # noqa: E402
from eroica.views.material import Material  # noqa: E402
from eroica.views.page import build_page  # noqa: E402

SLOW = Truth(verdict="slow", causes=("slow-data-loading",), scope="some", workers=(2,), gain=0.3)


def verdict_of(cause: str, *workers: int) -> Verdict:
    function = FindingFunction(name="read_block", kind="python", stack=("fetch (loader.py:3)",))
    finding = Finding(order=1, role="cause", cause=cause, function=function, workers=workers, scope="some")
    return Verdict(
        eroica_version="0", job="j", verdict="slow", summary="", window=None, iteration=IterationTimes(),
        coverage=Coverage(workers_expected=4, workers_reported=4), findings=(finding,),
    )  # fmt: skip


def test_every_entry_can_be_read_and_says_what_is_true() -> None:
    assert sum(path.stat().st_size for path in entry_files()) <= 40e6
    entries = [read_entry(path) for path in entry_files()]
    assert entries and len({entry.name for entry in entries}) == len(entries)
    for entry in entries:
        assert all(one.patterns or one.blockage is not None for one in entry.windows), entry.name
        assert all(one.worker_patterns()[0].functions for one in entry.windows if one.patterns), entry.name
        true = [one.truth.verdict for one in entry.windows if one.truth is not None]
        assert set(true) <= {"slow", "blocked", "healthy"}, entry.name
        assert entry.origin and "torchrun" not in entry.layout, entry.name
        assert entry.fault != "none" or set(true) == {"healthy"}, entry.name
        compared = {one.compared_with for one in entry.windows}
        assert all(one.window.window_id in compared for one in entry.windows if one.truth is None), entry.name


def line_of(name: str, number: int) -> dict[str, Any]:
    entry = next(path for path in entry_files() if path.name.startswith(f"{name}."))
    return {line["key"]: line for line in judged(entry)}[f"{name}/{number}"]


@pytest.mark.parametrize("number", [2, 3])
def test_a_strangers_process_on_a_gpu_is_named_though_the_baseline_window_was_not_trusted(number: int) -> None:
    """Iterations took 31.3 ms when it was taken, 24.7 ms at their best, 37 ms outside of the window."""
    line = line_of("device-neighbor-2", number)
    assert (line["cause"], line["marks"]["right"]) == ("sibling-process", True), line["summary"]


@pytest.mark.parametrize("number", [2, 3])
def test_a_baseline_window_of_two_iterations_with_a_pause_hides_no_slowdown_of_a_gpu_job(number: int) -> None:
    """They took 271 ms, of which garbage was collected for 153; those of the later windows took 244 and 273."""
    line = line_of("device-ddp-clipping-1", number)
    assert line["marks"]["right"] and line["function"] == "clip_unit", line["summary"]
    assert line["gain"] == pytest.approx(line["true_gain"], abs=0.2)


def test_larger_inputs_are_told_though_recording_made_the_iterations_before_them_longer() -> None:
    """They wait for launches, which recording makes dearer; the larger ones do not: 120 ms recorded, then 108."""
    line = line_of("device-hf-padding-1", 2)
    assert "108 ms instead of 75.7 ms" in line["summary"]
    assert "batches or sequences have grown" in line["summary"]


def test_an_entry_is_judged_alike_twice_and_after_it_was_written_anew(tmp_path: Path) -> None:
    path = next(entry_files())
    again = write_entry(read_entry(path), tmp_path)
    first, second = ([{**line, "seconds": 0.0} for line in judged(one)] for one in (path, again))
    assert first and first == second
    assert figures(first)["windows"] == len(first)


def test_the_example_of_the_page_runs_without_our_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ENTRIES / "README.md").read_text(), re.DOTALL)
    assert "eroica" not in example and len(list(filter(str.strip, example.splitlines()))) <= 10
    monkeypatch.chdir(ROOT)
    exec(compile(example, "README.md", "exec"), {})
    assert " ms" in capsys.readouterr().out


def test_a_verdict_is_right_by_cause_or_word_and_by_workers() -> None:
    assert marks(verdict_of("slow-data-loading", 2), SLOW).right
    assert not marks(verdict_of("slow-data-loading", 1), SLOW).right
    assert not marks(verdict_of("compute-slow", 2), SLOW).right
    by_word = msgspec.structs.replace(SLOW, causes=(), words=("loader",))
    assert marks(verdict_of("compute-slow", 2), by_word).right
    assert not marks(verdict_of("compute-slow", 2), Truth(verdict="healthy")).right


def line_said(word: str, said: str = "", among: bool = False, **right: bool) -> dict[str, Any]:
    """A judged window with a fault."""
    marked = {**dict.fromkeys(("right", "cause", "workers", "file"), False), **right}
    return {
        "is_healthy": False, "verdict": word, "cause": said, "is_among_best": among, "marks": marked, "gain": None,
        "true_gain": None, "confidence": None,
    }  # fmt: skip


def test_a_faulty_window_called_healthy_is_no_undetermined_one() -> None:
    lines = [
        line_said("slow", "slow-link", right=True),
        line_said("undetermined", among=True),
        line_said("undetermined", "slow-link", cause=True, workers=True, file=True),
        line_said("undetermined"),
        line_said("healthy", among=True),
        line_said("slow", "slow-link", among=True),
        line_said("undetermined", "slow-link"),
    ]
    told = ["right", "considered", "considered", "undetermined", "missed", "wrong", "wrong"]
    assert list(map(outcome, lines)) == told
    found = figures(lines)
    assert sum(found[name] for name in OUTCOMES) == found["faulty"] == len(lines)


def test_now_before_and_best_are_the_same_numbers_in_sentence_report_page_and_json() -> None:
    found = [(entry, one) for entry in map(read_entry, list(entry_files())[::40]) for one in entry.windows]
    for entry, one in found:
        if one.truth is None or one.blockage is not None:
            continue
        verdict = judge(entry, one, *baselines(entry, one))
        times = Verdict.from_json(verdict.to_json()).iteration
        numbers = [milliseconds(ms) for ms in (times.current_ms, times.baseline_ms, times.best_ms) if ms]
        for now, before, each in re.findall(
            r"terations take ([\d.]+ m?s)(?: instead of ([\d.]+ m?s))?|of each ([\d.]+ m?s) iteration", verdict.summary
        ):
            assert (now or each, before or numbers[1]) == (numbers[0], numbers[1]), f"{entry.name}: {verdict.summary}"
        report = Console(file=io.StringIO(), width=500)
        render_verdict(verdict, report)
        draw(build_why(verdict), report)
        text, page = report.file.getvalue(), build_page(Material(verdict=verdict))
        assert f"{numbers[0]} per iteration, {numbers[1]} before" in text and numbers[-1] in text, entry.name
        assert all(f'<dd class="value">{number}' in page for number in numbers), entry.name
        parts = verdict.breakdown.shares if verdict.breakdown is not None else {"all": 1.0}
        assert sum(parts.values()) == pytest.approx(1, abs=0.01) and (verdict.cause is None) == ("all" not in parts)
