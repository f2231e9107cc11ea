"""The corpus of kept windows can be read, by us and by anybody, and judged."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from corpus_entry import ENTRIES, entry_files, read_entry, write_entry  # noqa: E402
from corpus_judge import baselines, figures, judged  # noqa: E402
from corpus_judge import verdict_of as judge  # noqa: E402
from eroica.model.verdict import Verdict  # noqa: E402
from eroica.model.words import milliseconds  # noqa: E402
from eroica.report.text import build_why, draw, render_verdict  # noqa: E402
from eroica.views.material import Material  # noqa: E402
from eroica.views.page import build_page  # noqa: E402


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


def test_an_entry_is_judged_alike_twice_and_after_it_was_written_anew(tmp_path: Path) -> None:
    path = next(entry_files())
    again = write_entry(read_entry(path), tmp_path)
    first, second = ([{**line, "seconds": 0.0} for line in judged(one)] for one in (path, again))
    assert first and first == second
    assert figures(first)["windows"] == len(first)


@pytest.mark.parametrize(
    "job",
    [
        *(f"newcomers-{job}" for job in ("server_ledger", "nightly_index", "herbarium_scans", "clip_growth")),
        *(f"visitors-{job}" for job in ("caption_collate", "teacher_pool", "grown_stage", "sqlite_tracker")),
    ],
)
def test_jobs_of_newcomers_and_visitors_are_judged_rightly(job: str) -> None:
    folder = ROOT / "benchmarks" / f"exam_{job.partition('-')[0]}" / "windows"
    lines = list(judged(folder / f"{job}-0.msgpack.xz"))
    assert lines and all(line["marks"]["right"] for line in lines), [line["summary"] for line in lines]


def test_the_example_of_the_page_runs_without_our_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ENTRIES / "README.md").read_text(), re.DOTALL)
    assert "eroica" not in example and len(list(filter(str.strip, example.splitlines()))) <= 10
    monkeypatch.chdir(ROOT)
    exec(compile(example, "README.md", "exec"), {})
    assert " ms" in capsys.readouterr().out


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
