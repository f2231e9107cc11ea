"""Networks for tests: small, with short proofs and times."""

from __future__ import annotations

from typing import Any

from prifi.attack import adversary, network, quick
from prifi.outputs import Arrived
from prifi.simulate import Simulation

__all__ = ["Talk", "adversary", "quick", "running"]


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
    return network(clients, trustees, options.pop("parameters", quick()), options.pop("seed", 0), **options)
