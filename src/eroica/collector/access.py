"""Admit callers with the token to the collector, and bound how long strangers may keep it busy.

Everybody on the host can open a connection, and beyond localhost everybody on the network. So a request without the
token (of a browser: the cookie made from it) is answered before it is routed or its body read. A connection that has
not yet shown one of them is closed after a few seconds, or when too many others like it have come. So idle and slow
strangers hold neither descriptors nor memory, and never keep an agent out. A connection that has not even spoken waits
in `eroica.collector.pending_connections`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import socket
from collections.abc import Iterator
from typing import Any, cast

import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from eroica.collector.live.visitors import Visitors
from eroica.collector.pending_connections import Porch

MAX_HEADER_BYTES = 16_384
STRANGER_S = 5.0
"""How long a connection may stay without having shown the token, s."""
MAX_STRANGERS = 64
"""Connections that have not shown the token; above it the oldest of them goes."""
_SMALL_BYTES = 4096
_LONGEST_PATH = 1_000
_STRANGE = (401, 421)
"""Answers to who has not shown the token, or has called us by a name that is not ours."""
_NOTHING_THERE = JSONResponse({"error": "there is no such path"}, status_code=404)
_NEEDS_TOKEN = JSONResponse(
    {"error": "a token is needed; it stands in collector.json"}, status_code=401, headers={"connection": "close"}
)


class TokenGate:
    """Lets requests with the token through to `application`; answers all others with 401, whatever they ask for.

    Args:
        application: What is behind the gate.
        token: What every request must carry.
        visitors: Who judges requests without it that come from a browser; None if there are no pages.
    """

    def __init__(self, application: ASGIApp, token: str, visitors: Visitors | None = None) -> None:
        self._application = application
        self._wanted = b"Bearer " + token.encode()
        self._visitors = visitors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        given = [value for name, value in scope.get("headers", ()) if name == b"authorization"]
        if hmac.compare_digest(given[0] if len(given) == 1 else b"", self._wanted):
            scope.get("eroica.known", _nobody_cares)()
            await self._let_in(scope, receive, send)
        elif scope["type"] == "http":
            await self._visitor(scope, receive, send)

    async def _visitor(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pages are for browsers; everything else is not, and its own guard says so again."""
        if self._visitors is None or not self._visitors.serve(scope["path"]):
            await _NEEDS_TOKEN(scope, receive, send)
            return
        answer = self._visitors.answer(Request(scope))
        await (self._let_in if answer is None else answer)(scope, receive, send)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the application; an odd path or a caller that leaves makes no noise in the log."""
        path = scope.get("path", "")
        if scope["type"] != "http" or len(path) > _LONGEST_PATH or not path.isprintable():
            await _NOTHING_THERE(scope, receive, send)
            return
        with contextlib.suppress(ClientDisconnect):
            await self._application(scope, receive, send)


def _nobody_cares() -> None:
    """Do nothing, for a server that does not count strangers."""


class _Caller(H11Protocol):
    """One connection; a stranger until its first request that is not refused for want of the token."""

    def __init__(self, strangers: dict[_Caller, None], *arguments: Any, known: bool = False, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._strangers = strangers
        self._known = known
        self._leave: asyncio.TimerHandle | None = None
        self._application = cast("ASGIApp", self.app)
        self.app = cast("Any", self._listen)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody called."""
        super().connection_made(transport)
        if self._known:
            return
        while len(self._strangers) >= MAX_STRANGERS:
            next(iter(self._strangers)).hang_up()
        self._strangers[self] = None
        self._leave = self.loop.call_later(STRANGER_S, self.hang_up)

    def data_received(self, data: bytes) -> None:
        """Handle received bytes; hang up on a stranger whose bytes make the parser fail, without a stack in the log."""
        try:
            super().data_received(data)
        except Exception:
            if self not in self._strangers:
                raise
            self.hang_up()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a caller that is gone."""
        self._not_strange()
        super().connection_lost(exc)

    def hang_up(self) -> None:
        """Close at once, whatever is under way."""
        self._not_strange()
        self.transport.abort()

    def _not_strange(self) -> None:
        self._strangers.pop(self, None)
        if self._leave is not None:
            self._leave.cancel()
            self._leave = None

    async def _listen(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["eroica.hang_up"], scope["eroica.known"] = self.hang_up, self._not_strange

        async def heard(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] not in _STRANGE:
                self._not_strange()
            await send(message)

        await self._application(scope, receive, heard)


def config_for(application: ASGIApp) -> uvicorn.Config:
    """Configure the server of the gated collector: HTTP only, small headers, no trust in forwarded addresses."""
    strangers: dict[_Caller, None] = {}
    return uvicorn.Config(
        cast("Any", application),
        http=cast("type[asyncio.Protocol]", functools.partial(_Caller, strangers)),
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ws="none",
        proxy_headers=False,
        server_header=False,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=2,  # a page that does not let go
    )


class Server(uvicorn.Server):
    """uvicorn behind a porch, and without its own signal handling: the collector ends when the job does.

    Args:
        config: Of `config_for`.
        token: What callers must show.
    """

    def __init__(self, config: uvicorn.Config, token: str) -> None:
        super().__init__(config)
        self._token = token
        self._porches: list[Porch] = []

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on these sockets."""
        await super().startup(sockets=[])
        self._porches = [Porch(listener, self._protocol, self._token) for listener in sockets or ()]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, and let go of all connections."""
        for porch in self._porches:
            porch.close()
        await super().shutdown(sockets=[])

    def _protocol(self, known: bool) -> asyncio.BaseProtocol:
        make = cast("Any", self.config.http_protocol_class)
        return cast(
            "asyncio.BaseProtocol",
            make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state, known=known),
        )


async def small_body(request: Request) -> bytes:
    """A request's body.

    Raises:
        ValueError: It is longer than a small one.
    """
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > _SMALL_BYTES:
            raise ValueError(f"more than {_SMALL_BYTES} bytes")
    return data
