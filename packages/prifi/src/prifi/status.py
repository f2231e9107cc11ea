"""The page of a role, and metrics of relay and trustees. Neither holds anything about a single client."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import html
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from prifi.errors import BadConfig

_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="2">
<title>PriFi: {role}</title><style>body{{font:16px sans-serif;margin:2em}}td{{padding:.2em 1em .2em 0}}
.size{{font-size:2.5em}}</style><h1>PriFi: {role}</h1>
<p class="size">Anonymity set: {size}</p><p>{warning}</p><table>{rows}</table>
<p>Research software. Do not trust your safety to it.</p></html>"""


def application(role: str, status: Callable[[], Any], clock: Callable[[], float]) -> Starlette:
    """Return the application of a status page; `/metrics` is there for relay and trustees, never for clients.

    Args:
        role: "client", "relay" or "trustee".
        status: Returns the role's present status.
        clock: Returns seconds, for rounds per second since the last look.
    """
    last = {"at": clock(), "rounds": 0.0, "rate": 0.0}

    def read() -> dict[str, Any]:
        fields = dataclasses.asdict(status())
        rounds, passed = fields.get("rounds", fields.get("ciphertexts", 0)), clock() - last["at"]
        if passed >= 1.0:
            last.update(at=clock(), rounds=rounds, rate=(rounds - last["rounds"]) / passed)
        return {**fields, "rounds_per_s": round(last["rate"], 1)}

    async def page(_: Request) -> Response:
        fields = read()
        rows = "".join(
            f"<tr><td>{name.replace('_', ' ')}</td><td>{_text(one)}</td></tr>" for name, one in fields.items()
        )
        size = fields["anonymity_set"]
        warning = "" if size else "No epoch is running: nothing is sent."
        return HTMLResponse(_PAGE.format(role=role, size=size, warning=warning, rows=rows))

    async def as_json(_: Request) -> Response:
        return JSONResponse(read())

    async def as_metrics(_: Request) -> Response:
        numbers = ((name, float(one)) for name, one in read().items() if isinstance(one, bool | int | float))
        lines = (f"# TYPE prifi_{role}_{name} gauge\nprifi_{role}_{name} {value}\n" for name, value in numbers)
        return PlainTextResponse("".join(lines), media_type="text/plain; version=0.0.4")

    routes = [Route("/", page), Route("/status.json", as_json)]
    return Starlette(routes=routes if role == "client" else [*routes, Route("/metrics", as_metrics)])


class _Server(uvicorn.Server):
    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """Signals are the role's business."""
        return contextlib.nullcontext()


async def serve(app: Starlette, host: str, port: int) -> Callable[[], Any]:
    """Serve the page; return a coroutine function that ends it.

    Raises:
        BadConfig: The address cannot be used.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise BadConfig(f"cannot serve the status page on {host}:{port}: {error.strerror or error}") from error
    server = _Server(uvicorn.Config(app, log_level="warning", lifespan="off", ws="none"))
    task = asyncio.get_running_loop().create_task(server.serve([sock]))

    async def end() -> None:
        server.should_exit = True
        await task
        sock.close()

    return end


def _text(value: object) -> str:
    return html.escape(f"{value:.3f}" if isinstance(value, float) else str(value))
