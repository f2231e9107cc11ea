"""The control channel between controller, members, supervisors and standbys.

A message is a line of JSON; its `blob` is the number of bytes that follow. The first message of a connection carries
the token.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import Any

from trainmover.errors import RefusedError, WireError

VERSION = 3
LINE_LIMIT = 1 << 22
Message = dict[str, Any]


def keep_alive(connection: socket.socket) -> None:
    """Have a connection end about 20 s after the other machine is gone; else it would be a quarter of an hour."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000)
    for option, value in ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


class Channel:
    """One blocking end of a control connection; several threads may send."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._reader = connection.makefile("rb")
        self._lock = threading.Lock()

    def send(self, message: Message, blob: bytes = b"") -> None:
        """Send one message.

        Raises:
            OSError: The connection is gone.
        """
        with self._lock:
            self._socket.sendall(encode(message, blob))

    def receive(self) -> tuple[Message, bytes]:
        """Wait for one message.

        Raises:
            WireError: The connection has ended, or what came is no message.
        """
        try:
            line = self._reader.readline(LINE_LIMIT)
            message = decode(line)
            n_bytes = int(message.pop("blob", 0))
            blob = self._reader.read(n_bytes) if n_bytes else b""
        except (OSError, ValueError) as error:
            raise WireError(f"the control connection has ended: {error}") from error
        if len(blob) != n_bytes:
            raise WireError("the control connection ended within a message")
        return message, blob

    def close(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def encode(message: Message, blob: bytes = b"") -> bytes:
    """Return a message as bytes."""
    return json.dumps({**message, "blob": len(blob)} if blob else message).encode() + b"\n" + blob


def decode(line: bytes) -> Message:
    """Return the message of one line.

    Raises:
        WireError: It is none.
    """
    if not line.endswith(b"\n"):
        raise WireError("the control connection has ended" if not line else "a message is incomplete or too long")
    message = json.loads(line)
    if not isinstance(message, dict):
        raise WireError("a message is not a JSON object")
    return message


def call(address: str, hello: Message, timeout_s: float = 5.0) -> tuple[Channel, Message]:
    """Connect to the controller and send the first message.

    Args:
        address: "host:port".
        hello: The first message, with the token.
        timeout_s: For connecting and for the answer; afterwards the connection waits for ever.

    Returns:
        The channel, and the controller's answer.

    Raises:
        OSError: The controller does not answer.
        RefusedError: The controller turned the call down.
        WireError: It does not speak this protocol.
    """
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=timeout_s)
    if connection.getsockname() == connection.getpeername():  # TCP connects a socket to itself if its port is called
        connection.close()
        raise ConnectionRefusedError(f"no process listens at {address}")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(connection)
    channel = Channel(connection)
    channel.send({**hello, "version": VERSION})
    try:
        answer, _ = channel.receive()
    except WireError as error:
        channel.close()
        raise WireError(f"the controller at {address} does not answer: {error}") from error
    if answer.get("command") == "refused":
        channel.close()
        raise RefusedError(str(answer.get("reason")))
    connection.settimeout(None)
    return channel, answer


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
