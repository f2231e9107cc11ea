"""A stream of batches goes on in another process with the very next batch: same samples, same augmentation."""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler

from trainmover.data import Batches, fingerprint
from trainmover.errors import MoveError

N_SAMPLES, ACCUMULATED = 22, 2


class Augmented(Dataset[Any]):
    """Samples that say which they are, with random numbers of all three generators."""

    def __init__(self, n_samples: int = N_SAMPLES) -> None:
        self.n_samples = n_samples
        self.n_loaded = 0

    def __len__(self) -> int:
        return self.n_samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        import numpy

        self.n_loaded += 1
        return {"index": index, "augmented": torch.rand(2) + random.random() + numpy.random.rand()}


class Backwards(BatchSampler):
    """A batch sampler of the user's own, with a generator of its own."""

    def __init__(self) -> None:
        self.random = random.Random(7)

    def __len__(self) -> int:
        return 7

    def __iter__(self) -> Iterator[list[int]]:
        order = list(range(N_SAMPLES))
        self.random.shuffle(order)
        return iter([order[at : at + 3] for at in range(N_SAMPLES - 3, -1, -3)])


def distributed() -> DistributedSampler[Any]:
    return DistributedSampler(Augmented(), num_replicas=2, rank=1, shuffle=True, seed=5)


LOADERS: dict[str, Callable[[int], Any]] = {
    "in order": lambda workers: DataLoader(Augmented(), 4, num_workers=workers),
    "shuffled": lambda workers: DataLoader(Augmented(), 4, shuffle=True, num_workers=workers, drop_last=True),
    "single samples": lambda workers: DataLoader(Augmented(), None, shuffle=False, num_workers=workers),
    "generator": lambda workers: DataLoader(
        Augmented(), 3, shuffle=True, num_workers=workers, generator=torch.Generator().manual_seed(3)
    ),
    "replacement": lambda workers: DataLoader(
        Augmented(), 3, sampler=RandomSampler(Augmented(), replacement=True, num_samples=20), num_workers=workers
    ),
    "distributed": lambda workers: DataLoader(Augmented(), 2, sampler=distributed(), num_workers=workers),
    "persistent workers": lambda workers: DataLoader(
        Augmented(), 2, sampler=distributed(), num_workers=workers, persistent_workers=workers > 0
    ),
    "own batch sampler": lambda workers: DataLoader(Augmented(), batch_sampler=Backwards(), num_workers=workers),
}


def iteration(data: Batches) -> list[Any]:
    """What one training iteration takes, gradients accumulated, with random numbers drawn in between."""
    taken = []
    for _ in range(ACCUMULATED):
        batch = next(data)
        taken.append((batch["index"], batch["augmented"].flatten().tolist()))
        torch.rand(3)
        random.random()
    return [(torch.as_tensor(index).tolist(), values) for index, values in taken]


def moved(data: Batches, make: Callable[[], Any], n_before: int) -> Batches:
    """Continue in a loader that has run a sandbox of its own, as another process has."""
    from trainmover.data import random_state, restore_random

    state = pickle.dumps((data.state_dict(), random_state()))
    torch.manual_seed(99)
    random.seed(99)
    other = Batches(make())
    for _ in range(n_before):
        next(other)
    position, numbers = pickle.loads(state)
    other.load_state_dict(position)
    restore_random(numbers)
    return other


def stream(make: Callable[[], Any], moves: tuple[int, ...] = (), n_iterations: int = 26) -> list[Any]:
    import numpy

    torch.manual_seed(1)
    random.seed(1)
    numpy.random.seed(1)
    data, found = Batches(make()), []
    for step in range(n_iterations):
        if step in moves:
            data = moved(data, make, n_before=step % 3)
        found.append(iteration(data))
    return found


@pytest.mark.parametrize("name", LOADERS)
def test_the_stream_is_the_same_with_and_without_moves(name: str) -> None:
    def make() -> Any:
        return LOADERS[name](0)

    undisturbed = stream(make)
    assert stream(make, moves=(1, 5, 6, 13, 21)) == undisturbed
    if name not in ("in order", "single samples"):  # epochs differ
        orders = [str([indices for indices, _ in one]) for one in undisturbed]
        assert len(set(orders)) > 20


@pytest.mark.parametrize("name", ["shuffled", "distributed", "persistent workers", "own batch sampler"])
def test_with_workers_samples_and_their_augmentation_are_the_same(name: str) -> None:
    def make() -> Any:
        return LOADERS[name](2)

    assert stream(make, moves=(1, 5), n_iterations=8) == stream(make, n_iterations=8)


def test_a_loader_with_workers_that_the_script_has_used_before_is_no_other() -> None:
    def make() -> Any:
        used = LOADERS["persistent workers"](1)
        next(iter(used))
        return used

    assert stream(make, moves=(3,), n_iterations=5) == stream(make, n_iterations=5)


def test_an_epoch_that_the_script_sets_counts() -> None:
    """A script may number its epochs itself, as after a resume; without one, each epoch has the next number."""
    sampler = distributed()
    sampler.set_epoch(7)
    data = Batches(DataLoader(Augmented(), 11, sampler=sampler))
    orders = [next(data)["index"].tolist() for _ in range(2)]
    sampler.set_epoch(40)  # counts from the next epoch that begins: one batch, here an epoch, is held ahead
    orders += [next(data)["index"].tolist() for _ in range(3)]
    expected = distributed()
    for epoch, order in zip((7, 8, 9, 40, 41), orders, strict=True):
        expected.set_epoch(epoch)
        assert list(expected) == order


class Counting(IterableDataset[Any]):
    """A stream with a state, or without one."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < N_SAMPLES:
            self.at += 1
            yield self.at
        self.at = 0


class Stateful(Counting):
    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_dataset_goes_on_from_its_own_state(workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="pip install torchdata")

    def make() -> Any:
        return stateful.StatefulDataLoader(Stateful(), 4, num_workers=workers)

    def run(moves: tuple[int, ...]) -> list[list[int]]:
        data, found = Batches(make()), []
        for step in range(17):
            if step in moves:
                data = moved(data, make, n_before=step % 2)
            found.append(next(data).tolist())
        return found

    assert run((2, 3, 9, 13)) == run(())


@pytest.mark.parametrize("kind", ["map", "distributed"])
def test_torchdatas_loader_goes_on_in_a_map_style_dataset(kind: str) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="pip install torchdata")

    def make() -> Any:
        sampler = {"sampler": distributed()} if kind == "distributed" else {"shuffle": True}
        return stateful.StatefulDataLoader(Augmented(), 4, **sampler)

    assert stream(make, moves=(1, 5, 6, 13)) == stream(make)


class Unrepeatable(Dataset[Any]):
    """Samples that follow from something that no other process has."""

    def __len__(self) -> int:
        return N_SAMPLES

    def __getitem__(self, _index: int) -> float:
        return time.perf_counter()


def test_a_stream_that_cannot_be_reproduced_is_refused_and_the_message_says_what_to_do() -> None:
    data = Batches(DataLoader(Unrepeatable(), 4))
    next(data)
    with pytest.raises(MoveError, match=r"batch 1 of epoch 0 cannot be reproduced .* StatefulDataLoader"):
        Batches(DataLoader(Unrepeatable(), 4)).load_state_dict(data.state_dict())


@pytest.mark.parametrize("name", ["in order", "shuffled", "distributed"])
def test_taking_over_loads_no_batch_but_the_next(name: str) -> None:
    def make() -> tuple[Augmented, Batches]:
        samples = Augmented(200_000)
        sampler = DistributedSampler(samples, 2, 0) if name == "distributed" else None
        return samples, Batches(DataLoader(samples, 10, shuffle=name == "shuffled", sampler=sampler))

    _, data = make()
    next(data)
    state = data.state_dict()
    state["taken"] = 9_000
    samples, other = make()
    with pytest.raises(MoveError):  # the print in this made-up state is of another batch
        other.load_state_dict(state)
    assert samples.n_loaded == 10


def test_a_batch_is_known_by_its_content() -> None:
    batch = {"x": torch.arange(6).view(2, 3), "names": ["a", None], "n": 1}
    same = {"x": torch.arange(12).view(4, 3)[:2], "names": ["a", None], "n": 1}
    assert fingerprint(batch) == fingerprint(same)
    others = [{**batch, "x": batch["x"] + 1}, {**batch, "names": ["b", None]}, {**batch, "x": batch["x"].float()}]
    assert len({fingerprint(one) for one in (batch, *others)}) == 4


def test_a_loader_without_batches_ends_at_once() -> None:
    assert list(Batches([])) == []


def test_an_iterable_that_can_be_read_once_loses_no_batch() -> None:
    assert list(Batches(iter([1, 2, 3]))) == [1, 2, 3]
