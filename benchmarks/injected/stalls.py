"""The faults that block a worker for good, or for `seconds`, after which it goes on by itself."""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import os
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from eroica.demo.faults import THROTTLE_PROGRAM, Fault, HookedFault, Place, end_program, start_program

STORAGE_PROGRAM = Path(__file__).with_name("storage.py")


@dataclass
class HangQueue(Fault):
    """The worker's prefetch thread puts into a full queue that nobody empties; the loop waits for its other queue."""

    name: ClassVar[str] = "hang-queue"
    seconds: float = 0.0
    pause: Any = field(default=None, init=False, repr=False)
    datasets: list[Any] = field(default_factory=list, init=False, repr=False)

    def wrap_dataset(self, dataset: Any, place: Place) -> Any:
        if self.pause is None:
            self.pause = multiprocessing.get_context("spawn").RawValue(ctypes.c_double, 0.0)
        self.datasets.append(place.parts["ahead"](dataset, self.pause))
        return self.datasets[-1]

    def start(self, model: Any, place: Place) -> None:
        """Nobody empties the second queue from now on; it is full some iterations later."""
        if self.pause is not None:
            self.pause.value = self.seconds or math.inf

    def close(self) -> None:
        for dataset in self.datasets:
            dataset.close()


@dataclass
class HangLock(HookedFault):
    """Two threads of the worker wait for each other's lock, the training thread being one of them."""

    name: ClassVar[str] = "hang-lock"
    seconds: float = 0.0

    def build(self, place: Place) -> Any:
        part = place.parts["statistics"](self.seconds)
        part.write_once()
        return part


@dataclass
class HangInterpreterLock(HookedFault):
    """A native function waits in the training thread, without releasing the interpreter lock: no thread can run."""

    name: ClassVar[str] = "hang-interpreter-lock"
    seconds: float = 0.0

    def build(self, place: Place) -> Any:
        part = place.parts["native"](self.seconds)
        part.forget_table()
        return part


@dataclass
class StorageFault(Fault):
    """Base of faults of a server from which the worker's dataset reads; works in loader processes too.

    A real server in a process of its own.
    """

    server: Any = field(default=None, init=False, repr=False)
    port: int = field(default=0, init=False, repr=False)
    datasets: list[Any] = field(default_factory=list, init=False, repr=False)

    def orders(self) -> tuple[object, ...]:
        """What the server is told when it starts."""
        raise NotImplementedError

    def items(self) -> tuple[int, ...]:
        """Items of a block, where that matters."""
        return ()

    def wrap_dataset(self, dataset: Any, place: Place) -> Any:
        """The dataset behind its server, which starts here."""
        if self.server is None:
            self.server = start_program(STORAGE_PROGRAM, os.getpid(), *self.orders(), stdout=subprocess.PIPE)
            self.port = int(self.server.stdout.readline())
        self.datasets.append(place.parts["storage"](dataset, self.port, *self.items()))
        return self.datasets[-1]

    def tell(self, number: signal.Signals) -> None:
        """Signal the server, if there is one."""
        if self.server is not None:
            self.server.send_signal(number)

    def close(self) -> None:
        """Hang up and end the server."""
        for dataset in self.datasets:
            dataset.close()
        end_program(self.server)
        self.server = None


@dataclass
class HangStorage(StorageFault):
    """The server takes requests and no longer answers."""

    name: ClassVar[str] = "hang-storage"
    seconds: float = 0.0

    def orders(self) -> tuple[object, ...]:
        return ("--silent-s", self.seconds)

    def start(self, model: Any, place: Place) -> None:
        self.tell(signal.SIGUSR1)


@dataclass
class DeadWorker(Fault):
    """The worker's process kills itself, with signal `number`."""

    name: ClassVar[str] = "dead-worker"
    number: float = float(signal.SIGKILL)

    def start(self, model: Any, place: Place) -> None:
        os.kill(os.getpid(), int(self.number))


@dataclass
class StoppedWorker(Fault):
    """The worker's process is stopped (SIGSTOP) by a program beside it, which continues it after `seconds`."""

    name: ClassVar[str] = "stopped-worker"
    seconds: float = 0.0
    helper: Any = field(default=None, init=False, repr=False)

    def start(self, model: Any, place: Place) -> None:
        self.helper = start_program(THROTTLE_PROGRAM, os.getpid(), 0, 1000 * self.seconds or math.inf, 1)

    def stop(self) -> None:
        end_program(self.helper)


STALLS: tuple[type[Fault], ...] = (
    HangQueue,
    HangLock,
    HangInterpreterLock,
    HangStorage,
    DeadWorker,
    StoppedWorker,
)
