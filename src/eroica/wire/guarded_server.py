"""uvicorn behind an admission: what clients cost that have not shown a token or cookie is bounded.

Everybody on the host can open a connection, and beyond loopback everybody on the network. `eroica.wire.admission`
bounds silent connections. Of those that speak, whoever shows a token with the first words comes in at once. Of the
others, `MAX_HEARD_PER_S` a second are listened to, for a login page or a 401; they have `STRANGER_S` to show a token,
and the oldest of `MAX_STRANGERS` goes first. Within TLS nothing can be seen before the handshake, so there an address
that has shown a token before counts instead, with `MAX_STRANGERS` connections of its own kind.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from eroica.wire.admission import Front

MAX_HEADER_BYTES = 16_384
MAX_SILENT = 64
STRANGER_S = 5.0
MAX_STRANGERS = 64
MAX_HEARD_PER_S = 200
"""Connections without a token that are listened to in a second."""
_MAX_ADDRESSES = 10_000
_HANDSHAKE = b"\x16\x03"


class Strangers:
    """Connections that have not shown a token; they hang up the oldest of their kind when there are too many.

    Attributes:
        addresses: Where somebody has shown a token before, the latest last.
    """

    def __init__(self) -> None:
        self._kinds: dict[bool, dict[Any, Callable[[], object]]] = {False: {}, True: {}}
        self.addresses: dict[str, None] = {}

    def add(self, one: object, hang_up: Callable[[], object], is_met: bool) -> None:
        """Count a connection."""
        kind = self._kinds[is_met]
        while len(kind) >= MAX_STRANGERS:
            kind.pop(next(iter(kind)))()
        kind[one] = hang_up

    def discard(self, one: object) -> None:
        """Stop counting a connection."""
        for kind in self._kinds.values():
            kind.pop(one, None)

    def meet(self, address: str) -> None:
        """Remember an address whose client has shown a token."""
        self.addresses.pop(address, None)
        while len(self.addresses) >= _MAX_ADDRESSES:
            self.addresses.pop(next(iter(self.addresses)))
        self.addresses[address] = None


class _Caller(H11Protocol):
    """One connection; a stranger's until a request with a valid token or cookie."""

    def __init__(
        self, strangers: Strangers, *arguments: Any, known: bool = False, met: bool = False, **named: Any
    ) -> None:
        super().__init__(*arguments, **named)
        self._strangers = strangers
        self._is_known, self._is_met = known, met
        self._leave: asyncio.TimerHandle | None = None
        self._application = cast("ASGIApp", self.app)
        self.app = cast("Any", self._listen)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count a connection that has not shown a token."""
        super().connection_made(transport)
        if not self._is_known:
            self._strangers.add(self, self.hang_up, self._is_met)
            self._leave = self.loop.call_later(STRANGER_S, self.hang_up)

    def data_received(self, data: bytes) -> None:
        """Handle received bytes; hang up on a stranger whose bytes make the parser fail, without a stack in the log."""
        try:
            super().data_received(data)
        except Exception:
            if self._leave is None:
                raise
            self.hang_up()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a client that is gone."""
        self._not_strange()
        super().connection_lost(exc)

    def hang_up(self) -> None:
        """Close at once, whatever is under way."""
        self._not_strange()
        self.transport.abort()

    def _not_strange(self) -> None:
        self._strangers.discard(self)
        if self._leave is not None:
            self._leave.cancel()
            self._leave = None

    def _shown(self) -> None:
        """The application has found a valid token or cookie."""
        self._not_strange()
        if self.client is not None:
            self._strangers.meet(self.client[0])

    async def _listen(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["eroica.hang_up"], scope["eroica.known"] = self.hang_up, self._shown
        try:
            await self._application(scope, receive, send)
        except Exception:
            if self._leave is None:
                raise
            self.hang_up()  # a stranger has broken the protocol while being answered: no stack in the log
            self.cycle.disconnected = True


def admit(scope: Scope) -> None:
    """Tell the server that a request carries a valid token or cookie, so that its connection is no stranger's."""
    shown = scope.get("eroica.known")
    if shown is not None:
        shown()


class Server(uvicorn.Server):
    """uvicorn behind an admission: HTTP only, small headers, no forwarded addresses, no signals, no access log.

    Args:
        application: Calls `admit` for each request with a valid token or cookie.
        is_known: Whether the first words of a connection show a token or cookie. Each request is checked again.
        certificate: PEM file with the certificate chain, None for plain HTTP.
        key: PEM file with its key.
        **more: Other arguments of `uvicorn.Config`.
    """

    def __init__(
        self,
        application: ASGIApp,
        is_known: Callable[[bytes], bool],
        certificate: Path | None = None,
        key: Path | None = None,
        **more: Any,
    ) -> None:
        self._strangers = Strangers()
        config = uvicorn.Config(
            cast("Any", application),
            http=cast("type[asyncio.Protocol]", functools.partial(_Caller, self._strangers)),
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            ws="none",
            proxy_headers=False,
            server_header=False,
            log_config=None,
            access_log=False,
            lifespan="off",
            ssl_certfile=certificate,
            ssl_keyfile=key,
            **more,
        )
        super().__init__(config)
        self._is_known = is_known
        self._fronts: list[Front] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._second, self._heard = 0, 0

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on these sockets."""
        await super().startup(sockets=[])
        self._fronts = [Front(one, self._judge, MAX_SILENT, MAX_HEADER_BYTES) for one in sockets or ()]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, and let go of all connections."""
        for front in self._fronts:
            front.close()
        await super().shutdown(sockets=[])

    def _judge(self, caller: socket.socket, words: bytes) -> None:
        is_tls = self.config.ssl is not None
        is_known = not is_tls and self._is_known(words)
        is_met = is_tls and _address(caller) in self._strangers.addresses
        if (is_tls and not words.startswith(_HANDSHAKE)) or not (is_known or is_met or self._may_be_heard()):
            caller.close()
            return
        task = asyncio.get_running_loop().create_task(self._hand_over(caller, is_known, is_met))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if is_tls:
            self._strangers.add(task, task.cancel, is_met)
            task.add_done_callback(self._strangers.discard)

    async def _hand_over(self, caller: socket.socket, is_known: bool, is_met: bool) -> None:
        make = cast("Any", self.config.http_protocol_class)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: make(
                    config=self.config,
                    server_state=self.server_state,
                    app_state=self.lifespan.state,
                    known=is_known,
                    met=is_met,
                ),
                caller,
                ssl=self.config.ssl,
                ssl_handshake_timeout=STRANGER_S if self.config.ssl else None,
            )
        except (OSError, asyncio.CancelledError):
            caller.close()

    def _may_be_heard(self) -> bool:
        second = int(asyncio.get_running_loop().time())
        if second != self._second:
            self._second, self._heard = second, 0
        self._heard += 1
        return self._heard <= MAX_HEARD_PER_S


def _address(caller: socket.socket) -> str:
    try:
        return str(caller.getpeername()[0])
    except OSError:
        return ""


def header_in(words: bytes, name: bytes) -> bytes:
    """Return a header of the first request in a connection's first words; empty if it is not there.

    Args:
        words: First bytes of a connection.
        name: Of the header, in lower case.
    """
    head = words.partition(b"\r\n\r\n")[0]
    at = head.lower().find(b"\r\n" + name + b":")
    return head[at + 3 + len(name) :].partition(b"\r\n")[0].strip() if at >= 0 else b""
