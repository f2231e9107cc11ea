"""Clients that have not shown the token: how many connections are kept, for how long, and what a flood costs."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from eroica.wire import admission
from eroica.wire.admission import AT_ONCE, Front, ThreadFront


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        yield made


class Judged(list[bytes]):
    """First words of connections, which are closed at once."""

    def __call__(self, caller: socket.socket, words: bytes) -> None:
        assert caller.recv(len(words)) == words  # they were not taken
        self.append(words)
        caller.close()


@contextlib.contextmanager
def dialled(listener: socket.socket, count: int, words: bytes = b"") -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        calls = [stack.enter_context(socket.create_connection(listener.getsockname(), 10)) for _ in range(count)]
        for call in calls:
            call.sendall(words)
        yield calls


def with_front(listener: socket.socket, act: Callable[[Front, Judged], Any], **more: Any) -> None:
    """Do something, and then let the loop run it, beside a front."""

    async def serve() -> None:
        judged = Judged()
        front = Front(listener, judged, **more)
        await act(front, judged)
        front.close()
        assert not front._due

    asyncio.run(serve())


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def test_a_connection_without_bytes_stays_in_the_kernel_at_first(listener: socket.socket) -> None:
    async def act(front: Front, _: Judged) -> None:
        with dialled(listener, 3):
            await asyncio.sleep(0.1)
            assert not front._due
            await until(lambda: len(front._due) == 3)

    with_front(listener, act)


def test_one_call_accepts_a_bounded_number_and_rests_then(listener: socket.socket) -> None:
    async def act(front: Front, judged: Judged) -> None:
        with dialled(listener, AT_ONCE + 5, b"x"):
            time.sleep(0.1)
            front._accept()
            assert len(judged) == AT_ONCE
            assert not front._loop.remove_reader(listener)
            await until(lambda: len(judged) == AT_ONCE + 5)

    with_front(listener, act)


def test_only_so_many_are_kept_and_the_oldest_one_is_closed_first(listener: socket.socket) -> None:
    async def act(front: Front, _: Judged) -> None:
        pairs = [socket.socketpair() for _ in range(6)]
        for caller, _far in pairs:
            front._keep(caller)
        assert [caller.fileno() < 0 for caller, _far in pairs] == [True, True, False, False, False, False]
        for _caller, far in pairs:
            far.close()

    with_front(listener, act, most=4)


def test_without_a_free_descriptor_all_kept_ones_go_and_the_server_rests(listener: socket.socket) -> None:
    class Full:
        fileno = listener.fileno

        def accept(self) -> None:
            raise OSError(errno.EMFILE, "too many open files")

    async def act(front: Front, _: Judged) -> None:
        one, other = socket.socketpair()
        front._keep(one)
        front._listener = Full()  # type: ignore[assignment]
        front._accept()
        assert one.fileno() < 0 and not front._loop.remove_reader(listener)
        front._listener = listener
        other.close()

    with_front(listener, act)


async def call(listener: socket.socket, words: bytes) -> None:
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(words)
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 20) == b""
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def test_each_connection_is_judged_once_and_a_silent_one_is_closed(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "PENDING_S", 0.2)

    async def act(_: Front, judged: Judged) -> None:
        await asyncio.gather(call(listener, b"one"), call(listener, b"two"), call(listener, b""))
        assert sorted(judged) == [b"one", b"two"]

    with_front(listener, act)


def test_a_front_in_a_thread_judges_until_it_is_closed(listener: socket.socket) -> None:
    judged = Judged()
    front = ThreadFront(listener, judged, 10, "front")
    where = listener.getsockname()
    with contextlib.suppress(ConnectionError), socket.create_connection(where, 10) as caller:
        caller.sendall(b"hello")
        assert caller.recv(1) == b""
    assert judged == [b"hello"]
    front.close()
    end = time.monotonic() + 10
    while listener.fileno() >= 0 and time.monotonic() < end:
        time.sleep(0.01)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(where, 10)
