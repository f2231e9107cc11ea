"""Admit callers with the token to the collector.

Everybody on the host can open a connection, and beyond localhost everybody on the network. So a request without the
token (of a browser: the cookie made from it) is answered before it is routed or its body read. What connections cost
that have not shown one of them is bounded in `eroica.wire.guarded_server`.
"""

from __future__ import annotations

import contextlib
import hmac

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from eroica.collector.live.visitors import Visitors
from eroica.wire.guarded_server import admit, header_in

_SMALL_BYTES = 4096
_LONGEST_PATH = 1_000
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
            admit(scope)
            await self._let_in(scope, receive, send)
        elif scope["type"] == "http":
            await self._visitor(scope, receive, send)

    async def _visitor(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pages are for browsers; everything else is not, and its own guard says so again."""
        if self._visitors is None or not self._visitors.serve(scope["path"]):
            await _NEEDS_TOKEN(scope, receive, send)
            return
        answer = self._visitors.answer(Request(scope))
        if answer is None:
            admit(scope)
        await (self._let_in if answer is None else answer)(scope, receive, send)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the application; an odd path or a caller that leaves makes no noise in the log."""
        path = scope.get("path", "")
        if scope["type"] != "http" or len(path) > _LONGEST_PATH or not path.isprintable():
            await _NOTHING_THERE(scope, receive, send)
            return
        with contextlib.suppress(ClientDisconnect):
            await self._application(scope, receive, send)


class TokenShown:
    """Tell whether the first words of a connection carry the token. Each request is checked again for its rights.

    Args:
        token: What they must carry.
    """

    def __init__(self, token: str) -> None:
        self._wanted = b"Bearer " + token.encode()

    def __call__(self, words: bytes) -> bool:
        """Look at the first words."""
        return hmac.compare_digest(header_in(words, b"authorization"), self._wanted)


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
