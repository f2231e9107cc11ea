"""The TCP connections of a few processes, read again and again for little: a dump finds them, after that each by name.

A dump walks through the kernel's whole table (3 to 7 ms here, however few connections there are); one known connection
takes about 20 µs.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Mapping, Sequence

from eroica.hardware.tcp import Connection, parse_reply, request, request_one, socket_inodes

_NETLINK_SOCK_DIAG = 4
_BUFFER_BYTES = 1 << 17
_PATIENCE_S = 0.2
#: Requests in one message: their answers must fit into the socket's buffer.
_AT_ONCE = 64


class SocketReader:
    """A netlink socket.

    Raises:
        OSError: The kernel has no sock_diag, or we may not use it.
    """

    def __init__(self) -> None:
        self._socket = self._open()

    @staticmethod
    def _open() -> socket.socket:
        made = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
        made.settimeout(_PATIENCE_S)
        return made

    def find(self, pids: Iterable[int]) -> dict[int, list[Connection]]:
        """Process id -> its connections now; a process that is gone, or that we may not look at, has none.

        Raises:
            OSError: The kernel refused or did not answer.
        """
        inodes: dict[int, set[int]] = {}
        for pid in pids:
            inodes[pid] = set()
            with contextlib.suppress(OSError):
                inodes[pid] = socket_inodes(pid)
        everybody = set().union(*inodes.values())
        found = self._dump(everybody) if everybody else []
        return {pid: [one for one in found if one.inode in own] for pid, own in inodes.items()}

    def _dump(self, wanted: set[int]) -> list[Connection]:
        found: list[Connection] = []
        try:
            for family in (socket.AF_INET, socket.AF_INET6):
                self._socket.send(request(family))
                done = False
                while not done:
                    part, done = parse_reply(self._socket.recv(_BUFFER_BYTES), wanted)
                    found += part
        except OSError:
            self._again()
            raise
        return found

    def again(self, known: Sequence[Connection]) -> Mapping[int, Connection]:
        """Cookie -> the same connections now; those that are closed are missing.

        Raises:
            OSError: The kernel did not answer.
        """
        found: dict[int, Connection] = {}
        for first in range(0, len(known), _AT_ONCE):
            some = known[first : first + _AT_ONCE]
            try:
                self._socket.send(b"".join(request_one(one, number) for number, one in enumerate(some)))
                for _ in some:
                    data = self._socket.recv(_BUFFER_BYTES)
                    with contextlib.suppress(FileNotFoundError):  # closed
                        found.update((one.cookie, one) for one in parse_reply(data)[0])
            except OSError:
                self._again()
                raise
        return found

    def _again(self) -> None:
        """Answers that come late must not be taken for those of later questions."""
        self._socket.close()
        self._socket = self._open()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
