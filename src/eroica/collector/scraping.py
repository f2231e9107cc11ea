"""Serve metrics to Prometheus: its token, its address, and the files by which it finds them.

Everything that the collector answers needs its token; `/metrics` also takes a token that opens nothing else. A
Prometheus of the same user finds two files in the run directory.

    <run>/metrics.token      that token, for `credentials_file`
    <run>/prometheus.json    the address, for `file_sd_configs`; gone when the collector has ended in order

A Prometheus of another user is given an address and a token by the settings `metrics_listen` and `metrics_token`. A
Prometheus that watches many jobs wants all targets in one directory, since its patterns may only stand in a file's
name: that is `metrics_targets`. A target file holds an address and the job's name, readable for everybody.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import importlib
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from eroica.collector.participants import AGENT_SILENT_S
from eroica.collector.service import Collector
from eroica.errors import InputError
from eroica.model.verdict import Verdict
from eroica.model.words import clean
from eroica.wire.address import Endpoint, endpoint_of, good_token, listening, outside_address, read_shared
from eroica.wire.guarded_server import admit
from eroica.wire.places import file_name, read_private, write_private, write_whole

if TYPE_CHECKING:
    from eroica.views.metrics import Scrape

log = logging.getLogger("eroica.collector")

Serve = Callable[[socket.socket, ASGIApp], Awaitable[str]]
PATH = "/metrics"
_STRANGER = JSONResponse(
    {"error": "a token is needed; it stands in metrics.token in the run directory"},
    status_code=401,
    headers={"connection": "close"},
)


class Scraping:
    """The metrics of one collector.

    Args:
        collector: Whose.
        host: This host's name.
    """

    def __init__(self, collector: Collector, host: str) -> None:
        self._collector = collector
        self._settings, self._run = collector.settings, collector.run_directory
        self._note = collector.windows.ledger.note
        self._files = [self._run / "prometheus.json"]
        if self._settings.metrics_targets:
            name = f"{file_name(collector.windows.job)}@{file_name(host)}.json"
            self._files.append(Path(self._settings.metrics_targets) / name)
        self._stood_at: dict[int, float] = {}
        self._target = b""
        self._url = ""
        self._own_token = self._settings.metrics_token
        if not good_token(self._own_token):
            if self._own_token:
                self._note("metrics_token is not used: it needs 16 to 200 characters without spaces")
            self._own_token = hmac.new(collector.token.encode(), b"eroica metrics", hashlib.sha256).hexdigest()
        self._passes = tuple(f"Bearer {each}".encode() for each in (collector.token, self._own_token))

    # ------------------------------------------------------------------ what

    def judged(self, window_id: int, verdict: Verdict) -> None:
        """A verdict stands."""
        self._stood_at[window_id] = time.time()

    def scrape(self) -> Scrape:
        """Gather the present state for the metrics."""
        from eroica.views.metrics import Scrape

        windows, now = self._collector.windows, self._collector.clock()
        verdicts, over = windows.ledger.verdicts, windows.ledger.judged("passed", "restarted")
        window_id, verdict = 0, self._collector.final
        if verdict is None and (standing := verdicts.keys() - over):  # others say nothing of the job now
            window_id = max(standing)
            verdict = verdicts[window_id]
        return Scrape(
            status=self._collector.status(),
            workers_expected=windows.roll.world_size,
            report_ages_s=windows.roll.report_ages(now),
            overdue_s=AGENT_SILENT_S,
            verdict=verdict,
            verdict_at=self._stood_at.get(window_id),
            verdicts=tuple(verdicts.values()),
            messages=self._collector.messages,
            more=tuple(chain.from_iterable(filter(None, self._collector.parts.call("metrics").values()))),
        )

    # ------------------------------------------------------------------ to whom

    def before(self, application: ASGIApp) -> ASGIApp:
        """The application with `/metrics` in front of it, for who has the collector's token or that of the metrics.

        Who has neither comes to the application's own gate, and does not even learn that there are metrics.
        """

        async def answered(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["path"] == PATH and self._may_read(Request(scope)):
                admit(scope)
                await (await self._answer(Request(scope)))(scope, receive, send)
            else:
                await application(scope, receive, send)

        return answered

    def _may_read(self, request: Request) -> bool:
        given = request.headers.getlist("authorization")
        shown = given[0].encode("latin-1") if len(given) == 1 else b""
        return any([hmac.compare_digest(shown, each) for each in self._passes])  # noqa: C419 - both, in constant time

    async def _answer(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return JSONResponse({"error": "metrics are only read"}, status_code=405, headers={"allow": "GET, HEAD"})
        metrics = await asyncio.to_thread(importlib.import_module, "eroica.views.metrics")  # it takes its time, once
        body, content_type = await asyncio.to_thread(
            metrics.exposition, self.scrape(), request.headers.get("accept", "")
        )
        return Response(body, headers={"content-type": content_type, "cache-control": "no-store"})

    # ------------------------------------------------------------------ where

    async def open(self, serve: Serve, inside: str) -> None:
        """Listen where the settings say, too, and say where Prometheus may ask; what fails is a note.

        Args:
            serve: Starts to answer on a socket; returns its URL.
            inside: The collector's own URL.
        """
        self._url = inside
        wanted = self._settings.metrics_listen
        try:
            if wanted:
                self._url = _reachable(await serve(listening(_door(wanted)), self.before(_nothing_else)))
        except (OSError, InputError) as error:
            self._note(f"metrics are not to be had at {wanted[:100]}: {error}")
        self.announce()

    def reached_at(self, url: str) -> None:
        """The collector listens for other hosts, too: that is the better place to ask, unless the settings say one."""
        if not self._settings.metrics_listen:
            self._url = url
        self.announce()

    def announce(self) -> None:
        """Write the files, unless hosts share the directory and the job's collector is that of another one."""
        shared = read_shared(self._run)
        if shared is not None and shared.token != self._collector.token:
            return
        where = [{"targets": [urlsplit(self._url).netloc], "labels": {"run": clean(self._collector.windows.job)}}]
        self._target = msgspec.json.format(msgspec.json.encode(where), indent=2) + b"\n"
        try:
            write_whole(self._run / "metrics.token", self._own_token.encode())
            write_whole(self._files[0], self._target)
            for path in self._files[1:]:
                _write_for_all(path, self._target)
        except OSError as error:
            self._note(f"Prometheus cannot find the metrics: {error}")

    def withdraw(self) -> None:
        """There is nothing to be asked any more; what another collector has written since stays."""
        for path in self._files:
            with contextlib.suppress(OSError):
                if read_private(path) == self._target:
                    path.unlink()
                    if path.parent == self._run:
                        (self._run / "metrics.token").unlink(missing_ok=True)


def _write_for_all(path: Path, data: bytes) -> None:
    """Write a file that appears whole and that every user may read.

    Raises:
        OSError: There is no such directory, or it cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    write_private(draft, data)
    draft.chmod(0o644)
    draft.replace(path)


async def _nothing_else(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await _STRANGER(scope, receive, send)


def _door(wanted: str) -> Endpoint:
    """HOST:PORT as an endpoint; port 0 is any free one.

    Raises:
        InputError: It is no such thing.
    """
    host, colon, port = wanted.strip().rpartition(":")
    if colon and port == "0":
        return Endpoint(endpoint_of(f"http://{host}:1").host, 0)
    return endpoint_of(f"http://{wanted.strip()}")


def _reachable(url: str) -> str:
    """The URL; an address of this host instead of one that stands for all of them."""
    endpoint = endpoint_of(url)
    if endpoint.host not in ("0.0.0.0", "::"):
        return url
    try:
        return Endpoint(outside_address(), endpoint.port).url
    except OSError:
        return Endpoint("127.0.0.1", endpoint.port).url
