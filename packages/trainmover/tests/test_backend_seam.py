"""A move uses a device through the one interface of `trainmover.backend`: tried with a device that is not the CPU's.

The device is made up. Its kernels run late, as a GPU's do: a write is visible to the host only after `synchronize`. It
has a random generator of its own. No GPU has run this code.
"""

from __future__ import annotations

import functools
import socket
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainmover import transfer
from trainmover.backend import Backend
from trainmover.context import Context
from trainmover.snapshots import SnapshotStore
from trainmover.state import TrainingState
from trainmover.transport import Link, Wake


class LateDevice(Backend):
    """A device whose kernels wait in a queue until somebody synchronizes."""

    def __init__(self, owner: Context) -> None:
        super().__init__(owner)
        self.queue: list[Callable[[], object]] = []
        self.generator = torch.Generator().manual_seed(0)
        self.n_synchronized = 0

    def launch(self, kernel: Callable[[], object]) -> None:
        self.queue.append(kernel)

    def synchronize(self) -> None:
        self.n_synchronized += 1
        while self.queue:
            self.queue.pop(0)()

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        assert not self.queue, "the device was read while kernels were waiting"
        return tensor.clone()  # host memory of its own

    def write(self, tensor: torch.Tensor, content: torch.Tensor) -> None:
        with torch.no_grad():
            self.launch(functools.partial(tensor.detach().copy_, content.clone()))

    def random_state(self) -> dict[str, Any]:
        return {**super().random_state(), "device": self.generator.get_state()}

    def restore_random(self, state: dict[str, Any]) -> None:
        super().restore_random(state)
        self.generator.set_state(state["device"])


class Member:
    """A model on a device, and how it trains."""

    def __init__(self, make: Callable[[Context], Backend], seed: int) -> None:
        self.owner = Context("secret", "127.0.0.1")
        self.backend = self.owner.backend = make(self.owner)
        torch.manual_seed(seed)
        self.model = torch.nn.Linear(4, 3)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.state = TrainingState([self.model], [self.optimizer], [], self.backend)

    def step(self) -> None:
        """One iteration, of which the last kernel is not done when the call returns."""
        generator = self.backend.generator if isinstance(self.backend, LateDevice) else None
        given = torch.rand(5, 4, generator=generator)

        def kernel() -> None:
            self.optimizer.zero_grad()
            self.model(given).square().sum().backward()
            self.optimizer.step()

        if isinstance(self.backend, LateDevice):
            self.backend.launch(kernel)
        else:
            kernel()


def sent(leaver: Member, joiner: Member) -> None:
    """Send the leaver's state over a connection and put it in place."""
    ours, theirs = (Link(one, 0) for one in socket.socketpair(socket.AF_UNIX))
    deadline = time.monotonic() + 20
    snapshot = leaver.state.snapshot(7)
    thread = threading.Thread(target=transfer.send_snapshot, args=(ours, snapshot, Wake(), deadline))
    thread.start()
    taken = transfer.receive_snapshot(theirs, Wake(), deadline)
    thread.join()
    joiner.state.restore(taken)


@pytest.mark.parametrize("make", [Backend, LateDevice])
def test_a_joiner_goes_on_with_the_very_same_values(
    make: Callable[[Context], Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket.socket, "setsockopt", lambda *_args: None)  # a pair of UNIX sockets has no TCP_NODELAY
    leaver, joiner = Member(make, 1), Member(make, 2)
    for _ in range(3):
        leaver.step()
    joiner.step()
    sent(leaver, joiner)
    torch.manual_seed(3)
    leaver.step()
    torch.manual_seed(3)
    joiner.step()
    one, other = leaver.state.snapshot(8), joiner.state.snapshot(8)
    assert one.tensors.keys() == other.tensors.keys() and len(one.tensors) == 8
    assert all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())


def test_a_copy_and_a_roll_back_wait_for_the_device() -> None:
    member = Member(LateDevice, 1)
    device = member.backend
    store = SnapshotStore(member.owner, lambda _message: None, None, 0)
    try:
        member.step()
        store.take(member.state.snapshot(1))
        kept = {name: one.clone() for name, one in store.own(1).tensors.items()}
        before = device.n_synchronized  # type: ignore[attr-defined]
        member.step()
        member.state.restore(store.own(1))
        assert device.n_synchronized > before  # type: ignore[attr-defined]
        back = member.state.snapshot(1)
        assert all(torch.equal(one, back.tensors[name]) for name, one in kept.items())
    finally:
        store.stop()


def test_nothing_but_the_interface_is_asked_of_a_backend() -> None:
    """Agent and job go through `Backend`; a backend for NCCL has to offer no more."""
    asked: list[str] = []

    class Listening:
        def __getattr__(self, name: str) -> object:
            asked.append(name)
            return lambda *_args: [] if name == "busy" else 0

    from tests.test_agent import decision, hold, member

    agent, job, _ = member(100)
    agent._owner.backend = Listening()  # type: ignore[assignment]
    agent.store = SimpleNamespace(set_stable=lambda _step: None)  # type: ignore[assignment]
    agent._prepare({"generation": 1, "joiners": {"1": ["127.0.0.1", 1]}})
    agent._heard(hold(1, 105), b"")
    agent._heard(decision(1), b"")
    agent.hold = hold(2, 100)
    agent.decision = decision(2, "switch")
    job._hold(agent)
    assert set(asked) == {"prepare", "abandon", "busy", "switch"}
    assert set(asked) < {name for name in vars(Backend) if not name.startswith("_")}
