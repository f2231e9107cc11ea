"""`eroica diff` on saved directories and on real traces."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from eroica.archive.store import Store
from eroica.cli import group
from eroica.errors import InputError, UsageError
from eroica.model.comparison import Comparison
from support import FleetPlan, SlowLoader, synthesize, synthesize_window
from support.run_directories import save_judged as keep
from support.run_directories import save_patterns
from support.written_jobs import WrittenJob, cut, encoded, without_device, write_files


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    keep(directory, 1, "baseline")
    keep(directory, 2, "manual")
    Store(directory).save_final(keep(directory, 3, "manual", SlowLoader((2,), 20.0)))
    return directory


def call(*arguments: object) -> Result:
    return CliRunner().invoke(group, ["diff", *map(str, arguments)])


def test_a_job_against_its_own_healthy_window_is_a_regression(run: Path, tmp_path: Path) -> None:
    result = call(f"{run}@baseline", run, "--json", tmp_path / "c.json")
    assert result.exit_code == 3, result.output
    assert result.output.startswith("REGRESSION") and "_read_block" in result.output and "worker 2" in result.output
    comparison = msgspec.json.decode((tmp_path / "c.json").read_bytes(), type=Comparison)
    assert comparison.comparison == "regression" and comparison.after.name.endswith("@3")


def test_two_healthy_windows_are_equal(run: Path) -> None:
    result = call(f"{run}@1", run, "--window-b", "2")
    assert result.exit_code == 0 and result.output.startswith("EQUAL")


def test_damaged_patterns_are_noted_and_the_others_compared(run: Path) -> None:
    (run / "windows" / "3" / "patterns" / "0.pattern").write_bytes(b"\0")
    result = call(f"{run}@2", f"{run}@3")
    assert result.exit_code == 3 and "1 pattern was left out" in " ".join(result.output.split())


def test_a_cut_recording_is_equal_to_none(tmp_path: Path) -> None:
    files = {rank: encoded(trace) for rank, trace in WrittenJob(ranks=2, steps=8).record().items()}
    whole = write_files(tmp_path / "whole", files)
    assert call(whole, whole).output.startswith("EQUAL")
    left = write_files(tmp_path / "left", {**files, 1: cut(files[1], 0.97)})
    done = call(whole, left)
    assert done.exit_code == 4 and "after: the recording of worker 1 is damaged" in " ".join(done.output.split())


def test_where_one_recording_lacks_the_kernels_of_a_device_functions_are_not_compared(tmp_path: Path) -> None:
    recorded = WrittenJob(ranks=2, steps=8).record()
    whole = write_files(tmp_path / "whole", {rank: encoded(trace) for rank, trace in recorded.items()})
    for trace in recorded.values():
        events = without_device(trace)["traceEvents"]
        mark = {"ph": "X", "cat": "user_annotation", "name": "nccl:all_reduce", "pid": 1, "tid": 1, "dur": 3}
        trace["traceEvents"] = [*events, {**mark, "ts": events[0]["ts"] + 1}]
    left = write_files(tmp_path / "left", {rank: encoded(trace) for rank, trace in recorded.items()})
    done = call(whole, left)
    assert done.exit_code == 4 and "the second run used an accelerator" in " ".join(done.output.split())
    alone = CliRunner().invoke(group, ["diagnose", str(left)])
    assert alone.exit_code == 4 and "holds no kernels of it" in " ".join(alone.output.split())


def test_hostile_names_do_not_reach_the_terminal(run: Path, tmp_path: Path) -> None:
    evil = "_read\x1b[2J_block\u202e[bold]"
    patterns = synthesize(FleetPlan(iterations=20), [SlowLoader((2,), 20.0, frame=f"{evil} (a.py:1)")], 4)
    save_patterns(tmp_path / "evil", synthesize_window(patterns), patterns)
    save_patterns(run / "windows" / "4", synthesize_window(patterns), patterns)
    result = call(f"{run}@2", f"{run}@4")
    assert result.exit_code == 3 and "[bold]" in result.output
    assert "\x1b" not in result.output and "\u202e" not in result.output


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["nowhere", "{run}"], UsageError),
        (["{run}@9", "{run}"], UsageError),
        (["{run}@2", "{run}@3", "--window-a", "1"], UsageError),
        (["{run}", "{run}", "--window-a", "first"], UsageError),
        (["{run}/windows/2@1", "{run}"], UsageError),
        (["{run}/verdict.json", "{run}"], UsageError),
        (["{run}/nothing@baseline", "{run}"], UsageError),
        (["{run}/nothing", "{run}"], InputError),
    ],
)
def test_wrong_usage_is_one_clear_line(run: Path, arguments: list[str], error: type[Exception]) -> None:
    (run / "nothing" / "windows").mkdir(parents=True)
    result = call(*(argument.format(run=run) for argument in arguments))
    assert isinstance(result.exception, error) and "\n" not in str(result.exception)
