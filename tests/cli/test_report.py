"""`eroica report` on saved directories."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

import eroica
from eroica.archive.load import SavedRun, open_saved
from eroica.archive.store import Store
from eroica.cli import group
from eroica.errors import InputError, UsageError
from eroica.model.verdict import Verdict
from eroica.model.window import REFUSED
from eroica.offline.saved import baselines_of, compared_with, examine_again, parts_of_saved
from eroica.pipeline import analyze
from eroica.settings import Settings
from support import FleetPlan, SlowCompute, SlowLoader, Standstill, synthesize, synthesize_window
from support.run_directories import save_judged as keep
from support.run_directories import save_patterns
from support.standstill import EMPTY_QUEUE


def compared(run: Path, window_id: int, with_window: int | None) -> None:
    """The verdict of a window says what it was compared with, or as before that was noted, nothing."""
    verdict = open_run(run).window(window_id).verdict
    assert verdict is not None and verdict.window is not None
    noted = msgspec.structs.replace(verdict.window, compared_with=with_window)
    Store(run).save_verdict(window_id, msgspec.structs.replace(verdict, window=noted))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A job with a healthy baseline, a healthy window and one with a slow loader, which is its verdict."""
    keep(tmp_path, 1, "baseline")
    keep(tmp_path, 2, "manual")
    Store(tmp_path).save_final(keep(tmp_path, 3, "manual", SlowLoader((2,), 20.0)))
    return tmp_path


def open_run(path: Path) -> SavedRun:
    found = open_saved(path)
    assert isinstance(found, SavedRun)
    return found


def call(*arguments: object) -> Result:
    return CliRunner().invoke(group, ["report", *map(str, arguments)], catch_exceptions=True)


def test_a_run_shows_its_verdict_and_one_line_a_window(run: Path) -> None:
    result = call(run)
    assert result.exit_code == 3
    assert "slow-data-loading" in result.output and "worker 2" in result.output
    lines = result.output.split("Windows")[1].splitlines()
    assert [line.split()[:2] for line in lines if line.strip()][:3] == [
        ["1", "baseline"],
        ["2", "manual"],
        ["3", "manual"],
    ]
    assert "healthy" in result.output


def test_one_window_is_shown_by_number_or_by_path(run: Path) -> None:
    for arguments in ((run, "--window", 2), (run / "windows" / "2",)):
        result = call(*arguments)
        assert result.exit_code == 0 and "HEALTHY" in result.output


def test_all_windows_are_shown_before_the_final_verdict(run: Path) -> None:
    output = call(run, "--all").output
    assert output.index("window 2") < output.index("HEALTHY") < output.index("window 3") < output.index("─ the job")


def test_the_verdict_is_written_and_a_written_one_is_shown(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "v.json"
    assert call(run, "--json", file).exit_code == 3
    assert Verdict.from_json(file.read_bytes()).cause is not None
    assert call(file).exit_code == 3


def test_patterns_are_diagnosed_again_with_other_settings(run: Path) -> None:
    assert call(run, "--again").exit_code == 3
    assert call(run, "--again", "--set", "min_gain=0.9").exit_code == 0


def test_bare_patterns_are_diagnosed(run: Path) -> None:
    result = call(run / "windows" / "3" / "patterns")
    assert result.exit_code == 3 and "slow-data-loading" in result.output


def test_a_standstill_is_diagnosed_again(tmp_path: Path) -> None:
    job = Standstill(4)
    job.wait((0, 1, 3))
    job.sit(2, EMPTY_QUEUE)
    blockage = job.blockage()
    Store(tmp_path).save_blockage(blockage)
    result = call(tmp_path, "--again")
    assert result.exit_code == 3 and "BLOCKED" in result.output
    assert call(tmp_path / "windows" / str(blockage.look_id)).exit_code == 3


def test_damage_is_told_and_costs_only_itself(run: Path) -> None:
    (run / "verdict.json").write_text("{")
    (run / "windows" / "2" / "verdict.json").write_bytes(b"\xff")
    damaged = run / "windows" / "3" / "patterns" / "0.pattern"
    damaged.write_bytes(b"no pattern")
    result = call(run)
    assert result.exit_code == 3 and "slow-data-loading" in result.output
    assert result.output.count("Note:") >= 2 and "Traceback" not in result.output
    again = call(run / "windows" / "3", "--again")
    assert again.exit_code in (3, 4) and "1 pattern was left out" in " ".join(again.output.split())


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["nowhere"], UsageError),
        (["{run}", "--window", "9"], UsageError),
        (["{run}/windows/2", "--all"], UsageError),
        (["{run}/windows/2", "--window", "2"], UsageError),
        (["{run}/verdict.json", "--again"], UsageError),
        (["{run}/log"], InputError),
        (["{run}", "--json", "{run}/no/such/folder.json"], UsageError),
        (["{run}", "--json", "{run}/log"], UsageError),
    ],
)
def test_wrong_usage_is_one_clear_line(run: Path, arguments: list[str], error: type[Exception]) -> None:
    (run / "log").mkdir()
    result = call(*(argument.format(run=run) for argument in arguments))
    assert isinstance(result.exception, error) and "\n" not in str(result.exception)


# ---------------------------------------------------------------------- the text for an assistant


def test_the_text_for_an_assistant_stands_alone_and_the_status_is_the_reports(run: Path) -> None:
    result = call(run, "--prompt")
    assert result.exit_code == 3 and result.output.startswith("A distributed PyTorch training job")
    assert "slow-data-loading" in result.output and "Windows" not in result.output and "## Source" in result.output
    assert "The training loop waits for its next batch." in result.output


def test_the_text_goes_into_a_file_and_leaves_the_code_out_where_asked(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.md"
    result = call(run, "--no-code", "--prompt", file)
    assert result.exit_code == 3 and result.output == ""
    assert "## Verdict" in file.read_text() and "## Source" not in file.read_text()


def test_a_verdict_in_a_file_becomes_a_text_with_source_from_the_given_directory(run: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    verdict = Verdict.from_json((run / "verdict.json").read_bytes())
    cause = verdict.cause
    assert cause is not None
    stack = ("work (train.py:1)",)
    function = msgspec.structs.replace(cause.function, name="work", stack=stack)
    named = msgspec.structs.replace(verdict, findings=(msgspec.structs.replace(cause, function=function),))
    (tmp_path / "v.json").write_bytes(named.to_json())
    (project / "train.py").write_text("def work():\n    return 'in here'\n")
    assert "    2 |     return 'in here'" in call(tmp_path / "v.json", "--source", project, "--prompt").output
    assert "in here" not in call(tmp_path / "v.json", "--source", run / "windows", "--prompt").output


# ---------------------------------------------------------------------- history, and pipes


def test_a_window_that_is_diagnosed_again_is_told_with_those_before_it(run: Path) -> None:
    Store(run).save_final(keep(run, 4, "manual", SlowLoader((2,), 20.0)))
    output = call(run, "--window", 4, "--again").output
    assert "Seen in 2 of 3 windows (3, 4)" in output
    assert "Seen in" not in call(run, "--window", 3, "--again").output.replace("Seen in one of 2 windows", "")


def test_a_width_that_was_asked_for_counts_in_a_pipe_too(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, call(run).output.splitlines())) <= 60


@pytest.mark.parametrize(("noted", "number"), [(None, 2), (0, 0), (1, 1), (2, 2), (9, 0)])
def test_it_is_compared_again_with_the_window_that_it_was_compared_with(
    tmp_path: Path, noted: int | None, number: int
) -> None:
    """A job may have refused its later healthy window."""
    keep(tmp_path, 1, "baseline")
    keep(tmp_path, 2, "baseline")
    keep(tmp_path, 3, "slow")
    compared(tmp_path, 3, noted)
    opened = open_run(tmp_path)
    assert {one.window_id for one in baselines_of(opened, opened.window(3))[0]} == ({number} if number else set())
    parts = parts_of_saved(tmp_path, Settings(), [])
    again = {part.window.window_id: part.verdict.window for part in parts}[3]
    assert again is not None and again.compared_with == number


def test_that_a_baseline_window_was_doubted_is_not_forgotten(tmp_path: Path) -> None:
    """The verdict that was kept rests on it: judged again, it is as little trusted, and the note says why."""
    before = synthesize(FleetPlan(iterations=20, draw=1), (), 1)
    keep(tmp_path, 1, "baseline")
    keep(tmp_path, 2, "baseline")
    patterns = synthesize(FleetPlan(iterations=20, draw=2), [SlowCompute((0, 1, 2, 3), 3.0)], 3)
    window = synthesize_window(patterns, "slow", before)
    save_patterns(tmp_path / "windows" / "3", window, patterns)
    first = analyze("resnet", window, patterns, notes=[f"{REFUSED}it was slow from its start."], doubted=before)
    assert first.cause is not None
    Store(tmp_path).save_verdict(3, first)
    opened = open_run(tmp_path)
    kept = opened.window(3)
    assert compared_with(kept, [1, 2]) == (0, 1)
    part = next(one for one in parts_of_saved(tmp_path, Settings(), []) if one.window.window_id == 3)
    for again in (part.verdict, examine_again(opened, kept, Settings()).verdict):
        assert again.window == first.window
        assert again.coverage.notes == first.coverage.notes
        assert again.summary.endswith(first.summary[-40:]) and "healthy" not in again.summary


def test_a_window_that_confirms_a_slow_start_is_compared_with_nothing(tmp_path: Path) -> None:
    """The baseline window before it was as slow."""
    early = keep(tmp_path, 2, "early", SlowLoader((2,), 20.0))
    keep(tmp_path, 1, "baseline", SlowLoader((2,), 20.0))
    keep(tmp_path, 3, "slow", SlowLoader((2,), 20.0))
    compared(tmp_path, 3, None)
    windows = {one.window_id: one for one in open_run(tmp_path).windows}
    assert baselines_of(open_run(tmp_path), windows[2]) == ((), ())
    assert baselines_of(open_run(tmp_path), windows[3])[0]
    assert early.cause is not None and "slow-data-loading" in call(tmp_path, "--window", 2, "--again").output


# ---------------------------------------------------------------------- pages


@pytest.mark.parametrize("more", [(), ("--window", "3"), ("--again",)])
def test_report_writes_a_page(run: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    file = tmp_path / "page.html"
    done = CliRunner().invoke(group, ["report", str(run), "--html", str(file), *more])
    assert done.exit_code == 3, done.output
    text = file.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert 'id="heatmap"' in text
    assert f"Report: {file.as_uri()}" in done.output.replace("\n", "")


def test_a_printed_page_stands_alone(run: Path) -> None:
    done = CliRunner().invoke(group, ["report", str(run), "--html", "-"])
    assert done.output.startswith("<!DOCTYPE html>")
    both = CliRunner().invoke(group, ["report", str(run), "--html", "-", "--json", "-"])
    assert isinstance(both.exception, UsageError)


def test_diagnose_writes_a_page(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    done = CliRunner().invoke(group, ["diagnose", str(run), "--quiet", "--html", str(file)])
    assert done.exit_code == 3, done.output
    assert 'id="heatmap"' in file.read_text()


def test_a_notebook_gets_the_page_as_text(run: Path) -> None:
    for source in (run, str(run / "verdict.json"), eroica.diagnose(run)):
        text = eroica.report_html(source)
        assert "_read_block" in text
        assert ('id="heatmap"' in text) == (source == run)
