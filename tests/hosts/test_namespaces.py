"""Network namespaces as hosts: they reach each other, links get slow and fail, nothing stays."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.hosts import Hosts, available, clocks_available

pytestmark = [pytest.mark.root, pytest.mark.skipif(not available()[0], reason=f"no hosts here: {available()[1]}")]

SEND = """
import socket, sys, time
began = time.monotonic()
with socket.create_connection((sys.argv[1], 7000), timeout=2) as end:
    end.sendall(bytes(int(sys.argv[2])))
    end.shutdown(socket.SHUT_WR)
    end.recv(1)
print(time.monotonic() - began)
"""
RECEIVE = """
import socket
with socket.create_server(("", 7000)) as door:
    print("ready", flush=True)
    while True:
        with door.accept()[0] as end:
            while end.recv(1 << 16):
                pass
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts(2) as made:
        receiver = made.run(1, [sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE, text=True)
        assert receiver.stdout is not None and receiver.stdout.readline() == "ready\n"
        yield made
        receiver.stdout.close()


def transfer_s(hosts: Hosts, size: int) -> float:
    sender = hosts.run(
        0, [sys.executable, "-c", SEND, hosts.address(1), str(size)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = sender.communicate(timeout=30)
    if sender.returncode:
        raise OSError(err.decode())
    return float(out)


@pytest.mark.parametrize("limited", [0, 1])
def test_a_limited_link_makes_a_transfer_slow_until_the_limit_is_taken_away(hosts: Hosts, limited: int) -> None:
    size = 2_000_000
    assert transfer_s(hosts, size) < 0.5
    hosts.limit(limited, "20mbit")
    assert transfer_s(hosts, size) > 0.6
    hosts.unlimit(limited)
    assert transfer_s(hosts, size) < 0.5


def test_hosts_do_not_see_the_machines_network(hosts: Hosts) -> None:
    code = "import socket; print(sorted(name for _, name in socket.if_nameindex()))"
    seen = hosts.run(0, [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert seen.communicate(timeout=20)[0] == f"{sorted(['lo', hosts.interface(0)])}\n"


@pytest.mark.skipif(not clocks_available(), reason="no time namespaces here")
def test_clocks_can_be_apart(hosts: Hosts) -> None:
    code = "import time; print(time.monotonic())"
    far = hosts.run(0, [sys.executable, "-c", code], clock_offset_s=3600, stdout=subprocess.PIPE, text=True)
    assert 3500 < float(far.communicate(timeout=20)[0]) - time.monotonic() < 3700


def test_nothing_stays_after_an_exception() -> None:
    found: dict[str, object] = {}
    child = [sys.executable, "-c", "import os, time; os.fork() and os.setsid(); time.sleep(60)"]
    with pytest.raises(ZeroDivisionError), Hosts(1) as made:
        found["offset"] = made.run(0, child, clock_offset_s=5 if clocks_available() else 0)
        end = time.monotonic() + 10
        while len(made.processes_on(0)) < 2 and time.monotonic() < end:
            time.sleep(0.02)
        found["pids"] = made.processes_on(0)
        assert found["pids"]
        raise ZeroDivisionError
    pids = found["pids"]
    assert isinstance(pids, list) and not [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()]


def test_a_host_that_is_down_is_not_reached() -> None:
    with Hosts(2) as made:
        receiver = made.run(1, [sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE, text=True)
        assert receiver.stdout is not None
        with receiver.stdout:
            receiver.stdout.readline()
        assert transfer_s(made, 1000) < 1.0
        made.down(1)
        with pytest.raises(OSError, match=r"(?i)timed out|unreachable|no route"):
            transfer_s(made, 1000)


def test_names_carry_our_process_id_and_fit() -> None:
    made = Hosts(10)
    assert str(os.getpid()) in made.interface(9) and len(made.interface(9)) <= 15
