"""The planner's HTTP server: uvicorn, a token for every request, and a bound on unknown connections.

A connection whose first bytes carry no token gets a constant answer and is closed before any object exists for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import resource
import socket
import time
from collections.abc import Coroutine
from typing import Any, cast

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from c4p.admission import Front
from c4p.errors import BadRequest

TOKEN_VARIABLE = "C4P_PLANNER_TOKEN"
SHORTEST_TOKEN = 16
MOST_SILENT = 64
MOST_CONNECTIONS = 20_000
_HEADER_BYTES = 16_384
_OTHER_FILES = 200
_TICK_S = 0.02
_NEEDS_TOKEN = {"error": f"a token is needed: set {TOKEN_VARIABLE} as for the planner"}
_REFUSAL = (
    b"HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
)


def check_token(token: str, is_open: bool) -> str:
    """Return the token, which is empty if the planner is to be open.

    Raises:
        BadRequest: There is none, or it could be guessed.
    """
    if not token and is_open:
        return ""
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise BadRequest(
            f"set {TOKEN_VARIABLE} to {SHORTEST_TOKEN} printable characters or more, here and for the jobs; or give "
            "--open, if everybody who reaches the port may move flows"
        )
    return token


class TokenGate:
    """An ASGI wrapper that admits requests with the token.

    Args:
        application: What is behind the gate.
        token: What every request must carry; empty lets all through.
    """

    def __init__(self, application: ASGIApp, token: str) -> None:
        self._application = application
        self._wanted = f"Bearer {token}".encode() if token else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""
        given = [value for name, value in scope.get("headers", ()) if name == b"authorization"]
        if not self._wanted or hmac.compare_digest(given[0] if len(given) == 1 else b"", self._wanted):
            await self._application(scope, receive, send)
        else:
            await JSONResponse(_NEEDS_TOKEN, 401, {"connection": "close"})(scope, receive, send)


class Server(uvicorn.Server):
    """The HTTP server of a planner.

    Args:
        application: Answers requests.
        token: What connections and requests must carry; empty for an open planner.
    """

    def __init__(self, application: ASGIApp, token: str) -> None:
        _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))  # each member keeps a connection
        most = MOST_CONNECTIONS if files < 0 else max(min(MOST_CONNECTIONS, files - _OTHER_FILES), files // 2)
        config = uvicorn.Config(
            cast("Any", TokenGate(application, token)),
            http="h11",
            ws="none",
            lifespan="off",
            log_level="error" if token else "critical",  # else everybody could fill the log
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=_HEADER_BYTES,
            limit_concurrency=most,
        )
        super().__init__(config)
        self._wanted = f"Bearer {token}".encode() if token else b""
        self._fronts: list[Front] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._refusal = _REFUSAL % (len(body := JSONResponse(_NEEDS_TOKEN).body), bytes(body))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on these sockets."""
        await super().startup(sockets=[])
        loop = asyncio.get_running_loop()
        for one in sockets or ():
            self._fronts.append(
                Front(one, self._judge, _HEADER_BYTES, loop.add_reader, loop.remove_reader, MOST_SILENT)
            )
        self._start(self._tick())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening and close all connections."""
        while self._fronts:
            self._fronts.pop().close()
        await super().shutdown(sockets=[])

    def _judge(self, caller: socket.socket, words: bytes) -> None:
        if self._wanted and not hmac.compare_digest(_authorization(words), self._wanted):
            with caller, contextlib.suppress(OSError):
                caller.recv(_HEADER_BYTES)  # what was not read would reset the connection, and with it the answer
                caller.send(self._refusal)
            return
        self._start(self._hand_over(caller))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tick(self) -> None:
        while not self.should_exit:
            await asyncio.sleep(_TICK_S)
            for front in self._fronts:
                front.tick(time.monotonic())

    async def _hand_over(self, caller: socket.socket) -> None:
        make = cast("Any", self.config.http_protocol_class)
        state = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: make(**state), caller)
        except OSError:
            caller.close()


def _authorization(words: bytes) -> bytes:
    """Return the Authorization header in the first bytes of a connection."""
    head = words.partition(b"\r\n\r\n")[0]
    at = head.lower().find(b"\r\nauthorization:")
    return head[at + 16 :].partition(b"\r\n")[0].strip() if at >= 0 else b""


def bound(host: str, port: int) -> socket.socket:
    """Return a socket bound to one address.

    Raises:
        BadRequest: It is taken, or no address of this host.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise BadRequest(f"{host}: {error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise BadRequest(f"cannot listen at {host}:{port}: {error.strerror}") from error
    return listener
