"""The one interface that moves and recoveries use: connections between members, and device memory.

`TcpBackend` moves CPU tensors over TCP. A backend for NCCL would implement `Backend` with communicators instead of
sockets; docs/gpus.md says with which calls. None is here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch

from trainmover.data import random_state, restore_random
from trainmover.transport import Address, drain

if TYPE_CHECKING:
    from trainmover.context import Context

Addresses = Mapping[int, Address]


class Backend(Protocol):
    """Membership of all groups of this process, and access to the memory of its device.

    A planned move calls `prepare` while training continues, then at an iteration boundary `busy` and `switch`, or
    `abandon` if the move is aborted. A recovery calls `busy` and `resume`. Ranks never change.
    """

    def prepare(self, joiners: Addresses, generation: int, deadline: float) -> int:
        """Connect to joiners beside the running connections; return how many were opened."""

    def abandon(self, generation: int | None = None) -> None:
        """Drop what was prepared for one generation, or for all."""

    def switch(self, joiners: Addresses, generation: int) -> None:
        """Put what was prepared in the place of the leavers' connections."""

    def resume(self, joiners: Addresses, generation: int, deadline: float) -> None:
        """After an interruption: connect to joiners and bring all other connections back to a message boundary."""

    def busy(self, patience_s: float) -> list[str]:
        """Return the groups in which a collective is still under way after some patience."""

    def close(self) -> None:
        """Close all connections."""

    def synchronize(self) -> None:
        """Wait until everything that was launched on the device has ended."""

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a contiguous tensor's content in host memory; it may share memory with a CPU tensor."""

    def write(self, tensor: torch.Tensor, content: torch.Tensor) -> None:
        """Overwrite a tensor in place from host memory."""

    def random_state(self) -> dict[str, Any]:
        """Return the states of all random generators of the process, those of the device included."""

    def restore_random(self, state: dict[str, Any]) -> None:
        """Set the random generators."""


class TcpBackend:
    """CPU tensors over TCP.

    Args:
        owner: The process's groups and listener.
    """

    def __init__(self, owner: Context) -> None:
        self._owner = owner

    def prepare(self, joiners: Addresses, generation: int, deadline: float) -> int:
        """See `Backend`."""
        affected = [group for group in self._owner.groups.values() if joiners.keys() & set(group.members)]
        return sum(group.prepare(joiners, generation, deadline) for group in affected)

    def abandon(self, generation: int | None = None) -> None:
        """See `Backend`."""
        for group in list(self._owner.groups.values()):
            group.abandon(generation)

    def switch(self, joiners: Addresses, generation: int) -> None:
        """See `Backend`."""
        for group in self._owner.groups.values():
            group.switch(generation)
        self._owner.generation = generation
        self._owner.directory.update(joiners)

    def resume(self, joiners: Addresses, generation: int, deadline: float) -> None:
        """See `Backend`."""
        owner = self._owner
        owner.generation = generation
        self.abandon()
        self.prepare(joiners, generation, deadline)
        if owner.rank not in joiners:
            groups = list(owner.groups.values())
            drain(
                [link for group in groups for link in group.links() if link.peer not in joiners],
                generation,
                owner.wake,
                deadline,
            )
            for group in groups:
                group.rewind()
        self.switch(joiners, generation)

    def busy(self, patience_s: float) -> list[str]:
        """See `Backend`."""
        deadline = time.monotonic() + patience_s
        while True:
            busy = [group.label for group in self._owner.groups.values() if not group.idle]
            if not busy or time.monotonic() > deadline:
                return busy
            time.sleep(0.0005)

    def close(self) -> None:
        """See `Backend`."""
        for group in self._owner.groups.values():
            group.disconnect()

    def synchronize(self) -> None:
        """See `Backend`. CPU operations have ended when they return."""

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Backend`."""
        return tensor

    def write(self, tensor: torch.Tensor, content: torch.Tensor) -> None:
        """See `Backend`."""
        tensor.copy_(content)

    def random_state(self) -> dict[str, Any]:
        """See `Backend`."""
        return random_state()

    def restore_random(self, state: dict[str, Any]) -> None:
        """See `Backend`."""
        restore_random(state)
