"""Faults that are injected into jobs of benchmarks and tests: each in real processes, and undone where it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from eroica.demo.injection import build_fault
from eroica.errors import UsageError
from support.faults import FAULTS, FaultPlan, inject, read_plans, write_training
from support.faults.expected import EXPECTED, MIXED, culprit, demo_plan, mixed_plans
from support.faults.hosts import Strangers, quota_group
from support.faults.rehearsal import Rehearsal

torch = pytest.importorskip("torch")

PROGRAMS = Path(__file__).parent / "programs"
PLACES = {
    "hang-queue": "_take_item",
    "hang-lock": "count_batch",
    "hang-interpreter-lock": "hash_batch",
    "hang-storage": "_fetch_block",
}
RENAMED = {
    "_take_item": "next_caption",
    "count_batch": "jot",
    "hash_batch": "stamp",
    "_fetch_block": "fetch_shelf",
    "reading": "shelves",
    "tokens": "captions",
}


def loop(plan: str, iterations: int = 500, module: str = "") -> list[str]:
    command = [sys.executable, str(PROGRAMS / "blocked.py"), plan, str(iterations)]
    return [*command, module] if module else command


@contextlib.contextmanager
def started(command: list[str], **more: Any) -> Iterator[subprocess.Popen[str]]:
    job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **more)
    family: list[psutil.Process] = []
    try:
        yield job
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            family = [*psutil.Process(job.pid).children(recursive=True), psutil.Process(job.pid)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        job.communicate()


def eventually(condition: Callable[[], bool], within_s: float = 40.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def threads(pid: int) -> list[dict[str, Any]]:
    spy = Path(sys.executable).with_name("py-spy")
    command = [str(spy), "dump", "--json", "--nonblocking", "--pid", str(pid)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    seen = json.loads(found.stdout) if found.returncode == 0 else []
    return sorted(seen, key=lambda thread: thread["os_thread_id"] != pid)  # the main thread first


def stands_still(pid: int, function: str) -> bool:
    """Whether the first thread is in `function` and has used no processor for half a second."""
    seen = threads(pid)
    if not seen or function not in [frame["name"].rpartition(".")[2] for frame in seen[0]["frames"]]:
        return False
    before = psutil.Process(pid).cpu_times().user
    time.sleep(0.5)
    again = threads(pid)
    return bool(again) and again[0]["frames"] == seen[0]["frames"] and psutil.Process(pid).cpu_times().user == before


@pytest.mark.parametrize("fault", PLACES)
def test_it_blocks_the_training_thread_in_renamed_and_moved_code(fault: str, tmp_path: Path) -> None:
    write_training(tmp_path, package="captioner", rename=RENAMED)
    command = loop(f"{fault}:from_iteration=5", module="captioner.parts")
    with started(command, env={**os.environ, "PYTHONPATH": str(tmp_path)}) as job:
        eventually(lambda: stands_still(job.pid, RENAMED[PLACES[fault]]))
        seen = threads(job.pid)
        assert seen[0]["owns_gil"] == (fault == "hang-interpreter-lock")
        files = {frame["filename"] for thread in seen for frame in thread["frames"]}
        assert not [file for file in files if "eroica" in Path(file).parts]


@pytest.mark.parametrize("fault", [*PLACES, "stopped-worker"])
def test_with_seconds_it_goes_on_by_itself_and_every_item_is_right(fault: str) -> None:
    began = time.monotonic()
    command = loop(f"{fault}:from_iteration=5,seconds=1.5", 60)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "done"), done.stderr
    assert time.monotonic() - began > 1.5


def test_a_dead_worker_ends_by_the_signal_of_its_plan() -> None:
    command = loop("dead-worker:from_iteration=3,number=15")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.split()) == (-signal.SIGTERM, ["0", "1", "2"])


@pytest.mark.jobs
def test_a_missing_collective_blocks_all_workers_and_aborts_none(tmp_path: Path) -> None:
    plan = "hang:worker=1,from_iteration=20"
    command = [sys.executable, str(PROGRAMS / "desynchronized.py"), plan, "1000000", str(tmp_path / "store")]
    with started(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) as job:
        assert job.stdout is not None
        pids = [int(word) for word in job.stdout.readline().split()[1:]]
        for rank, place in enumerate(("agree", "exchange", "agree")):
            eventually(lambda rank=rank, place=place: stands_still(pids[rank], place))  # type: ignore[misc]
        for process in psutil.Process(job.pid).children():
            process.kill()
        said = [tuple(map(int, line.split())) for line in job.stdout]
        assert {rank: max(number for who, number in said if who == rank) for rank in range(3)} == {0: 19, 1: 19, 2: 19}


def test_blocks_take_longer_while_storage_is_slow_and_no_longer() -> None:
    plan = FaultPlan("slow-storage", from_iteration=1, until=2, options={"delay_s": 0.2, "items_per_block": 2})
    with inject(plan, worker=0, workers=1) as faults:
        dataset = faults.dataset(list(range(100)))
        (server,) = [child for child in psutil.Process().children() if "storage.py" in " ".join(child.cmdline())]
        spent = []
        for iteration in range(3):
            faults.iteration(iteration, model=None)
            time.sleep(0.1)  # the signal has arrived by then
            began = time.monotonic()
            items = [dataset[20 * iteration + number] for number in range(4)]
            spent.append(time.monotonic() - began)
            assert items == list(range(20 * iteration, 20 * iteration + 4))
    assert spent[1] >= 0.4 > max(spent[0], spent[2])
    assert not server.is_running()


def batches(plan: FaultPlan, count: int, worker: int = 0) -> list[int]:
    """Rows of so many batches of two items, one an iteration, of one of four workers."""
    rows = []
    with inject(plan, worker=worker, workers=4) as faults:
        collate = faults.collate(torch.stack)
        for iteration in range(count):
            faults.iteration(iteration, model=None)
            rows.append(len(collate([torch.zeros(10, dtype=torch.int64)] * 2)))
    return rows


def test_batches_grow_on_one_worker_on_one_after_the_other_or_on_all() -> None:
    plan = FaultPlan("load-imbalance", worker=2, from_iteration=1, options={"times": 3})
    assert (batches(plan, 3, worker=2), batches(plan, 3, worker=1)) == ([2, 6, 6], [2, 2, 2])
    rows = [batches(FaultPlan("wandering-load"), 60, worker=worker) for worker in range(4)]
    assert [sorted(turn) for turn in zip(*rows, strict=True)] == [[2, 2, 2, 16]] * 60
    assert all(max(mine) == 16 for mine in rows)
    plan = FaultPlan("batch-ramp", options={"every": 3, "times": 3})
    assert batches(plan, 10, 0) == batches(plan, 10, 1) == [2, 2, 4, 4, 4, 6, 6, 6, 6, 6]


def test_cores_are_taken_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    started_on: list[int] = []
    monkeypatch.setattr(Strangers, "start", lambda _self, core=-1, **_: started_on.append(core))
    before = os.sched_getaffinity(0)
    with inject(FaultPlan("pinned-cpu"), worker=0, workers=1) as faults:
        faults.iteration(0, model=None)
        assert os.sched_getaffinity(0) == {max(before)}
    assert os.sched_getaffinity(0) == before
    assert started_on == [max(before)] * 4


def test_a_stranger_belongs_to_nobody_and_ends_with_the_process_that_wanted_it() -> None:
    start = "import psutil, sys; pid = Strangers().start(megabytes=2); print(pid, *psutil.Process(pid).environ())"
    code = f"import os; from support.faults.hosts import Strangers; {start}; sys.stdout.flush(); os._exit(0)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    pid, *names = output.split()
    assert not [name for name in names if name.startswith(("EROICA", "RANK"))]
    eventually(lambda: not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE)


@pytest.mark.root
def test_a_real_quota_takes_the_processor_away() -> None:
    try:
        place = quota_group("probe").before
    except UsageError as error:
        pytest.skip(str(error))
    code = """
import time
from support.faults import FaultPlan, inject
with inject(FaultPlan("cpu-quota", options={"cores": 0.1}), worker=0, workers=1) as faults:
    faults.iteration(0, model=None)
    wall, cpu = time.monotonic(), time.process_time()
    while time.monotonic() - wall < 0.6:
        pass
    print((time.process_time() - cpu) / (time.monotonic() - wall))
"""
    others = set(place.glob("quota-*"))
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert float(output) < 0.5
    assert set(place.glob("quota-*")) <= others


# ---------------------------------------------------------------------- the table of right answers


@pytest.mark.parametrize("fault", EXPECTED)
def test_every_fault_has_a_job_it_can_be_in(fault: str, tmp_path: Path) -> None:
    assert set(EXPECTED) == set(FAULTS) and FAULTS[fault].__doc__
    case = Rehearsal(fault, 2, 4, tmp_path, from_iteration=7, seed=3, expected_iteration_s=0.05)
    command = case.command()
    assert command[command.index("--layout") + 1] in EXPECTED[fault].layouts
    assert (tmp_path / "code" / "train.py").exists()
    for plan in read_plans(case.environment()["EROICA_FAULT"]):
        assert plan == demo_plan(fault, 2, 7) and build_fault(plan, FAULTS).name == fault
        assert plan.worker == (culprit(fault, 2) if EXPECTED[fault].one_worker else None)


@pytest.mark.parametrize("name", MIXED)
def test_a_mixture_has_two_faults_on_workers_of_their_own(name: str) -> None:
    for worker in range(4):
        plans = mixed_plans(name, worker, 4, 100)
        owners = [plan.worker for plan in plans if plan.worker is not None]
        assert len({build_fault(plan, FAULTS).name for plan in plans}) == 2
        assert len(set(owners)) == len(owners) and all(0 <= owner < 4 for owner in owners)
