"""Where a connection breaks, other ports of its path come before other paths; two carriers over loopback."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from c4p.connections import Neighbours
from c4p.path_choice import PathChoice
from c4p.ring import Operation, RingPosition, gloo_chunks, reducer, ring_operation
from c4p.sender import TRUST_BYTES
from c4p.transport import Transport

A, B = ("a",), ("b",)


def free_ports(count: int) -> list[int]:
    """Source ports that nobody has."""
    socks = [socket.socket() for _ in range(count)]
    for sock in socks:
        sock.bind(("127.0.0.1", 0))
    ports = [sock.getsockname()[1] for sock in socks]
    for sock in socks:
        sock.close()
    return ports


@pytest.fixture(autouse=True)
def no_path_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of two paths is slower on this machine is no matter of these tests."""
    monkeypatch.setattr("c4p.sender.slow_flows", lambda _flows, _now: [])


@contextmanager
def two_members() -> Iterator[tuple[list[Transport], list[PathChoice]]]:
    """Two members, each with two paths of three ports to the other."""
    token, listeners = secrets.token_bytes(16), [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    for listener in listeners:
        listener.setblocking(False)
    ports = free_ports(12)
    paths = [PathChoice({A: ports[k : k + 3], B: ports[k + 3 : k + 6]}, [A, B]) for k in (0, 6)]
    carriers = []
    for rank in range(2):
        other = 1 - rank
        at = Neighbours(rank, 2, token, "127.0.0.1", other, listeners[other].getsockname(), other)
        carriers.append(Transport(at, listeners[rank], paths[rank], 20.0))
    try:
        for transport in carriers:
            transport.wait_connected(10.0)
        yield carriers, paths
    finally:
        for transport in carriers:
            transport.close(2.0)


def allreduce(rank: int, array: np.ndarray) -> Operation:  # type: ignore[type-arg]
    chunks = gloo_chunks(array.size, array.itemsize, 2)
    facts = (array.dtype.str, "sum")
    buffer = memoryview(array.view(np.uint8))
    return ring_operation(
        "allreduce", buffer, array.itemsize, chunks, RingPosition(rank, 2, 2), reducer(array, "sum"), facts
    )


def exchange(carriers: list[Transport], length: int) -> None:
    """One sum, and that it is right."""
    arrays = [np.full(length, rank + 1, dtype=np.float32) for rank in range(2)]
    for done in [transport.submit(allreduce(rank, arrays[rank])) for rank, transport in enumerate(carriers)]:
        done.result(20.0)
    assert all((array == 3).all() for array in arrays)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


@pytest.mark.parametrize(("length", "path"), [(4 * TRUST_BYTES, A), (16, B)], ids=["it has carried", "it has not"])
def test_another_port_of_a_path_that_has_carried_is_tried_before_the_path_is_left(
    length: int, path: tuple[str, ...]
) -> None:
    with two_members() as (carriers, paths):
        exchange(carriers, length)
        before = carriers[0].sender.records()[0]
        (broken,) = [one for one in carriers[1]._receiver._incoming if one.sock.getpeername()[1] == before.port]
        broken.sock.shutdown(socket.SHUT_RDWR)
        until(lambda: any(event.what == "left" for event in carriers[0].sender.events))
        until(lambda: carriers[0].sender.records()[0].state == "open")
        after = carriers[0].sender.records()[0]
        assert after.path == path and after.port != before.port
        assert (A in paths[0]._failed) is (path == B)
        exchange(carriers, length)
