"""The control channel: messages between controller, members, seats and standbys.

One message is a line of JSON; `blob` in it is the number of bytes that follow. The first message of a connection
carries the token; with a certificate in TRAINMOVER_TLS_CERT (and TRAINMOVER_TLS_KEY at the controller) the channel is
TLS.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

from trainmover.errors import RefusedError, WireError

VERSION = 1
LINE_LIMIT = 1 << 22
Message = dict[str, Any]


class Channel:
    """One end of a control connection, for blocking use; sending is safe from several threads."""

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
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        finally:
            self._socket.close()


def encode(message: Message, blob: bytes = b"") -> bytes:
    """A message as bytes."""
    return json.dumps({**message, "blob": len(blob)} if blob else message).encode() + b"\n" + blob


def decode(line: bytes) -> Message:
    """The message of one line.

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
    """Connect to the controller and say who calls.

    Args:
        address: "host:port".
        hello: The first message, with the token.
        timeout_s: For connecting and for the answer; afterwards the connection waits for ever.

    Returns:
        The channel, and the controller's answer.

    Raises:
        OSError: Nobody answers there.
        RefusedError: The controller turned the call down.
    """
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    context = client_tls()
    if context is not None:
        connection = context.wrap_socket(connection, server_hostname=host)
    channel = Channel(connection)
    channel.send({**hello, "version": VERSION})
    answer, _ = channel.receive()
    if answer.get("do") == "refused":
        channel.close()
        raise RefusedError(str(answer.get("reason")))
    connection.settimeout(None)
    return channel, answer


def client_tls() -> ssl.SSLContext | None:
    """Trust in the controller's certificate, where the channel is TLS."""
    certificate = os.environ.get("TRAINMOVER_TLS_CERT")
    if not certificate:
        return None
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = False  # the certificate itself is pinned
    return context


def server_tls() -> ssl.SSLContext | None:
    """The controller's own certificate, where the channel is TLS."""
    certificate, key = os.environ.get("TRAINMOVER_TLS_CERT"), os.environ.get("TRAINMOVER_TLS_KEY")
    if not (certificate and key and Path(key).exists()):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context
