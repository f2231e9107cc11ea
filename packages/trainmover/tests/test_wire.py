"""The control channel as TLS: only for who has the certificate, and whole while both ends talk at once."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import environment
from tests.jobs import certificate
from trainmover import wire
from trainmover.agent import Agent
from trainmover.cli import ask
from trainmover.context import Context
from trainmover.control_port import bound
from trainmover.controller import Controller
from trainmover.errors import RefusedError, TrainmoverError
from trainmover.state_machine import Timeouts

TALK = 400


@pytest.fixture
def secure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    variables = certificate(tmp_path, "own")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


@pytest.fixture
def controller(tmp_path: Path, secure: dict[str, str]) -> Iterator[dict[str, str]]:
    """A controller whose channel is TLS."""
    command = [sys.executable, "-m", "trainmover.controller", "--folder", str(tmp_path)]
    with subprocess.Popen(command, env=environment(TRAINMOVER_TOKEN="secret", **secure)) as process:
        file, deadline = tmp_path / "controller.json", time.monotonic() + 20
        while not file.exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        yield {"TRAINMOVER_CONTROLLER": json.loads(file.read_text())["address"], "TRAINMOVER_TOKEN": "secret"}
        process.terminate()


def test_only_who_has_the_certificate_and_the_token_is_answered(
    controller: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(controller, {"ask": "status"})["status"]["generation"] == 0
    with pytest.raises(RefusedError, match="token"):
        ask({**controller, "TRAINMOVER_TOKEN": "guess"}, {"ask": "status"})
    monkeypatch.setenv("TRAINMOVER_TLS_CERT", certificate(tmp_path, "other")["TRAINMOVER_TLS_CERT"])
    with pytest.raises(RefusedError, match=r"certificate is not .*other\.pem"):
        ask(controller, {"ask": "status"})
    monkeypatch.delenv("TRAINMOVER_TLS_CERT")
    with pytest.raises(TrainmoverError, match="set TRAINMOVER_TLS_CERT"):
        ask(controller, {"ask": "status"})


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Welcome, then everything back as it comes."""
    hello = await reader.readline()
    assert json.loads(hello)["token"] == "secret"
    writer.write(wire.encode({"command": "welcome"}))
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


@pytest.mark.usefixtures("secure")
def test_one_thread_may_read_while_another_writes() -> None:
    """Messages with content of up to 60 kB, both ways at once; all come back, whole and in order."""
    started, address = threading.Event(), []

    async def serve() -> None:
        server = await asyncio.start_server(_echo, "127.0.0.1", 0, ssl=wire.server_tls())
        address.append(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        started.set()
        async with server:
            await asyncio.sleep(30)

    loop = asyncio.new_event_loop()
    task = loop.create_task(serve())
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([task])))
    thread.start()
    try:
        assert started.wait(10)
        channel, _ = wire.call(address[0], {"token": "secret"})
        sent = [os.urandom(1 + number * 150) for number in range(TALK)]
        writer = threading.Thread(
            target=lambda: [channel.send({"number": number}, content) for number, content in enumerate(sent)]
        )
        writer.start()
        got = [channel.receive() for _ in range(TALK)]
        writer.join(10)
        assert not writer.is_alive()
        channel.close()
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(10)
        loop.close()
    assert got == [({"number": number}, content) for number, content in enumerate(sent)]


def test_where_a_member_stands_in_a_recovery_is_said_until_it_goes_on_also_over_a_new_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        agent = Agent(f"127.0.0.1:{server.getsockname()[1]}", {"key": "m0"}, Context("secret", "127.0.0.1"))
        threading.Thread(target=agent.start, daemon=True).start()

        def connected() -> wire.Channel:
            channel = wire.Channel(server.accept()[0])
            channel.receive()
            channel.send({"command": "welcome", "generation": 0})
            return channel

        first = connected()
        agent.report_status("stopped", generation=3)
        first.close()  # it may never have been read
        second = connected()
        said = [second.receive()[0] for _ in range(4)]
        assert {"event": "stopped", "generation": 3} in said
        agent.report_status("recovered", generation=3)
        agent.go_on()
        later = [second.receive()[0] for _ in range(4)]
        assert later.count({"event": "recovered", "generation": 3}) == 1
        for generation in (3, 3, 2):
            second.send({"command": "recover", "generation": generation})
        agent.wait(lambda: agent.recover is not None, 10, "an order")
        agent.recover = None
        second.send({"command": "leave", "reason": "the end"})
        agent.wait(lambda: agent.leave is not None, 10, "the end")
        assert agent.recover is None  # said again, it is no second order


def test_an_error_in_the_controller_is_in_its_log_and_ends_only_that_connection(tmp_path: Path) -> None:
    controller = Controller(tmp_path, "secret", Timeouts())

    def raising(*_: object) -> list[object]:
        raise KeyError(1)

    controller._machine.said = raising  # type: ignore[method-assign,assignment]

    async def talk() -> bytes:
        serving = asyncio.create_task(controller.serve(bound("127.0.0.1", 0), "127.0.0.1"))
        while not (tmp_path / "controller.json").exists():
            await asyncio.sleep(0.01)
        address = json.loads((tmp_path / "controller.json").read_text())["address"]
        reader, writer = await asyncio.open_connection(*address.split(":"))
        hello = {
            "kind": "standby", "key": "s0", "token": "secret", "version": wire.VERSION,
            "host": "here", "address": ["here", 1],
        }  # fmt: skip
        writer.write(wire.encode(hello))
        await reader.readline()
        writer.write(wire.encode({"event": "heartbeat"}))
        end = await reader.read()
        serving.cancel()
        writer.close()
        return end

    assert asyncio.run(talk()) == b""
    said = (tmp_path / "controller.log").read_text()
    assert "an error while dealing with s0" in said and "KeyError: 1" in said
