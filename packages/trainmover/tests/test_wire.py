"""The control channel: states are repeated over a new connection, and an error ends one connection only."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from pathlib import Path

from trainmover import wire
from trainmover.agent import Agent
from trainmover.context import Context
from trainmover.controller import Controller
from trainmover.state_machine import Timeouts


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
        serving = asyncio.create_task(controller.serve(wire.bound("127.0.0.1", 0), "127.0.0.1"))
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
