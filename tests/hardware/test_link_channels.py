"""Traffic with each address: only loads count as waiting, and the busiest connection stands for the link."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from eroica.hardware.store import Samples, read_samples
from eroica.hardware.tcp import Connection, LinkProbe, Links
from eroica.hardware.writer import SampleWriter
from eroica.model.window import Capture, ClockPair
from eroica.model.worker import Worker
from eroica.summarize.facts import link_uses

S = 1_000_000_000
IDLE = Connection(1, 1, 200, 0, 0, 0, 0, 0, "10.0.0.1", "10.0.0.2", 0, 8)


def sampled(directory: Path, *rounds: list[Connection]) -> Samples:
    """A round a second, from second 1 on."""
    writer = SampleWriter(directory)
    links = Links(writer, 7, S)
    known: dict[int, Connection] = {}
    for number, connections in enumerate(rounds, start=1):
        links.update(number * S, [(known.get(one.cookie), one) for one in connections])
        known = {one.cookie: one for one in connections}
    links.mark()
    writer.close()
    return read_samples(directory)


def capture(pid: int = 7, seconds: int = 2) -> Capture:
    return Capture(
        worker=Worker(global_rank=0, pid=pid),
        window_id=1,
        first_iteration=0,
        last_iteration=1,
        boundaries_ns=(S, (1 + seconds) * S),
        clocks=(ClockPair(realtime_ns=0, monotonic_ns=0),),
        training_thread_id=7,
        training_thread_ident=7,
    )


def test_a_load_under_way_is_busy_time_with_its_round_trip_and_queue(tmp_path) -> None:
    first = IDLE._replace(bytes_acked=500_000, busy_us=900_000, rtt_us=20_000, queued_bytes=100_000, retransmits=3)
    second = first._replace(bytes_acked=1_000_000, busy_us=1_700_000, receive_limited_us=300_000, queued_bytes=0)
    (use,) = link_uses(capture(), sampled(tmp_path, [IDLE], [first], [second]))
    assert (use.local, use.remote) == ("10.0.0.1", "10.0.0.2")
    assert use.sent_bytes == pytest.approx(1_000_000)
    assert use.busy_s == pytest.approx(1.4)
    assert use.queued_bytes == pytest.approx(50_000)
    assert use.rtt_s == pytest.approx(0.02, rel=1e-3)
    assert use.retransmits == pytest.approx(3)


@pytest.mark.parametrize("ends", [("127.0.0.1", "127.0.0.1"), ("10.0.0.1", "10.0.0.1"), ("::1", "::1"), ("", "")])
def test_connections_inside_the_host_are_no_links(tmp_path, ends: tuple[str, str]) -> None:
    one = IDLE._replace(local=ends[0], remote=ends[1])
    samples = sampled(tmp_path, [one], [one._replace(bytes_acked=900_000, busy_us=900_000)])
    assert link_uses(capture(), samples) == ()


def test_bytes_sent_over_our_own_connection_reach_the_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links to the host itself are left out, so the address is made a stranger's."""
    monkeypatch.setattr(Links, "_is_new_link", lambda *_: True)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            writer = SampleWriter(tmp_path)
            try:
                probe = LinkProbe(writer, [os.getpid()])
            except OSError as error:
                pytest.skip(f"no sock_diag here: {error}")
            probe.read()
            client.sendall(bytes(100_000))
            left = 100_000
            while left:
                left -= len(accepted.recv(left))
            probe.read()
            probe.close()
            writer.close()
    sent = read_samples(tmp_path).find("link_sent", f"{os.getpid()}/127.0.0.1/127.0.0.1")
    assert sent is not None
    assert sent.value.sum() * (sent.t_ns[-1] - sent.start_ns) * 1e-9 == pytest.approx(100_000, abs=1)
