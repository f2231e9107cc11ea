"""What a worker knows about the other hosts of its job."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from eroica.worker import surroundings

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
