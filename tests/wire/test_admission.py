"""Clients that have not shown the token: how many connections are kept, for how long, and what a flood costs."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from collections.abc import Iterator

import pytest

from eroica.wire import admission
from eroica.wire.admission import AT_ONCE, Accepted, Admission, Front, first_words


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        yield made


CALLERS: list[socket.socket] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while CALLERS:
        CALLERS.pop().close()


@contextlib.contextmanager
def dialled(listener: socket.socket, count: int, words: bytes = b"") -> Iterator[list[socket.socket]]:
    calls = []
    try:
        for _ in range(count):
            call = socket.create_connection(listener.getsockname(), timeout=10)
            call.sendall(words)
            calls.append(call)
        yield calls
    finally:
        for call in calls:
            call.close()


def taken(one: Admission) -> Accepted:
    found = one.accept()
    CALLERS.extend(found.callers)
    return found


def accepted(one: Admission, count: int, limit_s: float = 10.0) -> list[socket.socket]:
    callers: list[socket.socket] = []
    end = time.monotonic() + limit_s
    while len(callers) < count:
        assert time.monotonic() < end, f"{len(callers)} of {count} connections were accepted"
        callers += taken(one).callers
        time.sleep(0.01)
    return callers


def test_a_connection_without_bytes_stays_in_the_kernel_at_first(listener: socket.socket) -> None:
    one = Admission(listener)
    with dialled(listener, 3):
        assert one.accept() == ([], False)
        assert len(accepted(one, 3)) == 3


def test_one_call_accepts_a_bounded_number_and_asks_for_a_rest(listener: socket.socket) -> None:
    one = Admission(listener)
    with dialled(listener, AT_ONCE + 5, b"x"):
        time.sleep(0.1)
        first, second = taken(one), taken(one)
        assert (len(first.callers), first.must_rest) == (AT_ONCE, True)
        assert (len(second.callers), second.must_rest) == (5, False)


def test_only_so_many_are_kept_and_the_oldest_one_is_closed_first(listener: socket.socket) -> None:
    forgotten: list[socket.socket] = []
    one = Admission(listener, forgotten.append, most=4)
    with dialled(listener, 6, b"x"):
        callers = accepted(one, 6)
        for at, caller in enumerate(callers):
            one.keep(caller, now=float(at))
        assert forgotten == callers[:2] and all(caller.fileno() < 0 for caller in callers[:2])
        assert [caller in one for caller in callers] == [False, False, True, True, True, True]


def test_who_is_silent_for_too_long_is_closed(listener: socket.socket) -> None:
    one = Admission(listener)
    with dialled(listener, 2, b"x"):
        first, second = accepted(one, 2)
        one.keep(first, now=10.0)
        one.keep(second, now=12.0)
        assert one.expire(10.0 + admission.PENDING_S) == 2.0
        assert first.fileno() < 0 and second in one
        one.release(second)
        assert one.expire(100.0) is None and second.fileno() >= 0


def test_without_a_free_descriptor_all_kept_ones_go_and_the_server_rests(listener: socket.socket) -> None:
    class Full:
        def accept(self) -> None:
            raise OSError(errno.EMFILE, "too many open files")

    one = Admission(listener)
    with dialled(listener, 2, b"x"):
        callers = accepted(one, 2)
        for caller in callers:
            one.keep(caller, now=0.0)
        one.listener = Full()  # type: ignore[assignment]
        assert one.accept() == ([], True)
        assert all(caller.fileno() < 0 for caller in callers)


def test_first_words_are_not_taken(listener: socket.socket) -> None:
    one = Admission(listener)
    with dialled(listener, 1, b"hello") as calls:
        (caller,) = accepted(one, 1)
        assert first_words(caller) == first_words(caller) == b"hello"
        assert first_words(caller, 2) == b"he"
        assert caller.recv(5) == b"hello" and first_words(caller) is None
        calls[0].close()
        time.sleep(0.1)
        assert first_words(caller) == b""


def test_a_front_has_each_connection_judged_once_by_its_first_bytes(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "PENDING_S", 0.2)
    judged: list[bytes] = []

    async def serve() -> None:
        def judge(caller: socket.socket, words: bytes) -> None:
            judged.append(words)
            caller.close()

        front = Front(listener, judge)

        async def call(words: bytes) -> None:
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(words)
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

        await asyncio.gather(call(b"one"), call(b"two"), call(b""))
        front.close()

    asyncio.run(serve())
    assert sorted(judged) == [b"one", b"two"]
