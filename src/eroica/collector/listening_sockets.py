"""The collector's sockets: loopback always, the network when the job has other hosts; never without a token."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from eroica.collector.access import body_of, shows_token
from eroica.collector.scraping import Scraping
from eroica.collector.service import Collector, Handler
from eroica.errors import InputError, UsageError
from eroica.wire import address
from eroica.wire.address import (
    Address,
    Endpoint,
    can_listen,
    endpoint_of,
    good_token,
    is_loopback,
    listening,
    loopback_domain,
)
from eroica.wire.guarded_server import Server
from eroica.wire.messages import OpenReply, OpenRequest

log = logging.getLogger("eroica.collector")

#: How long a page that does not let go may hold up the end, seconds.
_PAGE_S = 2


def named_door(environ: Mapping[str, str]) -> tuple[Endpoint, str] | None:
    """Read the collector's address and token from `EROICA_COLLECTOR` and `EROICA_TOKEN`; None if they are not set.

    Raises:
        UsageError: Everybody could talk to it: there is no token, or a bad one.
        InputError: That is no address.
    """
    url, token = environ.get("EROICA_COLLECTOR", ""), environ.get("EROICA_TOKEN", "")
    if not url:
        return None
    if not good_token(token):
        raise UsageError("EROICA_COLLECTOR needs an EROICA_TOKEN of 16 to 200 characters, the same on all hosts")
    return endpoint_of(url), token


def former_door(run: Path, host: str) -> tuple[Endpoint, str] | None:
    """Find the address where a dead collector of this host listened: other hosts look for the next one there."""
    known = address.read_shared(run)
    if known is None or known.host != host or not good_token(known.token):
        return None
    endpoint = endpoint_of(known.url)
    return None if is_loopback(endpoint.host) or not can_listen(endpoint) else (endpoint, known.token)


def former_inside(run: Path, host: str) -> tuple[Endpoint, str] | None:
    """Find the loopback address and page secret of a dead collector of this host, for pages that are still open.

    Its token is not used again: while nobody listened there, anybody could, and agents show it to who does.
    """
    known = address.read_address(run, host)
    if known is None or known.host != host or not good_token(known.page):
        return None
    endpoint = endpoint_of(known.url)
    return (endpoint, known.page) if endpoint.host == "127.0.0.1" and can_listen(endpoint) else None


class Doors:
    """The sockets of one collector.

    Args:
        collector: What answers.
        host: This host's name.

    Attributes:
        metrics: What Prometheus reads.
    """

    def __init__(self, collector: Collector, host: str) -> None:
        self.elsewhere = asyncio.Event()
        self._run = collector.run_directory
        self._host = host
        self._token = collector.token
        self._servers: list[tuple[Server, asyncio.Task[None]]] = []
        self._outside: dict[str, str] = {}
        self._address: Address | None = None
        # who is sent elsewhere is not told that the job is over, so `collector.finished` is left alone
        routes = [
            Route("/v1/open", _from_this_host(self._open), methods=["POST"]),
            Route("/v1/elsewhere", _from_this_host(self._elsewhere), methods=["POST"]),
        ]
        self._live = collector.live
        self.metrics = Scraping(collector, host)
        collector.listeners.append(self.metrics.judged)
        self._application: ASGIApp = self.metrics.before(collector.application(routes))

    async def open(self, door: Endpoint | None = None, former: Endpoint | None = None) -> None:
        """Listen on loopback, where one listened before if that is given, and on the named door; say where.

        Raises:
            OSError: It is taken, or no address of ours.
        """
        inside = await self._serve(listening(former or Endpoint("127.0.0.1", 0)))
        self._address = self._at(inside)
        if door is not None:
            self._live.visitors.names.add(door.host.lower())
            self._outside[door.host] = await self._serve(listening(door))
        address.announce(self._run, self._address, self._host)
        if door is not None:
            address.announce_to_all(self._run, self._at(self._outside[door.host]))
        await self.metrics.open(self._serve, inside if door is None else self._outside[door.host])

    async def close(self) -> None:
        """Take the address back and stop listening."""
        if self._address is not None:
            with contextlib.suppress(OSError):
                address.withdraw(self._run, self._address, self._host)
                if self.elsewhere.is_set():  # what it says is out of date
                    for name in ("status.json", "history.json"):
                        (self._run / name).unlink(missing_ok=True)
        self._live.telling.close()  # or open pages would hold up the servers
        self.metrics.withdraw()
        for server, _ in self._servers:
            server.should_exit = True
        await asyncio.gather(*(task for _, task in self._servers), return_exceptions=True)

    def _at(self, url: str) -> Address:
        page = self._live.visitors.page
        return Address(
            url=url, token=self._token, pid=os.getpid(), host=self._host, domain=loopback_domain(), page=page
        )

    async def _serve(self, listener: socket.socket, application: ASGIApp | None = None) -> str:
        known = partial(shows_token, self._token)
        server = Server(application or self._application, known, timeout_graceful_shutdown=_PAGE_S)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        self._servers.append((server, task))
        while not server.started and not task.done():
            await asyncio.sleep(0.01)
        host, port = listener.getsockname()[:2]
        if application is None:
            self._live.visitors.names.update({host, self._host.lower()})
        return Endpoint(host, port).url

    # ------------------------------------------------------------------ requests

    async def _open(self, request: Request) -> Response:
        """Listen on the network."""
        host = msgspec.msgpack.decode(await body_of(request), type=OpenRequest).host
        if host not in self._outside:
            self._outside[host] = await self._serve(listening(Endpoint(host, 0)))
            log.info("listening at %s for other hosts", self._outside[host])
        address.announce_to_all(self._run, self._at(self._outside[host]))
        self.metrics.reached_at(self._outside[host])
        return Response(msgspec.msgpack.encode(OpenReply(url=self._outside[host])), media_type="application/msgpack")

    async def _elsewhere(self, request: Request) -> Response:
        """The job's collector is another one: say where to those who ask here, and end without a verdict."""
        other = msgspec.msgpack.decode(await body_of(request), type=Address)
        endpoint_of(other.url)
        if self._outside:
            raise InputError("other hosts come to this one")
        address.announce(self._run, other, self._host)
        log.info("the job's collector is that of %s; this one ends", other.host)
        self.elsewhere.set()
        return Response(status_code=204)


def _from_this_host(handler: Handler) -> Handler:
    """A route for this host's agent only; what cannot be done is told."""

    async def answered(request: Request) -> Response:
        if request.client is None or not is_loopback(request.client.host):
            return JSONResponse({"error": "only this host's agent may ask for that"}, status_code=403)
        try:
            return await handler(request)
        except (OSError, InputError, ValueError) as error:  # msgspec's errors are ValueErrors
            return JSONResponse({"error": f"that cannot be done: {error}"}, status_code=400)

    return answered
