"""Upstreams on real sockets, with every behaviour that the tests need, and gateways in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn

from pythia.gateway import Gateway, app
from pythia.page import live
from pythia.profile import Profiles
from pythia.replicas import free_port
from pythia.settings import Model, Policy, Replica, Settings

Handler = Callable[["Exchange"], Awaitable[None]]


class Exchange:
    """One request as a stub sees it."""

    def __init__(
        self, target: str, method: str, headers: list[tuple[str, str]], body: bytes, reader: Any, writer: Any
    ) -> None:
        self.target, self.method, self.headers, self.body = target, method, headers, body
        self.reader, self.writer = reader, writer

    def header(self, name: str) -> str | None:
        return next((v for k, v in self.headers if k.lower() == name), None)

    async def answer(self, status: str, headers: list[tuple[str, str]], body: bytes) -> None:
        lines = "".join(f"{k}: {v}\r\n" for k, v in [*headers, ("Content-Length", str(len(body)))])
        self.writer.write(f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body)
        await self.writer.drain()

    async def begin_stream(self) -> None:
        self.writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        await self.writer.drain()

    async def chunk(self, data: bytes) -> None:
        self.writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self.writer.drain()

    async def end_stream(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def gone(self) -> None:
        """Wait until the other side has closed."""
        while await self.reader.read(1024):
            pass


class Stub:
    """An upstream; `handler` decides what it does, `seen` is what it got."""

    def __init__(self, handler: Handler, *, close_after_s: float | None = None) -> None:
        self.handler, self.close_after_s = handler, close_after_s
        self.seen: list[Exchange] = []
        self.url = ""

    async def __aenter__(self) -> Stub:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            while True:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), self.close_after_s)
                lines = head.decode("latin-1").split("\r\n")
                method, target, _ = lines[0].split(" ", 2)
                headers = [tuple(line.split(": ", 1)) for line in lines[1:] if ": " in line]
                length = int(next((v for k, v in headers if k.lower() == "content-length"), "0"))
                exchange = Exchange(target, method, headers, await reader.readexactly(length), reader, writer)
                if target not in ("/health", "/v1/models", "/pythia/hints"):
                    self.seen.append(exchange)
                    await self.handler(exchange)
                else:
                    await exchange.answer("200 OK", [("Content-Type", "application/json")], b"{}")
        writer.close()


def events(count: int, *, usage: bool = False) -> list[bytes]:
    """Return the events of a streamed answer of so many tokens."""
    found = [b'data: {"choices":[{"index":0,"delta":{"content":"t%d "}}]}\n\n' % i for i in range(count)]
    if usage:
        found.append(b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":%d}}\n\n' % count)
    return [*found, b"data: [DONE]\n\n"]


async def complete(exchange: Exchange) -> None:
    """Answer as an OpenAI server: as many tokens as max_tokens says, streamed or not."""
    asked = json.loads(exchange.body or b"{}")
    count = asked.get("max_tokens", 3)
    if asked.get("stream"):
        await exchange.begin_stream()
        for event in events(count, usage=bool(asked.get("stream_options"))):
            await exchange.chunk(event)
        await exchange.end_stream()
        return
    usage = {"prompt_tokens": 7, "completion_tokens": count}
    body = {"choices": [{"message": {"role": "assistant", "content": "x " * count}}], "usage": usage}
    await exchange.answer(
        "200 OK", [("Content-Type", "application/json"), ("X-Own", "a"), ("X-Own", "b")], json.dumps(body).encode()
    )


@contextlib.asynccontextmanager
async def gateway(
    stubs: list[Stub], folder: Path, *, slots: int = 4, kv: int = 0, kind: str = "openai", profiles: Profiles | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[str, Gateway]]:  # fmt: skip
    """Run a real gateway in this process; yields its URL and itself."""
    replicas = [Replica(stub.url, slots, kv, kind) for stub in stubs]  # type: ignore[arg-type]
    chosen = Settings(
        {"*": Model(replicas)}, profiles=str(folder / "profiles.bin"), **({"policy": Policy()} | settings)
    )
    async with serving(Gateway(chosen, profiles)) as pair:
        yield pair


@contextlib.asynccontextmanager
async def serving(made: Gateway) -> AsyncIterator[tuple[str, Gateway]]:
    port = free_port()
    config = uvicorn.Config(
        app(made, live(made)), host="127.0.0.1", port=port, log_level="critical", server_header=False, date_header=False
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}", made
    finally:
        server.should_exit = True
        await asyncio.wait_for(task, 20)


def asking(role: str = "planner", run: str = "r1", workflow: str = "w", **more: Any) -> dict[str, Any]:
    """Return a request body with identifiers."""
    ids = {"workflow_type_id": workflow, "workflow_id": run, "agent_id": role}
    return {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 4,
        "app_metadata": ids,
        **more,
    }


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for a condition."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "the condition did not come true"
        await asyncio.sleep(0.01)
