"""The live page, its events, and the JSON interface to open a window: routes of the collector for people's browsers.

`access` says who may see them, `telling` what readers of the events are told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from eroica.collector.access import Visitors, body_of, with_headers
from eroica.collector.child_processes import page_of
from eroica.collector.intake import clean_request
from eroica.collector.live.telling import Stream, Telling, sibling_link
from eroica.errors import InputError
from eroica.views.live_page import ASSETS, REPORT_POLICY, asset, draw_page, window_now, worker_now
from eroica.wire.address import is_loopback
from eroica.wire.messages import ProfileRequest
from eroica.wire.places import read_private

if TYPE_CHECKING:
    from eroica.collector.service import Collector

log = logging.getLogger("eroica.collector")

MAX_READERS = 32
"""Pages and programs that follow the events at the same time."""
_MOST_REPORT_BYTES = 64_000_000
Handler = Callable[[Request], Awaitable[Response]]


class Live:
    """The pages of one collector.

    Args:
        collector: The job's.
        token: The collector's.
        page: What the link carries; default: made from the token.
    """

    def __init__(self, collector: Collector, token: str, page: str = "") -> None:
        names = (name.strip() for name in collector.settings.page_hosts.split(","))
        self.visitors = Visitors(token, frozenset(name for name in names if name), page)
        self._collector = collector
        self._telling = Telling(collector)
        self._streams = 0

    def routes(self) -> list[Route]:
        """List the routes for `Collector.application`."""
        return [
            Route("/", self._kept(self._page), methods=["GET"]),
            Route("/live/{name}", self._kept(self._asset), methods=["GET"]),
            Route("/report", self._kept(self._report), methods=["GET"]),
            Route("/v1/events", self._kept(self._events), methods=["GET"]),
            Route("/v1/window", self._kept(self._open_window), methods=["POST"]),
            Route("/v1/windows", self._kept(self._windows), methods=["GET"]),
            Route("/v1/windows/{window_id:int}/report", self._kept(self._report), methods=["GET"]),
            Route("/v1/windows/{window_id:int}/verdict", self._kept(self._verdict), methods=["GET"]),
            Route("/v1/workers/{rank:int}", self._kept(self._worker), methods=["GET"]),
            Route("/v1/jobs/{name}", self._kept(self._sibling), methods=["GET"]),
        ]

    def close(self) -> None:
        """Tell the readers how it ended, and let them go."""
        self._telling.close()

    def _kept(self, handler: Handler) -> Handler:
        """Guard a route: only visitors who may see the page get there."""

        async def kept(request: Request) -> Response:
            refusal = self.visitors.answer(request)
            return refusal if refusal is not None else with_headers(await handler(request))

        return kept

    # ------------------------------------------------------------------ pages

    async def _page(self, request: Request) -> Response:
        one = self._collector
        page = draw_page(one.status(), one.final, one.run_directory, one.settings.window_s)
        return Response(page, media_type="text/html; charset=utf-8")

    async def _asset(self, request: Request) -> Response:
        kind = ASSETS.get(request.path_params["name"])
        if kind is None:
            return _missing("there is no such file")
        return Response(asset(request.path_params["name"]), media_type=kind)

    async def _report(self, request: Request) -> Response:
        return await _html(page_of(self._collector.run_directory, request.path_params.get("window_id", 0)))

    async def _sibling(self, request: Request) -> Response:
        """Redirect to another job's page; its token is only for readers on this host."""
        near = request.client is not None and is_loopback(request.client.host)
        link = (
            await asyncio.to_thread(sibling_link, self._collector.run_directory, request.path_params["name"])
            if near
            else None
        )
        return RedirectResponse(link, status_code=303) if link else _missing("that job has no page here")

    # ------------------------------------------------------------------ JSON

    async def _open_window(self, request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return JSONResponse({"error": "the body must be application/json, as in {}"}, status_code=415)
        try:
            asked = clean_request(msgspec.json.decode(await body_of(request) or b"{}", type=ProfileRequest))
        except (InputError, ValueError, RecursionError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        answer = self._collector.windows.asked(self._collector.clock(), asked)
        self._telling.look()
        self._telling.wake()
        return _json(answer, 409 if answer.refused else 200)

    async def _windows(self, request: Request) -> Response:
        lines = self._collector.status().windows
        return _json([window_now(line, self._telling.report_of(line)) for line in lines])

    async def _verdict(self, request: Request) -> Response:
        verdict = self._collector.windows.ledger.verdicts.get(request.path_params["window_id"])
        return _missing("there is no verdict of this window") if verdict is None else _json(verdict)

    async def _worker(self, request: Request) -> Response:
        rank, roll, now = request.path_params["rank"], self._collector.windows.roll, self._collector.clock()
        found = [each for each in self._collector.status().workers if each.worker.global_rank == rank]
        records = [worker_now(each, roll.hears(each.worker.host, now)) for each in found]
        return _json(records) if records else _missing(f"there is no worker {rank}")

    async def _events(self, request: Request) -> Response:
        if self._streams >= MAX_READERS:
            error = f"{MAX_READERS} pages follow this job already; close one"
            return JSONResponse({"error": error}, status_code=503, headers={"retry-after": "10"})
        last = request.headers.get("last-event-id") or request.query_params.get("after", "")
        self._streams += 1  # now: before the first event is asked for, others may come
        return Stream(self._telling.follow(last), request.scope.get("eroica.hang_up"), self._stream_ended)

    def _stream_ended(self) -> None:
        self._streams -= 1


def _json(record: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(record), status_code=status, media_type="application/json")


def _missing(why: str) -> Response:
    return JSONResponse({"error": why}, status_code=404)


async def _html(path: Path) -> Response:
    """A report as its own page."""
    try:
        page = await asyncio.to_thread(read_private, path, _MOST_REPORT_BYTES)
    except OSError:
        return _missing("there is no report yet; it is drawn when the verdict stands")
    return Response(page, media_type="text/html; charset=utf-8", headers={"content-security-policy": REPORT_POLICY})
