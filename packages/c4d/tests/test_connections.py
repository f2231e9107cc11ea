"""Connections of real processes, read from the kernel."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from eroica.hardware.tcp import Connection, SocketReader

from eroica_c4d.connections import Flows, Watch
from eroica_c4d.parts import agent_ways
from eroica_c4d.records import HostRecord


def roster(*stores: int) -> Any:
    """One worker, this process; others' connections on these ports are the store's."""
    pages = [SimpleNamespace(identity={"master_port": port}) for port in stores] or [SimpleNamespace(identity={})]
    one = SimpleNamespace(pid=os.getpid(), global_rank=7)
    return SimpleNamespace(living=[SimpleNamespace(worker=one, reader=page) for page in pages])


def test_what_a_worker_sends_and_what_waits_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eroica_c4d.connections._FIND_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        here, there = (f"127.0.0.1 {one.getsockname()[1]}" for one in (sender, receiver))
        watch = Watch(roster())
        told = asyncio.run(_watched(watch, sender, receiver))
        receiver.close()
    flow = next(one for record in told for one in record.flows if one.local == here and one.sent_bytes)
    assert (flow.worker, flow.remote) == (7, there)
    sent = sum(one.sent_bytes for record in told for one in record.flows if one.local == here)
    assert 1_000_000 < sent < 100_000_000
    stuck = [one for record in told for one in record.flows if one.local == here][-1]
    assert stuck.waiting_byte_s > 0 and stuck.held_s > 0.05, "nobody reads: the receiver's window holds it back"


async def _watched(watch: Watch, sender: socket.socket, receiver: socket.socket) -> list[HostRecord]:
    """What is told while data moves for a second, and then waits because nobody reads."""
    sender.settimeout(0.2)
    enough = threading.Event()

    def send() -> None:
        while not enough.is_set():
            try:
                sender.sendall(bytes(20_000))
            except TimeoutError:
                continue
            time.sleep(0.005)

    def read() -> None:
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            receiver.recv(65_536)

    threads = [threading.Thread(target=one) for one in (send, read)]
    for one in threads:
        one.start()
    running, told = asyncio.create_task(watch.run()), list[HostRecord]()
    for _ in range(60):
        await asyncio.sleep(0.1)
        if data := watch.take():
            told.append(msgspec.msgpack.decode(data, type=HostRecord))
        if told and any(one.held_s > 0.05 for one in told[-1].flows):
            break
    enough.set()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    for one in threads:
        one.join()
    return told


def test_torchs_store_is_no_communication() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        reader = SocketReader()
        (ones,) = reader.find([os.getpid()]).values()
        reader.close()
        accepted.close()
        port = client.getpeername()[1]
        flows = Flows()
        flows.found(0.0, {0: ones}, frozenset({port}))
        flows.found(1.0, {0: [_later(one) for one in ones]}, frozenset({port}))
        assert not any(str(port) in (one.local + one.remote).split() for one in flows.take())
        flows.found(2.0, {0: ones}, frozenset())
        flows.found(3.0, {0: [_later(one) for one in ones]}, frozenset())
        assert any(str(port) in (one.local + one.remote).split() for one in flows.take())


def _later(one: Connection) -> Connection:
    return one._replace(bytes_acked=one.bytes_acked + 9999)


def test_the_agents_part_is_off_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    agent: Any = SimpleNamespace(roster=roster())
    monkeypatch.delenv("EROICA_C4D", raising=False)
    assert agent_ways(agent) is None
    monkeypatch.setenv("EROICA_C4D", "true")
    assert agent_ways(agent) is not None
