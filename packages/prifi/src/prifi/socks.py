"""Users' traffic: a SOCKS5 server at the client, and the exit at the relay that connects to targets.

Names are resolved at the exit. The exit refuses loopback, link-local, private and other non-public addresses unless the
operator allows them, and never connects to the relay's own ports.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import Callable, Collection, Sequence
from typing import Any

from prifi.config import Network
from prifi.errors import BadConfig
from prifi.outputs import Arrived
from prifi.streams import Event, Streams

log = logging.getLogger("prifi")
#: Bytes read from a socket at once.
CHUNK = 16 * 1024
#: Time for a SOCKS greeting, and for a target's answer, seconds.
GREETING_S, CONNECT_S = 10.0, 20.0
#: Time for which a request waits while an epoch is set up, seconds.
SETUP_S = 8.0
#: Time after which the exit gives up a stream whose client says nothing, seconds.
IDLE_S = 120.0
#: SOCKS reply codes.
OK, FAILED, FORBIDDEN, UNREACHABLE, CONNECTION_REFUSED, NO_COMMAND, NO_ADDRESS = 0, 1, 2, 4, 5, 7, 8


class Pipes:
    """Carries bytes between sockets and streams.

    Args:
        streams: The role's side of the multiplexer.
        poke: Called after something was written into a stream.
    """

    def __init__(self, streams: Streams, poke: Callable[[], None] = lambda: None) -> None:
        self.streams = streams
        self.poke = poke
        self._queues: dict[bytes, asyncio.Queue[Event]] = {}
        self._rooms: dict[bytes, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def take(self, arrived: Arrived) -> None:
        """Take an event of a stream."""
        event = arrived.event
        if event.kind == "room":
            if event.stream in self._rooms:
                self._rooms[event.stream].set()
        elif event.stream in self._queues:
            self._queues[event.stream].put_nowait(event)

    def adopt(self, stream: bytes) -> asyncio.Queue[Event]:
        """Begin to collect a stream's events."""
        queue = self._queues[stream] = asyncio.Queue()
        self._rooms[stream] = asyncio.Event()
        return queue

    def forget(self, stream: bytes) -> None:
        """Stop to collect a stream's events."""
        self._queues.pop(stream, None)
        self._rooms.pop(stream, None)

    def start(self, work: Any) -> None:
        """Run a coroutine until it ends or `close` is called."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End all streams."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def join(self, stream: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry bytes both ways until both directions have ended, or one is reset."""
        up = asyncio.ensure_future(self._to_stream(stream, reader))
        down = asyncio.ensure_future(self._to_socket(stream, writer))
        try:
            # A direction that ends in order leaves the other one open; a reset ends both.
            await asyncio.wait((up, down), return_when=asyncio.FIRST_EXCEPTION)
            for one in (up, down):
                if one.done() and not one.cancelled() and one.exception() is not None:
                    self.streams.reset(stream)
                    writer.transport.abort()
        except asyncio.CancelledError:
            self.streams.reset(stream)
            writer.transport.abort()
            raise
        finally:
            for one in (up, down):
                one.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
            self.poke()

    async def _to_stream(self, stream: bytes, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK):
            room = self._rooms[stream]
            room.clear()
            more = self.streams.write(stream, data)
            self.poke()
            if not more:
                if not self.streams.is_open(stream):
                    raise ConnectionResetError
                await room.wait()
        self.streams.finish(stream)
        self.poke()

    async def _to_socket(self, stream: bytes, writer: asyncio.StreamWriter) -> None:
        queue = self._queues[stream]
        while True:
            event = await queue.get()
            if event.kind == "data":
                _write(writer, event.data)
                await writer.drain()
                self.streams.consumed(stream, len(event.data))
            elif event.kind == "finished":
                if not writer.is_closing():
                    with contextlib.suppress(OSError):
                        writer.write_eof()
                return
            elif event.kind == "reset":
                raise ConnectionResetError


class SocksServer:
    """SOCKS5 without authentication, CONNECT only, for programs on the client's machine.

    Args:
        pipes: The client's pipes.
        ready: Whether an epoch is running; without one every request fails, and nothing leaves another way.
    """

    def __init__(self, pipes: Pipes, ready: Callable[[], bool]) -> None:
        self._pipes = pipes
        self._ready = ready
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen.

        Raises:
            BadConfig: The address cannot be used.
        """
        try:
            self._server = await asyncio.start_server(self._accept, host, port, backlog=256)
        except OSError as error:
            raise BadConfig(f"cannot listen for SOCKS on {host}:{port}: {error.strerror or error}") from error

    async def close(self) -> None:
        """Stop listening and end all streams."""
        if self._server is not None:
            self._server.close()
        await self._pipes.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._pipes.start(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = b""
        try:
            target = await asyncio.wait_for(self._greet(reader, writer), GREETING_S)
            if target is None:
                return
            if not await self._epoch_runs():
                _reply(writer, FAILED)
                return
            stream = self._pipes.streams.open(*target)
            queue = self._pipes.adopt(stream)
            self._pipes.poke()
            event = await asyncio.wait_for(queue.get(), CONNECT_S + GREETING_S)
            if event.kind != "opened":
                _reply(writer, event.code or FAILED)
                return
            _reply(writer, OK)
            await self._pipes.join(stream, reader, writer)
        except TimeoutError:
            if stream:
                _reply(writer, UNREACHABLE)
                self._pipes.streams.reset(stream)
        except (OSError, asyncio.IncompleteReadError):
            if stream:
                self._pipes.streams.reset(stream)
        finally:
            if stream:
                self._pipes.forget(stream)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _epoch_runs(self) -> bool:
        """Wait a little for an epoch that is being set up; without one nothing leaves, by no way."""
        for _ in range(int(SETUP_S / 0.1)):
            if self._ready():
                return True
            await asyncio.sleep(0.1)
        return self._ready()

    @staticmethod
    async def _greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, int] | None:
        """Read greeting and request, however they are cut; return host and port, or None after a refusal."""
        version, count = await reader.readexactly(2)
        if version != 5:
            return None
        methods = await reader.readexactly(count)
        _write(writer, b"\5\0" if 0 in methods else b"\5\xff")
        if 0 not in methods:
            return None
        version, command, _, kind = await reader.readexactly(4)
        if version != 5:
            return None
        if kind == 1:
            host = socket.inet_ntop(socket.AF_INET, await reader.readexactly(4))
        elif kind == 3:
            raw = await reader.readexactly((await reader.readexactly(1))[0])
            host = raw.decode("ascii", errors="replace")
        elif kind == 4:
            host = socket.inet_ntop(socket.AF_INET6, await reader.readexactly(16))
        else:
            _reply(writer, NO_ADDRESS)
            return None
        port = int.from_bytes(await reader.readexactly(2), "big")
        if command != 1:
            _reply(writer, NO_COMMAND)
            return None
        return host, port


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Write to a program that may have reset the connection, which is no mistake of ours.

    Raises:
        ConnectionResetError: It has.
    """
    if writer.is_closing():
        raise ConnectionResetError
    writer.write(data)


def _reply(writer: asyncio.StreamWriter, code: int) -> None:
    with contextlib.suppress(OSError):
        _write(writer, bytes([5, code, 0, 1, 0, 0, 0, 0, 0, 0]))


class Exit:
    """The far end: connects streams to targets.

    Args:
        pipes: The relay's pipes.
        allow: Networks of the refused ones that the operator allows.
        own_ports: Ports of the relay itself, never reachable at any of its own addresses.
    """

    def __init__(self, pipes: Pipes, allow: Sequence[Network] = (), own_ports: Collection[int] = ()) -> None:
        self._pipes = pipes
        self._allow = tuple(allow)
        self._own_ports = frozenset(own_ports)

    def take(self, arrived: Arrived) -> None:
        """Take an event of a stream."""
        if arrived.event.kind == "open":
            self._pipes.adopt(arrived.event.stream)
            self._pipes.start(self._serve(arrived.event))
        else:
            self._pipes.take(arrived)

    async def reap(self) -> None:
        """End streams whose clients have gone; until cancelled."""
        while True:
            await asyncio.sleep(IDLE_S / 4)
            for stream in self._pipes.streams.idle(asyncio.get_running_loop().time(), IDLE_S):
                self._pipes.streams.reset(stream)
                self._pipes.take(Arrived(Event("reset", stream)))

    async def _serve(self, event: Event) -> None:
        stream, streams = event.stream, self._pipes.streams
        port = int.from_bytes(event.data[:2], "big")
        try:
            opened = await asyncio.wait_for(self._connect(event.data[2:].decode(errors="replace"), port), CONNECT_S)
        except TimeoutError:
            opened = UNREACHABLE
        except (OSError, ValueError) as error:  # ValueError: a name that no resolver takes
            opened = CONNECTION_REFUSED if isinstance(error, ConnectionRefusedError) else UNREACHABLE
        try:
            if isinstance(opened, int):
                streams.answer(stream, opened)
                self._pipes.poke()
                return
            reader, writer = opened
            streams.answer(stream)
            self._pipes.poke()
            try:
                await self._pipes.join(stream, reader, writer)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
        finally:
            self._pipes.forget(stream)

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | int:
        """Resolve and connect; return a SOCKS code if that is not allowed."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(one[4][0]) for one in found]
        allowed = [address for address in addresses if self.permits(address, port)]
        if not allowed:
            return FORBIDDEN
        error: OSError = OSError("no address")
        for address in allowed:
            try:
                return await asyncio.open_connection(address, port)
            except OSError as failed:
                error = failed
        raise error

    def permits(self, address: str, port: int) -> bool:
        """Return whether the exit connects to an address: a public one, or one that the operator allows."""
        parsed = ipaddress.ip_address(address.split("%", maxsplit=1)[0])
        mapped = getattr(parsed, "ipv4_mapped", None) or parsed
        if port in self._own_ports and _is_own(str(mapped)):
            return False
        if any(mapped in network for network in self._allow):
            return True
        return bool(mapped.is_global and not mapped.is_multicast)


def _is_own(address: str) -> bool:
    """Return whether an address belongs to this machine: only those can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
