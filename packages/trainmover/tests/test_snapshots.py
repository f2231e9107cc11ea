"""Copies in memory: two places, and what happens when both are taken by what nobody can use."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainmover import attach
from trainmover.context import Context
from trainmover.errors import LinkError, MoveError, UsageError
from trainmover.job import Job
from trainmover.snapshots import SnapshotStore, checkpoints, load_checkpoint, save_checkpoint
from trainmover.state import Snapshot


def snapshot(step: int) -> Snapshot:
    return Snapshot(step, b"small", {"model0.weight": torch.full((4,), float(step))})


def test_a_copy_that_not_all_have_gives_its_place_to_the_next_and_the_common_one_stays() -> None:
    said: list[dict[str, Any]] = []
    store = SnapshotStore(Context("secret", "127.0.0.1"), said.append, None, 0)
    try:
        store.take(snapshot(10))
        store.set_stable(10)
        store.take(snapshot(17))
        store.take(snapshot(20))  # passed over
        assert store.report()["own"] == [10, 17]
        store.discard([17, 20])
        store.take(snapshot(30))
        assert store.report()["own"] == [10, 30]
        store.set_stable(30)
        assert store.report()["own"] == [30]
        assert torch.equal(store.own(30).tensors["model0.weight"], torch.full((4,), 30.0))
    finally:
        store.stop()


def test_a_copy_at_a_moves_boundary_takes_the_place_of_one_that_is_not_common() -> None:
    store = SnapshotStore(Context("secret", "127.0.0.1"), lambda _message: None, None, 0)
    try:
        store.take(snapshot(10))
        store.take(snapshot(20))
        store.make_room(10)
        store.take(snapshot(23))
        assert store.report()["own"] == [10, 23]
        store.discard([23])  # the move was called off
        assert store.report()["own"] == [10]
    finally:
        store.stop()


def test_a_state_that_a_joiner_has_taken_over_is_its_copy_at_once() -> None:
    store = SnapshotStore(Context("secret", "127.0.0.1"), lambda _message: None, None, 0)
    try:
        store.adopt(replace(snapshot(23), known=snapshot(23).digests()))
        assert store.report()["own"] == [23]
        assert store._own_digests(23) == snapshot(23).digests()
    finally:
        store.stop()


def test_a_joiner_too_says_that_a_peer_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link between two members that both came as standbys can break like any other."""
    said: list[tuple[str, dict[str, Any]]] = []
    agent = SimpleNamespace(report=lambda what, **content: said.append((what, content)))
    owner = Context("secret", "127.0.0.1")
    owner.agent = agent
    monkeypatch.setattr("trainmover.job.context", lambda: owner)
    monkeypatch.setenv("TRAINMOVER_CONTROLLER", "127.0.0.1:1")
    model = torch.nn.Linear(2, 2)
    attach(model, torch.optim.SGD(model.parameters()))
    try:
        owner.failed(LinkError("cut", peer=3))
        assert said == [("lost", {"peer": 3, "detail": "cut", "generation": 0})]
    finally:
        agent.store.stop()


def test_a_copy_that_a_joiner_could_not_take_yet_is_offered_again_without_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until the next copy is due, whoever is lost could not be replaced."""
    offered: list[int] = []
    done = threading.Event()

    def send(_store: SnapshotStore, copy: Snapshot) -> None:
        offered.append(copy.step)
        if len(offered) < 3:
            raise LinkError("it has not switched yet", peer=1)
        done.set()

    monkeypatch.setattr(SnapshotStore, "_send", send)
    store = SnapshotStore(Context("secret", "127.0.0.1"), lambda _message: None, None, 0)
    try:
        store.set_buddy(1, ("127.0.0.1", 1), 0)
        store.take(snapshot(10))
        assert done.wait(10.0)
        assert offered == [10, 10, 10]
    finally:
        store.stop()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"\x80\x02."])
def test_a_damaged_checkpoint_is_said_to_be_one(tmp_path: Path, content: bytes) -> None:
    save_checkpoint(tmp_path, snapshot(10), 0)
    assert load_checkpoint(tmp_path, 10, 0).step == 10
    (tmp_path / "step-00000010" / "rank-0.pt").write_bytes(content)
    with pytest.raises(MoveError, match=r"the checkpoint .* cannot be read"):
        load_checkpoint(tmp_path, 10, 0)


def test_a_replicas_copy_without_the_own_one_that_it_rests_on_is_said_to_be_incomplete() -> None:
    store = SnapshotStore(Context("secret", "127.0.0.1"), lambda _message: None, None, 0)
    try:
        store._held = {1: {10: Snapshot(10, b"", {}, {"": "small", "model0.weight": "digest"})}}
        with pytest.raises(MoveError, match="1 tensors are not held here"):
            store.compose(1, 10)
    finally:
        store.stop()


def attached(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Job:
    """Rank 0 of two, without a controller."""
    owner = Context("secret", "127.0.0.1")
    owner.rank = 0
    monkeypatch.setattr("trainmover.job.context", lambda: owner)
    monkeypatch.delenv("TRAINMOVER_CONTROLLER", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    model = torch.nn.Linear(2, 2)
    return attach(model, torch.optim.SGD(model.parameters()), checkpoint=folder, checkpoint_every=10, **options)


def test_checkpoints_of_an_earlier_run_are_no_state_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss would have gone back, or forward, to the newest one that all ranks have, whoever wrote it."""
    saved = attached(tmp_path, monkeypatch).snapshot()
    for step, ranks in ((10, (0, 1)), (20, (0,))):
        for rank in ranks:
            save_checkpoint(tmp_path, Snapshot(step, saved.small, saved.tensors), rank)
    with pytest.raises(UsageError, match="from an earlier run"):
        attached(tmp_path, monkeypatch)
    assert attached(tmp_path, monkeypatch, resume=True).step == 10
    assert checkpoints(tmp_path) == {"0": [10], "1": [10]}
    assert (tmp_path / "step-00000020" / "rank-0.pt.earlier").exists()
    (tmp_path / "step-00000010" / "rank-1.pt").unlink()
    with pytest.raises(UsageError, match="of no iteration has each of the 2 ranks"):
        attached(tmp_path, monkeypatch, resume=True)


def test_a_checkpoint_is_this_runs_even_where_an_earlier_one_had_left_its_own(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, snapshot(10), 0)
    later = snapshot(10)
    later.tensors["model0.weight"] += 1.0
    save_checkpoint(tmp_path, later, 0)
    assert load_checkpoint(tmp_path, 10, 0).tensors["model0.weight"][0] == 11.0


def test_ranks_of_another_backends_group_have_checkpoints_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only this backend's groups tell a process its rank; before, all wrote one file and none resumed."""
    owner = Context("secret", "127.0.0.1")
    monkeypatch.setattr("trainmover.job.context", lambda: owner)
    monkeypatch.delenv("TRAINMOVER_CONTROLLER", raising=False)
    monkeypatch.setenv("RANK", "3")
    model = torch.nn.Linear(2, 2)
    job = attach(model, torch.optim.SGD(model.parameters()), copy_every=1, checkpoint=tmp_path, checkpoint_every=1)
    for _ in job.steps(1):
        with job.iteration():
            pass
    assert checkpoints(tmp_path) == {"3": [1]}
