"""Messages over a link: content as JSON, then bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from trainmover.collectives import bytes_of
from trainmover.state import Snapshot, empty
from trainmover.transport import Link, Traffic, Wake, pump

_TRANSFER = 200


def send(link: Link, content: dict[str, Any], views: Iterable[memoryview], wake: Wake, deadline: float) -> None:
    """Send one message.

    Raises:
        LinkError: As `pump`.
    """
    head = json.dumps(content).encode()
    parts = [memoryview(head), *views]
    traffic = Traffic(link)
    traffic.sends(len(head), _TRANSFER, sum(part.nbytes for part in parts))
    for part in parts:
        traffic.push(part)
    pump([traffic], wake, deadline)


def receive(
    link: Link, places: Callable[[dict[str, Any]], Sequence[memoryview]], wake: Wake, deadline: float
) -> dict[str, Any]:
    """Receive one message.

    Args:
        link: The connection.
        places: Given what is in it, where its bytes shall go.
        wake: Ends the wait early.
        deadline: `time.monotonic()` after which a wait is an error.

    Raises:
        LinkError: As `pump`.
    """
    traffic = Traffic(link)
    content: dict[str, Any] = {}

    def on_header(n_head: int, _code: int, _n_bytes: int) -> None:
        head = bytearray(n_head)

        def on_head() -> None:
            content.update(json.loads(head))
            for view in places(content):
                traffic.into(view)

        traffic.into(memoryview(head), on_head)

    traffic.listens(on_header)
    pump([traffic], wake, deadline)
    return content


def send_snapshot(link: Link, snapshot: Snapshot, wake: Wake, deadline: float) -> None:
    """Send a complete snapshot with its digests."""
    digests = snapshot.known or snapshot.digests()
    content = {"step": snapshot.step, "n_small": len(snapshot.small), "specs": snapshot.specs(), "digests": digests}
    send(link, content, snapshot.views(), wake, deadline)


def receive_snapshot(link: Link, wake: Wake, deadline: float) -> Snapshot:
    """Receive a snapshot, and check that it is what was sent.

    Raises:
        MoveError: A digest differs.
        LinkError: As `pump`.
    """
    small = bytearray()
    tensors: dict[str, torch.Tensor] = {}

    def places(content: dict[str, Any]) -> list[memoryview]:
        small.extend(bytes(content["n_small"]))
        tensors.update((name, empty(spec)) for name, spec in content["specs"].items())
        return [memoryview(small), *(bytes_of(one) for one in tensors.values())]

    content = receive(link, places, wake, deadline)
    snapshot = Snapshot(content["step"], bytes(small), tensors, content["digests"])
    snapshot.check()
    return snapshot
