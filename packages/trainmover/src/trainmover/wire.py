"""The control channel between controller, members, supervisors and standbys.

A message is a line of JSON; its `blob` is the number of bytes that follow. The first message of a connection carries
the token. With a certificate in TRAINMOVER_TLS_CERT (and TRAINMOVER_TLS_KEY at the controller) the channel uses TLS.
"""

from __future__ import annotations

import io
import json
import os
import select
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmover.errors import RefusedError, WireError

if TYPE_CHECKING:
    from typing_extensions import Buffer

VERSION = 3
LINE_LIMIT = 1 << 22
#: A connection ends some twenty seconds after the other machine has; else it would be a quarter of an hour.
_ALIVE = (
    (socket.TCP_KEEPIDLE, 5),
    (socket.TCP_KEEPINTVL, 5),
    (socket.TCP_KEEPCNT, 3),
    (socket.TCP_USER_TIMEOUT, 20_000),
)
Message = dict[str, Any]


def keep_alive(connection: socket.socket) -> None:
    """Have a connection end about 20 s after the other machine is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _ALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


class Channel:
    """One blocking end of a control connection; several threads may send."""

    def __init__(self, connection: socket.socket | Tls) -> None:
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


class Tls(io.RawIOBase):
    """A TLS connection that one thread reads while another writes.

    OpenSSL lets only one at a time into a connection. So no thread waits for the network inside OpenSSL.

    Args:
        connection: After the handshake.
    """

    def __init__(self, connection: ssl.SSLSocket) -> None:
        super().__init__()
        connection.setblocking(False)
        self._connection = connection
        self._inside = threading.Lock()
        self._timeout_s: float | None = None

    def settimeout(self, seconds: float | None) -> None:
        """Set the longest wait for the other end; None for no limit."""
        self._timeout_s = seconds

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a reader."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Wait for the next bytes; 0 at the end.

        Raises:
            OSError: The connection is gone, or silent for too long.
        """
        return self._until(lambda: self._connection.recv_into(buffer))

    def sendall(self, content: bytes) -> None:
        """Send everything.

        Raises:
            OSError: As for reading.
        """
        left = memoryview(content)
        while left:
            left = left[self._until(lambda: self._connection.send(left)) :]  # noqa: B023 - called at once

    def shutdown(self, how: int) -> None:
        """Wake waiting threads."""
        with self._inside:
            self._connection.shutdown(how)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()
        super().close()

    def _until(self, act: Callable[[], int]) -> int:
        while True:
            try:
                with self._inside:
                    return act()
            except ssl.SSLWantReadError:
                event = select.POLLIN
            except ssl.SSLWantWriteError:
                event = select.POLLOUT
            if self._connection.fileno() < 0:
                raise OSError("the connection was closed")
            waiting = select.poll()
            waiting.register(self._connection, event)
            if not waiting.poll(None if self._timeout_s is None else self._timeout_s * 1000):
                raise TimeoutError(f"nothing moved within {self._timeout_s:.0f} s")


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
        RefusedError: The controller turned the call down, or shows another certificate than TRAINMOVER_TLS_CERT.
    """
    host, port = address.rsplit(":", 1)
    plain = socket.create_connection((host, int(port)), timeout=timeout_s)
    if plain.getsockname() == plain.getpeername():  # TCP connects a socket to itself if its own port is called
        plain.close()
        raise ConnectionRefusedError(f"no process listens at {address}")
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(plain)
    connection = _secured(plain, host)
    connection.settimeout(timeout_s)
    channel = Channel(connection)
    channel.send({**hello, "version": VERSION})
    try:
        answer, _ = channel.receive()
    except WireError as error:
        channel.close()
        hint = "" if client_tls() else "; if it wants TLS, set TRAINMOVER_TLS_CERT to its certificate"
        raise WireError(f"the controller at {address} does not answer: {error}{hint}") from error
    if answer.get("command") == "refused":
        channel.close()
        raise RefusedError(str(answer.get("reason")))
    connection.settimeout(None)
    return channel, answer


def _secured(plain: socket.socket, host: str) -> socket.socket | Tls:
    context = client_tls()
    if context is None:
        return plain
    try:
        return Tls(context.wrap_socket(plain, server_hostname=host))
    except ssl.SSLCertVerificationError as error:
        plain.close()
        certificate = os.environ["TRAINMOVER_TLS_CERT"]
        raise RefusedError(f"the controller's certificate is not {certificate}: {error.verify_message}") from error


def client_tls() -> ssl.SSLContext | None:
    """Return the TLS context of a client, or None without TRAINMOVER_TLS_CERT."""
    certificate = os.environ.get("TRAINMOVER_TLS_CERT")
    if not certificate:
        return None
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = False  # the certificate itself is pinned
    return context


def server_tls() -> ssl.SSLContext | None:
    """Return the TLS context of the controller, or None without a certificate and key."""
    certificate, key = os.environ.get("TRAINMOVER_TLS_CERT"), os.environ.get("TRAINMOVER_TLS_KEY")
    if not (certificate and key and Path(key).exists()):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context
