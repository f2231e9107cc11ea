"""What was considered stands in the verdict, in `report --why` and in the page; the nearest stand in the report."""

from __future__ import annotations

import io
from pathlib import Path

from click.testing import CliRunner
from rich.console import Console

from eroica.cli.report import report
from eroica.model.verdict import Coverage, Hypothesis, IterationTimes, Verdict
from eroica.pipeline import analyze
from eroica.report.text import render_verdict
from support import FleetPlan, SlowLoader, synthesize, synthesize_window

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
    return Verdict(
        eroica_version="0", job="job", verdict="undetermined", summary="Nothing accounts for it.", window=None,
        iteration=IterationTimes(), coverage=Coverage(workers_expected=4, workers_reported=4), considered=(HOSTILE,),
    )  # fmt: skip


def drawn(verdict: Verdict) -> str:
    text = io.StringIO()
    render_verdict(verdict, Console(file=text, width=120))
    return text.getvalue()


def test_an_undetermined_verdict_says_what_is_nearest_and_what_would_settle_it() -> None:
    text = drawn(undetermined())
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
