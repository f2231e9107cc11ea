"""Bounds what clients of a listening socket cost before they have shown the token.

A client speaks first, and its greeting fits into one segment. So the server needs no thread, no buffer and hardly a
descriptor for a client that it does not know:

- The kernel holds a connection back until its first bytes are there (TCP_DEFER_ACCEPT).
- The server peeks at the first bytes. Either they hold the whole greeting, or the connection is closed.
- A connection without any bytes, which the kernel passes on under load or after a second, is kept for `PENDING_S`.
  At most `MOST_PENDING` are kept; the oldest one is closed first.
- At most `AT_ONCE` connections are accepted in one call. After a full call, and where no descriptor is free, the server
  rests for `REST_S`, so a flood costs a bounded share of a core and no busy loop.
- Nothing is logged about such clients.
"""

from __future__ import annotations

import contextlib
import functools
import selectors
import socket
import threading
import time
from collections.abc import Callable

MOST_PENDING = 16
PENDING_S = 5.0
AT_ONCE = 16
REST_S = 0.01
_DEFER_S = 1
_BACKLOG = 1024


class Front:
    """The admission of one listening socket, on one thread.

    Args:
        listener: Bound. It belongs to the front from here on.
        judge: Called on the thread with each connection and its first bytes, which are not taken. The connection is
            the judge's from here on.
        n_bytes: Longest first segment that is looked at.
        name: Of the thread.
    """

    def __init__(
        self, listener: socket.socket, judge: Callable[[socket.socket, bytes], None], n_bytes: int, name: str
    ) -> None:
        self._listener, self._judge, self._n_bytes = listener, judge, n_bytes
        self._closed = False
        self._due: dict[socket.socket, float] = {}  # connections that have said nothing, the oldest first
        listener.setblocking(False)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _DEFER_S)
        listener.listen(_BACKLOG)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def close(self) -> None:
        """Accept nothing more. The thread closes what is open."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        while not self._closed:
            due = next(iter(self._due.values()), None)
            for key, _ in self._selector.select(None if due is None else max(0.0, due - time.monotonic())):
                key.data()
            now = time.monotonic()
            for caller in [caller for caller, due in self._due.items() if due <= now]:
                self._drop(caller)
        self._listener.close()
        for caller in list(self._due):
            self._drop(caller)
        self._selector.close()

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
                while len(self._due) >= MOST_PENDING:
                    self._drop(next(iter(self._due)))
                self._due[caller] = time.monotonic() + PENDING_S
                self._selector.register(caller, selectors.EVENT_READ, functools.partial(self._look, caller))
        time.sleep(REST_S)

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
            self._selector.unregister(caller)

    def _drop(self, caller: socket.socket) -> None:
        self._forget(caller)
        caller.close()
