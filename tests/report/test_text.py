"""Verdicts and comparisons in a terminal, what was considered in terminal and page."""

from __future__ import annotations

import io
import sys
import unicodedata
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))
import samples

from eroica.cli.report import report
from eroica.model.comparison import Comparison, FunctionChange, Side
from eroica.model.pattern import FunctionKey
from eroica.model.verdict import Finding, FindingFunction, Hypothesis, IterationTimes, Verdict
from eroica.pipeline import analyze
from eroica.report.text import render_comparison, render_verdict
from support.fleet import FleetPlan, synthesize, synthesize_window
from support.recordings import recorded_worker
from support.troubles import SlowLoader
from support.verdicts import plain

GOLDEN = Path(__file__).with_name("golden")


def drawn(verdict: Verdict | Comparison, width: int = 80) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width)
    if isinstance(verdict, Verdict):
        render_verdict(verdict, console)
    else:
        render_comparison(verdict, console)
    return file.getvalue()


@pytest.mark.parametrize("width", [80, 50])
@pytest.mark.parametrize("name", ["SLOW", "ROTATING", "HEALTHY", "UNDETERMINED", "BLOCKED"])
def test_a_verdict_reads_as_in_its_golden_file(name: str, width: int) -> None:
    expected = (GOLDEN / f"{name.lower()}-{width}.txt").read_text(encoding="utf-8")
    lines = [line.rstrip() for line in drawn(getattr(samples, name), width).splitlines()]
    assert "\n".join(lines) + "\n" == expected


def test_escape_sequences_and_bidirectional_marks_in_names_do_not_reach_the_terminal() -> None:
    text = drawn(samples.hostile("\x1b[2J\x1b]0;title\x07a\u202eb\u2066c\r\nd\x9b31m\u200be\x00"))
    assert all(character == "\n" or unicodedata.category(character)[0] != "C" for character in text)


def test_a_very_long_name_costs_a_few_lines_and_keeps_both_ends() -> None:
    text = drawn(samples.hostile("begin" + "x" * 1_000_000 + "end"))
    assert len(text) < 8_000
    assert "begin" in text
    assert "end" in text


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=300), st.sampled_from([20, 50, 80]))
def test_whatever_the_names_are_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    for line in drawn(samples.hostile(name), width).split("\n"):
        assert cell_len(line) <= width
        assert "\x1b" not in line


def test_hundreds_of_findings_are_cut_with_their_number() -> None:
    causes: tuple[Finding, ...] = tuple(
        msgspec.structs.replace(samples.LOADER, order=number, explains=()) for number in range(1, 101)
    )
    symptoms = tuple(msgspec.structs.replace(samples.WAITING, order=number) for number in range(101, 301))
    text = drawn(msgspec.structs.replace(samples.SLOW, findings=causes + symptoms))
    assert "and 95 more causes" in text
    assert "and 192 more symptoms" in text
    assert len(text.splitlines()) < 140


def test_the_named_function_is_on_the_trail_however_deep_it_calls_into_libraries() -> None:
    libraries = (
        "Tensor.backward (torch/_tensor.py:623)",
        "backward (torch/autograd.py:395)",
        "run (torch/graph.py:979)",
    )
    function = FindingFunction(
        name="Model.run", kind="python", stack=("main (train.py:9)", "Model.run (layouts.py:65)", *libraries)
    )
    cause = msgspec.structs.replace(samples.LOADER, function=function)
    text = drawn(msgspec.structs.replace(samples.SLOW, findings=(cause,)), width=200)
    assert "… › Model.run (layouts.py:65) › … › backward (torch/autograd.py:395) › run (torch/graph.py:979)" in text


def test_one_rank_of_several_is_not_all_workers() -> None:
    rows = [(FunctionKey(kind="compute", name="gemm", thread="device"), 5000.0)]
    rows.append((FunctionKey(kind="other", name="aten::empty", phase="forward"), 15_000.0))
    for world, missing in ((1, ""), (3, "missing: workers 1, 2")):
        patterns = [recorded_worker(0, [], iterations=5, world=world, rows=rows)]
        window = msgspec.structs.replace(synthesize_window(patterns, "trace"), kind="trace")
        text = drawn(analyze("job", window, patterns), 200)
        assert "all workers" not in text.split("Note:")[0] and "worker 0" in text and missing in text


# --- what was considered ---


HOSTILE = Hypothesis(
    cause="unknown",
    function="</details><script>alert(1)</script>\x1b[2J",
    workers=(3,),
    scope="some",
    gain=0.21,
    decision="1.9 standard errors may be an accident",
    missing=("1.9 standard errors above that over 12 iterations",),
    unknown=("whether the others wait for it",),
)


def judged() -> Verdict:
    before = synthesize(FleetPlan(workers=4, seed=1), (), 1)
    patterns = synthesize(FleetPlan(workers=4, seed=1, draw=1), [SlowLoader((2,), 40)], 2)
    return analyze("job", synthesize_window(patterns, "slow", before), patterns, before)


def undetermined() -> Verdict:
    return plain("undetermined", "Nothing accounts for it.", considered=(HOSTILE,))


def test_an_undetermined_verdict_says_what_is_nearest_and_what_would_settle_it() -> None:
    text = drawn(undetermined(), 120)
    assert "Nearest explanations" in text and "21 % of the iteration" in text
    assert "whether the others wait for it" in text and "\x1b[2J" not in text
    assert "Nearest" not in drawn(judged())


def test_the_page_folds_it_and_takes_names_as_text(tmp_path: Path) -> None:
    path, page = tmp_path / "verdict.json", tmp_path / "page.html"
    path.write_bytes(undetermined().to_json())
    CliRunner().invoke(report, [str(path), "--html", str(page)])
    text = page.read_text()
    assert "1 explanation considered" in text and "unknown: whether the others wait for it" in text
    assert "<script>alert(1)" not in text and "\x1b" not in text


def test_a_healthy_window_tells_its_largest_functions_and_a_cause_the_samples_that_showed_it() -> None:
    patterns = synthesize(FleetPlan(workers=4, seed=1), (), 1)
    verdict = analyze("job", synthesize_window(patterns), patterns)
    found = verdict.breakdown
    assert verdict.verdict == "healthy" and found is not None and "What an iteration is made of" in drawn(verdict)
    assert {"input", "forward", "backward", "optimizer", "communication"} <= set(found.shares)
    assert 0 < len(found.items) <= 3 and all(one.workers and 0 < one.most_gain <= 1 for one in found.items)
    assert "seen in samples" in drawn(judged()) and "calls" not in drawn(judged()) and judged().breakdown is None


# --- comparisons ---


LOADER = FunctionChange(
    order=1, name="_read_block", kind="python", phase="input", stack=("main (train.py:1)", "_read_block (data.py:7)"),
    workers=(2,), reason="slower", change_ms=11.2, before_ms=0.3, after_ms=11.5, share=0.61, confidence=0.93,
    text="From 0.30 ms to 11.5 ms per iteration.",
)  # fmt: skip
WAIT = FunctionChange(
    order=2, name="nccl:all_reduce", kind="collective", phase="other", workers=(0, 1, 3), reason="waiting",
    change_ms=9.0, before_ms=3.0, after_ms=12.0, share=0.5,
)  # fmt: skip


def comparison(*changes: FunctionChange, **more: object) -> Comparison:
    sides = [Side(name=name, job="j", workers=(0, 1, 2, 3), iterations=40, iteration_ms=18.2) for name in "AB"]
    fields = {"comparison": "regression", "summary": "Iterations take longer.", "iteration": IterationTimes(), **more}
    return Comparison(before=sides[0], after=sides[1], changes=changes, **fields)  # type: ignore[arg-type]


def test_the_sentence_comes_first_then_changes_then_waits() -> None:
    text = drawn(comparison(LOADER, WAIT, explained=0.96, notes=("a note",)))
    assert text.startswith("REGRESSION  Iterations take longer.")
    places = [text.index(part) for part in ("before", "1  _read_block", "worker 2", "+11.2 ms", "symptoms", "96 %")]
    assert places == sorted(places) and "Note: a note" in text


def test_names_from_the_job_have_no_effect_on_the_terminal() -> None:
    evil = FunctionChange(
        order=1, name="f\x1b[31m\u202e[red]", kind="compute", phase="other", stack=("\x9b2J",), workers=(0,),
        reason="faster", change_ms=-1.0, before_ms=2.0, after_ms=1.0, share=-0.1, text="\x1b]0;title\x07",
    )  # fmt: skip
    text = drawn(comparison(evil, notes=("\x1b[2J",), summary="s\x1b[0m"))
    assert "[red]" in text and not {"\x1b", "\x9b", "\x07", "\u202e"} & set(text)
