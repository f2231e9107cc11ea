"""Bounds what clients of a listening socket cost before they have shown the token. Standard library only.

A client speaks first, and its greeting fits into one segment. So the server needs no thread, no buffer and hardly a
descriptor for a client that it does not know:

- The kernel holds a connection back until its first bytes are there (TCP_DEFER_ACCEPT).
- The server peeks at the first bytes. Either they hold the whole greeting, or the connection is closed.
- A connection without any bytes, which the kernel passes on under load or after a second, is kept for `PENDING_S`.
  Only so many are kept; the oldest one is closed first.
- At most `AT_ONCE` connections are accepted in one call. After a full call, and where no descriptor is free, the server
  rests until its next tick, so a flood costs a bounded share of a core and no busy loop.
- Nothing is logged about such clients.
"""

from __future__ import annotations

import functools
import socket
import time
from collections.abc import Callable

MOST_PENDING = 16
PENDING_S = 5.0
AT_ONCE = 16
_DEFER_S = 1
_BACKLOG = 1024


class Front:
    """The admission of one listening socket. It reads no bytes and starts no thread.

    Args:
        listener: Bound. It belongs to the front from here on.
        judge: Called with each connection and its first bytes, which are not taken. The connection is the judge's from
            here on.
        n_bytes: Bytes that are looked at.
        watch: Has a function called whenever a socket can be read.
        unwatch: Ends that.
        most: Connections that are kept while they say nothing.

    Attributes:
        is_resting: Whether connections are left to the kernel until the next tick.
    """

    def __init__(
        self,
        listener: socket.socket,
        judge: Callable[[socket.socket, bytes], None],
        n_bytes: int,
        watch: Callable[[socket.socket, Callable[[], object]], object],
        unwatch: Callable[[socket.socket], object],
        most: int = MOST_PENDING,
    ) -> None:
        self._listener, self._judge, self._n_bytes, self._most = listener, judge, n_bytes, most
        self._watch, self._unwatch = watch, unwatch
        self._due: dict[socket.socket, float] = {}  # connections that have said nothing, the oldest first
        self.is_resting = False
        listener.setblocking(False)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _DEFER_S)
        listener.listen(_BACKLOG)
        watch(listener, self._accept)

    def tick(self, now: float) -> None:
        """Close connections that have been silent for too long, and accept again after a rest; some times a second."""
        for caller in [caller for caller, due in self._due.items() if due <= now]:
            self._drop(caller)
        if self.is_resting:
            self.is_resting = False
            self._watch(self._listener, self._accept)

    def close(self) -> None:
        """Close the listener and the connections that have said nothing."""
        if not self.is_resting:
            self._unwatch(self._listener)
        self.is_resting = False
        self._listener.close()
        for caller in list(self._due):
            self._drop(caller)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                caller, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no descriptor or no memory is left
                for kept in list(self._due):
                    self._drop(kept)
                break
            caller.setblocking(False)
            if not self._look(caller):
                while len(self._due) >= self._most:
                    self._drop(next(iter(self._due)))
                self._due[caller] = time.monotonic() + PENDING_S
                self._watch(caller, functools.partial(self._look, caller))
        self._unwatch(self._listener)
        self.is_resting = True

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
        self._forget(caller)
        self._judge(caller, words)
        return True

    def _forget(self, caller: socket.socket) -> None:
        if self._due.pop(caller, None) is not None:
            self._unwatch(caller)

    def _drop(self, caller: socket.socket) -> None:
        self._forget(caller)
        caller.close()
