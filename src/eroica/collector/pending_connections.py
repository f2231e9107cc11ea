"""Hold new connections until they have said something: before that they cost a descriptor, and no more.

asyncio accepts as many connections at once as the kernel has queued, makes a protocol of each, and writes a stack into
the log for each that there is no descriptor for. So another user of the host could take the collector's descriptors,
time and disk. Here few connections are accepted at a time. Silent ones are closed, the oldest first. Of those that
speak without the token only `MAX_HEARD_PER_S` a second are listened to.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import Callable
from typing import Any

MAX_SILENT = 64
"""Connections that have not said anything; above it the oldest of them goes."""
SILENT_S = 5.0
"""Longest stay of a connection that has said nothing, s."""
MAX_HEARD_PER_S = 200
"""Connections without the token that are listened to in a second."""
_QUEUE = 512
_AT_ONCE = 32  # so whoever is accepted gets a whole turn of the loop to speak
_LOOKED_AT = 16_384
_PAUSE_S = 0.2
_FIELD = b"authorization:"
Protocol = Callable[[bool], asyncio.BaseProtocol]


class Porch:
    """One listening socket, which belongs to it from here on.

    Args:
        listener: Bound, not listening yet.
        protocol: Makes what listens to a connection; told whether that has shown the token with its first words.
        token: What it must show.
    """

    def __init__(self, listener: socket.socket, protocol: Protocol, token: str) -> None:
        self._listener = listener
        self._protocol = protocol
        self._token = token.encode()
        self._loop = asyncio.get_running_loop()
        self._silent: dict[socket.socket, float] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._second, self._heard = 0, 0
        listener.setblocking(False)
        listener.listen(_QUEUE)
        self._open()

    def close(self) -> None:
        """Accept no more connections, and close those that have said nothing."""
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for caller in list(self._silent):
            self._send_away(caller)
        if self._sweeping is not None:
            self._sweeping.cancel()

    def _open(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                caller, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no descriptor or no memory: asking again at once would be a busy loop
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_PAUSE_S, self._open)
                for silent in list(self._silent):
                    self._send_away(silent)
                return
            caller.setblocking(False)
            while len(self._silent) >= MAX_SILENT:
                self._send_away(next(iter(self._silent)))
            self._silent[caller] = self._loop.time() + SILENT_S
            self._loop.add_reader(caller, self._speaks, caller)
            if self._sweeping is None:
                self._sweeping = self._loop.call_later(SILENT_S, self._sweep)

    def _sweep(self) -> None:
        """Close connections that have been silent for too long."""
        now, self._sweeping = self._loop.time(), None
        for caller, due in list(self._silent.items()):
            if due > now:
                self._sweeping = self._loop.call_later(due - now, self._sweep)
                return
            self._send_away(caller)

    def _send_away(self, caller: socket.socket) -> None:
        self._silent.pop(caller, None)
        self._loop.remove_reader(caller)
        caller.close()

    def _speaks(self, caller: socket.socket) -> None:
        try:
            words = caller.recv(_LOOKED_AT, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            words = b""
        known = bool(words) and self._is_shown(words)
        if not words or not (known or self._may_be_heard()):
            self._send_away(caller)
            return
        del self._silent[caller]
        self._loop.remove_reader(caller)
        task = self._loop.create_task(self._hand_over(caller, known))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _hand_over(self, caller: socket.socket, known: bool) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: self._protocol(known), caller)
        except OSError:
            caller.close()

    def _may_be_heard(self) -> bool:
        second = int(self._loop.time())
        if second != self._second:
            self._second, self._heard = second, 0
        self._heard += 1
        return self._heard <= MAX_HEARD_PER_S

    def _is_shown(self, words: bytes) -> bool:
        """Return whether the first request carries the token; each request is checked again for what it may do."""
        head = words.partition(b"\r\n\r\n")[0]
        at = head.lower().find(b"\r\n" + _FIELD)
        given = head[at + 2 + len(_FIELD) :].partition(b"\r\n")[0].strip() if at >= 0 else b""
        return hmac.compare_digest(given, b"Bearer " + self._token)
