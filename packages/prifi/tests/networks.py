"""Networks for tests: small, with short proofs and times."""

from __future__ import annotations

import random
from typing import Any

from prifi.outputs import Arrived
from prifi.parameters import Parameters
from prifi.simulate import Simulation, echo_exit


def quick(**changes: Any) -> Parameters:
    """Settings of a small fast network."""
    values = {
        "cell_bytes": 200, "down_bytes": 300, "shuffle_rounds": 8, "minimum_set": 2,
        "absent_s": 2.0, "resend_s": 0.5, "gather_s": 0.05,
    }  # fmt: skip
    return Parameters(**{**values, **changes})


def adversary(base: type, seed: int = 0, **changes: Any) -> type:
    """A class of adversary with its own chance and settings."""
    return type(base.__name__, (base,), {**changes, "chance": random.Random(seed)})


class Talk:
    """A client that sends bytes to the echo at the exit and collects what returns."""

    def __init__(self, simulation: Simulation, index: int, data: bytes, forever: bool = False) -> None:
        self.got = bytearray()
        self.ended = ""
        self._streams = simulation.client(index).streams
        self._data = data
        self._forever = forever
        self.tag = self._streams.open("target.example", 80)
        simulation.on_stream[f"client-{index}"] = self._take

    def _take(self, arrived: Arrived) -> None:
        event = arrived.event
        if event.kind == "opened":
            self._streams.write(self.tag, self._data)
            if not self._forever:
                self._streams.finish(self.tag)
        elif event.kind == "data":
            self.got += event.data
            self._streams.consumed(self.tag, len(event.data))
            if self._forever:
                self._streams.write(self.tag, event.data)
        elif event.kind in ("finished", "reset", "refused"):
            self.ended = event.kind


def running(clients: int = 5, trustees: int = 2, **options: Any) -> Simulation:
    """A simulation with an echo at its exit, run until its first epoch has begun or somebody has stopped."""
    parameters = options.pop("parameters", quick())
    simulation = Simulation(clients, trustees, parameters, **options)
    echo_exit(simulation)
    simulation.run(30, lambda: simulation.running(clients)() or bool(simulation.halted))
    return simulation
