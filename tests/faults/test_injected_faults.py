"""Faults that are injected into jobs of benchmarks and tests: each has a job, and those that block really do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from eroica.demo.faults import build_fault
from support.faults import FAULTS, read_plans, write_training
from support.faults.expected import EXPECTED, culprit, demo_plan
from support.faults.rehearsal import Rehearsal

pytest.importorskip("torch")

PROGRAM = Path(__file__).parent / "programs" / "blocked.py"
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
    program = [sys.executable, str(PROGRAM), f"{fault}:from_iteration=5", "500", "captioner.parts"]
    job = subprocess.Popen(program, env={**os.environ, "PYTHONPATH": str(tmp_path)}, stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 40
        while not stands_still(job.pid, RENAMED[PLACES[fault]]):
            assert time.monotonic() < end, "it does not block"
        seen = threads(job.pid)
    finally:
        for process in (*psutil.Process(job.pid).children(recursive=True), job):
            process.kill()
        job.wait()
    assert seen[0]["owns_gil"] == (fault == "hang-interpreter-lock")
    files = {frame["filename"] for thread in seen for frame in thread["frames"]}
    assert not [file for file in files if "eroica" in Path(file).parts]


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
