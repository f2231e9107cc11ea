"""Tests of links, datagrams, SOCKS and real processes on loopback and in namespaces."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from prifi.cli import main
from prifi.config import read_config, write_network
from prifi.datagrams import Resender
from prifi.errors import BadConfig, BadMessage, LinkLost
from prifi.identity import RELAY, Roster, generate, read_key
from prifi.lab import Lab, Plan, can_make_namespaces
from prifi.links import Dialer, Listener
from prifi.socks import Exit, Pipes
from prifi.streams import Streams

needs_root = pytest.mark.skipif(not can_make_namespaces(), reason="network namespaces need root and `ip`")
PORTS = iter(range(12000 + os.getpid() % 150 * 100, 30000, 20))  # below the ephemeral ports


def roster() -> tuple[Any, Any, Roster]:
    relay, _ = generate(RELAY)
    member, _ = generate("client-0")
    return relay, member, Roster({RELAY: relay.public, "client-0": member.public}, (), ("client-0",))


def test_a_link_opens_each_record_once_and_in_order() -> None:
    relay, member, members = roster()
    dialer = Dialer(member, members)
    listener = Listener(relay, members, dialer.hello)
    signature, left = dialer.finish(listener.reply)
    right = listener.finish(signature)
    first, second = left.seal(b"one"), left.seal(b"two")
    with pytest.raises(LinkLost):
        right.open(second)
    assert right.open(first) == b"one"
    with pytest.raises(LinkLost):
        right.open(first)
    assert right.open(second) == b"two"


def test_a_foreign_relay_or_member_gets_no_link() -> None:
    relay, member, members = roster()
    stranger, _ = generate("client-0")
    other_relay, _ = generate(RELAY)
    dialer = Dialer(stranger, members)
    listener = Listener(relay, members, dialer.hello)
    signature, _ = dialer.finish(listener.reply)
    with pytest.raises(LinkLost):
        listener.finish(signature)
    dialer = Dialer(member, members)
    with pytest.raises(LinkLost):
        dialer.finish(Listener(other_relay, members, dialer.hello).reply)
    for hello in (b"", b"GET / HTTP/1.1", dialer.hello[:5] + b"\x09" + dialer.hello[6:], dialer.hello[:-1]):
        with pytest.raises(BadMessage):
            Listener(relay, members, hello)


@given(st.integers(0, 2**32), st.floats(0, 0.4))
@settings(max_examples=25, deadline=None)
def test_datagrams_arrive_complete_and_in_order_whatever_is_lost(seed: int, loss: float) -> None:
    chance = random.Random(seed)
    left, right = Resender(), Resender()
    messages = [chance.randbytes(chance.choice([0, 1, 1350, 5000])) for _ in range(20)]
    now, got = 0.0, []
    for message in messages:
        left.send(message, now)
    while len(got) < len(messages) and now < 60:
        for sender, receiver in ((left, right), (right, left)):
            for packet in sender.outgoing(now):
                if chance.random() >= loss:
                    got += receiver.receive(packet, now)
        now += 0.01
    assert got == messages


def test_a_silent_peer_is_lost_in_time() -> None:
    left = Resender(limit_s=1.0)
    left.send(b"hello", 0.0)
    left.outgoing(0.5)
    with pytest.raises(LinkLost):
        left.outgoing(1.5)


@given(st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_streams_survive_lost_cells_and_keep_order(seed: int) -> None:
    chance = random.Random(seed)
    client, far = Streams(), Streams(exit_side=True)
    tag = client.open("host", 80)
    data = chance.randbytes(200_000)
    up, down, at = bytearray(), bytearray(), 0
    far_tag = b""
    for step in range(20_000):
        if at < len(data) and client.is_open(tag) and client._by_tag[tag].hello == b"":
            at += len(chunk := data[at : at + 5000])
            client.write(tag, chunk)
            if at == len(data):
                client.finish(tag)
        lost = step < 2000 and chance.random() < 0.1
        for event in [] if lost else far.push(client.pull(1200)):
            if event.kind == "open":
                far_tag = event.stream
                far.answer(far_tag)
            elif event.kind == "data":
                up += event.data
                far.consumed(far_tag, len(event.data))
                far.write(far_tag, event.data)
            elif event.kind == "finished":
                far.finish(far_tag)
        if lost:
            client.pull(1200)
            client.rewind()
        if step % 400 == 399:  # a new epoch
            far.pull(1500)
            client.rewind()
            far.rewind()
        for event in client.push(far.pull(1500)):
            if event.kind == "data":
                down += event.data
                client.consumed(tag, len(event.data))
        if len(down) == len(data) and not client.is_open(tag):
            break
    assert bytes(up) == bytes(down) == data
    assert len(client) == 0


def test_members_cannot_write_into_the_streams_of_others() -> None:
    client, far, other = Streams(), Streams(exit_side=True), Streams()
    tag = client.open("host", 80)
    stream = far.push(client.pull(500))[0].stream
    far.answer(stream)
    client.push(far.pull(500))
    forged = struct.pack("<B8sIH", 4, tag, 0, 5) + b"hello"  # the downstream tag is public
    assert far.push(forged) == []
    assert other.push(far.pull(500)) == []


def test_the_exit_refuses_private_addresses_and_its_own_ports() -> None:
    far = Exit(Pipes(Streams(exit_side=True)), own_ports={7070})
    for address in (
        "127.0.0.1",
        "10.1.2.3",
        "192.168.1.1",
        "172.16.0.1",
        "169.254.1.1",
        "::1",
        "fe80::1",
        "0.0.0.0",
        "::ffff:127.0.0.1",
    ):
        assert not far.permits(address, 80)
    assert far.permits("1.1.1.1", 80)
    from prifi.config import parse_networks

    allowing = Exit(Pipes(Streams(exit_side=True)), parse_networks(["127.0.0.0/8"]), own_ports={7070})
    assert allowing.permits("127.0.0.1", 80)
    assert not allowing.permits("127.0.0.1", 7070)
    with pytest.raises(BadConfig):
        parse_networks(["nonsense"])


# Files and commands.


def test_config_and_keys_are_checked_and_secrets_are_not_shown(tmp_path: Path) -> None:
    folder = tmp_path / "net"
    path = write_network(folder, 3, 2, "127.0.0.1:7000")
    config = read_config(path)
    assert len(config.roster.clients) == 3 and config.parameters.protection == "both"
    key = folder / "client-0.key"
    assert read_key(key).public == config.roster.keys["client-0"]
    assert key.stat().st_mode & 0o077 == 0
    text = key.read_text()
    seed = text.split()[2]
    for damaged in (text.replace(seed, seed[:-1]), text.replace(seed, seed[1:] + "0"), "nonsense"):
        key.write_text(damaged)
        result = CliRunner().invoke(main, ["client", "--config", str(path), "--key", str(key)])
        assert result.exit_code == 1 and "damaged" in result.output and seed[:-1] not in result.output
        assert "Traceback" not in result.output
    path.write_text(path.read_text().replace("[parameters]", "[parameters]\nprotection = 'none'"))
    with pytest.raises(BadConfig, match="unknown field `protection`"):
        read_config(path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('transport = "tcp"', 'transport = "carrier pigeon"', "transport"),
        ("[exit]", "[exits]", "exits"),
        ("cell_bytes = 1000", "cell_bytes = 7", "cell_bytes is"),
        ("cell_bytes = 1000", "cells = 7", "cells"),
        ("cell_bytes = 1000", "absent_s = inf", "3,600"),
        ("allow = []", 'allow = ["banana"]', "banana"),
        ('relay = "127.0.0.1:7000"', 'relay = "here"', "no address"),
    ],
)
def test_a_wrong_config_is_told_in_one_line(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = write_network(tmp_path / "net", 3, 1, "127.0.0.1:7000", cell_bytes=1000)
    path.write_text(path.read_text().replace(old, new, 1))
    result = CliRunner().invoke(main, ["relay", "--config", str(path), "--key", str(tmp_path / "net" / "relay.key")])
    assert result.exit_code == 1
    assert result.output.startswith("Error: ") and words in result.output
    assert "Traceback" not in result.output


# Real processes on loopback.


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("web")
    (folder / "file").write_bytes(random.Random(1).randbytes(50_000))
    return folder


@pytest.fixture(scope="module")
def lab(web: Path) -> Iterator[Lab]:
    parameters = {"interval_s": 0.01, "offset_s": 0.004}
    with Lab(Plan(4, 2, namespaces=False, delay_ms=0, base_port=next(PORTS), parameters=parameters), web) as running:
        running.wait()
        yield running


def answer(server: socket.socket, work: Any) -> threading.Thread:
    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            work(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def target() -> socket.socket:
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(30)
    return server


def connect(lab: Lab, client: int, port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", lab.ports(client)[0]), timeout=30)
    sock.sendall(b"\5\1\0\5\1\0\1\x7f\0\0\1" + port.to_bytes(2, "big"))
    assert _exactly(sock, 12)[:4] == b"\5\0\5\0"
    return sock


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        assert part, data
        data += part
    return data


def _all(sock: socket.socket) -> bytes:
    data = b""
    while part := sock.recv(65536):
        data += part
    return data


def test_curl_gets_a_file_by_name_and_git_clones(lab: Lab, web: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fetch = lab.curl(0, "file", out)
    fetch.communicate(timeout=60)
    assert hashlib.sha256(out.read_bytes()).digest() == hashlib.sha256((web / "file").read_bytes()).digest()
    port = lab.url.rsplit(":", 1)[1]
    socks = f"127.0.0.1:{lab.ports(1)[0]}"
    named = ["curl", "-s", "--max-time", "30", "--socks5-hostname", socks, f"http://localhost:{port}/file"]
    assert len(subprocess.run(named, capture_output=True, check=True).stdout) == 50_000
    environment = {
        **os.environ,
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
        "GIT_CONFIG_GLOBAL": "/dev/null",
    }
    repository = web / "repo.git"
    work = tmp_path / "work"
    for command in (
        ["git", "init", "-q", str(work)],
        ["git", "-C", str(work), "commit", "-q", "--allow-empty", "-m", "first"],
        ["git", "clone", "-q", "--bare", str(work), str(repository)],
        ["git", "-C", str(repository), "update-server-info"],
        ["git", "-c", f"http.proxy=socks5h://{socks}", "clone", "-q", f"{lab.url}/repo.git", str(tmp_path / "clone")],
    ):
        done = subprocess.run(command, capture_output=True, env=environment, timeout=60, check=False)
        assert done.returncode == 0, (command, done.stderr)
    assert (tmp_path / "clone" / ".git").is_dir()


def test_pip_installs_from_an_index_through_it(lab: Lab, web: Path, tmp_path: Path) -> None:
    pytest.importorskip("socks", reason="pip speaks SOCKS only with PySocks")
    import zipfile

    index = web / "simple" / "tiny"
    index.mkdir(parents=True)
    wheel = index / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny.py", "x = 1\n")
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr(
            "tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    (index / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    proxy = f"socks5h://127.0.0.1:{lab.ports(2)[0]}"
    command = [
        sys.executable,
        "-m",
        "pip",
        "--isolated",
        "download",
        "--no-deps",
        "--proxy",
        proxy,
        "--index-url",
        f"{lab.url}/simple",
        "-d",
        str(tmp_path),
        "tiny",
    ]
    done = subprocess.run(command, capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert (tmp_path / wheel.name).exists()


def test_a_socks_handshake_may_come_in_pieces_or_all_at_once(lab: Lab) -> None:
    for pieces in (True, False):
        server = target()
        got: list[bytes] = []
        thread = answer(server, lambda connection, got=got: got.append(_exactly(connection, 20)))
        hello = b"\5\1\0\5\1\0\1\x7f\0\0\1" + server.getsockname()[1].to_bytes(2, "big")
        sock = socket.create_connection(("127.0.0.1", lab.ports(0)[0]), timeout=30)
        if pieces:
            for at in range(len(hello)):
                sock.sendall(hello[at : at + 1])
                time.sleep(0.002)
            assert _exactly(sock, 12)[:4] == b"\5\0\5\0"
            sock.sendall(b"x" * 20)
        else:
            sock.sendall(hello + b"x" * 20)
            assert _exactly(sock, 12)[:4] == b"\5\0\5\0"
        thread.join(30)
        assert got == [b"x" * 20]
        sock.close()
        server.close()


def test_a_refused_target_is_told_as_refused(lab: Lab) -> None:
    closed = target()
    port = closed.getsockname()[1]
    closed.close()
    socks = f"127.0.0.1:{lab.ports(0)[0]}"
    done = subprocess.run(
        ["curl", "-s", "--socks5-hostname", socks, f"http://127.0.0.1:{port}/"], check=False, timeout=60
    )
    assert done.returncode == 97
    sock = socket.create_connection(("127.0.0.1", lab.ports(0)[0]), timeout=30)
    sock.sendall(b"\5\1\0\5\1\0\1\x7f\0\0\1" + port.to_bytes(2, "big"))
    assert _exactly(sock, 12)[3] == 5
    sock.close()
    sock = socket.create_connection(("127.0.0.1", lab.ports(0)[0]), timeout=30)
    sock.sendall(b"\5\1\0\5\2\0\1\x7f\0\0\1\0\1")  # BIND
    assert _exactly(sock, 12)[3] == 7
    sock.close()


def test_names_that_no_resolver_takes_fail_one_request_only(lab: Lab) -> None:
    for name in (b"", b"\0x", b"\xff\xfe\n", b"." * 64, b"a" * 255):
        sock = socket.create_connection(("127.0.0.1", lab.ports(0)[0]), timeout=30)
        sock.sendall(b"\5\1\0\5\1\0\3" + bytes([len(name)]) + name + b"\0\x50")
        assert _exactly(sock, 12)[3] != 0
        sock.close()
    assert lab.status("relay")["anonymity_set"] == 4


def test_a_second_process_with_a_key_is_told_and_harms_nobody(lab: Lab, tmp_path: Path) -> None:
    epochs = lab.status("relay")["epochs"]
    files = ["--config", str(lab._folder / "prifi.toml"), "--key", str(lab._folder / "client-0.key")]
    command = [sys.executable, "-m", "prifi", "--verbose", "client", *files, "--socks", f"127.0.0.1:{next(PORTS)}"]
    out = tmp_path / "log"
    with out.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    end = time.monotonic() + 60
    while "another process is connected with this key" not in out.read_text() and time.monotonic() < end:
        time.sleep(0.1)
    process.terminate()
    assert process.wait(20) == 0
    assert "another process is connected with this key" in out.read_text()
    assert lab.status("relay")["epochs"] == epochs


@pytest.mark.parametrize("first", ["client", "target"])
def test_one_direction_may_end_before_the_other(lab: Lab, first: str) -> None:
    server = target()
    data = os.urandom(30_000)
    got: list[bytes] = []

    def patient(connection: socket.socket) -> None:
        if first == "client":
            connection.sendall(hashlib.sha256(_all(connection)).digest())
        else:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            got.append(_all(connection))

    thread = answer(server, patient)
    sock = connect(lab, 0, server.getsockname()[1])
    if first == "client":
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        assert _all(sock) == hashlib.sha256(data).digest()
    else:
        assert _all(sock) == data
        sock.sendall(b"thanks")
        sock.shutdown(socket.SHUT_WR)
        thread.join(30)
        assert got == [b"thanks"]
    sock.close()
    server.close()


def test_a_greedy_stream_does_not_stop_another(lab: Lab) -> None:
    greedy = target()

    def pour(connection: socket.socket) -> None:
        try:
            while True:
                connection.sendall(bytes(65536))
        except OSError:
            pass

    answer(greedy, pour)
    sleeper = connect(lab, 1, greedy.getsockname()[1])  # nobody reads it
    time.sleep(2)
    server = target()
    answer(server, lambda connection: [connection.sendall(_exactly(connection, 10)) for _ in range(5)])
    sock = connect(lab, 1, server.getsockname()[1])
    for _ in range(5):
        sock.sendall(b"0123456789")
        assert _exactly(sock, 10) == b"0123456789"
    sleeper.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sleeper.close()
    sock.close()
    greedy.close()
    server.close()


def descriptors(process: subprocess.Popen[bytes]) -> int:
    return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


def test_reset_connections_leave_no_descriptors(lab: Lab) -> None:
    count = 60
    server = target()
    closed: list[int] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                try:
                    while connection.recv(4096):
                        pass
                except OSError:
                    pass
            closed.append(1)

    threading.Thread(target=accept, daemon=True).start()
    relay, client = lab.processes["relay"], lab.processes["client-2"]
    before = descriptors(relay), descriptors(client)
    for _ in range(count):
        sock = connect(lab, 2, server.getsockname()[1])
        sock.sendall(b"half of a requ")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    end = time.monotonic() + 30
    while time.monotonic() < end and (len(closed) < count or descriptors(relay) > before[0] + 2):
        time.sleep(0.2)
    assert len(closed) == count
    assert descriptors(relay) <= before[0] + 2
    assert descriptors(client) <= before[1] + 2
    server.close()


def test_a_length_from_the_network_is_not_believed(lab: Lab) -> None:
    port = lab.plan.base_port
    for frame in (b"\xff\xff\xff\xff", b"\0\0\0\0" * 100, struct.pack("<I", 300) + bytes(300), os.urandom(64)):
        sock = socket.create_connection(("127.0.0.1", port), timeout=10)
        sock.sendall(frame)
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(100) == b""
        sock.close()
    assert lab.status("relay")["anonymity_set"] == 4


def test_the_status_pages_show_the_set_and_metrics_exist_for_the_relay_only(lab: Lab) -> None:
    import urllib.error
    import urllib.request

    base = f"http://127.0.0.1:{lab.plan.base_port + 2}"
    metrics = urllib.request.urlopen(f"{base}/metrics", timeout=10).read().decode()
    assert "prifi_relay_anonymity_set 4.0" in metrics and "client-" not in metrics
    page = urllib.request.urlopen(f"http://127.0.0.1:{lab.ports(0)[1]}/", timeout=10).read().decode()
    assert "Anonymity set: 4" in page
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"http://127.0.0.1:{lab.ports(0)[1]}/metrics", timeout=10)


def test_logs_hold_no_targets_and_no_secrets(lab: Lab) -> None:
    lab.curl(0, "file?very-secret-name").communicate(timeout=60)
    keys = [path.read_text().split()[2] for path in lab._folder.glob("*.key")]
    for member in lab.members:
        text = lab.log(member)
        assert "very-secret-name" not in text and "Traceback" not in text
        assert not any(key in text for key in keys)


def test_a_killed_client_costs_one_epoch_and_a_clean_end_is_clean(lab: Lab) -> None:
    lab.stop("client-3", signal.SIGKILL)
    lab.wait(3)
    lab.start("client-3")
    lab.wait(4)
    process = lab.processes["client-3"]
    lab.stop("client-3")
    assert process.returncode == 0
    lab.wait(3)
    lab.stop("trustee-1", signal.SIGKILL)
    end = time.monotonic() + 30
    while lab.status("client-0").get("epoch") and time.monotonic() < end:
        time.sleep(0.1)
    assert lab.status("client-0")["anonymity_set"] == 0
    fetch = lab.curl(0, "file", seconds=30)
    fetch.communicate(timeout=60)
    assert fetch.returncode == 97  # nothing leaves without an epoch
    lab.start("trustee-1")
    lab.wait(3)


@pytest.mark.parametrize(("udp", "loss"), [(True, 0.05), (False, 0.05)])
def test_set_up_rounds_and_blame_work_with_loss(web: Path, tmp_path: Path, udp: bool, loss: float) -> None:
    plan = Plan(
        4, 2, udp=udp, loss=loss, namespaces=False, delay_ms=1, base_port=next(PORTS), misbehave={"client-3": "flip"}
    )
    with Lab(plan, web) as running:
        running.wait()
        out = tmp_path / "out"
        fetch = running.curl(0, "file", out, seconds=90)
        end = time.monotonic() + 90
        while "blame: client-3" not in running.log("relay") and time.monotonic() < end:
            time.sleep(0.2)
        assert "blame: client-3" in running.log("relay")
        assert "blame: client-3" in running.log("trustee-0")
        fetch.communicate(timeout=100)
        assert fetch.returncode == 0
        assert out.read_bytes() == (web / "file").read_bytes()
        assert "blame: client-0" not in running.log("relay")


# Namespaces.


@needs_root
@pytest.mark.skipif(shutil.which("tcpdump") is None, reason="the eavesdropper needs tcpdump")
def test_the_eavesdropper_sees_equal_sizes_and_offsets_and_finds_a_broken_client(web: Path, tmp_path: Path) -> None:
    from prifi.listen import SMALL_BYTES, Packets, offsets, read_capture

    def measure(misbehave: dict[str, str]) -> dict[str, Any]:
        path = tmp_path / f"{len(misbehave)}.pcap"
        parameters = {"resend_s": 0.2, "offset_s": 0.02, "interval_s": 0.02}
        with Lab(Plan(4, 2, delay_ms=1, misbehave=misbehave, parameters=parameters), web) as running:
            running.wait()
            capture = running.capture(path)
            start = time.time()
            time.sleep(4)
            middle = time.time()
            fetch = running.curl(1, "file", seconds=30)
            fetch.communicate()
            end = time.time()
            time.sleep(0.2)
            capture.send_signal(signal.SIGINT)
            capture.wait(20)
            relay, clients = running.address(RELAY), [running.address(f"client-{i}") for i in range(4)]
        packets = read_capture(path)
        busy = (packets.at > middle) & (packets.at < end - 0.1)
        large = packets.payload >= SMALL_BYTES
        found: dict[str, Any] = {"quiet": start}
        for index, client in enumerate(clients):
            mask = busy & large & (packets.source == client)
            sizes = sorted(set(packets.payload[mask].tolist()))
            found[f"count {index}"], found[f"sizes {index}"] = int(mask.sum()), sizes
            quiet = Packets(*(column[packets.at < middle] for column in dataclasses.astuple(packets)))
            found[f"offset {index}"] = float(np.median(offsets(packets, relay, client)))
            found[f"late {index}"] = float(np.quantile(offsets(quiet, relay, client), 0.75))
        return found

    honest = measure({})
    counts = [honest[f"count {index}"] for index in range(4)]
    assert min(counts) > 30 and max(counts) - min(counts) <= 0.05 * max(counts) + 3
    assert honest["sizes 0"] == honest["sizes 2"] == honest["sizes 3"] == honest["sizes 1"]  # client-1 had data
    quiet = [honest[f"offset {index}"] for index in (0, 2, 3)]
    assert min(quiet) - 0.015 < honest["offset 1"] < max(quiet) + 0.015  # on a busy machine offsets differ by some ms
    broken = measure({"client-1": "broken"})
    assert broken["late 1"] > 0.08 + max(broken[f"late {index}"] for index in (0, 2, 3))  # it waits to be asked


@needs_root
@pytest.mark.thorough
@pytest.mark.timeout(200)
def test_the_demo_runs_to_its_end() -> None:
    done = subprocess.run([sys.executable, "-m", "prifi", "demo"], capture_output=True, timeout=190, check=False)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    assert b"the demo took" in done.stdout


@pytest.mark.thorough
def test_two_thousand_resets_leave_no_descriptors(lab: Lab) -> None:
    relay, client = lab.processes["relay"], lab.processes["client-1"]
    before = descriptors(relay), descriptors(client)
    with target() as server:
        server.listen(200)
        for _ in range(2000):
            with socket.create_connection(("127.0.0.1", lab.ports(1)[0]), timeout=30) as sock:
                sock.sendall(b"\5\1\0\5\1\0\1\x7f\0\0\1" + server.getsockname()[1].to_bytes(2, "big"))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end, calm = time.monotonic() + 90, 0
        while calm < 10 and time.monotonic() < end:  # resets are still being read: few at one moment says nothing
            time.sleep(0.2)
            calm = calm + 1 if descriptors(relay) <= before[0] + 2 and descriptors(client) <= before[1] + 2 else 0
    assert calm == 10, f"{descriptors(relay)} and {descriptors(client)} descriptors, {before} before"
