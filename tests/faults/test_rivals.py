"""Other tools on the same jobs: how their answers are read and judged, and the page drawn from them; no real jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.faults.copying import TRAINING
from support.faults.expected import EXPECTED

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODEL = ("model.py", "forward")
RUN = ("layouts.py", "run")
READ = ("tokens.py", "_read_block")


@pytest.fixture(scope="module")
def rivals(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("rivals")


@pytest.fixture(scope="module")
def jobs(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("rival_jobs")


@pytest.fixture(scope="module")
def traceml(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("rival_traceml")


@pytest.fixture(scope="module")
def pyspy(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("rival_pyspy")


@pytest.fixture(scope="module")
def records(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("rival_records")


@pytest.fixture(scope="module")
def page(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("rivals_page")


def summary(kind: str, severity: str = "crit", culprit: int | None = None) -> dict[str, Any]:
    """What TraceML writes, as far as it is read."""
    return {
        "primary_diagnosis": {"kind": kind, "severity": severity, "status": kind, "summary": "why"},
        "step_time": {"diagnosis": {"evidence": {} if culprit is None else {"culprit_rank": culprit}}},
    }


def test_each_change_of_the_training_still_fits_and_gives_code_that_compiles(
    traceml: ModuleType, records: ModuleType, jobs: ModuleType
) -> None:
    for changed_files in (traceml.TRACEML_LOOP, records.profiled(180, 2, 5), {"loop.py": records.DUMPING_MAIN}):
        for file, changes in changed_files.items():
            changed = jobs.replaced((TRAINING / file).read_text(), changes)
            assert all(new in changed for _, new in changes)
            compile(changed, file, "exec")


def test_a_change_that_no_longer_fits_is_told_instead_of_left_out(jobs: ModuleType) -> None:
    with pytest.raises(SystemExit, match="no longer contains"):
        jobs.replaced("a b", [("c", "d")])


def test_the_changed_job_is_started_by_the_tool_and_runs_the_changed_code(
    jobs: ModuleType, traceml: ModuleType, tmp_path: Path
) -> None:
    case = jobs.Case("traceml", "slow-loader", 0)
    job = jobs.rehearse(
        jobs.Changed,
        case,
        tmp_path,
        changes=traceml.TRACEML_LOOP,
        launch=lambda script, arguments: ["tool", script, "--args", *arguments],
    )
    command = job.training()
    assert command[:3] == ["tool", str(tmp_path / "code" / "train.py"), "--args"]
    assert "--layout" in command
    assert "torch.distributed.run" not in command
    assert "trace_step" in (tmp_path / "code" / "tinylm" / "loop.py").read_text()


def test_every_fault_has_its_part_of_the_iteration_and_is_one_of_ours(rivals: ModuleType) -> None:
    faults = {*rivals.SLOW, *rivals.BLOCKED}
    assert faults == {*rivals.AREAS}
    assert faults <= {*EXPECTED}


def test_a_run_of_all_tools_goes_fault_by_fault(rivals: ModuleType) -> None:
    keys = [case.key for case in rivals.all_cases(["traceml", "fr"], ["slow-loader", "hang"], ["0", "1"])]
    assert keys == [
        "traceml/slow-loader/ddp/middle/0",
        "fr/hang/ddp/middle/0",
        "traceml/slow-loader/ddp/middle/1",
        "fr/hang/ddp/middle/1",
    ]


@pytest.mark.parametrize(
    ("text", "workers", "area", "alarm"),
    [
        (summary("INPUT_STRAGGLER", culprit=2), (2,), "input", True),
        (summary("STRAGGLER", "warn", culprit=1), (1,), "", True),
        (summary("RESIDUAL_HEAVY", "warn"), (), "outside", True),
        (summary("COMPUTE_BOUND", "info"), (), "", False),
        (summary("NO_CLEAR_PERFORMANCE_BOTTLENECK", "info"), (), "", False),
    ],
)
def test_a_summary_of_traceml_is_read_as_its_primary_diagnosis(
    traceml: ModuleType, text: dict[str, Any], workers: tuple[int, ...], area: str, alarm: bool
) -> None:
    answer = traceml.read_traceml(text)
    assert (answer.workers, answer.area, answer.alarm, answer.error) == (workers, area, alarm, "")


def test_a_summary_of_traceml_without_diagnosis_is_an_error(traceml: ModuleType) -> None:
    assert traceml.read_traceml({}).error


def test_the_innermost_frame_of_the_users_code_is_that_of_the_main_thread(pyspy: ModuleType) -> None:
    def frame(path: str, name: str) -> dict[str, str]:
        return {"filename": path, "name": name}

    threads = [
        {"thread_name": "helper", "frames": [frame("/job/code/tinylm/watching.py", "_count_on")]},
        {
            "thread_name": "MainThread",
            "frames": [
                frame("/site/torch/nn/module.py", "forward"),
                frame("/job/code/tinylm/model.py", "LanguageModel.forward"),
                frame("/job/code/tinylm/train.py", "main"),
            ],
        },
    ]
    assert pyspy.own_frame(threads, Path("/job/code")) == MODEL
    assert pyspy.own_frame(threads[:1], Path("/job/code")) is None


def test_the_reader_names_who_is_in_one_function_more_than_the_others(pyspy: ModuleType) -> None:
    others = [RUN] * 16 + [MODEL] * 4
    seen = {0: others, 1: others, 2: [READ] * 12 + [RUN] * 8, 3: others}
    answer = pyspy.read_shares(seen)
    assert (answer.workers, answer.frame, answer.area, answer.alarm) == ((2,), READ, "input", True)
    assert "60%" in answer.said


def test_the_reader_names_nobody_where_all_are_alike(pyspy: ModuleType) -> None:
    answer = pyspy.read_shares({worker: [RUN] * (15 + worker) + [MODEL] * (5 - worker) for worker in range(4)})
    assert (answer.workers, answer.frame, answer.alarm) == ((), RUN, False)


def test_the_reader_says_so_where_no_frame_was_seen(pyspy: ModuleType) -> None:
    assert pyspy.read_shares({0: [None], 1: []}).error
    assert pyspy.read_blocked({0: [], 1: []}).error


def test_on_a_blocked_job_the_reader_names_who_is_elsewhere(pyspy: ModuleType) -> None:
    answer = pyspy.read_blocked({0: [RUN], 1: [RUN], 2: [("reading.py", "_take_item")], 3: [RUN]})
    assert (answer.workers, answer.area, answer.frame) == ((2,), "input", ("reading.py", "_take_item"))
    assert pyspy.read_blocked({0: [RUN], 1: [RUN], 2: [RUN], 3: [RUN]}).workers == ()
    assert pyspy.read_blocked({0: [RUN], 1: [RUN], 2: [READ], 3: [READ]}).workers == ()


def test_hta_is_read_as_the_ranks_that_it_returns_or_as_its_error(records: ModuleType) -> None:
    answer = records.read_hta("some log\n[3]\n", "")
    assert (answer.workers, answer.alarm) == ((3,), True)
    assert records.read_hta("", "Traceback:\nValueError: empty\n").error == "ValueError: empty"


def test_the_flight_recorder_analyzer_is_read_as_its_first_report(records: ModuleType, jobs: ModuleType) -> None:
    text = "collective: gloo:all_reduce\nmissing ranks: {2}\ncollective: gloo:broadcast\nmissing ranks: {0, 1}\n"
    answer = records.read_fr(text, "")
    assert (answer.workers, answer.area) == ((2,), "communication")
    assert "gloo:all_reduce" in answer.said
    gone = records.read_fr("", "Traceback\nAssertionError: Missing dump files from ranks {2}\n")
    assert (gone.workers, gone.area) == ((2,), "process")
    assert records.read_fr("", "Traceback\nKeyError: ('0', 0)\n").error == "KeyError: ('0', 0)"
    assert records.read_fr("all is well\n", "") == jobs.Answer("all is well")


@pytest.mark.parametrize(
    ("fault", "answer", "right"),
    [
        ("slow-loader", {"workers": (2,), "area": "input", "frame": READ}, (True, True, True)),
        ("slow-loader", {"workers": (1,), "area": "compute", "frame": RUN}, (False, False, False)),
        ("slow-loader", {"workers": (1, 2)}, (False, False, False)),
        ("slow-python", {"workers": (), "area": "compute"}, (None, True, False)),
        ("slow-python", {"workers": (3,), "area": "compute"}, (False, True, False)),
        ("slow-compute", {"workers": (2,), "area": "compute", "frame": MODEL}, (True, True, None)),
        ("blocking-checkpoint", {"workers": (0,), "area": "outside"}, (True, True, False)),
        ("hang-queue", {"workers": (2,), "frame": ("reading.py", "_take_item")}, (True, False, True)),
    ],
)
def test_an_answer_is_judged_by_worker_part_and_function(
    rivals: ModuleType, jobs: ModuleType, fault: str, answer: dict[str, Any], right: tuple[bool | None, ...]
) -> None:
    judged = rivals.judge(jobs.Answer("", **answer), fault, worker=2)
    assert tuple(judged[name] for name in rivals.NAMES) == right
    assert judged["alarms_on_healthy"] is None


def test_on_a_healthy_job_only_an_alarm_counts(rivals: ModuleType, jobs: ModuleType) -> None:
    for alarm in (True, False):
        judged = rivals.judge(jobs.Answer("", alarm=alarm), "none", worker=2)
        assert judged == {**dict.fromkeys(rivals.NAMES), "alarms_on_healthy": alarm}


def line(rivals: ModuleType, tool: str, fault: str, **answer: Any) -> dict[str, Any]:
    made: dict[str, Any] = rivals.record(rivals.Case(tool, fault, 0), "1.0", rivals.Answer("what it said", **answer))
    return made


def ours(fault: str, right: bool = True) -> dict[str, Any]:
    parts = dict.fromkeys(("verdict", "cause", "workers", "file", "function"), right)
    cause = {"cause": "slow-data-loading", "workers": [2], "scope": "some", "function": "_read_block"}
    return {
        "kind": "run",
        "key": f"{fault}/ddp/middle/0",
        "fault": fault,
        "layout": "ddp",
        "onset": "middle",
        "seed": 0,
        "worker": 2,
        "parts": parts,
        "right": right,
        "said": {"verdict": "slow", **cause},
        "when": "2026-11-22T08:00:00Z",
        "machine": {"cores": 2},
        "revision": "abc",
    }


def test_the_page_shows_each_tool_beside_eroica_on_each_fault(page: ModuleType, rivals: ModuleType) -> None:
    lines = [
        line(rivals, "traceml", "slow-loader", workers=(2,), area="input", alarm=True),
        line(rivals, "traceml", "none", alarm=True),
        line(rivals, "hta", "slow-loader", error="ValueError"),
        line(rivals, "nvrx", "any", error="no CUPTI"),
    ]
    text = "\n".join(page.page(lines, page.our_runs([ours("slow-loader")])))
    row = next(one for one in text.splitlines() if one.startswith("| `slow-loader`"))
    assert "worker 1/1<br>part 1/1<br>function 1/1" in row
    assert "| worker 1/1<br>part 1/1 |" in row
    assert "could not read it" in row
    assert "alarm in 1 of 1" in text
    assert "no CUPTI" not in next(one for one in text.splitlines() if one.startswith("| NVRx"))
    assert all(title in text for title in page.TITLES.values())


def test_a_tool_that_was_not_meant_for_a_fault_is_not_counted_as_wrong(page: ModuleType) -> None:
    assert page.cell([], "fr", "slow-loader") == "not meant for it"
    assert page.cell([], "traceml", "slow-loader") == "not run"


def test_only_eroicas_runs_of_the_same_jobs_stand_beside_the_others(page: ModuleType) -> None:
    others = [{**ours("slow-loader"), "key": "a", "layout": "fsdp2"}, {**ours("burners"), "key": "b"}]
    healthy = {**ours("none"), "key": "c", "onset": "start", "said": {"verdict": "healthy"}}
    assert [run["fault"] for run in page.our_runs([*others, healthy, ours("slow-loader")])] == ["none", "slow-loader"]


def test_the_last_run_of_a_key_counts(page: ModuleType) -> None:
    lines = [{"kind": "rival", "key": "a", "when": when} for when in ("2026-11-22", "2026-11-21")]
    assert [line["when"] for line in page.latest_rivals([*lines, {"kind": "run"}])] == ["2026-11-22"]
