from __future__ import annotations

import io
import sys
import unicodedata
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))
import samples

from eroica.model.verdict import Finding, FindingFunction, Verdict
from eroica.report.text import render_verdict

GOLDEN = Path(__file__).with_name("golden")


def drawn(verdict: Verdict, width: int = 80, colors: bool = False) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=colors, color_system="standard" if colors else None)
    render_verdict(verdict, console)
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
    from rich.cells import cell_len

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
