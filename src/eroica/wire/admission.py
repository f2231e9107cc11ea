"""Bounds what clients of a listening socket cost before they have shown the token. Standard library only.

Every client of this family speaks first, and its greeting fits into one segment. So a server needs no thread, no buffer
and hardly a descriptor for a client that it does not know:

- The kernel holds a connection back until its first bytes are there (TCP_DEFER_ACCEPT).
- The server peeks at the first bytes. Either they hold the whole greeting, or the connection is closed.
- A connection without any bytes, which the kernel passes on under load or after a second, is kept for `PENDING_S`.
  At most `MOST_PENDING` are kept; the oldest one is closed first.
- At most `AT_ONCE` connections are accepted in one call. After a full call, and where no descriptor is free, the server
  rests for `REST_S`, so a flood costs a bounded share of a core and no busy loop.
- Nothing is logged about such clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable

MOST_PENDING = 16
PENDING_S = 5.0
AT_ONCE = 16
REST_S = 0.01
GREETING_BYTES = 1024
"""Longest first segment that is looked at; the greetings of the family have a few hundred bytes at most."""
_DEFER_S = 1
_BACKLOG = 1024


class Front:
    """The admission of one listening socket on the running asyncio loop.

    Args:
        listener: Bound. It belongs to the front from here on, listens, and does not block.
        judge: Called with each connection, which does not block, and its first bytes, which are not taken. The
            connection is the judge's from here on.
        most: Connections that are kept while they say nothing.
        n_bytes: Bytes that are looked at.
    """

    def __init__(
        self,
        listener: socket.socket,
        judge: Callable[[socket.socket, bytes], None],
        most: int = MOST_PENDING,
        n_bytes: int = GREETING_BYTES,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._judge = judge
        self._most = most
        self._n_bytes = n_bytes
        self._due: dict[socket.socket, float] = {}
        self._sweep: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _DEFER_S)
        listener.listen(_BACKLOG)
        self._open()

    def close(self) -> None:
        """Accept nothing more, and close the connections that have said nothing."""
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
        self._listener.close()
        for caller in list(self._due):
            self._drop(caller)
        if self._sweep is not None:
            self._sweep.cancel()

    def _open(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """Look at some new connections. If there is no descriptor for one, close all that are kept."""
        for _ in range(AT_ONCE):
            try:
                caller, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                for kept in list(self._due):
                    self._drop(kept)
                break
            caller.setblocking(False)
            if not self._look(caller):
                self._keep(caller)
        self._loop.remove_reader(self._listener)
        self._loop.call_later(REST_S, self._open)

    def _keep(self, caller: socket.socket) -> None:
        """Keep a connection that has said nothing yet. The oldest one is closed if there are too many."""
        while len(self._due) >= self._most:
            self._drop(next(iter(self._due)))
        self._due[caller] = self._loop.time() + PENDING_S
        self._loop.add_reader(caller, self._look, caller)
        if self._sweep is None:
            self._sweep = self._loop.call_later(PENDING_S, self._expire)

    def _release(self, caller: socket.socket) -> None:
        if self._due.pop(caller, None) is not None:
            self._loop.remove_reader(caller)

    def _drop(self, caller: socket.socket) -> None:
        self._release(caller)
        caller.close()

    def _expire(self) -> None:
        """Close the connections that have been silent for too long."""
        now, self._sweep = self._loop.time(), None
        for caller, due in list(self._due.items()):
            if due > now:
                self._sweep = self._loop.call_at(due, self._expire)
                return
            self._drop(caller)

    def _look(self, caller: socket.socket) -> bool:
        """Have a connection judged. Return False if it has said nothing yet."""
        try:
            words = caller.recv(self._n_bytes, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            words = b""
        if not words:
            self._drop(caller)
            return True
        self._release(caller)
        self._judge(caller, words)
        return True


class ThreadFront:
    """A `Front` on a loop of its own in a thread, for a server without one; the judge is called in that thread.

    Args:
        listener: Bound. It belongs to the front from here on.
        judge: As of `Front`.
        n_bytes: Bytes that are looked at.
        name: Of the thread.
    """

    def __init__(
        self, listener: socket.socket, judge: Callable[[socket.socket, bytes], None], n_bytes: int, name: str
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()

        async def serve() -> None:
            front = Front(listener, judge, n_bytes=n_bytes)
            await self._over.wait()
            front.close()

        def run() -> None:
            self._loop.run_until_complete(serve())
            self._loop.close()

        threading.Thread(target=run, name=name, daemon=True).start()

    def close(self) -> None:
        """Accept nothing more. The thread closes what is open."""
        with contextlib.suppress(RuntimeError):  # closed already
            self._loop.call_soon_threadsafe(self._over.set)
