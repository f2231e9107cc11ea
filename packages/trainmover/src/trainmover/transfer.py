"""Messages over a link: content as JSON, then bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from trainmover.errors import MoveError
from trainmover.state import Snapshot, TensorSpec, digest, empty_like, view_of
from trainmover.transport import Link, Traffic, Wake, pump

_TRANSFER = 200


def send(link: Link, content: dict[str, Any], views: Iterable[memoryview], wake: Wake, deadline: float) -> None:
    """Send one message.

    Raises:
        LinkError: As `pump`.
    """
    listed = list(views)
    head = json.dumps(content).encode()
    traffic = Traffic(link)
    traffic.sends(len(head), _TRANSFER, len(head) + sum(view.nbytes for view in listed))
    traffic.push(memoryview(head))
    for view in listed:
        traffic.push(view)
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


def send_snapshot(link: Link, snapshot: Snapshot, digests: dict[str, str], wake: Wake, deadline: float) -> None:
    """Send a complete snapshot."""
    content = {
        "step": snapshot.step,
        "n_small": len(snapshot.small),
        "pieces": [asdict(piece) for piece in snapshot.pieces()],
        "digests": digests,
    }
    send(
        link,
        content,
        [memoryview(snapshot.small), *(view_of(one) for one in snapshot.tensors.values())],
        wake,
        deadline,
    )


def receive_snapshot(link: Link, wake: Wake, deadline: float) -> tuple[Snapshot, dict[str, str]]:
    """Receive a snapshot and its digests, and check that it is what was sent.

    Raises:
        MoveError: A digest differs.
        LinkError: As `pump`.
    """
    snapshot = Snapshot(-1, b"")
    small = bytearray()

    def places(content: dict[str, Any]) -> list[memoryview]:
        small.extend(bytes(content["n_small"]))
        snapshot.tensors = {one["name"]: empty_like(spec_of(one)) for one in content["pieces"]}
        return [memoryview(small), *(view_of(one) for one in snapshot.tensors.values())]

    content = receive(link, places, wake, deadline)
    snapshot.step, snapshot.small = content["step"], bytes(small)
    check(snapshot, content["digests"])
    return snapshot, content["digests"]


def spec_of(plain: dict[str, Any]) -> TensorSpec:
    """Return a tensor spec from its JSON."""
    return TensorSpec(plain["name"], plain["dtype"], tuple(plain["shape"]), plain["n_bytes"])


def check(snapshot: Snapshot, digests: dict[str, str]) -> None:
    """Compare a snapshot with the digests that its owner computed.

    Raises:
        MoveError: They differ.
    """
    for name, expected in digests.items():
        if digest(view_of(snapshot.tensors[name]) if name else snapshot.small) != expected:
            raise MoveError(f"the state that came differs from the one that was sent (at {name or 'the small part'})")
