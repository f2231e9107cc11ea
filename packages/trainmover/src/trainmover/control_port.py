"""The controller's port. It passes on connections whose client has shown the job's token.

Without TLS the token is in the first bytes of a connection (`trainmover.admission`). With TLS the handshake comes
first: at most `MOST_STRANGERS` connections are within it, each for `PENDING_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hmac
import json
import re
import socket
from collections.abc import Awaitable, Callable

from trainmover import wire
from trainmover.admission import GREETING_BYTES, PENDING_S, Front

MOST_STRANGERS = 64
WRONG_TOKEN = "the token is not this job's (TRAINMOVER_TOKEN, or the file token in the job's folder)"
_TOKEN = re.compile(rb'"token": ?("(?:[^"\\]|\\.){0,1000}")')
#: First bytes of every TLS handshake since SSL 3.
_HANDSHAKE = b"\x16\x03"
#: How long a client that was refused within TLS may take to read why, seconds.
_READS_S = 0.5
Connected = Callable[[asyncio.StreamReader, asyncio.StreamWriter, bytes], Awaitable[None]]


class ControlPort:
    """The connections of one listening socket, with TLS if `wire.server_tls` returns a context.

    Args:
        listener: Bound. It belongs to the port from here on.
        token: What the first message must carry.
        connected: Serves a connection that has shown the token; given what was read of it already, too.
    """

    def __init__(self, listener: socket.socket, token: str, connected: Connected) -> None:
        self._token = json.dumps(token).encode()
        self._connected = connected
        self._tls = wire.server_tls()
        self._loop = asyncio.get_running_loop()
        self._known: set[asyncio.Task[None]] = set()
        self._strangers: dict[asyncio.Task[None], None] = {}
        self._n_ended = 0
        self._front = Front(listener, self._judge)

    def close(self) -> None:
        """Take no more connections, and end those that have not shown the token."""
        self._front.close()
        for task in self._strangers:
            task.cancel()

    def _judge(self, caller: socket.socket, words: bytes) -> None:
        if self._tls is not None and not words.startswith(_HANDSHAKE):
            caller.close()
            return
        if self._tls is None and not self._is_shown(words):
            with caller, contextlib.suppress(OSError):
                caller.recv(1 << 16)  # what was not read would reset the connection, and with it the answer
                caller.send(wire.encode({"command": "refused", "reason": WRONG_TOKEN}))
            return
        while len(self._strangers) >= MOST_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.cancel()
        task = self._loop.create_task(self._serve(caller))
        self._strangers[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._strangers.pop(task, None)
        self._n_ended += 1
        if self._tls is not None and self._n_ended % MOST_STRANGERS == 0:
            gc.collect()  # a handshake that broke off leaves 100 kB in a cycle of references
        self._known.discard(task)
        if not task.cancelled():
            task.exception()  # a broken connection is nothing to report

    async def _serve(self, caller: socket.socket) -> None:
        reader = asyncio.StreamReader(limit=wire.LINE_LIMIT)
        protocol = asyncio.StreamReaderProtocol(reader)
        handshake_s = None if self._tls is None else PENDING_S
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: protocol, caller, ssl=self._tls, ssl_handshake_timeout=handshake_s
            )
        except BaseException:
            caller.close()
            raise
        try:
            words = await asyncio.wait_for(reader.read(GREETING_BYTES), PENDING_S)
            if not self._is_shown(words):
                transport.write(wire.encode({"command": "refused", "reason": WRONG_TOKEN}))
                await asyncio.sleep(_READS_S)
                return
            task = asyncio.current_task()
            assert task is not None
            self._strangers.pop(task, None)
            self._known.add(task)
            await self._connected(reader, asyncio.StreamWriter(transport, protocol, reader, self._loop), words)
        finally:
            if not transport.is_closing():
                transport.abort()

    def _is_shown(self, words: bytes) -> bool:
        found = _TOKEN.search(words)
        return found is not None and hmac.compare_digest(found.group(1), self._token)


def bound(host: str, port: int) -> socket.socket:
    """Return a socket bound to one address.

    Raises:
        OSError: It is taken, or no address of this machine.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener
