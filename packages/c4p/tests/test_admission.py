"""Clients that have not shown the token: how many connections are kept, for how long, and what a flood costs."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from c4p import admission
from c4p.admission import AT_ONCE, Front


class Server:
    """A front whose sockets are read when the test says so."""

    def __init__(self, most: int = 4) -> None:
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        self.judged: list[bytes] = []
        self.watched: dict[socket.socket, Callable[[], object]] = {}
        self.front = Front(self.listener, self.judge, 10, self.watched.__setitem__, self.watched.pop, most)

    def judge(self, caller: socket.socket, words: bytes) -> None:
        self.judged.append(words)
        assert caller.recv(3) == words[:3], "the first words are still there"
        caller.close()

    def turn(self) -> None:
        for act in list(self.watched.values()):
            act()

    def until(self, ready: Callable[[], bool]) -> None:
        end = time.monotonic() + 10
        while not ready():
            assert time.monotonic() < end
            self.turn()
            self.front.tick(time.monotonic())
            time.sleep(0.01)

    @property
    def kept(self) -> int:
        return len(self.watched) - 1


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.front.close()


@contextlib.contextmanager
def dialled(server: Server, count: int, words: bytes = b"") -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as held:
        calls = []
        for _ in range(count):
            calls.append(held.enter_context(socket.create_connection(server.address, timeout=10)))
            calls[-1].sendall(words)
        yield calls


def test_a_connection_without_bytes_stays_in_the_kernel_at_first_and_is_judged_when_it_speaks(server: Server) -> None:
    with dialled(server, 1) as calls:
        server.turn()
        assert server.kept == 0
        server.until(lambda: server.kept == 1)
        calls[0].sendall(b"hello")
        server.until(lambda: server.judged == [b"hello"])
        assert server.kept == 0


def test_one_call_accepts_a_bounded_number_and_rests_until_the_next_tick(server: Server) -> None:
    with dialled(server, AT_ONCE + 5, b"one"):
        time.sleep(0.1)
        server.turn()
        assert len(server.judged) == AT_ONCE and server.front.is_resting
        server.turn()
        assert len(server.judged) == AT_ONCE
        server.front.tick(time.monotonic())
        server.turn()
        assert len(server.judged) == AT_ONCE + 5 and not server.front.is_resting


def test_only_so_many_are_kept_and_the_oldest_one_is_closed_first(server: Server) -> None:
    with dialled(server, 4):
        server.until(lambda: server.kept == 4)
        oldest, *others = server.front._due
        with dialled(server, 1):
            server.until(lambda: oldest.fileno() < 0)
            assert list(server.front._due)[:3] == others and server.kept == 4


def test_who_is_silent_for_too_long_is_closed(server: Server) -> None:
    with dialled(server, 2) as calls:
        server.until(lambda: server.kept == 2)
        server.front.tick(time.monotonic() + admission.PENDING_S + 1)
        assert server.kept == 0
        assert all(call.recv(1) == b"" for call in calls)


def test_without_a_free_descriptor_all_kept_ones_go_and_the_server_rests(server: Server) -> None:
    class Full:
        def accept(self) -> None:
            raise OSError(errno.EMFILE, "too many open files")

    with dialled(server, 2):
        server.until(lambda: server.kept == 2)
        accept, server.front._listener = server.watched[server.listener], Full()  # type: ignore[assignment]
        server.front._unwatch = lambda sock: server.watched.pop(sock, None)
        accept()
        assert server.front.is_resting and not server.front._due
        server.front._listener = server.listener
