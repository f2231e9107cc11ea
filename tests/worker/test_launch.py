"""Starting the agent from a worker."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from eroica.start import isolated
from eroica.wire.places import Places
from eroica.worker import launch, surroundings


@pytest.fixture
def where(tmp_path: Path) -> Places:
    (tmp_path / "runtime").mkdir()
    return Places("job", "host", tmp_path / "run", tmp_path / "runtime", tmp_path / "scratch")


def test_an_agent_is_missing_until_somebody_holds_the_lock(where: Places) -> None:
    assert launch.agent_is_missing(where.runtime)
    assert launch.agent_is_missing(where.runtime)
    handle = os.open(where.runtime / "agent.lock", os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert not launch.agent_is_missing(where.runtime)
    os.close(handle)
    assert launch.agent_is_missing(where.runtime)


def test_the_agent_is_started_with_the_jobs_places_and_as_nobodys_child(
    where: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nsleep 0.2\necho "$EROICA_JOB $EROICA_RUN_DIR $PPID $*" > {told}.draft\n'
                       f'mv {told}.draft {told}\n')  # fmt: skip
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    before = {child.pid for child in psutil.Process().children()}
    launch.start_agent(where)
    end = time.monotonic() + 20
    while not told.exists() and time.monotonic() < end:
        time.sleep(0.02)
    job, run, _, *command = told.read_text().split()
    assert (job, run, command) == ("job", str(where.run), isolated("eroica.agent")[1:])
    assert {child.pid for child in psutil.Process().children()} <= before


STEP = {"SLURM_PROCID": "0", "SLURM_STEP_TASKS_PER_NODE": "2(x3),1"}


@pytest.mark.parametrize(("node", "tasks"), [("0", 2), ("2", 2), ("3", 1), ("4", 0)])
def test_slurm_tells_how_many_tasks_a_node_has(node: str, tasks: int) -> None:
    assert surroundings.meeting_point({**STEP, "SLURM_NODEID": node})["local_world_size"] == tasks


def test_torchrun_says_it_in_the_environment() -> None:
    environment = {"LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
    expected = {"local_world_size": 8, "master_addr": "node0", "master_port": 29500}
    assert surroundings.meeting_point(environment) == expected


def test_torchs_own_store_counts_more_than_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    class TCPStore:
        host, port = "node7", 4242

    def within(store: Any) -> dict[str, Any]:
        names = SimpleNamespace(_get_default_store=lambda: SimpleNamespace(underlying_store=store))
        monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", names)  # type: ignore[arg-type]
        return surroundings.meeting_point({"MASTER_ADDR": "node0", "MASTER_PORT": "1"})

    monkeypatch.setattr(
        surroundings, "torch_distributed", lambda: SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda: 1)
    )
    assert within(TCPStore())["master_addr"] == "node7" and within(TCPStore())["master_port"] == 4242
    assert within(SimpleNamespace())["master_addr"] == "node0"
