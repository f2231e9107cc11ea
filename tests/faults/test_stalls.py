"""Faults that block, each in a small process of its own: whether something really blocks cannot be seen on a fake."""

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
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from eroica.errors import UsageError
from support.faults import FaultPlan, inject, write_training
from support.faults.stalls import STALLS

PROGRAMS = Path(__file__).parent / "programs"
PLACES = {
    "hang-queue": "_take_item",
    "hang-lock": "count_batch",
    "hang-interpreter-lock": "hash_batch",
    "hang-storage": "_fetch_block",
}
BESIDE = {"hang-queue": "_note_length", "hang-lock": "_write_counts"}
RENAMED = {
    "TokensAhead": "Preloader",
    "_take_item": "next_caption",
    "_note_length": "remember",
    "_read_ahead": "preload",
    "TokenStatistics": "Diary",
    "count_batch": "jot",
    "_write_counts": "publish",
    "TokenHasher": "Stamp",
    "hash_batch": "stamp",
    "StoredTokens": "Archive",
    "_fetch_block": "fetch_shelf",
    "reading": "shelves",
    "bookkeeping": "diary",
    "tokens": "captions",
}


def loop(plan: str, iterations: int = 500, module: str = "", directory: Path | None = None) -> list[str]:
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


def functions(thread: dict[str, Any]) -> list[str]:
    return [frame["name"].rpartition(".")[2] for frame in thread["frames"]]


def stands_still(pid: int, function: str) -> bool:
    """Whether the first thread is in `function` and has used no processor for half a second."""
    seen = threads(pid)
    if not seen or function not in functions(seen[0]):
        return False
    before = psutil.Process(pid).cpu_times().user
    time.sleep(0.5)
    again = threads(pid)
    return bool(again) and again[0]["frames"] == seen[0]["frames"] and psutil.Process(pid).cpu_times().user == before


@pytest.mark.parametrize("fault", PLACES)
def test_it_blocks_the_training_thread_for_good_and_where_it_says(fault: str) -> None:
    with started(loop(f"{fault}:from_iteration=5")) as job:
        eventually(lambda: stands_still(job.pid, PLACES[fault]))
        seen = threads(job.pid)
        assert seen[0]["owns_gil"] == (fault == "hang-interpreter-lock")
        assert ("readinto" in functions(seen[0])) == (fault == "hang-storage")
        if fault in BESIDE:
            assert any(BESIDE[fault] in functions(thread) for thread in seen[1:])


@pytest.mark.parametrize("fault", PLACES)
def test_nothing_of_the_injector_is_on_any_stack_of_renamed_and_moved_code(fault: str, tmp_path: Path) -> None:
    write_training(tmp_path, package="captioner", rename=RENAMED)
    command = loop(f"{fault}:from_iteration=5", module="captioner.parts")
    with started(command, env={**os.environ, "PYTHONPATH": str(tmp_path)}) as job:
        eventually(lambda: stands_still(job.pid, RENAMED[PLACES[fault]]))
        files = {frame["filename"] for thread in threads(job.pid) for frame in thread["frames"]}
        assert not [file for file in files if "eroica" in Path(file).parts]


@pytest.mark.parametrize("fault", [*PLACES, "stopped-worker"])
def test_with_seconds_it_goes_on_by_itself_and_every_item_is_right(fault: str) -> None:
    began = time.monotonic()
    command = loop(f"{fault}:from_iteration=5,seconds=1.5", 60)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "done"), done.stderr
    assert time.monotonic() - began > 1.5


@pytest.mark.parametrize(("options", "status"), [("", -signal.SIGKILL), (",number=15", -signal.SIGTERM)])
def test_a_dead_worker_ends_by_the_signal_of_its_plan(options: str, status: int) -> None:
    command = loop(f"dead-worker:from_iteration=3{options}")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.split()) == (status, ["0", "1", "2"])


def test_a_stopped_worker_is_stopped_until_its_helper_ends() -> None:
    with started(loop("stopped-worker:from_iteration=3", 100_000)) as job:
        process = psutil.Process(job.pid)
        eventually(lambda: process.status() == psutil.STATUS_STOPPED)
        for helper in process.children():
            helper.terminate()
        eventually(lambda: process.status() != psutil.STATUS_STOPPED)


def test_the_storage_server_listens_on_localhost_only_and_ends_with_its_worker() -> None:
    with started(loop("hang-storage:from_iteration=1000000", 100_000)) as job:
        eventually(lambda: bool(psutil.Process(job.pid).children()))
        server = psutil.Process(job.pid).children()[0]
        eventually(lambda: bool(server.net_connections("tcp")))
        listening = [one.laddr.ip for one in server.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
        assert listening == ["127.0.0.1"]
        job.kill()
        job.wait()
        eventually(lambda: not server.is_running())


def test_what_was_built_in_before_the_fault_ends_with_the_training() -> None:
    faults = inject(FaultPlan("hang-queue", from_iteration=9), FaultPlan("hang-storage", from_iteration=9))
    dataset = faults.dataset([[number] for number in range(100)])
    assert [dataset[number] for number in (0, 1, 7, 8)] == [[0], [1], [7], [8]]
    faults.close()
    eventually(lambda: not _leftovers())


def _leftovers() -> list[str]:
    import threading

    names = [thread.name for thread in threading.enumerate() if "_read_ahead" in thread.name]
    return names + [
        str(child.pid) for child in psutil.Process().children() if "storage.py" in " ".join(child.cmdline())
    ]


def test_a_loader_process_has_a_connection_of_its_own() -> None:
    with inject(FaultPlan("hang-storage", from_iteration=9)) as faults:
        dataset = faults.dataset([[number] for number in range(100)])
        assert dataset[0] == [0]
        child = os.fork()
        if child == 0:
            os._exit(0 if dataset[40] == [40] and dataset.connection is not None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert dataset[99] == [99]


class Agreement:
    """Counts who takes part."""

    def __init__(self) -> None:
        self.unchanged, self.calls = False, 0

    def __call__(self, _module: Any, _inputs: Any) -> None:
        self.calls += not self.unchanged
        self.unchanged = False


def test_every_worker_gets_the_agreement_and_one_skips_it_once() -> None:
    part, hooks = Agreement(), []
    code = SimpleNamespace(PARTS={"agreement": lambda: part})
    model = SimpleNamespace(
        register_forward_pre_hook=lambda hook: hooks.append(hook) or SimpleNamespace(remove=hooks.clear)
    )
    for worker, calls in ((0, 6), (1, 5)):
        part.calls = 0
        plan = FaultPlan("hang", worker=1, from_iteration=2)
        with inject(plan, worker=worker, workers=2, code=code) as faults:  # type: ignore[arg-type]
            for iteration in range(6):
                faults.iteration(iteration, model)
                hooks[0](None, None)
        assert part.calls == calls
        hooks.clear()


def test_one_worker_alone_cannot_miss_a_collective() -> None:
    with inject(FaultPlan("hang"), worker=0, workers=1) as faults, pytest.raises(UsageError, match="two workers"):
        faults.iteration(0, model=None)


@pytest.mark.jobs
def test_a_missing_collective_blocks_all_workers_and_aborts_none(tmp_path: Path) -> None:
    pytest.importorskip("torch")
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


def test_every_stall_has_a_resource_and_a_name_of_its_own() -> None:
    assert len({kind.name for kind in STALLS}) == len(STALLS)
    assert all(kind.resource != "nothing" for kind in STALLS)
