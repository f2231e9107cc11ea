"""The state of a member at an iteration boundary: parameters, buffers, optimizer, random state, data position.

Tensors are named; the rest is small and pickled. Gradients are not part of the state: at a boundary they are used up,
so accumulation has to stay within one `job.iteration()`.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader

from trainmover.backend import Backend
from trainmover.collectives import bytes_of
from trainmover.errors import MoveError, UsageError


class Stateful(Protocol):
    """An object with a state: a scheduler, a scaler, Batches."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state."""


@dataclass
class Snapshot:
    """A member's state at one iteration boundary.

    Attributes:
        step: Iterations done.
        small: Pickled: random numbers, data position, plain values of the optimizer, further state.
        tensors: Tensors by name; views of live ones, or copies.
        known: Digests, once they have been computed or received; of a buddy's copy also those of tensors that are
            not held because they equal this member's own.
    """

    step: int
    small: bytes
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    known: dict[str, str] | None = None

    def specs(self) -> dict[str, Any]:
        """Return dtype and shape of each tensor as JSON, in order."""
        return {name: [str(one.dtype).removeprefix("torch."), [*one.shape]] for name, one in self.tensors.items()}

    def views(self) -> list[memoryview]:
        """Return the memory of everything, in order."""
        return [memoryview(self.small), *(bytes_of(one) for one in self.tensors.values())]

    def digests(self) -> dict[str, str]:
        """Return a digest of each tensor, and of the small part under the empty name."""
        return {"": digest(self.small), **{name: digest(bytes_of(one)) for name, one in self.tensors.items()}}

    def check(self) -> None:
        """Compare the content with the digests that its owner computed.

        Raises:
            MoveError: They differ.
        """
        wrong = (self.known or {}).items() - self.digests().items()
        if wrong:
            raise MoveError(f"the state that came differs from the one that was sent (at {min(wrong)[0] or 'small'})")


def digest(content: memoryview | bytes) -> str:
    """Return a 16-byte digest as text; equal digests are taken for equal content.

    It is half of SHA-256, which processors with SHA instructions compute twice as fast as BLAKE2b.
    """
    return hashlib.sha256(content).hexdigest()[:32]


def empty(spec: Any) -> torch.Tensor:
    """Return an uninitialized tensor of a spec's dtype and shape."""
    return torch.empty(spec[1], dtype=getattr(torch, spec[0]))


class TrainingState:
    """Reads and writes everything in a member that an iteration changes.

    Args:
        models: Modules; their parameters and buffers, of DTensors the local part.
        optimizers: Optimizers over those parameters.
        others: Anything with state_dict and load_state_dict: Batches, scheduler, scaler.
        backend: Reads and writes the memory of the device.

    Raises:
        UsageError: One of `others` cannot tell its state.
    """

    def __init__(
        self,
        models: Sequence[torch.nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        others: Sequence[Stateful],
        backend: Backend,
    ) -> None:
        for one in others:
            if isinstance(one, DataLoader):
                raise UsageError(
                    f"a {type(one).__name__} does not continue in the middle of an epoch by itself: wrap it, as in "
                    "data = trainmover.Batches(loader), pass data to attach, and take batches with next(data)"
                )
            if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
                raise UsageError(
                    f"{type(one).__name__} has no state_dict and load_state_dict, so its state cannot be moved; "
                    "for a source of batches use trainmover.Batches"
                )
        self._models, self._optimizers, self._others = list(models), list(optimizers), list(others)
        self._backend = backend

    def snapshot(self, step: int) -> Snapshot:
        """Return the current state in host memory; on CPUs its tensors are views of the live ones."""
        self._backend.synchronize()
        tensors = dict(self._model_tensors())
        plain: list[Any] = []
        for place, optimizer in enumerate(self._optimizers):
            values, found = _optimizer_state(place, optimizer)
            tensors.update(found)
            plain.append(values)
        small = {
            "optimizers": plain,
            "others": [one.state_dict() for one in self._others],
            "training": [[module.training for module in model.modules()] for model in self._models],
            "random": self._backend.random_state(),
        }
        tensors = {name: self._backend.read(one) for name, one in tensors.items()}
        return Snapshot(step, pickle.dumps(small), tensors)

    def restore(self, snapshot: Snapshot) -> None:
        """Load a state: overwrite every value in place.

        Raises:
            MoveError: The state belongs to another model; nothing has been changed.
        """
        own = dict(self._model_tensors())
        theirs = {name: one for name, one in snapshot.tensors.items() if name.startswith("model")}
        wrong = [name for name in own.keys() | theirs.keys() if _kind(own.get(name)) != _kind(theirs.get(name))]
        if wrong:
            raise MoveError(
                f"the state is of another model or role: {len(wrong)} tensors differ, the first is {min(wrong)}"
            )
        self._backend.synchronize()  # no kernel that is still under way writes after what is put in place
        for name, one in theirs.items():
            self._backend.write(own[name], one)
        small = pickle.loads(snapshot.small)  # noqa: S301 - from a member of this job that knows its token
        for place, (optimizer, plain) in enumerate(zip(self._optimizers, small["optimizers"], strict=True)):
            self._restore_optimizer(place, optimizer, plain, snapshot.tensors)
        for one, state in zip(self._others, small["others"], strict=True):
            one.load_state_dict(state)
        for model, modes in zip(self._models, small["training"], strict=True):
            for module, mode in zip(model.modules(), modes, strict=True):
                module.training = mode
        self._backend.restore_random(small["random"])
        self._backend.synchronize()

    def _model_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for place, model in enumerate(self._models):
            for name, one in (*model.named_parameters(), *model.named_buffers()):
                yield f"model{place}.{name}", _local(one)

    def _restore_optimizer(
        self, place: int, optimizer: torch.optim.Optimizer, groups: Any, tensors: Mapping[str, torch.Tensor]
    ) -> None:
        for g, (group, (settings, values)) in enumerate(zip(optimizer.param_groups, groups, strict=True)):
            group.update(settings)
            for p, (parameter, plain) in enumerate(zip(group["params"], values, strict=True)):
                state = optimizer.state[parameter]
                for key in [key for key in state if key not in plain]:
                    del state[key]
                for key, value in plain.items():
                    given = tensors.get(f"optimizer{place}.{g}.{p}.{key}")
                    state[key] = value if given is None else self._taken(state.get(key), given, parameter)

    def _taken(self, present: Any, given: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        """Write an optimizer's tensor in place; create it on the parameter's device if there is none like it."""
        if not (isinstance(present, torch.Tensor) and _kind(_local(present)) == _kind(given)):
            if hasattr(parameter, "to_local") and given.shape == _local(parameter).shape:
                present = torch.zeros_like(parameter, dtype=given.dtype)
            else:  # counters, as Adam's "step", stay in host memory
                present = torch.empty_like(given, device=parameter.device if given.ndim else "cpu")
        self._backend.write(_local(present), given)
        return present


def _kind(tensor: torch.Tensor | None) -> object:
    return None if tensor is None else (tensor.dtype, tuple(tensor.shape))


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a tensor's memory; of a DTensor, of its local part."""
    local = tensor.detach()
    local = local.to_local() if hasattr(local, "to_local") else local
    if not local.is_contiguous():
        raise UsageError("a parameter or optimizer state is not contiguous in memory; call .contiguous() on it before")
    return local


def _optimizer_state(place: int, optimizer: torch.optim.Optimizer) -> tuple[Any, dict[str, torch.Tensor]]:
    """Return an optimizer's plain values by place, and its tensors by name."""
    tensors: dict[str, torch.Tensor] = {}
    groups = []
    for g, group in enumerate(optimizer.param_groups):
        values: list[dict[str, Any]] = []
        for p, parameter in enumerate(group["params"]):
            state = optimizer.state.get(parameter, {})
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    tensors[f"optimizer{place}.{g}.{p}.{key}"] = _local(value)
            values.append({key: None if isinstance(value, torch.Tensor) else value for key, value in state.items()})
        groups.append(({key: value for key, value in group.items() if key != "params"}, values))
    return groups, tensors
