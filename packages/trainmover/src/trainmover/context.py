"""The state of one process: its listener, its groups in order, and its first failure.

Inside an iteration, an exception for a lost peer would break the inner state of autograd, DDP's reducer or a pipeline
schedule. So after a failure the process's collectives return at once with their outputs as they are, the iteration runs
to its end, and the job drops its results. Outside iterations the error is raised.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trainmover.backend import Backend
from trainmover.errors import TrainmoverError
from trainmover.transport import Address, Hello, Listener, Wake

if TYPE_CHECKING:
    from trainmover.group import MovableGroup
    from trainmover.sandbox import Recording, Replay

Told = Callable[[TrainmoverError], None]


class Context:
    """The connections of one process.

    Args:
        token: The job's secret, shared by its members. Without one, each process makes a token of its own, and members
            learn those of the others from the store of the group.
        host: Address under which other members reach this process.
    """

    def __init__(self, token: str, host: str) -> None:
        self.token = token
        self.own_token = token or secrets.token_hex(16)
        self.tokens: dict[int, str] = {}
        self.wake = Wake()
        self.rank = -1
        self.generation = 0
        self.groups: dict[str, MovableGroup] = {}
        self.directory: dict[int, Address] = {}
        self.recorder: Recording | None = None
        self.replay: Replay | None = None
        self.agent: Any = None
        self.backend = Backend(self)
        self.code = ""
        self.shadow_iterations = 0
        self.roles_left: list[dict[str, Any]] = []
        self.shielded = False
        self.failure: TrainmoverError | None = None
        self.broken: Exception | None = None  # a collective that no recovery can mend
        self.on_failure: Told = lambda _error: None
        self.listener = Listener(host, self.own_token, self._admit)
        self._lock = threading.Lock()

    def hello(self, purpose: str, group: str, generation: int, target: int) -> Hello:
        """Return the greeting with which this process connects to another."""
        return Hello(self.tokens.get(target, self.token), purpose, group, generation, self.rank, target)

    def failed(self, error: TrainmoverError) -> bool:
        """Keep the first failure and report it.

        Returns:
            Whether the failure is taken care of, so that the collective may end as if nothing had happened.
        """
        with self._lock:
            first, self.failure = self.failure is None, self.failure or error
        if first:
            self.wake.set()
            self.on_failure(error)
        return self.shielded

    def interrupt(self, reason: TrainmoverError) -> None:
        """End all collectives that are under way: a recovery has begun."""
        with self._lock:
            self.failure = self.failure or reason
        self.wake.set()

    def recovered(self) -> None:
        """Allow collectives again."""
        with self._lock:
            self.failure = None
        self.wake.clear()

    def _admit(self, hello: Hello) -> str:
        if self.rank >= 0 and hello.target != self.rank:
            return f"wrong role: rank {hello.target} was called, this process is rank {self.rank}"
        if hello.generation < self.generation:
            return f"generation {hello.generation} is over, the job is in generation {self.generation}"
        return ""


_of_process: list[Context] = []


def context() -> Context:
    """Return this process's context. TRAINMOVER_TOKEN and TRAINMOVER_ADDRESS set its token and address."""
    if not _of_process:
        _of_process.append(Context(os.environ.get("TRAINMOVER_TOKEN", ""), _own_address()))
    return _of_process[0]


def _own_address() -> str:
    """Return the address from which this machine reaches MASTER_ADDR."""
    given = os.environ.get("TRAINMOVER_ADDRESS")
    if given:
        return given
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ.get("MASTER_ADDR", "127.0.0.1"), 9))
        return str(probe.getsockname()[0])
    return "127.0.0.1"
