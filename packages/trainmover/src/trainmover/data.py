"""The data position: an endless iterator over a loader that another process can continue with the very next batch.

A map-style loader's batches follow from few things: the sampler's random numbers and epoch number as they were when the
epoch began, and how many batches were taken. `Batches` records these. To continue, it draws the same order of indices
again and skips the indices that were used. It loads no skipped sample, so the time does not depend on the position
(list and range iterators jump; other samplers pass over about ten million indices a second).

Random numbers that a dataset draws (augmentation) are reproduced as well. In the main process they come from the
process's own generators, which are part of the moved state. In a worker they are seeded for each batch.

`Batches` holds one batch ahead and records its fingerprint. Whoever takes over loads that batch and compares. A move
that cannot reproduce the next batch is refused.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import pickle
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_flatten
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, get_worker_info

from trainmover.errors import MoveError

_JUMPING: tuple[type, ...] = (type(iter([])), type(iter(())), type(iter(range(0))))
_PRIME = 0x9E3779B97F4A7C15


class Batches:
    """An endless iterator over a loader, epoch after epoch, with its position as a state.

    At the beginning of each epoch but the first it advances the epoch of the sampler (or of an iterable dataset) with
    `set_epoch`, unless the script has set it since.

    Args:
        loader: A DataLoader. For an iterable dataset, torchdata's StatefulDataLoader continues from the dataset's own
            state. Any other iterable is continued by loading and dropping the batches before the position.
    """

    def __init__(self, loader: Any) -> None:
        self._is_stateful = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        self._order: _Order | None = None
        self._loader = loader
        if isinstance(loader, DataLoader) and not self._is_stateful and not isinstance(loader.dataset, IterableDataset):
            self._order = _Order(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
            self._loader = _with_order(loader, self._order)
        self._sources = list(_sources(loader))
        self._in_workers = bool(getattr(loader, "num_workers", 0))
        self._iterator: Any = None
        self._epoch = self._taken = 0
        self._epochs_set: list[int | None] = [None] * len(self._sources)
        self._began: dict[str, Any] | None = None
        self._before: tuple[bytes, dict[str, Any] | None] = b"", None
        self._pending: list[Any] = []

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        if not self._pending:
            self._fetch()
        if not self._pending:
            raise StopIteration
        batch = self._pending.pop()
        self._taken += 1
        self._fetch()
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return the position: the epoch, batches taken of it, what the order follows from, the next batch's print."""
        return {
            "epoch": self._epoch,
            "taken": self._taken,
            "began": self._began,
            "before": self._before,
            "epochs_now": [getattr(one, "epoch", None) for one in self._sources],
            "epochs_set": self._epochs_set,
            "next": fingerprint(self._pending[0]) if self._pending else "",
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a position.

        Raises:
            MoveError: The next batch is not the one that was recorded.
        """
        self._iterator, self._pending = None, []
        self._epoch, self._taken, self._began = state["epoch"], state["taken"], state["began"]
        if self._began is not None:
            _restore_sources(self._sources, self._began)
            self._before = loader_state, numbers = state["before"]
            if self._is_stateful:
                self._loader.load_state_dict(pickle.loads(loader_state))  # noqa: S301 - as the rest of the state
            self._start(self._taken)
            if numbers is not None:
                restore_random(numbers)
            self._pending = list(itertools.islice(self._iterator, 1))
            if not self._pending or fingerprint(self._pending[0]) != state["next"]:
                raise MoveError(
                    f"batch {self._taken} of epoch {self._epoch} cannot be reproduced in another process: the loader's "
                    "order or samples depend on something else than the random generators of torch, numpy and random, "
                    "the epoch and the position. Give the dataset or sampler a state_dict and load it with torchdata's "
                    "StatefulDataLoader, or derive its randomness from these generators"
                )
        for one, now in zip(self._sources, state["epochs_now"], strict=True):
            _set_epoch(one, now)
        self._epochs_set = list(state["epochs_set"])

    def _fetch(self) -> None:
        """Load the next batch; at the end of an epoch, the first one of the next. There may be none."""
        while True:
            if self._iterator is None:
                self._begin()
            self._before = self._basis()
            self._pending = list(itertools.islice(self._iterator, 1))
            if self._pending or not self._taken:
                return
            self._iterator, self._epoch, self._taken = None, self._epoch + 1, 0

    def _begin(self) -> None:
        for at, one in enumerate(self._sources):
            now = getattr(one, "epoch", None)
            if not isinstance(now, int):
                _set_epoch(one, self._epoch)
            elif self._began is not None and now == self._epochs_set[at]:
                _set_epoch(one, now + 1)
            self._epochs_set[at] = getattr(one, "epoch", None)
        self._began = _sources_state(self._sources, self._epoch)
        self._start(0)

    def _start(self, skip: int) -> None:
        """Make the iterator of the current epoch and pass over its first batches."""
        if self._order is None:
            self._iterator = iter(self._loader)
            if not self._is_stateful:
                next(itertools.islice(self._iterator, skip, skip), None)
            return
        self._order.begin(skip)
        before = random_state()
        self._iterator = iter(self._loader)
        restore_random(before)  # the loader draws a seed for its workers, but only when it starts them

    def _basis(self) -> tuple[bytes, dict[str, Any] | None]:
        """Return what the next batch follows from besides the order: a loader's own state, and random numbers."""
        own = pickle.dumps(self._loader.state_dict()) if self._is_stateful else b""
        return own, None if self._in_workers else random_state()


class _Place(NamedTuple):
    """What the order hands to the dataset: indices, and the numbers that seed a worker for them."""

    seed: int
    number: int
    indices: Any


class _Order:
    """The order of one epoch's batches, in place of a DataLoader's sampler. `begin` draws it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._places: Iterator[_Place] = iter(())

    def begin(self, skip: int) -> None:
        """Draw the order of an epoch and pass over its first batches."""
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        inner = self._inner
        if type(inner) is BatchSampler:
            indices: Any = _passed(iter(inner.sampler), skip * inner.batch_size)
            rest: Iterator[Any] = iter(BatchSampler(indices, inner.batch_size, inner.drop_last))
        else:
            rest = _passed(iter(inner), skip)
        first = list(itertools.islice(rest, 1))  # samplers draw their random numbers here
        numbered = enumerate(itertools.chain(first, rest), skip)
        self._places = (_Place(seed, number, indices) for number, indices in numbered)

    def __iter__(self) -> Iterator[_Place]:
        return self._places

    def __len__(self) -> int:
        return len(self._inner)


class _Seeded(Dataset[Any]):  # type: ignore[misc]
    """A map-style dataset whose random numbers in a worker follow from the batch alone."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, place: _Place) -> Any:
        _seed_worker(place)
        return self.dataset[place.indices]

    def __getitems__(self, place: _Place) -> Any:
        _seed_worker(place)
        together = getattr(self.dataset, "__getitems__", None)
        return together(place.indices) if together else [self.dataset[index] for index in place.indices]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name == "dataset" or name.startswith("__"):  # not there yet while it is unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)


def _seed_worker(place: _Place) -> None:
    if get_worker_info() is None:
        return
    seed = (place.seed + (place.number + 1) * _PRIME) % (1 << 63)
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % (1 << 32))


def _with_order(loader: DataLoader[Any], order: _Order) -> DataLoader[Any]:
    """Return a copy of a loader that takes its indices from `order`; a DataLoader does not allow to change them."""
    ours = copy.copy(loader)
    ours._iterator = None  # persistent workers that the script has started stay the script's
    object.__setattr__(ours, "dataset", _Seeded(loader.dataset))
    object.__setattr__(ours, "sampler" if loader.batch_sampler is None else "batch_sampler", order)
    return ours


def _passed(iterator: Iterator[Any], n: int) -> Iterator[Any]:
    """Pass over n items: at once where the iterator can jump."""
    if n and isinstance(iterator, _JUMPING):
        iterator.__setstate__(n)  # type: ignore[attr-defined]
    elif n:
        next(itertools.islice(iterator, n - 1, n), None)
    return iterator


def _sources(loader: Any) -> Iterator[Any]:
    """Return what the order may follow from: samplers, an iterable dataset, the loader itself."""
    batches = getattr(loader, "batch_sampler", None)
    found = [loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)]
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        found.append(loader.dataset)
    seen: set[int] = set()
    for one in found:
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one


def _set_epoch(source: Any, epoch: int | None) -> None:
    if epoch is not None and callable(getattr(source, "set_epoch", None)):
        source.set_epoch(epoch)


def _generators(source: Any) -> Iterator[tuple[str, Any]]:
    """Return the random generators that an object holds, by name."""
    for name, value in sorted(vars(source).items() if hasattr(source, "__dict__") else ()):
        if isinstance(value, torch.Generator | random.Random) or hasattr(value, "bit_generator"):
            yield name, value


def _sources_state(sources: list[Any], epoch: int) -> dict[str, Any]:
    """Record random numbers and epoch numbers at the beginning of an epoch; `epoch` where a source tells none."""
    held = [{name: _generator_state(one) for name, one in _generators(source)} for source in sources]
    epochs = [one.epoch if isinstance(getattr(one, "epoch", None), int) else epoch for one in sources]
    return {"random": random_state(), "held": held, "epochs": epochs}


def _restore_sources(sources: list[Any], began: Mapping[str, Any]) -> None:
    for source, held, epoch in zip(sources, began["held"], began["epochs"], strict=True):
        _set_epoch(source, epoch)
        for name, generator in _generators(source):
            state = held[name]
            if isinstance(generator, torch.Generator):
                generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
            elif isinstance(generator, random.Random):
                generator.setstate(state)
            else:
                generator.bit_generator.state = state
    restore_random(began["random"])


def _generator_state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    return generator.getstate() if isinstance(generator, random.Random) else generator.bit_generator.state


def random_state() -> dict[str, Any]:
    """Return the state of this process's CPU generators: torch, random, and numpy where it is loaded."""
    numpy = sys.modules.get("numpy")
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "python": random.getstate(),
        "numpy": numpy.random.get_state() if numpy is not None else None,
    }


def restore_random(state: Mapping[str, Any]) -> None:
    """Set this process's CPU generators."""
    torch.set_rng_state(torch.frombuffer(bytearray(state["torch"]), dtype=torch.uint8))
    random.setstate(state["python"])
    if state["numpy"] is not None:
        import numpy

        numpy.random.set_state(state["numpy"])


def fingerprint(batch: Any) -> str:
    """Return a digest of a batch: its structure, and the content of tensors, arrays and plain values in it."""
    leaves, structure = tree_flatten(batch)
    digest = hashlib.blake2b(repr(structure).encode(), digest_size=16)
    for leaf in leaves:
        array = leaf.detach().cpu().contiguous() if isinstance(leaf, torch.Tensor) and not leaf.is_sparse else leaf
        if isinstance(array, torch.Tensor):
            digest.update(f"{array.dtype}{tuple(array.shape)}".encode())
            if array.numel():
                digest.update(memoryview(array.view(-1).view(torch.uint8).numpy()))
        elif hasattr(array, "tobytes") and hasattr(array, "dtype"):
            digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
        else:
            plain = isinstance(array, str | bytes | int | float | bool | complex | None)
            digest.update(repr(array if plain else type(array)).encode())
    return digest.hexdigest()
