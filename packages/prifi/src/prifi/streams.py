"""A multiplexer of byte streams into cells: ordered, with credit, resumed after a lost cell or a new epoch.

The client's side opens streams; the exit's side at the relay connects them. A frame is type, tag, offset, length, data.
Upstream frames carry a random tag that only the client and the relay know. Downstream frames carry a hash of it, since
all members see them: nobody else can write into a stream. A side that learns of a lost cell rewinds to what the other
has acknowledged.
"""

from __future__ import annotations

import os
import struct
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from prifi.errors import BadMessage
from prifi.group import Entropy, digest

_HEAD = struct.Struct("<B8sIH")
#: Bytes of a stream that may be under way before the reader takes them. Keeps a stream that nobody reads small.
CREDIT = 64 * 1024
#: Streams of one side; more are refused, so that one member cannot fill the relay's memory.
MOST_STREAMS = 4096


class _Frame(IntEnum):
    PADDING = 0
    OPEN = 1
    OPENED = 2
    REFUSED = 3
    DATA = 4
    FINISH = 5
    RESET = 6
    ACK = 7


@dataclass(frozen=True, slots=True)
class Event:
    """What happened on a stream: open (exit), opened, refused, data, finished, reset, or room (more may be written)."""

    kind: str
    stream: bytes
    data: bytes = b""
    code: int = 0

    def __repr__(self) -> str:
        return f"Event({self.kind}, {len(self.data)} bytes)"


@dataclass(slots=True)
class _Stream:
    up: bytes
    down: bytes
    hello: bytes = b""  # the frame that opens or answers, until the other side has it
    hello_due: bool = False
    base: int = 0  # first byte that the other side has not acknowledged
    sent: int = 0
    credit: int = CREDIT  # offset up to which the other side takes bytes
    buffer: bytearray = field(default_factory=bytearray)
    finishing: bool = False
    finish_sent: bool = False
    received: int = 0
    consumed: int = 0
    peer_finished: bool = False
    ack_due: bool = False
    finish_acked: bool = False
    heard: float = 0.0

    def rewind(self) -> None:
        """Send again what the other side has not acknowledged."""
        self.sent = self.base
        self.finish_sent = self.finish_acked
        self.hello_due = bool(self.hello)
        self.ack_due = True


class Streams:
    """One side of the multiplexer.

    Args:
        exit_side: Whether this is the relay's side.
        entropy: Source of the random tags.
    """

    def __init__(self, exit_side: bool = False, entropy: Entropy = os.urandom) -> None:
        self._exit = exit_side
        self._entropy = entropy
        self._by_tag: OrderedDict[bytes, _Stream] = OrderedDict()  # by the tag of incoming frames
        self._strays: OrderedDict[bytes, None] = OrderedDict()  # outgoing tags of unknown streams to be reset

    def __len__(self) -> int:
        return len(self._by_tag)

    def open(self, host: str, port: int) -> bytes:
        """Open a stream to a host by name or address; the answer is an opened or refused event."""
        up = self._entropy(8)
        target = port.to_bytes(2, "big") + host.encode()
        stream = _Stream(up, _down_tag(up), hello=bytes([_Frame.OPEN]) + target, hello_due=True)
        self._by_tag[stream.down] = stream
        return stream.down

    def answer(self, tag: bytes, code: int = 0) -> None:
        """Tell the client that its target is connected (0), or the SOCKS reply code of the failure."""
        stream = self._by_tag.get(tag)
        if stream is None:
            return
        stream.hello = bytes([_Frame.REFUSED, code]) if code else bytes([_Frame.OPENED])
        stream.hello_due = True

    def write(self, tag: bytes, data: bytes) -> bool:
        """Queue bytes. Return whether more may be written now; if not, a room event follows."""
        stream = self._by_tag.get(tag)
        if stream is None or stream.finishing:
            return False
        stream.buffer += data
        return len(stream.buffer) < CREDIT

    def finish(self, tag: bytes) -> None:
        """End this direction; the other stays open."""
        if tag in self._by_tag:
            self._by_tag[tag].finishing = True

    def reset(self, tag: bytes) -> None:
        """Give the stream up; the other side learns it."""
        stream = self._by_tag.pop(tag, None)
        if stream is not None:
            self._strays[self._outgoing(stream)] = None

    def consumed(self, tag: bytes, count: int) -> None:
        """Take note that the reader has taken bytes; the other side may send as many more."""
        stream = self._by_tag.get(tag)
        if stream is not None:
            before = stream.consumed
            stream.consumed += count
            stream.ack_due |= before // (CREDIT // 4) != stream.consumed // (CREDIT // 4)

    def is_open(self, tag: bytes) -> bool:
        """Return whether the stream exists."""
        return tag in self._by_tag

    @property
    def wanting(self) -> bool:
        """Whether there is anything to send."""
        return bool(self._strays) or any(self._wants(stream) for stream in self._by_tag.values())

    def rewind(self) -> None:
        """A cell was lost, or a new epoch began: send again what is not acknowledged."""
        for stream in self._by_tag.values():
            stream.rewind()

    def idle(self, now: float, limit: float) -> list[bytes]:
        """Return the streams that have been silent for longer than the limit."""
        return [tag for tag, stream in self._by_tag.items() if now - stream.heard > limit]

    def touch(self) -> None:
        """Let every stream acknowledge once more, so that the other side keeps it."""
        for stream in self._by_tag.values():
            stream.ack_due = True

    def pull(self, size: int) -> bytes:
        """Return frames of at most `size` bytes in all, zeros at the end; streams take turns."""
        parts: list[bytes] = []
        left = size
        while self._strays and left >= _HEAD.size:
            tag, _ = self._strays.popitem(last=False)
            parts.append(_HEAD.pack(_Frame.RESET, tag, 0, 0))
            left -= _HEAD.size
        for tag in list(self._by_tag):
            if left < _HEAD.size:
                break
            stream = self._by_tag[tag]
            for frame in self._frames(stream, left):
                parts.append(frame)
                left -= len(frame)
            self._by_tag.move_to_end(tag)
            self._drop_if_over(tag, stream)
        return b"".join(parts).ljust(size, b"\0")

    def push(self, data: bytes, now: float = 0.0) -> list[Event]:
        """Take the frames of an opened cell and return what happened.

        Raises:
            BadMessage: The frames make no sense; those before the error have been taken.
        """
        events: list[Event] = []
        at = 0
        while at + _HEAD.size <= len(data) and data[at] != _Frame.PADDING:
            kind, tag, offset, length = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            content = data[at : at + length]
            at += length
            if kind > _Frame.ACK or len(content) != length:
                raise BadMessage("a frame of a stream is malformed")
            events += self._take(_Frame(kind), tag, offset, content, now)
        return events

    # Outgoing frames.

    def _outgoing(self, stream: _Stream) -> bytes:
        return stream.down if self._exit else stream.up

    def _wants(self, stream: _Stream) -> bool:
        end = stream.base + len(stream.buffer)
        more = stream.sent < min(end, stream.credit) or (
            stream.finishing and not stream.finish_sent and stream.sent == end
        )
        return stream.hello_due or (self._confirmed(stream) and (stream.ack_due or more))

    def _confirmed(self, stream: _Stream) -> bool:
        """Whether the other side knows the stream; a client says nothing more before that."""
        return self._exit or not stream.hello

    def _frames(self, stream: _Stream, left: int) -> Iterator[bytes]:
        tag = self._outgoing(stream)
        if stream.hello_due:
            content = stream.hello[1:]
            if left < _HEAD.size + len(content):
                return
            stream.hello_due = False
            left -= _HEAD.size + len(content)
            yield _HEAD.pack(stream.hello[0], tag, 0, len(content)) + content
        if not self._confirmed(stream):
            return
        if stream.ack_due and left >= _HEAD.size + 4:
            stream.ack_due = False
            left -= _HEAD.size + 4
            done = stream.received + stream.peer_finished
            yield _HEAD.pack(_Frame.ACK, tag, done % 2**32, 4) + ((stream.consumed + CREDIT) % 2**32).to_bytes(
                4, "little"
            )
        end = stream.base + len(stream.buffer)
        room = min(end, stream.credit) - stream.sent
        take = min(room, left - _HEAD.size, 0xFFFF)
        if take > 0:
            start = stream.sent - stream.base
            content = bytes(stream.buffer[start : start + take])
            yield _HEAD.pack(_Frame.DATA, tag, stream.sent % 2**32, take) + content
            stream.sent += take
            left -= _HEAD.size + take
        if stream.finishing and not stream.finish_sent and stream.sent == end and left >= _HEAD.size:
            stream.finish_sent = True
            yield _HEAD.pack(_Frame.FINISH, tag, end % 2**32, 0)

    def _drop_if_over(self, tag: bytes, stream: _Stream) -> None:
        """Forget a stream whose two directions have ended, once nothing more is to be said about it."""
        refused = self._exit and stream.hello[:1] == bytes([_Frame.REFUSED]) and not stream.hello_due
        done = stream.finish_acked and stream.peer_finished and not stream.ack_due
        if refused or done:
            self._by_tag.pop(tag, None)

    # Incoming frames.

    def _take(self, kind: _Frame, tag: bytes, offset: int, content: bytes, now: float) -> list[Event]:
        if kind is _Frame.OPEN and self._exit:
            return self._take_open(tag, content, now)
        stream = self._by_tag.get(tag)
        if stream is None:
            if self._exit and kind in (_Frame.DATA, _Frame.FINISH) and len(self._strays) < MOST_STREAMS:
                self._strays[_down_tag(tag)] = None
            return []  # at a client it is a stream of another member
        stream.heard = now
        if self._exit and not stream.hello_due:
            stream.hello = b""  # the client speaks on the stream, so it has the answer
        if kind is _Frame.RESET:
            del self._by_tag[tag]
            return [Event("reset", tag)]
        if kind is _Frame.OPENED and not self._exit and stream.hello:
            stream.hello, stream.hello_due = b"", False
            return [Event("opened", tag)]
        if kind is _Frame.REFUSED and not self._exit and stream.hello:
            del self._by_tag[tag]
            return [Event("refused", tag, code=content[0] if content else 1)]
        if kind is _Frame.DATA:
            return self._take_data(stream, tag, offset, content)
        if kind is _Frame.FINISH:
            stream.ack_due = True
            if not stream.peer_finished and offset == stream.received % 2**32:
                stream.peer_finished = True
                return [Event("finished", tag)]
        if kind is _Frame.ACK:
            return self._take_ack(stream, tag, offset, content)
        return []

    def _take_open(self, up: bytes, content: bytes, now: float) -> list[Event]:
        if up in self._by_tag:
            stream = self._by_tag[up]
            stream.hello_due = bool(stream.hello)
            return []
        if len(content) < 3 or len(self._by_tag) >= MOST_STREAMS:
            self._strays[_down_tag(up)] = None
            return []
        self._by_tag[up] = _Stream(up, _down_tag(up), heard=now)
        return [Event("open", up, data=content)]

    def _take_data(self, stream: _Stream, tag: bytes, offset: int, content: bytes) -> list[Event]:
        stream.ack_due = True
        ahead = (stream.received - offset) % 2**32  # bytes at the front that are known already
        if ahead >= len(content) or stream.peer_finished:
            return []
        fresh = content[ahead:]
        if stream.received + len(fresh) > stream.consumed + 2 * CREDIT:
            raise BadMessage("a stream sends more than it may")
        stream.received += len(fresh)
        return [Event("data", tag, fresh)]

    def _take_ack(self, stream: _Stream, tag: bytes, offset: int, content: bytes) -> list[Event]:
        gained = (offset - stream.base) % 2**32
        if gained <= len(stream.buffer) + 1 and len(content) == 4:
            if gained == len(stream.buffer) + 1:
                if not stream.finish_sent:
                    raise BadMessage("an end is acknowledged that was not sent")
                stream.finish_acked = True
                gained -= 1
            full = len(stream.buffer) >= CREDIT
            del stream.buffer[:gained]
            stream.base += gained
            stream.sent = max(stream.sent, stream.base)
            step = (int.from_bytes(content, "little") - stream.credit) % 2**32
            stream.credit += step if step < 2**31 else 0
            self._drop_if_over(tag, stream)
            if full and len(stream.buffer) < CREDIT:
                return [Event("room", tag)]
        return []


def _down_tag(up: bytes) -> bytes:
    return digest("downstream tag", up)[:8]
