import os
import socket
import struct

import pytest

from eroica.hardware import tcp
from eroica.hardware.store import read_samples
from eroica.hardware.writer import SampleWriter


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
    struct.pack_into("=I", info, 148, 6)
    struct.pack_into("=Q", info, 168, busy_us)
    return bytes(info)


DONE = struct.pack("=IHHIIi", 20, 3, 2, 1, 0, 0)


def test_connections_are_read_out_of_a_netlink_answer() -> None:
    data = _message(77, 5, _info(rtt_us=350, retransmits=2, acked=1 << 40, received=9, busy_us=1_000)) + DONE
    found, last = tcp.parse_reply(data)
    assert last
    assert found == [tcp.Connection(77, 5, 350, 2, 1 << 40, 9, 1_000, 0, 0, "10.0.0.1", "10.0.0.2", 70_000, 6)]


@pytest.mark.parametrize(
    ("seen", "written"), [("::ffff:10.0.0.7", "10.0.0.7"), ("fe80::1", "fe80::1"), ("10.0.0.3", "10.0.0.3")]
)
def test_addresses_have_one_spelling_whatever_the_socket_is(seen: str, written: str) -> None:
    (found,), _ = tcp.parse_reply(_message(1, 1, _info(), (seen, seen)))
    assert (found.local, found.remote) == (written, written)


def test_an_answer_goes_on_over_several_datagrams_and_strangers_are_skipped() -> None:
    found, last = tcp.parse_reply(_message(1, 1, _info()) + _message(2, 2, _info()), wanted={2})
    assert not last
    assert [one.inode for one in found] == [2]


def test_an_old_kernel_with_a_short_tcp_info_counts_no_bytes() -> None:
    found, _ = tcp.parse_reply(_message(1, 1, _info(rtt_us=5, acked=99)[:104]))
    assert (found[0].rtt_us, found[0].bytes_acked) == (5, 0)


def test_a_refusal_of_the_kernel_is_an_oserror() -> None:
    with pytest.raises(PermissionError):
        tcp.parse_reply(struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -1))


@pytest.mark.parametrize("cut", [17, 60, 100])
def test_a_message_longer_than_the_datagram_is_refused(cut: int) -> None:
    with pytest.raises(ValueError, match="netlink"):
        tcp.parse_reply(_message(1, 1, _info())[:cut])


def test_a_message_that_claims_no_length_does_not_loop() -> None:
    with pytest.raises(ValueError, match="netlink"):
        tcp.parse_reply(bytes(64))


def test_bytes_sent_over_our_own_connection_are_counted_for_our_process(tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            writer = SampleWriter(tmp_path)
            try:
                probe = tcp.TcpProbe(writer)
            except OSError as error:
                pytest.skip(f"no sock_diag here: {error}")
            probe.watch(os.getpid())
            probe.read()
            client.sendall(bytes(100_000))
            left = 100_000
            while left:
                left -= len(accepted.recv(left))
            accepted.sendall(b"x")
            client.recv(1)
            probe.read()
            probe.close()
            writer.close()
    samples = read_samples(tmp_path)
    sent, received = (samples.find(name, str(os.getpid())) for name in ("tcp_sent", "tcp_received"))
    assert sent is not None
    assert received is not None
    seconds = (sent.t_ns[-1] - sent.start_ns) * 1e-9
    assert received.value.sum() * seconds == pytest.approx(100_001)
    assert sent.value.sum() * seconds == pytest.approx(100_001, abs=1)
    assert samples.devices("tcp_rtt") == (str(os.getpid()),)


def test_a_connection_that_closes_takes_nothing_back(tmp_path) -> None:
    writer = SampleWriter(tmp_path)
    totals = tcp._Totals(writer, 7, 1_000_000)
    one = tcp.Connection(1, 1, 10, 0, 1_000, 0, 0, 0, 0)
    totals.update(1_000_000_000, [one])
    totals.update(2_000_000_000, [one._replace(bytes_acked=3_000)])
    totals.update(3_000_000_000, [])
    totals.update(4_000_000_000, [tcp.Connection(2, 2, 10, 0, 500, 0, 0, 0, 0)])
    totals.mark()
    writer.close()
    sent = read_samples(tmp_path).find("tcp_sent", "7")
    assert sent is not None
    assert sent.mean_over([1_000_000_000, 2_000_000_000], [2_000_000_000, 4_000_000_000]).tolist() == [2_000.0, 0.0]


def test_sockets_of_a_process_are_found_by_inode() -> None:
    with socket.socket() as one:
        assert os.fstat(one.fileno()).st_ino in tcp.socket_inodes(os.getpid())
