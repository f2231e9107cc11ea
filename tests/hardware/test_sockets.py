"""Known connections are read one by one."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from eroica.hardware.sockets import SocketReader


@pytest.fixture
def reader() -> Iterator[SocketReader]:
    try:
        reader = SocketReader()
        reader.find([os.getpid()])
    except OSError as error:
        pytest.skip(f"no sock_diag here: {error}")
    yield reader
    reader.close()


@pytest.fixture(params=[(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET6, "::ffff:127.0.0.1")])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    family, address = request.param
    with socket.socket(family) as door:
        try:
            door.bind((address, 0))
        except OSError as error:
            pytest.skip(f"no {address} here: {error}")
        door.listen()
        with socket.socket(family) as one:
            one.connect(door.getsockname())
            other, _ = door.accept()
            with other:
                yield one, other


def test_a_connection_is_found_and_read_again(reader: SocketReader, pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    port = one.getsockname()[1]
    (known,) = [found for found in reader.find([os.getpid()])[os.getpid()] if found.local_port == port]
    assert known.remote_port == other.getsockname()[1]
    one.sendall(b"x" * 1000)
    now = reader.again([known])[known.cookie]
    assert (now.bytes_acked - known.bytes_acked, now.cookie) == (1000, known.cookie)
    (far,) = [found for found in reader.find([os.getpid()])[os.getpid()] if found.remote_port == port]
    assert far.unread_bytes == 1000
    assert far.local == known.remote


def test_a_closed_connection_is_missing_and_the_others_are_there(
    reader: SocketReader, pair: tuple[socket.socket, socket.socket]
) -> None:
    mine = {one.getsockname()[1] for one in pair}
    known = [found for found in reader.find([os.getpid()])[os.getpid()] if found.local_port in mine]
    assert len(known) == 2
    gone = known[0]._replace(local_port=1, cookie=known[0].cookie + 12345)
    assert set(reader.again([gone, known[1]])) == {known[1].cookie}


def test_a_process_that_is_gone_has_no_connections(reader: SocketReader) -> None:
    assert reader.find([2**22 - 1]) == {2**22 - 1: []}
