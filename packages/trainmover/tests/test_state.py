"""A state that was taken over is the same to the last bit, whatever the joiner had done before."""

import pickle
import random

import pytest
import torch
from torch import nn

from trainmover.context import Context
from trainmover.data import Batches
from trainmover.errors import MoveError, UsageError
from trainmover.state import Snapshot, TrainingState, digest

BACKEND = Context("secret", "127.0.0.1").backend


def member(seed: int, n_steps: int) -> tuple[TrainingState, nn.Module, torch.optim.Optimizer, Batches]:
    torch.manual_seed(seed)
    random.seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.arange(40.0).view(10, 4), batch_size=4, shuffle=True)
    data = Batches(loader)
    for _ in range(n_steps):
        step(model, optimizer, data)
    return TrainingState([model], [optimizer], [data], BACKEND), model, optimizer, data


def step(model: nn.Module, optimizer: torch.optim.Optimizer, data: Batches) -> float:
    loss = model(next(data)).square().sum() * random.random()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


@pytest.mark.parametrize("n_before", [0, 5])
def test_after_a_take_over_both_go_on_alike(n_before: int) -> None:
    leaver, *parts = member(1, 7)
    given = leaver.snapshot(7)
    kept = Snapshot(7, given.small, {name: one.clone() for name, one in given.tensors.items()})
    expected = [step(*parts) for _ in range(6)]
    joiner, *own = member(2, n_before)
    joiner.restore(kept)
    taken = joiner.snapshot(7)
    assert taken.digests().items() - {("", digest(taken.small))} == kept.digests().items() - {("", digest(kept.small))}
    assert repr(pickle.loads(taken.small)) == repr(pickle.loads(kept.small))
    assert [step(*own) for _ in range(6)] == expected


def test_a_state_of_another_model_is_refused_before_anything_is_changed() -> None:
    state, model, *_ = member(1, 1)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    wrong = Snapshot(1, b"", {"model0.0.weight": torch.zeros(3)})
    with pytest.raises(MoveError, match="another model or role"):
        state.restore(wrong)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


def test_a_loader_that_cannot_tell_its_place_is_refused_with_the_way_out() -> None:
    with pytest.raises(UsageError, match=r"trainmover\.Batches"):
        TrainingState([], [], [torch.utils.data.DataLoader([1, 2])], BACKEND)  # type: ignore[list-item]
