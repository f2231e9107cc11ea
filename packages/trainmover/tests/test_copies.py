"""Copies in memory: two places, and what happens when both are taken by what nobody can use."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainmover import attach
from trainmover.copies import Keeper, checkpoints
from trainmover.errors import LinkError
from trainmover.fabric import Fabric
from trainmover.state import Image


def image(step: int) -> Image:
    return Image(step, b"", {"model0.weight": torch.full((4,), float(step))})


def test_a_copy_that_not_all_have_gives_its_place_to_the_next_and_the_common_one_stays() -> None:
    said: list[dict[str, Any]] = []
    keeper = Keeper(Fabric("secret", "127.0.0.1"), said.append, None, 0)
    try:
        keeper.take(image(10))
        keeper.settle(10)
        keeper.take(image(17))
        keeper.take(image(20))  # passed over
        assert keeper.report()["own"] == [10, 17]
        keeper.throw_away([17, 20])
        keeper.take(image(30))
        assert keeper.report()["own"] == [10, 30]
        keeper.settle(30)
        assert keeper.report()["own"] == [30]
        assert torch.equal(keeper.own(30).tensors["model0.weight"], torch.full((4,), 30.0))
    finally:
        keeper.stop()


def test_after_a_move_a_copy_between_the_common_one_and_the_boundary_gives_its_place() -> None:
    keeper = Keeper(Fabric("secret", "127.0.0.1"), lambda _message: None, None, 0)
    try:
        keeper.take(image(10))
        keeper.take(image(20))
        keeper.begin_anew(10, 23)
        keeper.take(image(23))
        assert keeper.report()["own"] == [10, 23]
        keeper.begin_anew(-1, 26)  # a controller that has just started knows of no common one
        assert keeper.report()["own"] == [10]
    finally:
        keeper.stop()


def test_what_is_copied_in_the_sandbox_is_neither_reported_nor_saved(tmp_path: Path) -> None:
    said: list[dict[str, Any]] = []
    owner = Fabric("secret", "127.0.0.1")
    owner.rank, owner.replay = 1, object()  # type: ignore[assignment]
    keeper = Keeper(owner, said.append, tmp_path, 10)
    keeper.take(image(0))
    keeper.stop()
    assert said == [] and checkpoints(tmp_path) == {}


def test_a_newcomer_too_says_that_a_peer_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link between two members that both came as standbys can break like any other."""
    said: list[tuple[str, dict[str, Any]]] = []
    agent = SimpleNamespace(say=lambda what, **content: said.append((what, content)))
    owner = Fabric("secret", "127.0.0.1")
    owner.agent = agent
    monkeypatch.setattr("trainmover.job.fabric", lambda: owner)
    monkeypatch.setenv("TRAINMOVER_CONTROLLER", "127.0.0.1:1")
    model = torch.nn.Linear(2, 2)
    attach(model, torch.optim.SGD(model.parameters()))
    try:
        owner.failed(LinkError("cut", peer=3))
        assert said == [("lost", {"peer": 3, "detail": "cut", "generation": 0})]
    finally:
        agent.keeper.stop()


def test_a_copy_that_a_newcomer_could_not_take_yet_is_offered_again_without_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until the next copy is due, whoever is lost could not be replaced."""
    offered: list[int] = []
    done = threading.Event()

    def send(_keeper: Keeper, copy: Image) -> None:
        offered.append(copy.step)
        if len(offered) < 3:
            raise LinkError("it has not switched yet", peer=1)
        done.set()

    monkeypatch.setattr(Keeper, "_send", send)
    keeper = Keeper(Fabric("secret", "127.0.0.1"), lambda _message: None, None, 0)
    try:
        keeper.befriend(1, ("127.0.0.1", 1))
        keeper.take(image(10))
        assert done.wait(10.0)
        assert offered == [10, 10, 10]
    finally:
        keeper.stop()
