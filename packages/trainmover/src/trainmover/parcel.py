"""States on the way between members: what is in it as JSON, then the bytes, as one message of a link."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from trainmover.errors import MoveError
from trainmover.state import Image, Piece, digest, empty_like, view_of
from trainmover.transport import Link, Traffic, Wake, pump

_PARCEL = 200


def send(link: Link, content: dict[str, Any], views: Iterable[memoryview], wake: Wake, deadline: float) -> None:
    """Send one parcel.

    Raises:
        LinkError: As `pump`.
    """
    listed = list(views)
    head = json.dumps(content).encode()
    traffic = Traffic(link)
    traffic.sends(len(head), _PARCEL, len(head) + sum(view.nbytes for view in listed))
    traffic.push(memoryview(head))
    for view in listed:
        traffic.push(view)
    pump([traffic], wake, deadline)


def receive(
    link: Link, places: Callable[[dict[str, Any]], Sequence[memoryview]], wake: Wake, deadline: float
) -> dict[str, Any]:
    """Receive one parcel.

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


def send_image(link: Link, image: Image, digests: dict[str, str], wake: Wake, deadline: float) -> None:
    """Send a state whole."""
    content = {
        "step": image.step,
        "n_small": len(image.small),
        "pieces": [asdict(piece) for piece in image.pieces()],
        "digests": digests,
    }
    send(link, content, [memoryview(image.small), *(view_of(one) for one in image.tensors.values())], wake, deadline)


def receive_image(link: Link, wake: Wake, deadline: float) -> Image:
    """Receive a state whole, and check that it is what was sent.

    Raises:
        MoveError: A digest differs.
        LinkError: As `pump`.
    """
    image = Image(-1, b"")
    small = bytearray()

    def places(content: dict[str, Any]) -> list[memoryview]:
        small.extend(bytes(content["n_small"]))
        image.tensors = {one["name"]: empty_like(piece_of(one)) for one in content["pieces"]}
        return [memoryview(small), *(view_of(one) for one in image.tensors.values())]

    content = receive(link, places, wake, deadline)
    image.step, image.small = content["step"], bytes(small)
    check(image, content["digests"])
    return image


def piece_of(plain: dict[str, Any]) -> Piece:
    """A piece from its JSON."""
    return Piece(plain["name"], plain["dtype"], tuple(plain["shape"]), plain["n_bytes"])


def check(image: Image, digests: dict[str, str]) -> None:
    """Compare a state with the digests that its owner computed.

    Raises:
        MoveError: They differ.
    """
    for name, expected in digests.items():
        if digest(view_of(image.tensors[name]) if name else image.small) != expected:
            raise MoveError(f"the state that came differs from the one that was sent (at {name or 'the small part'})")
