"""Who does what when there are several `eroica run` of one job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eroica.cli.nodes import Part, enclosing, home_of, part_of, tasks_share
from eroica.wire.address import Address, Endpoint, announce, announce_to_all, endpoint_of, good_token, listening
from eroica.wire.places import places

TRAIN = ["python", "train.py"]
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NNODES": "2", "SLURM_NTASKS": "4"}
BATCH = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}


def test_alone_it_does_everything() -> None:
    assert part_of({}, TRAIN) == Part()


def test_one_task_on_each_slurm_node_works_and_one_of_all_speaks() -> None:
    tasks = [{**STEP, "SLURM_PROCID": str(task), "SLURM_LOCALID": str(task % 2)} for task in range(4)]
    parts = [part_of(task, TRAIN) for task in tasks]
    assert [part.agent for part in parts] == [True, False, True, False]
    assert [part.collector for part in parts] == [True, False, True, False]
    assert [part.speaks for part in parts] == [True, False, False, False]
    assert not any(part.variables or part.problem for part in parts)


def test_only_tasks_of_one_slurm_step_share_a_name() -> None:
    assert tasks_share({**STEP, "SLURM_PROCID": "2"})
    assert not tasks_share({**STEP, "SLURM_STEP_NUM_TASKS": "1"})  # a shell on a node of the allocation
    assert not tasks_share({**BATCH, "SLURM_NTASKS": "4"}) and not tasks_share({})


@pytest.mark.parametrize("command", [["srun", *TRAIN], ["bash", "launch.sh"]])
def test_from_a_batch_script_of_several_nodes_the_command_gets_address_and_token(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eroica.cli.nodes.outside_address", lambda: "127.0.0.1")
    part = part_of(BATCH, command)
    assert part.agent and part.collector and part.speaks
    assert endpoint_of(part.variables["EROICA_COLLECTOR"]).port > 0 and good_token(part.variables["EROICA_TOKEN"])
    assert part_of({**BATCH, "SLURM_NNODES": "1"}, command) == Part()


def test_a_named_collector_starts_where_its_address_is_ours_and_free() -> None:
    named = {"EROICA_TOKEN": "t" * 20}
    with listening(Endpoint("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert part_of({**named, "EROICA_COLLECTOR": f"http://127.0.0.1:{port}"}, TRAIN) == Part()
    there = part_of({**named, "EROICA_COLLECTOR": f"http://192.0.2.9:{port}"}, TRAIN)
    assert there == Part(collector=False, speaks=False)


@pytest.mark.parametrize("token", ["", "short"])
def test_nobody_listens_on_the_network_without_a_token(token: str) -> None:
    part = part_of({"EROICA_COLLECTOR": "http://127.0.0.1:1", "EROICA_TOKEN": token}, TRAIN)
    assert not part.agent and not part.collector and "EROICA_TOKEN" in part.problem


def test_a_bad_address_costs_the_watching_not_the_job(tmp_path: Path) -> None:
    environment = {**os.environ, "EROICA_COLLECTOR": "node0", "EROICA_TOKEN": "t" * 20}
    command = [sys.executable, "-m", "eroica", "run", "--out", str(tmp_path / "out"), "--", "echo", "5"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "5\n") and "EROICA_COLLECTOR" in done.stderr


def test_an_address_that_another_hosts_lost_job_left_is_not_home(tmp_path: Path) -> None:
    where = places({"EROICA_JOB": "j", "EROICA_HOST": "b", "EROICA_RUN_DIR": str(tmp_path)})
    announce_to_all(tmp_path, Address(url="http://10.0.0.1:1", token="t" * 20, pid=1, host="a"))
    assert home_of(where) is None and home_of(where, collects=False) is not None


def test_home_is_another_host_whose_collector_our_agent_was_sent_to(tmp_path: Path) -> None:
    where = places({"EROICA_JOB": "j", "EROICA_HOST": "b", "EROICA_RUN_DIR": str(tmp_path)})
    assert home_of(where) is None
    announce(tmp_path, Address(url="http://127.0.0.1:1", token="t" * 20, pid=1, host="b"), "b")
    assert home_of(where) is None
    home = Address(url="http://10.0.0.1:1", token="t" * 20, pid=1, host="a")
    announce(tmp_path, home, "b")
    assert home_of(where) == home


def test_only_a_living_eroica_run_of_this_host_encloses_another() -> None:
    code = "import sys; print('up', flush=True); input()"
    words = [sys.executable, "-c", code, "eroica", "run"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None and launcher.stdout.readline()
        here = {"EROICA_HOST": "a", "EROICA_LAUNCHED": f"{launcher.pid}@a"}
        assert enclosing(here)
        assert not enclosing({**here, "EROICA_HOST": "b"})
        launcher.communicate(b"\n")
    for gone in (here, {**here, "EROICA_LAUNCHED": f"{os.getpid()}@a"}, {"EROICA_LAUNCHED": "1"}, {}):
        assert not enclosing(gone)
