"""The one interface that moves and recoveries use: connections between members, and device memory.

It moves CPU tensors over TCP. A backend for NCCL would override `Backend` with communicators instead of sockets;
docs/gpus.md says with which calls. None is here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from trainmover.data import random_state, restore_random
from trainmover.transport import Address, drain

if TYPE_CHECKING:
    from trainmover.context import Context

Addresses = Mapping[int, Address]


class Backend:
    """Membership of all groups of this process, and access to the memory of its device: CPU tensors over TCP.

    A planned move calls `prepare` while training continues, then at an iteration boundary `busy` and `switch`, or
    `abandon` if the move is aborted. A recovery calls `busy` and `resume`. Ranks never change. The memory's part is
    `synchronize`, `read`, `write` and the random generators.

    Args:
        owner: The process's groups and listener.
    """

    def __init__(self, owner: Context) -> None:
        self._owner = owner

    def prepare(self, joiners: Addresses, generation: int, deadline: float) -> None:
        """Connect to joiners beside the running connections."""
        for group in self._owner.groups.values():
            if joiners.keys() & set(group.members):
                group.prepare(joiners, generation, deadline)

    def abandon(self, generation: int | None = None) -> None:
        """Drop what was prepared for one generation, or for all."""
        for group in list(self._owner.groups.values()):
            group.abandon(generation)

    def switch(self, joiners: Addresses, generation: int) -> None:
        """Put what was prepared in the place of the leavers' connections."""
        for group in self._owner.groups.values():
            group.switch(generation)
        self._owner.generation = generation
        self._owner.directory.update(joiners)

    def resume(self, joiners: Addresses, generation: int, deadline: float) -> None:
        """After an interruption: connect to joiners and bring all other connections back to a message boundary."""
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
        """Return the groups in which a collective is still under way after some patience."""
        deadline = time.monotonic() + patience_s
        while True:
            busy = [group.label for group in self._owner.groups.values() if not group.idle]
            if not busy or time.monotonic() > deadline:
                return busy
            time.sleep(0.0005)

    def close(self) -> None:
        """Close all connections."""
        for group in self._owner.groups.values():
            group.disconnect()

    def synchronize(self) -> None:
        """Wait until everything that was launched on the device has ended."""

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a contiguous tensor's content in host memory; it may share memory with a CPU tensor."""
        return tensor

    def write(self, tensor: torch.Tensor, content: torch.Tensor) -> None:
        """Overwrite a tensor in place from host memory."""
        tensor.copy_(content)

    #: The states of all random generators of the process; a device's backend adds its own.
    random_state = staticmethod(random_state)
    restore_random = staticmethod(restore_random)
