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

`Admission` has the rules. `Front` applies them on an asyncio loop.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import NamedTuple

MOST_PENDING = 16
PENDING_S = 5.0
AT_ONCE = 16
REST_S = 0.01
GREETING_BYTES = 1024
"""Longest first segment that is looked at; the greetings of the family have a few hundred bytes at most."""
_DEFER_S = 1
_BACKLOG = 1024


class Accepted(NamedTuple):
    """The outcome of one call of `Admission.accept`.

    Attributes:
        callers: New connections, non-blocking. The server looks at each at once and admits, drops or keeps it.
        must_rest: Whether the server must leave the listener alone for `REST_S`.
    """

    callers: list[socket.socket]
    must_rest: bool


class Admission:
    """Connections of one listening socket that have not shown the token. It reads no bytes and starts no thread.

    Args:
        listener: Bound. It belongs to the admission from here on, listens, and does not block.
        forget: Called with each kept connection before it is closed, so that the server stops watching it.
        most: Connections that are kept.
    """

    def __init__(
        self,
        listener: socket.socket,
        forget: Callable[[socket.socket], object] = lambda caller: None,
        most: int = MOST_PENDING,
    ) -> None:
        self.listener = listener
        self._forget = forget
        self._most = most
        self._due: dict[socket.socket, float] = {}
        listener.setblocking(False)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _DEFER_S)
        listener.listen(_BACKLOG)

    def __contains__(self, caller: object) -> bool:
        """Return whether a connection is kept."""
        return caller in self._due

    def accept(self) -> Accepted:
        """Accept a bounded number of connections.

        If there is no descriptor or no memory for one, all that are kept are closed.
        """
        callers: list[socket.socket] = []
        for _ in range(AT_ONCE):
            try:
                caller, _address = self.listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return Accepted(callers, False)
            except OSError:
                for kept in list(self._due):
                    self.drop(kept)
                return Accepted(callers, True)
            caller.setblocking(False)
            callers.append(caller)
        return Accepted(callers, True)

    def keep(self, caller: socket.socket, now: float) -> None:
        """Keep a connection that has said nothing yet. The oldest one is closed if there are too many."""
        while len(self._due) >= self._most:
            self.drop(next(iter(self._due)))
        self._due[caller] = now + PENDING_S

    def release(self, caller: socket.socket) -> None:
        """Stop counting a connection: the server has admitted it."""
        self._due.pop(caller, None)

    def drop(self, caller: socket.socket) -> None:
        """Close a connection, kept or not."""
        if self._due.pop(caller, None) is not None:
            self._forget(caller)
        caller.close()

    def expire(self, now: float) -> float | None:
        """Close the connections that have been silent for too long.

        Returns:
            Seconds until the next one is due; None if none is kept.
        """
        for caller, due in list(self._due.items()):
            if due > now:
                return due - now
            self.drop(caller)
        return None

    def close(self) -> None:
        """Close the listener and all connections that are kept."""
        self.listener.close()
        for caller in list(self._due):
            self.drop(caller)


def first_words(caller: socket.socket, most: int = GREETING_BYTES) -> bytes | None:
    """Return the first bytes of a connection without taking them.

    Returns:
        The bytes; empty if the client has gone; None if it has said nothing yet.
    """
    try:
        return caller.recv(most, socket.MSG_PEEK)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:
        return b""


class Front:
    """The admission of one listening socket on the running asyncio loop.

    Args:
        listener: Bound. It belongs to the front from here on.
        judge: Called with each connection and its first bytes. The connection is the judge's from here on.
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
        self._judge = judge
        self._n_bytes = n_bytes
        self._sweep: asyncio.TimerHandle | None = None
        self._admission = Admission(listener, self._loop.remove_reader, most)
        self._open()

    def close(self) -> None:
        """Accept nothing more, and close the connections that have said nothing."""
        if self._admission.listener.fileno() >= 0:
            self._loop.remove_reader(self._admission.listener)
        self._admission.close()
        if self._sweep is not None:
            self._sweep.cancel()

    def _open(self) -> None:
        if self._admission.listener.fileno() >= 0:
            self._loop.add_reader(self._admission.listener, self._accept)

    def _accept(self) -> None:
        callers, must_rest = self._admission.accept()
        for caller in callers:
            if self._look(caller):
                continue
            self._admission.keep(caller, self._loop.time())
            self._loop.add_reader(caller, self._look, caller)
            if self._sweep is None:
                self._sweep = self._loop.call_later(PENDING_S, self._expire)
        if must_rest:
            self._loop.remove_reader(self._admission.listener)
            self._loop.call_later(REST_S, self._open)

    def _expire(self) -> None:
        due_s = self._admission.expire(self._loop.time())
        self._sweep = None if due_s is None else self._loop.call_later(due_s, self._expire)

    def _look(self, caller: socket.socket) -> bool:
        """Have a connection judged. Return False if it has said nothing yet."""
        words = first_words(caller, self._n_bytes)
        if words is None:
            return False
        if not words:
            self._admission.drop(caller)
            return True
        if caller in self._admission:
            self._loop.remove_reader(caller)
            self._admission.release(caller)
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

        threading.Thread(target=self._loop.run_until_complete, args=(serve(),), name=name, daemon=True).start()

    def close(self) -> None:
        """Accept nothing more. The thread closes what is open."""
        self._loop.call_soon_threadsafe(self._over.set)
