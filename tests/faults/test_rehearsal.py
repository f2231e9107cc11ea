from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from eroica.demo.injection import build_fault
from eroica.model.verdict import Coverage, Finding, FindingFunction, IterationTimes, Verdict
from eroica.wire.messages import JobStatus, WindowLine
from support import faults
from support.faults import FAULTS, read_plans
from support.faults.copying import TRAINING
from support.faults.expected import EXPECTED, culprit, judge_parts
from support.faults.rehearsal import Rehearsal

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """The benchmark as it is started: its own directory comes first."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        found = importlib.util.spec_from_file_location("faults_benchmark", BENCHMARKS / "faults.py")
        assert found is not None and found.loader is not None
        module = importlib.util.module_from_spec(found)
        sys.modules[found.name] = module
        found.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(BENCHMARKS))
        sys.modules.pop("faults_benchmark", None)


def options(out: Path, **more: object) -> argparse.Namespace:
    plain = {
        "faults": "",
        "layouts": "ddp,fsdp2,pipeline,dp-pipeline",
        "seeds": "0",
        "onset": "start,middle",
        "part": "1/1",
    }
    return argparse.Namespace(**{**plain, "out": out, "smoke": False, **more})


def verdict(cause: str, workers: tuple[int, ...], scope: str = "some", stack: tuple[str, ...] = ()) -> Verdict:
    function = FindingFunction(name="something", kind="python", stack=stack)
    finding = Finding(
        order=1,
        role="cause",
        cause=cause,
        function=function,
        workers=workers,
        scope=scope,  # type: ignore[arg-type]
    )
    return Verdict(
        eroica_version="0",
        job="j",
        verdict="slow",
        summary="",
        window=None,
        iteration=IterationTimes(),
        coverage=Coverage(workers_expected=4, workers_reported=4),
        findings=(finding,),
    )


def test_there_are_thirty_faults_and_eight_healthy_behaviours() -> None:
    healthy = [name for name, wanted in EXPECTED.items() if not wanted.cause]
    assert set(EXPECTED) == set(FAULTS)
    assert len(healthy) >= 9
    assert len(EXPECTED) - len(healthy) >= 28


@pytest.mark.parametrize("fault", EXPECTED)
def test_every_fault_has_a_job_it_can_be_in(fault: str, tmp_path: Path) -> None:
    case = Rehearsal(fault, 2, 4, tmp_path, from_iteration=7, seed=3, expected_iteration_s=0.05)
    command = case.command()
    assert command[command.index("--json") + 1] == str(tmp_path / "final.json")
    assert command[command.index("--layout") + 1] in EXPECTED[fault].layouts
    assert command[command.index("--expected-iteration-s") + 1] == "0.0500"
    assert (tmp_path / "code" / "train.py").exists()
    plans = read_plans(case.environment()["EROICA_FAULT"])
    for plan in plans:
        assert build_fault(plan, FAULTS).name == fault
        assert plan.from_iteration == 7
        assert plan.worker == (culprit(fault, 2) if EXPECTED[fault].one_worker else None)


def test_nothing_of_eroica_around_the_job_gets_into_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EROICA_WINDOW_S", "1")
    assert "EROICA_WINDOW_S" not in Rehearsal("none", 0, 2, tmp_path).environment()


def test_each_part_of_an_answer_is_judged_by_itself() -> None:
    frame = ("main (train.py:3)", "_fetch_block (tinylm/reading.py:49)")
    right = judge_parts(verdict("slow-storage-read", (2,), stack=frame), "slow-storage", 2)
    assert all(right.values())
    assert judge_parts(verdict("slow-data-loading", (2,), stack=frame), "slow-storage", 2)["cause"]
    other = judge_parts(verdict("compute-slow", (1,)), "slow-storage", 2)
    assert other == {"verdict": True, "cause": False, "workers": False, "file": True, "function": False}


def test_where_nobody_is_the_one_any_workers_are_right_and_of_a_stage_none_is() -> None:
    assert judge_parts(verdict("sibling-process", (1, 3)), "burners", 0)["workers"]
    assert judge_parts(verdict("stage-imbalance", (), scope="all"), "heavy-stage", 2)["workers"]
    assert not judge_parts(verdict("stage-imbalance", (2,)), "heavy-stage", 2)["workers"]


def test_a_fault_that_only_one_worker_can_have_is_looked_for_there() -> None:
    assert judge_parts(verdict("blocking-checkpoint", (0,)), "blocking-checkpoint", 3)["workers"]
    assert not judge_parts(verdict("blocking-checkpoint", (3,)), "blocking-checkpoint", 3)["workers"]


def test_parts_together_are_all_runs_and_no_run_twice(benchmark: ModuleType, tmp_path: Path) -> None:
    whole = list(benchmark.all_cases(options(tmp_path, seeds="0,1")))
    parts = [case for part in "1234" for case in benchmark.all_cases(options(tmp_path, seeds="0,1", part=f"{part}/4"))]
    assert sorted(parts) == sorted(whole)
    assert len({case.key for case in whole}) == len(whole) >= 200


def test_only_layouts_and_onsets_that_a_fault_can_have(benchmark: ModuleType, tmp_path: Path) -> None:
    found = {(case.layout, case.onset) for case in benchmark.all_cases(options(tmp_path, faults="load-imbalance"))}
    assert found == {("ddp", "start"), ("ddp", "middle"), ("fsdp2", "start"), ("fsdp2", "middle")}
    assert [case.layout for case in benchmark.all_cases(options(tmp_path, faults="heavy-stage"))] == ["pipeline"]


def test_a_run_that_stands_in_the_file_is_not_done_again(benchmark: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "raw.jsonl"
    assert benchmark.done(out) == set()
    benchmark.append(out, {"kind": "run", "key": "slow-loader/ddp/middle/0"})
    assert benchmark.done(out) == {"slow-loader/ddp/middle/0"}
    assert json.loads(out.read_text())["kind"] == "run"


def test_new_names_are_ordinary_and_lead_back(benchmark: ModuleType) -> None:
    assert len(set(benchmark.RENAMED.values())) == len(benchmark.RENAMED)
    said = verdict("slow-data-loading", (2,), stack=("fetch_row (tinylm/captions.py:9)",))
    old = benchmark._in_old_names(said, benchmark.RENAMED)
    assert old.findings[0].function.stack == ("_read_block (tinylm/tokens.py:9)",)


def test_what_injects_faults_uses_no_name_that_is_changed(benchmark: ModuleType) -> None:
    injecting = [path for path in Path(faults.__file__).parent.glob("*.py") if path.name != "expected.py"]
    used = {word for path in injecting for word in re.findall(r"\.(\w+)", path.read_text(encoding="utf-8"))}
    files = {path.stem for path in TRAINING.glob("*.py")}
    assert injecting and not used & (set(benchmark.RENAMED) - files)


def test_trigger_and_verdict_are_those_after_the_onset(benchmark: ModuleType) -> None:
    line = WindowLine(window_id=1, purpose="slow", phase="done", first_iteration=100, last_iteration=200)
    status = JobStatus(job="j", phase="watching", message="", iteration=310, windows=(line,))
    seen: dict[str, float] = {}
    benchmark.note(seen, status, 300, 10.0)
    assert seen == {"onset": 10.0}
    later = msgspec.structs.replace(line, window_id=2, first_iteration=310, last_iteration=0, phase="probe")
    benchmark.note(seen, msgspec.structs.replace(status, windows=(line, later)), 300, 12.0)
    answer = msgspec.structs.replace(later, last_iteration=350, phase="done")
    benchmark.note(seen, msgspec.structs.replace(status, windows=(line, answer)), 300, 19.0)
    assert seen == {"onset": 10.0, "trigger": 12.0, "verdict": 19.0}


def test_one_worker_starts_with_another_environment(tmp_path: Path) -> None:
    command = Rehearsal("wrong-threads", 1, 2, tmp_path).training()
    script = command[command.index("--no-python") + 1]
    (tmp_path / "code" / "train.py").write_text("import os; print(os.environ['OMP_NUM_THREADS'])")
    said = [
        subprocess.run([script], env={"RANK": rank, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True)
        for rank in "01"
    ]
    assert [one.stdout for one in said] == ["1\n", "64\n"]
