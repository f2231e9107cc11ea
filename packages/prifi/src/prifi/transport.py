"""Drivers that let a role run over TCP or UDP: handshake, records, timers, injected delay and loss.

One `Driver` has one role and one delay line. Every message leaves at a due time, and messages on a link keep their
order, so a client's fixed offset and an injected delay are both kept by the event loop's clock.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prifi.datagrams import Resender
from prifi.errors import LinkLost, PrifiError
from prifi.identity import RELAY, Identity, Roster
from prifi.links import MOST_HANDSHAKE_BYTES, MOST_RECORD_BYTES, TAG_BYTES, Channel, Dialer, Listener
from prifi.messages import decode, encode
from prifi.outputs import Arrived, Close, Halt, Note, Output, Send
from prifi.simulate import RESEND_S, Role

log = logging.getLogger("prifi")
#: Time in which a peer must finish its handshake, seconds.
HANDSHAKE_S = 5.0
#: Peers that may be in a handshake at once.
MOST_STRANGERS = 1024
#: Unsent bytes after which a peer that does not read is given up.
MOST_UNSENT_BYTES = 8 * 1024 * 1024
#: Datagram kinds.
HELLO, REPLY, FINISH, RECORD = b"\1", b"\2", b"\3", b"\4"
#: Contents of records that are no messages: the peer ends the link; the relay has taken the member's signature.
GOODBYE, GREETING = b"\2", b"\3\0"


@dataclass(frozen=True, slots=True)
class Impairment:
    """Delay and loss of everything that a process sends, injected in user space.

    Attributes:
        delay_s: One-way delay.
        loss: Probability that a datagram is dropped; on TCP, that a message comes late by one resending time.
    """

    delay_s: float = 0.0
    loss: float = 0.0


class Link:
    """A link to one peer. Subclasses know how to write."""

    peer = ""
    last_due = 0.0

    def write(self, data: bytes) -> None:
        """Send a message now."""
        raise NotImplementedError

    def close(self) -> None:
        """End the link after what was sent."""
        raise NotImplementedError


class Driver:
    """Runs one role: hands it events and carries out what it wants.

    Args:
        role: The role.
        impairment: Injected delay and loss.
        on_stream: Takes what happens on users' streams.
        on_halt: Called with the reason when the role ends itself.
    """

    def __init__(
        self,
        role: Role,
        impairment: Impairment = Impairment(),
        on_stream: Callable[[Arrived], None] | None = None,
        on_halt: Callable[[str], None] | None = None,
    ) -> None:
        self.role = role
        self.impairment = impairment
        self.links: dict[str, Link] = {}
        self._on_stream, self._on_halt = on_stream, on_halt
        self._loop = asyncio.get_running_loop()
        self._line: list[tuple[float, int, Link, bytes]] = []
        self._serial = itertools.count()
        self._line_timer: asyncio.TimerHandle | None = None
        self._line_due = 0.0
        self._tick_timer: asyncio.TimerHandle | None = None
        self._tick_due = 0.0
        self._chance = random.Random()
        self._ended = False

    # Events.

    def linked(self, link: Link) -> None:
        """A handshake is over."""
        before = self.links.pop(link.peer, None)
        if before is not None:
            before.close()
            self._do(self.role.disconnected(link.peer, self._loop.time()))
        self.links[link.peer] = link
        self._do(self.role.connected(link.peer, self._loop.time()))

    def received(self, link: Link, data: bytes) -> None:
        """Take a message.

        Raises:
            BadMessage: The bytes are no message.
        """
        if self.links.get(link.peer) is link and not self._ended:
            self._do(self.role.handle(link.peer, decode(data), self._loop.time()))

    def lost(self, link: Link) -> None:
        """A link is gone."""
        if self.links.get(link.peer) is link:
            del self.links[link.peer]
            self._do(self.role.disconnected(link.peer, self._loop.time()))

    def poke(self) -> None:
        """Let the role look at the clock."""
        self._tick()

    def do(self, outputs: list[Output]) -> None:
        """Carry out outputs that did not come from an event."""
        self._do(outputs)

    async def end(self) -> None:
        """Stop timers and close all links, after what is under way."""
        self._ended = True
        while self._line:
            await asyncio.sleep(0.005)
        for timer in (self._tick_timer, self._line_timer):
            if timer is not None:
                timer.cancel()
        for link in list(self.links.values()):
            link.close()
        self.links.clear()

    # Outputs.

    def _do(self, outputs: list[Output]) -> None:
        now = self._loop.time()
        for output in outputs:
            match output:
                case Send():
                    data = encode(output.message)
                    due = now + output.after + self.impairment.delay_s
                    for name in output.to:
                        link = self.links.get(name)
                        if link is not None:
                            self._enqueue(link, data, due, now)
                case Arrived():
                    if self._on_stream is not None:
                        self._on_stream(output)
                case Note():
                    level = logging.WARNING if output.kind in ("blame", "refused", "hunt") else logging.INFO
                    log.log(level, "%s: %s", output.kind, output.text)
                case Close():
                    closing = self.links.get(output.peer)
                    if closing is not None:
                        self._loop.call_later(0.05 + self.impairment.delay_s, closing.close)
                case Halt():
                    log.error("stopped: %s", output.reason)
                    self._ended = True
                    if self._on_halt is not None:
                        self._on_halt(output.reason)
        self._arm_tick(now)

    def _enqueue(self, link: Link, data: bytes, due: float, now: float) -> None:
        if self.impairment.loss and isinstance(link, StreamLink) and self._chance.random() < self.impairment.loss:
            due += RESEND_S
        due = link.last_due = max(due, link.last_due)
        if due <= now and not self._line:
            link.write(data)
            return
        heapq.heappush(self._line, (due, next(self._serial), link, data))
        if self._line_timer is None or due < self._line_due:
            self._arm_line(due)

    def _arm_line(self, due: float) -> None:
        if self._line_timer is not None:
            self._line_timer.cancel()
        self._line_due = due
        self._line_timer = self._loop.call_at(due, self._flush)

    def _flush(self) -> None:
        self._line_timer = None
        now = self._loop.time() + 0.0002  # timers have a millisecond's grain; a due time that is this near has come
        while self._line and self._line[0][0] <= now:
            _, _, link, data = heapq.heappop(self._line)
            link.write(data)
        if self._line:
            self._arm_line(self._line[0][0])

    def _arm_tick(self, now: float) -> None:
        deadline = None if self._ended else self.role.deadline(now)
        if deadline is None:
            return
        if self._tick_timer is not None:
            if self._tick_due <= deadline:
                return
            self._tick_timer.cancel()
        self._tick_due = deadline
        self._tick_timer = self._loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        self._tick_timer = None
        if not self._ended:
            self._do(self.role.tick(self._loop.time()))


# TCP.


class StreamLink(Link, asyncio.Protocol):
    """A TCP connection to one peer. The relay's side has no dialer.

    Args:
        driver: Where events go.
        identity: Own key.
        roster: Public keys of all members.
        dialer: The handshake's state on the member's side.
    """

    def __init__(self, driver: Driver, identity: Identity, roster: Roster, dialer: Dialer | None = None) -> None:
        self._driver, self._identity, self._roster, self._dialer = driver, identity, roster, dialer
        self._listener: Listener | None = None
        self._channel: Channel | None = None
        self._transport: Any = None
        self._buffer = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reason = "the connection was closed"

    def connection_made(self, transport: Any) -> None:
        """Begin the handshake."""
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_S, self._give_up, "no handshake in time")
        if self._dialer is not None:
            self._frame(self._dialer.hello)

    def data_received(self, data: bytes) -> None:
        """Take bytes, however they are cut."""
        self._buffer += data
        try:
            while len(self._buffer) >= 4:
                size = int.from_bytes(self._buffer[:4], "little")
                most = MOST_RECORD_BYTES if self._channel else MOST_HANDSHAKE_BYTES
                if not TAG_BYTES < size <= most:
                    raise LinkLost(f"a frame of {size} bytes")
                if len(self._buffer) < 4 + size:
                    return
                frame = bytes(self._buffer[4 : 4 + size])
                del self._buffer[: 4 + size]
                self._take(frame)
        except PrifiError as error:
            self._give_up(str(error))

    def _take(self, frame: bytes) -> None:
        if self._channel is not None:
            self._driver.received(self, self._channel.open(frame))
        elif self._dialer is not None:
            signature, self._channel = self._dialer.finish(frame)
            self._frame(signature)
            self._established()
        elif self._listener is None:
            self._listener = Listener(self._identity, self._roster, frame)
            self._frame(self._listener.reply)
        else:
            self._channel = self._listener.finish(frame)
            self._established()

    def _established(self) -> None:
        assert self._channel is not None
        if self._timer is not None:
            self._timer.cancel()
        self.peer = self._channel.peer
        self._driver.linked(self)

    def _frame(self, data: bytes) -> None:
        self._transport.write(len(data).to_bytes(4, "little") + data)

    def _give_up(self, reason: str) -> None:
        self._reason = reason
        log.info("a link was closed: %s", reason)
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the driver."""
        if self._timer is not None:
            self._timer.cancel()
        self._driver.lost(self)
        if not self.closed.done():
            self.closed.set_result(self._reason)

    def write(self, data: bytes) -> None:
        """Send a message now; give up a peer that does not read."""
        if self._transport.is_closing() or self._channel is None:
            return
        if self._transport.get_write_buffer_size() > MOST_UNSENT_BYTES:
            self._give_up(f"{self.peer} does not read")
            return
        self._frame(self._channel.seal(data))

    def close(self) -> None:
        """End the link after what was sent."""
        if self._transport is not None:
            self._transport.close()


# UDP.


class DatagramLink(Link):
    """One peer on a UDP socket."""

    def __init__(self, port: DatagramPort, address: Any, channel: Channel | None = None) -> None:
        self._port, self.address, self.channel = port, address, channel
        self.resender = Resender()
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[str] = self._loop.create_future()
        self.heard = asyncio.Event()

    def take(self, record: bytes) -> None:
        """Take a record of this peer."""
        assert self.channel is not None
        packet = self.channel.open_datagram(record)
        self.heard.set()
        if packet is None or packet == GREETING:
            return
        for message in self.resender.receive(packet, self._loop.time()):
            self._port.driver.received(self, message)
        self._flush()

    def write(self, data: bytes) -> None:
        """Send a message now, and again until it is acknowledged."""
        if not self.closed.done():
            self.resender.send(data, self._loop.time())
            self._flush()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.closed.done() or self.channel is None:
            return
        try:
            for packet in self.resender.outgoing(self._loop.time()):
                self._port.send(RECORD + self.channel.seal_datagram(packet), self.address)
        except LinkLost as error:
            self.lose(str(error))
            return
        deadline = self.resender.deadline()
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._flush)

    def close(self) -> None:
        """End the link; an empty record tells the peer."""
        if self.channel is not None and not self.closed.done():
            self._port.send(RECORD + self.channel.seal_datagram(GOODBYE), self.address)
        self.lose("the link was closed")

    def lose(self, reason: str) -> None:
        """Forget the peer."""
        if self._timer is not None:
            self._timer.cancel()
        if not self.closed.done():
            self.closed.set_result(reason)
            self._port.forget(self)
            self._port.driver.lost(self)


class DatagramPort(asyncio.DatagramProtocol):
    """A UDP socket: the relay's with all its members, or a member's with the relay."""

    def __init__(self, driver: Driver, identity: Identity, roster: Roster, dialer: Dialer | None = None) -> None:
        self.driver = driver
        self._identity, self._roster, self._dialer = identity, roster, dialer
        self._links: dict[Any, DatagramLink] = {}
        self._strangers: dict[Any, tuple[bytes, Listener]] = {}
        self._transport: Any = None
        self._chance = random.Random()
        self._finish: bytes | None = None
        self.established: asyncio.Future[DatagramLink] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        """Keep the socket."""
        self._transport = transport

    def send(self, packet: bytes, address: Any) -> None:
        """Send a datagram, or lose it as the injected loss says."""
        if self.driver.impairment.loss and self._chance.random() < self.driver.impairment.loss:
            return
        if not self._transport.is_closing():
            self._transport.sendto(packet, address)

    def forget(self, link: DatagramLink) -> None:
        """Drop a peer."""
        if self._links.get(link.address) is link:
            del self._links[link.address]

    def error_received(self, exc: Exception) -> None:
        """An ICMP error: the resending decides whether the peer is lost."""

    def datagram_received(self, data: bytes, addr: Any) -> None:
        """Take a datagram. What is malformed or foreign is dropped without an answer."""
        kind, content = data[:1], data[1:]
        try:
            if kind == RECORD and addr in self._links:
                if len(content) == 8 + 1 + TAG_BYTES and self._links[addr].channel is not None:
                    self._take_end(self._links[addr], content)
                else:
                    self._links[addr].take(content)
            elif kind == HELLO and self._dialer is None and len(content) <= MOST_HANDSHAKE_BYTES:
                self._take_hello(content, addr)
            elif kind == FINISH and addr in self._strangers:
                self._take_finish(content, addr)
            elif kind == FINISH and addr in self._links:
                self._greet(self._links[addr])
            elif kind == REPLY and self._dialer is not None:
                self._take_reply(content, addr)
        except LinkLost as error:
            log.info("a datagram was dropped: %s", error)
        except PrifiError as error:
            log.info("a datagram was dropped: %s", error)

    def _take_end(self, link: DatagramLink, content: bytes) -> None:
        assert link.channel is not None
        if link.channel.open_datagram(content) == GOODBYE:
            link.lose("the peer has closed the link")

    def _take_hello(self, hello: bytes, addr: Any) -> None:
        known = self._strangers.get(addr)
        if known is None or known[0] != hello:
            if len(self._strangers) >= MOST_STRANGERS:
                self._strangers.pop(next(iter(self._strangers)))
            known = self._strangers[addr] = (hello, Listener(self._identity, self._roster, hello))
        self.send(REPLY + known[1].reply, addr)

    def _take_finish(self, signature: bytes, addr: Any) -> None:
        _, listener = self._strangers[addr]
        channel = listener.finish(signature)
        del self._strangers[addr]
        before = self._links.get(addr)
        if before is not None:
            before.lose("the peer has connected again")
        link = DatagramLink(self, addr, channel)
        link.peer = channel.peer
        self._links[addr] = link
        self._greet(link)
        self.driver.linked(link)

    def _greet(self, link: DatagramLink) -> None:
        """Tell a member that its signature has come, so that it need not repeat it."""
        assert link.channel is not None
        self.send(RECORD + link.channel.seal_datagram(GREETING), link.address)

    def repeat_finish(self, address: Any) -> None:
        """Send the member's signature again."""
        self.send(FINISH + (self._finish or b""), address)

    def _take_reply(self, reply: bytes, addr: Any) -> None:
        assert self._dialer is not None
        if self._finish is None:
            self._finish, channel = self._dialer.finish(reply)
            link = DatagramLink(self, addr, channel)
            link.peer = RELAY
            self._links[addr] = link
            self.driver.linked(link)
            self.established.set_result(link)
        self.repeat_finish(addr)

    def hello(self, address: Any) -> None:
        """Send the member's first message."""
        assert self._dialer is not None
        self.send(HELLO + self._dialer.hello, address)

    def close(self) -> None:
        """Close the socket."""
        self._transport.close()


# Starting.


async def listen(driver: Driver, identity: Identity, roster: Roster, host: str, port: int, udp: bool) -> Any:
    """Let the relay listen; return the server, whose `close` ends it."""
    loop = asyncio.get_running_loop()
    try:
        if udp:
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 1024 * 1024)
            sock.bind((host, port))
            transport, _ = await loop.create_datagram_endpoint(
                lambda: DatagramPort(driver, identity, roster), sock=sock
            )
            return transport
        return await loop.create_server(lambda: StreamLink(driver, identity, roster), host, port, backlog=1024)
    except (OSError, UnicodeError) as error:
        raise LinkLost(f"cannot listen on {host}:{port}: {getattr(error, 'strerror', '') or error}") from error


async def dial(driver: Driver, identity: Identity, roster: Roster, host: str, port: int, udp: bool) -> None:
    """Keep a member linked to the relay: connect, wait until the link is lost, and again; until cancelled."""
    pause = 0.1
    while True:
        try:
            reason = await _dial_once(driver, identity, roster, host, port, udp)
            pause = 0.1
        except (OSError, UnicodeError, LinkLost, TimeoutError) as error:
            reason = str(error)
        log.info("no link to the relay: %s", reason)
        await asyncio.sleep(pause)
        pause = min(2 * pause, 2.0)


async def _dial_once(driver: Driver, identity: Identity, roster: Roster, host: str, port: int, udp: bool) -> str:
    """Connect once; return why the link ended."""
    loop = asyncio.get_running_loop()
    dialer = Dialer(identity, roster)
    if not udp:
        transport, link = await loop.create_connection(lambda: StreamLink(driver, identity, roster, dialer), host, port)
        try:
            return await link.closed
        finally:
            transport.close()
    transport_, port_ = await loop.create_datagram_endpoint(
        lambda: DatagramPort(driver, identity, roster, dialer), local_addr=("0.0.0.0", 0)
    )
    try:
        address = (await loop.getaddrinfo(host, port, family=socket.AF_INET, type=socket.SOCK_DGRAM))[0][4]
        for _ in range(int(HANDSHAKE_S / 0.2)):
            port_.hello(address)
            done, _ = await asyncio.wait([port_.established], timeout=0.2)
            if done:
                break
        else:
            raise LinkLost(f"the relay at {host}:{port} does not answer")
        link_ = port_.established.result()
        for _ in range(int(HANDSHAKE_S / 0.2)):
            if link_.heard.is_set() or link_.closed.done():
                break
            await asyncio.sleep(0.2)
            port_.repeat_finish(address)
        return await link_.closed
    finally:
        transport_.close()
