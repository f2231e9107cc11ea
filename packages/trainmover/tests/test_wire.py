"""The control channel as TLS: only for who has the certificate, and whole while both ends talk at once."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import environment
from tests.rehearsal import SHAPE, rehearsal, states
from trainmover import wire
from trainmover.cli import ask
from trainmover.errors import RefusedError, TrainmoverError

TALK = 400


def certificate(folder: Path, name: str) -> dict[str, str]:
    """A certificate that signs itself, as the variables that name it."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "1",
    ]
    command += ["-subj", "/CN=trainmover", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return {"TRAINMOVER_TLS_CERT": str(cert), "TRAINMOVER_TLS_KEY": str(key)}


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
    writer.write(wire.encode({"do": "welcome"}))
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


@pytest.mark.jobs
def test_a_job_whose_control_channel_is_tls_moves_a_member(
    tmp_path: Path, undisturbed: Path, secure: dict[str, str]
) -> None:
    with rehearsal(tmp_path / "job", 4, *SHAPE, pace_s=0.3, **secure) as job:
        job.standby("spare-1", **secure)
        job.until_ready()
        assert job.move("node-1", "spare-1")["done"], job.log()
        job.pace(0.0)
        assert job.finish() == 0, job.log()
        assert states(job.out) == states(undisturbed)
