"""Small OpenAI-compatible servers on real sockets, each in a process of its own, apart from the sender's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aiohttp import web


@dataclass(frozen=True)
class Behaviour:
    """What a server does.

    Attributes:
        added: Tokens of its chat template; it counts bytes.
        first_s: Time to the first token.
        gap_s: Time between chunks.
        per_chunk: Tokens of a chunk.
        usage: Whether it states usage.
        refuse_every: Answers each n-th request with 503.
        break_every: Breaks each n-th stream with an error.
        freeze: (start, end) in seconds from the first streamed request, in which nothing is sent.
    """

    added: int = 0
    first_s: float = 0.0
    gap_s: float = 0.0
    per_chunk: int = 1
    usage: bool = True
    refuse_every: int = 0
    break_every: int = 0
    freeze: tuple[float, float] = (0.0, 0.0)


def _run(behaviour: Behaviour, ready: Any) -> None:
    count, began = [0], [0.0]

    async def wait(seconds: float) -> None:
        due = time.perf_counter() + seconds
        start, end = (began[0] + edge for edge in behaviour.freeze)
        if start <= due < end:
            due = end
        await asyncio.sleep(max(due - time.perf_counter(), 0))

    async def chat(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt_tokens = len(body["messages"][0]["content"].encode()) + behaviour.added
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": body["max_tokens"]}
        if not body.get("stream"):
            return web.json_response({"choices": [], **({"usage": usage} if behaviour.usage else {})})
        count[0] += 1
        began[0] = began[0] or time.perf_counter()
        number = count[0]
        if behaviour.refuse_every and number % behaviour.refuse_every == 0:
            return web.Response(status=503, text="overloaded")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)

        async def send(value: Any) -> None:
            await response.write(b"data: " + json.dumps(value).encode() + b"\n\n")

        await send({"choices": [{"delta": {"role": "assistant"}}]})
        await wait(behaviour.first_s)
        sent = 0
        while sent < body["max_tokens"]:
            if sent:
                await wait(behaviour.gap_s)
            size = min(behaviour.per_chunk, body["max_tokens"] - sent)
            await send({"choices": [{"delta": {"content": "x" * size}}]})
            sent += size
            if behaviour.break_every and number % behaviour.break_every == 0:
                await send({"error": {"message": "worker died"}})
                break
        if behaviour.usage:
            await send({"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def main() -> None:
        application = web.Application(client_max_size=2**28)
        application.router.add_post("/v1/chat/completions", chat)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        ready.send(site._server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    asyncio.run(main())


@contextlib.contextmanager
def server(behaviour: Behaviour) -> Iterator[str]:
    """Run a server in a process of its own and yield its URL."""
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(behaviour, theirs), daemon=True)
    process.start()
    try:
        assert ours.poll(60), "the test's server did not start"
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.terminate()
        process.join(10)
        ours.close()
        theirs.close()
