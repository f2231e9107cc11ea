"""The comparison in a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from eroica.model.comparison import Comparison, FunctionChange, Side
from eroica.model.verdict import IterationTimes
from eroica.report.text import render_comparison

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


def drawn(record: Comparison, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    render_comparison(record, console)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


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
