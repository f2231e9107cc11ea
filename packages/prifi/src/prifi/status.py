"""The page of a role, and metrics of relay and trustees. Neither holds anything about a single client."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
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


def application(role: str, read: Callable[[], dict[str, Any]], metrics: bool) -> Starlette:
    """Return the application of a status page.

    Args:
        role: "client", "relay" or "trustee".
        read: Returns the present status.
        metrics: Whether there is `/metrics`, too; never for clients.
    """

    async def page(request: Request) -> Response:
        del request
        status = read()
        rows = "".join(
            f"<tr><td>{name.replace('_', ' ')}</td><td>{_text(value)}</td></tr>" for name, value in status.items()
        )
        size = status.get("anonymity_set", 0)
        warning = "" if size else "No epoch is running: nothing is sent."
        return HTMLResponse(_PAGE.format(role=role, size=size, warning=warning, rows=rows))

    async def as_json(request: Request) -> Response:
        del request
        return JSONResponse(read())

    class Collector:
        def collect(self) -> Iterator[GaugeMetricFamily]:
            for name, value in read().items():
                if isinstance(value, bool | int | float):
                    yield GaugeMetricFamily(f"prifi_{role}_{name}", name.replace("_", " "), value=float(value))

    registry = CollectorRegistry()
    registry.register(Collector())

    async def as_metrics(request: Request) -> Response:
        del request
        return PlainTextResponse(generate_latest(registry), media_type="text/plain; version=0.0.4")

    routes = [Route("/", page), Route("/status.json", as_json)]
    return Starlette(routes=[*routes, Route("/metrics", as_metrics)] if metrics else routes)


class Rates:
    """Turns a role's status into a page's fields, with rounds per second since the last look."""

    def __init__(self, status: Callable[[], Any], clock: Callable[[], float]) -> None:
        self._status, self._clock = status, clock
        self._before = (clock(), 0)
        self._rate = 0.0

    def read(self) -> dict[str, Any]:
        """Return the fields."""
        fields = dataclasses.asdict(self._status())
        rounds, now = fields.get("rounds", fields.get("ciphertexts", 0)), self._clock()
        at, count = self._before
        if now - at >= 1.0:
            self._rate = (rounds - count) / (now - at)
            self._before = (now, rounds)
        return {**fields, "rounds_per_s": round(self._rate, 1)}


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
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return text.replace("&", "&amp;").replace("<", "&lt;")
