"""Drivers that let a role run over TCP or UDP: handshake, records, timers, injected delay and loss.

A `Driver` runs a role; a `Link` has the handshake and the records; a wire carries frames over TCP or UDP. Every message
leaves at a due time, and messages on a link keep their order, so a client's fixed offset and an injected delay are both
kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import heapq
import itertools
import logging
import math
import os
import random
import socket
import time
from collections.abc import Callable
from typing import Any

from prifi.datagrams import WINDOW, Resender
from prifi.errors import BadMessage, LinkLost, PrifiError
from prifi.identity import Identity, Roster
from prifi.links import MOST_HANDSHAKE_BYTES, MOST_RECORD_BYTES, Channel, Dialer, Listener
from prifi.messages import Stopped, decode, encode
from prifi.outputs import Arrived, Close, Halt, Note, Output, Send
from prifi.parameters import TAG_BYTES
from prifi.simulate import RESEND_S, Role

log = logging.getLogger("prifi")
#: Time in which a peer must finish its handshake, seconds.
HANDSHAKE_S = 5.0
#: Seconds for which a member that was heard keeps its link against a second one with the same key.
HEARD_S = 5.0
#: Connections on a UDP socket at once.
MOST_CONNECTIONS = 4096
#: Unsent bytes after which a peer that does not read is given up.
MOST_UNSENT_BYTES = 8 * 1024 * 1024
#: Bytes of the random name of a UDP connection; who cannot listen cannot write into it.
NAME_BYTES = 8
#: Kind and number of a connection's first fragment; and the datagram that ends a connection.
FIRST_FRAGMENT, GOODBYE = bytes(5), b"\2"


class Alarm:
    """Calls back at exact times, in their order.

    The event loop's own timers have a grain of a millisecond, and fire earlier when another event wakes the loop. An
    eavesdropper would see by that which client is busy. A timerfd of the kernel has neither fault.
    """

    _libc = ctypes.CDLL(None, use_errno=True)

    def __init__(self) -> None:
        self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._line: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = itertools.count()
        asyncio.get_running_loop().add_reader(self._fd, self._ring)

    def __len__(self) -> int:
        return len(self._line)

    def call_at(self, due: float, act: Callable[[], None]) -> None:
        """Call back at a time of the monotonic clock."""
        heapq.heappush(self._line, (due, next(self._serial), act))
        if self._line[0][0] == due:
            self._set()

    def _set(self) -> None:
        fraction, seconds = math.modf(self._line[0][0])
        absolute, moment = 1, (ctypes.c_long * 4)(0, 0, int(seconds), int(1e9 * fraction) + 1)
        self._libc.timerfd_settime(self._fd, absolute, moment, None)

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)
        while self._line and self._line[0][0] <= time.monotonic():
            heapq.heappop(self._line)[2]()
        if self._line:
            self._set()

    def close(self) -> None:
        """Forget what is left."""
        self._line.clear()
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)


class Driver:
    """Runs one role: hands it events and carries out what it wants.

    Args:
        role: The role.
        delay_s: Injected one-way delay of everything that the process sends.
        loss: Injected loss: probability that a datagram is dropped; on TCP, that a message is late by a resending time.
        on_stream: Takes what happens on users' streams.
        on_halt: Called with the reason when the role ends itself.
    """

    def __init__(
        self,
        role: Role,
        delay_s: float = 0.0,
        loss: float = 0.0,
        on_stream: Callable[[Arrived], None] | None = None,
        on_halt: Callable[[str], None] | None = None,
    ) -> None:
        self.role = role
        self.loss = loss
        self._delay_s = delay_s
        self.links: dict[str, Link] = {}
        self._on_stream, self._on_halt = on_stream, on_halt
        self._loop = asyncio.get_running_loop()
        self.alarm = Alarm()
        self._tick_timer: asyncio.TimerHandle | None = None
        self._tick_due = 0.0
        self._ended = False

    # Events.

    def linked(self, link: Link) -> None:
        """A handshake is over. A member that still speaks on another link keeps that one."""
        before = self.links.get(link.peer)
        if before is not None and time.monotonic() - before.heard_at < HEARD_S:
            log.warning("link: %s has a link already; is its key used twice?", link.peer)
            link.send_at(0.0, encode(Stopped(0, "another process is connected with this key")))
            self._loop.call_later(0.05, link.close)
            return
        if before is not None:
            del self.links[link.peer]
            before.close()
            self.do(self.role.disconnected(link.peer, time.monotonic()))
        self.links[link.peer] = link
        self.do(self.role.connected(link.peer, time.monotonic()))

    def received(self, link: Link, data: bytes) -> None:
        """Take a message.

        Raises:
            BadMessage: The bytes are no message.
        """
        if self.links.get(link.peer) is link and not self._ended:
            self.do(self.role.handle(link.peer, decode(data), time.monotonic()))

    def lost(self, link: Link) -> None:
        """A link is gone."""
        if self.links.get(link.peer) is link:
            del self.links[link.peer]
            self.do(self.role.disconnected(link.peer, time.monotonic()))

    async def end(self) -> None:
        """Stop timers and close all links, after what is under way."""
        self._ended = True
        while self.alarm:
            await asyncio.sleep(0.005)
        self.alarm.close()
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        for link in list(self.links.values()):
            link.close()
        self.links.clear()

    # Outputs.

    def do(self, outputs: list[Output]) -> None:
        """Carry out what the role wants."""
        now = time.monotonic()
        for output in outputs:
            match output:
                case Send():
                    data = encode(output.message)
                    due = now + output.after + self._delay_s
                    for name in output.to:
                        if name in self.links:
                            self.links[name].send_at(due, data)
                case Arrived():
                    if self._on_stream is not None:
                        self._on_stream(output)
                case Note():
                    level = logging.WARNING if output.kind in ("blame", "refused", "hunt") else logging.INFO
                    log.log(level, "%s: %s", output.kind, output.text)
                case Close():
                    closing = self.links.get(output.peer)
                    if closing is not None:
                        self._loop.call_later(0.05 + self._delay_s, closing.close)
                case Halt():
                    log.error("stopped: %s", output.reason)
                    self._ended = True
                    if self._on_halt is not None:
                        self._on_halt(output.reason)
        self._arm_tick(now)

    def _arm_tick(self, now: float) -> None:
        deadline = None if self._ended else self.role.deadline(now)
        if deadline is None:
            return
        if self._tick_timer is not None:
            if self._tick_due <= deadline:
                return
            self._tick_timer.cancel()
        self._tick_due = deadline
        self._tick_timer = self._loop.call_at(deadline, self.poke)

    def poke(self) -> None:
        """Let the role look at the clock."""
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        self._tick_timer = None
        if not self._ended:
            self.do(self.role.tick(time.monotonic()))


class Link:
    """A link to one peer over a wire: the handshake, then records. The relay's side has no dialer.

    Args:
        driver: Where events go.
        identity: Own key.
        roster: Public keys of all members.
        dialer: The handshake's state on the member's side.
    """

    peer = ""
    last_due = heard_at = 0.0

    def __init__(self, driver: Driver, identity: Identity, roster: Roster, dialer: Dialer | None = None) -> None:
        self._driver, self._identity, self._roster, self._dialer = driver, identity, roster, dialer
        self._listener: Listener | None = None
        self._channel: Channel | None = None
        self._wire: Any = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._reason = "the connection was closed"
        self.closed: asyncio.Future[str] = self._loop.create_future()

    def start(self, wire: StreamWire | DatagramWire) -> None:
        """Begin the handshake."""
        self._wire = wire
        self._timer = self._loop.call_later(HANDSHAKE_S, self.give_up, "no handshake in time")
        wire.most_bytes = MOST_HANDSHAKE_BYTES
        if self._dialer is not None:
            wire.send(self._dialer.hello)

    def take(self, frame: bytes) -> None:
        """Take a frame of the peer; a false one ends the link."""
        try:
            if self._channel is not None:
                data, self.heard_at = self._channel.open(frame), time.monotonic()
                self._driver.received(self, data)
            elif self._dialer is not None:
                signature, channel = self._dialer.finish(frame)
                self._wire.send(signature)
                self._establish(channel)
            elif self._listener is None:
                self._listener = Listener(self._identity, self._roster, frame)
                self._wire.send(self._listener.reply)
            else:
                self._establish(self._listener.finish(frame))
        except PrifiError as error:
            self.give_up(str(error))

    def _establish(self, channel: Channel) -> None:
        self._cancel_timer()
        self._channel, self.peer = channel, channel.peer
        self._wire.most_bytes = MOST_RECORD_BYTES
        self._driver.linked(self)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def send_at(self, due: float, data: bytes) -> None:
        """Send a message when it is due, after all that were given before."""
        if self._driver.loss and not self._wire.loses and random.random() < self._driver.loss:
            due += RESEND_S
        due = self.last_due = max(due, self.last_due)
        if due <= time.monotonic() and not self._driver.alarm:
            self._send(data)
        else:
            self._driver.alarm.call_at(due, functools.partial(self._send, data))

    def _send(self, data: bytes) -> None:
        if self._channel is not None and not self.closed.done():
            self._wire.send(self._channel.seal(data))

    def give_up(self, reason: str) -> None:
        """End the link at once."""
        self._reason = reason
        log.info("a link was closed: %s", reason)
        if self._wire is not None:
            self._wire.abort()

    def lost(self) -> None:
        """The wire has ended."""
        self._cancel_timer()
        if not self.closed.done():
            self.closed.set_result(self._reason)
            self._driver.lost(self)

    def close(self) -> None:
        """End the link after what was sent."""
        if self._wire is not None:
            self._wire.close()


class StreamWire(asyncio.Protocol):
    """Frames over TCP, each with its length in front."""

    most_bytes = MOST_HANDSHAKE_BYTES
    loses = False

    def __init__(self, link: Link) -> None:
        self.link = link
        self._transport: Any = None
        self._buffer = bytearray()

    def connection_made(self, transport: Any) -> None:
        """Begin the handshake."""
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.link.start(self)

    def data_received(self, data: bytes) -> None:
        """Take bytes, however they are cut."""
        self._buffer += data
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4], "little")
            if not TAG_BYTES < size <= self.most_bytes:
                self._buffer.clear()
                self.link.give_up(f"a frame of {size} bytes")
                return
            if len(self._buffer) < 4 + size:
                return
            frame = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            self.link.take(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the link."""
        self.link.lost()

    def send(self, frame: bytes) -> None:
        """Send a frame; give up a peer that does not read."""
        if self._transport.get_write_buffer_size() > MOST_UNSENT_BYTES:
            self.link.give_up(f"{self.link.peer} does not read")
        elif not self._transport.is_closing():
            self._transport.write(len(frame).to_bytes(4, "little") + frame)

    def close(self) -> None:
        """End after what was sent."""
        self._transport.close()

    def abort(self) -> None:
        """End at once."""
        self._transport.abort()


class DatagramWire:
    """Frames over UDP with resending. The connection's random name stands in front of each datagram."""

    loses = True

    def __init__(self, port: DatagramPort, name: bytes, address: Any, link: Link) -> None:
        self.link = link
        self._port, self._name, self._address = port, name, address
        self._resender = Resender()
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        link.start(self)

    @property
    def most_bytes(self) -> int:
        """Longest frame that the peer may send."""
        return self._resender.most_bytes

    @most_bytes.setter
    def most_bytes(self, most: int) -> None:
        self._resender.most_bytes = most
        self._resender.most_early = WINDOW if most > MOST_HANDSHAKE_BYTES else 1  # a stranger fills no memory

    def take(self, packet: bytes) -> None:
        """Take a datagram of the peer."""
        if packet == GOODBYE:
            self.abort()
            return
        try:
            for frame in self._resender.receive(packet, self._loop.time()):
                self.link.take(frame)
        except BadMessage as error:
            self.link.give_up(str(error))
        self._flush()

    def send(self, frame: bytes) -> None:
        """Send a frame, and again until it is acknowledged."""
        self._resender.send(frame, self._loop.time())
        self._flush()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.link.closed.done():
            return
        try:
            for packet in self._resender.outgoing(self._loop.time()):
                self._port.send(self._name + packet, self._address)
        except LinkLost as error:
            self.link.give_up(str(error))
            return
        deadline = self._resender.deadline()
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._flush)

    def close(self) -> None:
        """End, and tell the peer."""
        self._port.send(self._name + GOODBYE, self._address)
        self.abort()

    def abort(self) -> None:
        """End at once."""
        if self._timer is not None:
            self._timer.cancel()
        self._port.wires.pop(self._name, None)
        self.link.lost()


class DatagramPort(asyncio.DatagramProtocol):
    """A UDP socket: the relay's with all its members, or a member's with the relay."""

    def __init__(self, loss: float, make_link: Callable[[], Link]) -> None:
        self.wires: dict[bytes, DatagramWire] = {}
        self._loss, self._make_link = loss, make_link
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        """Keep the socket."""
        self._transport = transport

    def dial(self, address: Any) -> Link:
        """Connect to the relay."""
        return self._add(os.urandom(NAME_BYTES), address)

    def _add(self, name: bytes, address: Any) -> Link:
        link = self._make_link()
        self.wires[name] = DatagramWire(self, name, address, link)
        return link

    def send(self, packet: bytes, address: Any) -> None:
        """Send a datagram, or lose it as the injected loss says."""
        if not self._transport.is_closing() and random.random() >= self._loss:
            self._transport.sendto(packet, address)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        """Take a datagram. The first fragment of an unknown connection begins one."""
        name, packet = data[:NAME_BYTES], data[NAME_BYTES:]
        if name not in self.wires:
            if packet[:5] != FIRST_FRAGMENT or len(self.wires) >= MOST_CONNECTIONS:
                return
            self._add(name, addr)
        self.wires[name].take(packet)

    def close(self) -> None:
        """Close the socket."""
        self._transport.close()


# Starting.


async def listen(driver: Driver, identity: Identity, roster: Roster, host: str, port: int, udp: bool) -> Any:
    """Let the relay listen; return the server, whose `close` ends it."""
    loop = asyncio.get_running_loop()

    def make_link() -> Link:
        return Link(driver, identity, roster)

    try:
        if udp:
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 1024 * 1024)
            sock.bind((host, port))
            _, server = await loop.create_datagram_endpoint(lambda: DatagramPort(driver.loss, make_link), sock=sock)
            return server
        return await loop.create_server(lambda: StreamWire(make_link()), host, port, backlog=1024)
    except (OSError, UnicodeError) as error:
        raise LinkLost(f"cannot listen on {host}:{port}: {getattr(error, 'strerror', '') or error}") from error


async def dial(driver: Driver, identity: Identity, roster: Roster, host: str, port: int, udp: bool) -> None:
    """Keep a member linked to the relay: connect, wait until the link is lost, and again; until cancelled."""
    loop, pause = asyncio.get_running_loop(), 0.1

    def make_link() -> Link:
        return Link(driver, identity, roster, Dialer(identity, roster))

    while True:
        closer: Any = None
        try:
            if udp:
                address = (await loop.getaddrinfo(host, port, family=socket.AF_INET, type=socket.SOCK_DGRAM))[0][4]
                closer, udp_port = await loop.create_datagram_endpoint(
                    lambda: DatagramPort(driver.loss, make_link), local_addr=("0.0.0.0", 0)
                )
                link = udp_port.dial(address)
            else:
                closer, wire = await loop.create_connection(lambda: StreamWire(make_link()), host, port)
                link = wire.link
            reason = await link.closed
            pause = 0.1 if link.peer else min(2 * pause, 2.0)
        except (OSError, UnicodeError) as error:
            reason, pause = str(error), min(2 * pause, 2.0)
        finally:
            if closer is not None:
                closer.close()
        log.info("no link to the relay: %s", reason)
        await asyncio.sleep(pause)
