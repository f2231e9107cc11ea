"""A collector or a worker that is not what it says: nothing it sends ends or floods those who listen to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from eroica.agent.home import client_for
from eroica.collector.access import TokenGate, Visitors, shows_token
from eroica.wire import admission, guarded_server
from eroica.wire.beat import _ORDER_AT, PROBE, BeatReader, BeatWriter, Order
from eroica.wire.guarded_server import Server

TOKEN = "t" * 32
ORDER = Order(1, PROBE, 0, 5, 6, 100, 0, "/scratch")


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A collector's port that says the same to everybody."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    line, _ = server.accept()
                    with line, contextlib.suppress(OSError):
                        line.recv(65_536)
                        line.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 99999999999",
        b"Content-Length: 5\r\nContent-Encoding: gzip",
        b"Transfer-Encoding: chunked",
        b"X: no length at all",
    ],
)
def test_an_answer_that_may_be_too_long_is_not_read(head: bytes) -> None:
    async def ask(url: str) -> None:
        async with client_for(url, TOKEN) as client:
            await client.post("/v1/report", content=b"")

    with (
        answering(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n5\r\nhello\r\n") as url,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        asyncio.run(ask(url))


def test_a_redirect_takes_the_token_nowhere() -> None:
    async def ask(url: str) -> int:
        async with client_for(url, TOKEN) as client:
            return (await client.post("/v1/report", content=b"")).status_code

    with answering(b"HTTP/1.1 307 Go\r\nLocation: http://192.0.2.1/\r\nContent-Length: 0\r\n\r\n") as url:
        assert asyncio.run(ask(url)) == 307


@contextlib.asynccontextmanager
async def gate() -> object:
    """The collector's door with nothing behind it but "inside"."""
    inside = Starlette(routes=[Route("/", lambda request: PlainTextResponse("inside"))])
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(TokenGate(inside, TOKEN, Visitors(TOKEN)), partial(shows_token, TOKEN))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await serving


@pytest.mark.parametrize(
    "given",
    ["", "Bearer", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"bearer {TOKEN}", "Bearer é" + TOKEN, f"Basic {TOKEN}"],
)
def test_only_the_whole_token_opens_and_nobody_learns_which_paths_there_are(given: str) -> None:
    async def go() -> None:
        async with gate() as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            for path in ("/", "/nothing", "/" + "9" * 5000):
                answer = await client.get(path, headers={"Authorization": given.encode()})
                assert answer.status_code == 401 and "token is needed" in answer.text
                assert answer.headers["connection"] == "close"
            twice = [("Authorization", f"Bearer {TOKEN}")] * 2
            assert (await client.get("/", headers=twice)).status_code == 401
            assert (await client.get("/", headers=twice[:1])).text == "inside"

    asyncio.run(go())


def test_whoever_shows_no_token_is_sent_away_and_whoever_did_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_server, "STRANGER_S", 0.3)
    monkeypatch.setattr(admission, "PENDING_S", 0.3)

    async def go() -> None:
        async with gate() as port:
            idle, writer = await asyncio.open_connection("127.0.0.1", port)
            known, talk = await asyncio.open_connection("127.0.0.1", port)
            talk.write(f"GET / HTTP/1.1\r\nHost: c\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
            assert b"200 OK" in await known.readuntil(b"inside")
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(idle.read(), 5) == b""
            talk.write(f"GET / HTTP/1.1\r\nHost: c\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
            assert b"200 OK" in await known.readuntil(b"inside")
            for each in (writer, talk):
                each.close()

    asyncio.run(go())


@pytest.mark.parametrize("given", ["", "Authorization: Bearer guess\r\n"])
def test_who_breaks_the_protocol_while_being_refused_leaves_nothing_in_the_log(
    given: str, caplog: pytest.LogCaptureFixture
) -> None:
    head = f"POST /v1/report HTTP/1.1\r\nHost: c\r\nTransfer-Encoding: chunked\r\n{given}\r\n".encode()
    words = head + b"4000\r\n" + bytes(0x4000) + b"\r\n"

    async def go() -> None:
        async with gate() as port:
            for _ in range(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                with contextlib.suppress(ConnectionError):
                    for _ in range(3):
                        writer.write(words)
                        await writer.drain()
                    await asyncio.wait_for(reader.read(), 20)
                writer.close()
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                assert (await client.get("/", headers={"Authorization": f"Bearer {TOKEN}"})).text == "inside"

    asyncio.run(go())
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_worker_that_writes_into_the_agents_part_of_its_file_gets_its_order_all_the_same(tmp_path: Path) -> None:
    writer = BeatWriter.create(tmp_path, {"pid": os.getpid()})
    reader = BeatReader.open(writer.path)
    struct.pack_into("<Q", writer._memory, _ORDER_AT, 2**64 - 1)
    reader.give(ORDER)
    taken = writer.new_order()
    assert taken is not None and taken.first_iteration == 5
    with pytest.raises(ValueError, match="none that a worker could follow"):
        reader.give(ORDER._replace(first_iteration=-1))
    reader.close()
    writer.close()
