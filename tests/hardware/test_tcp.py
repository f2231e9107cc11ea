import os
import socket
import struct
from collections.abc import Iterator

import pytest

from eroica.hardware import tcp
from eroica.hardware.tcp import SocketReader


def _message(inode: int, cookie: int, info: bytes, ends: tuple[str, str] = ("10.0.0.1", "10.0.0.2")) -> bytes:
    body = bytearray(72)
    family = socket.AF_INET6 if ":" in ends[0] else socket.AF_INET
    body[0] = family
    for place, address in zip((8, 24), ends, strict=True):
        raw = socket.inet_pton(family, address)
        body[place : place + len(raw)] = raw
    struct.pack_into("=I", body, 60, 70_000)
    struct.pack_into("=Q", body, 44, cookie)
    struct.pack_into("=I", body, 68, inode)
    body += struct.pack("=HH", 5, 8) + b"abcd"
    body += struct.pack("=HH", 4 + len(info), 2) + info
    return struct.pack("=IHHII", 16 + len(body), 20, 2, 1, 0) + bytes(body)


def _info(rtt_us: int = 0, retransmits: int = 0, acked: int = 0, received: int = 0, busy_us: int = 0) -> bytes:
    info = bytearray(232)
    struct.pack_into("=I", info, 68, rtt_us)
    struct.pack_into("=I", info, 100, retransmits)
    struct.pack_into("=QQ", info, 120, acked, received)
    struct.pack_into("=Q", info, 168, busy_us)
    return bytes(info)


DONE = struct.pack("=IHHIIi", 20, 3, 2, 1, 0, 0)


def test_connections_are_read_out_of_a_netlink_answer() -> None:
    data = _message(77, 5, _info(rtt_us=350, retransmits=2, acked=1 << 40, received=9, busy_us=1_000)) + DONE
    found, last = tcp.parse_reply(data)
    assert last
    assert found == [tcp.Connection(77, 5, 350, 2, 1 << 40, 9, 1_000, 0, "10.0.0.1", "10.0.0.2", 70_000)]


@pytest.mark.parametrize(
    ("seen", "written"), [("::ffff:10.0.0.7", "10.0.0.7"), ("fe80::1", "fe80::1"), ("10.0.0.3", "10.0.0.3")]
)
def test_addresses_have_one_spelling_whatever_the_socket_is(seen: str, written: str) -> None:
    (found,), _ = tcp.parse_reply(_message(1, 1, _info(), (seen, seen)))
    assert (found.local, found.remote) == (written, written)


@pytest.mark.parametrize("cut", [17, 60, 100])
def test_a_message_longer_than_the_datagram_is_refused(cut: int) -> None:
    with pytest.raises(ValueError, match="netlink"):
        tcp.parse_reply(_message(1, 1, _info())[:cut])


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
    assert far.local == known.remote


def test_a_closed_connection_is_missing_and_the_others_are_there(
    reader: SocketReader, pair: tuple[socket.socket, socket.socket]
) -> None:
    mine = {one.getsockname()[1] for one in pair}
    known = [found for found in reader.find([os.getpid()])[os.getpid()] if found.local_port in mine]
    assert len(known) == 2
    gone = known[0]._replace(local_port=1, cookie=known[0].cookie + 12345)
    assert set(reader.again([gone, known[1]])) == {known[1].cookie}
