"""The parts of an iteration, and one set of numbers for sentence, report, page and JSON."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from corpus_entry import entry_files, read_entry
from corpus_judge import baselines, verdict_of
from eroica.model.verdict import Verdict
from eroica.model.words import milliseconds
from eroica.pipeline import analyze
from eroica.report.phrases import number_rows
from eroica.report.text import build_why, draw, render_verdict
from eroica.views.material import Material
from eroica.views.page import build_page
from support import FleetPlan, SlowLoader, synthesize, synthesize_window

_NUMBERS = re.compile(r"terations take ([\d.]+ m?s)(?: instead of ([\d.]+ m?s))?|of each ([\d.]+ m?s) iteration")


def judged() -> Iterator[tuple[str, Verdict]]:
    """Verdicts on windows of real jobs: every 40th run of the corpus."""
    for path in list(entry_files())[::40]:
        entry = read_entry(path)
        for one in entry.windows:
            if one.truth is not None and one.blockage is None:
                yield f"{entry.name}/{one.window.window_id}", verdict_of(entry, one, *baselines(entry, one))


def test_now_before_and_best_are_the_same_in_sentence_report_page_and_json() -> None:
    for name, verdict in judged():
        times = Verdict.from_json(verdict.to_json()).iteration
        now, before, best = (None if ms is None else milliseconds(ms) for ms in (
            times.current_ms, times.baseline_ms, times.best_ms
        ))  # fmt: skip
        assert now is not None
        for told in _NUMBERS.findall(verdict.summary):
            assert {told[0] or told[2]} <= {now} and told[1] in ("", before), f"{name}: {verdict.summary}, {times}"
        text = io.StringIO()
        render_verdict(verdict, Console(file=text, width=500))
        draw(build_why(verdict), Console(file=text, width=500))
        page = re.sub(r"\s+|&nbsp;", " ", build_page(Material(verdict=verdict)).replace("\u00a0", " "))
        assert (f"{now} per iteration" in text.getvalue() and f'<dd class="value">{now}' in page) or now in page, name
        for number in filter(None, (before, best)):
            assert number in text.getvalue() and number in page, f"{name}: {number}"


def test_parts_add_up_and_a_bound_is_no_less_than_what_is_gained() -> None:
    patterns = synthesize(FleetPlan(workers=4, seed=1), (), 1)
    verdict = analyze("job", synthesize_window(patterns), patterns)
    found = verdict.breakdown
    assert (
        verdict.verdict == "healthy" and found is not None and sum(found.shares.values()) == pytest.approx(1, abs=0.01)
    )
    assert {"input", "forward", "backward", "optimizer", "communication"} <= set(found.shares)
    assert 0 < len(found.items) <= 3 and all(one.workers and 0 < one.most_gain <= 1 for one in found.items)
    slow = synthesize(FleetPlan(workers=4, seed=1, draw=1), [SlowLoader((2,), 40)], 2)
    named = analyze("job", synthesize_window(slow, "slow", patterns), slow, patterns)
    assert named.verdict == "slow" and named.breakdown is None
    assert [row.label for row in number_rows(named.findings[0])][2] == "seen in samples"
