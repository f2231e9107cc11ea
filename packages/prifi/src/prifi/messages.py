"""The messages between roles: frozen records, MessagePack on the wire, one version for all.

A record's `repr` shows its kind, epoch and round only, so that a log of messages holds no key, pad or payload. A signed
record signs its kind, all its other fields, and a context given by the caller: the session of the epoch.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from prifi.errors import BadMessage
from prifi.group import digest
from prifi.identity import Identity, Roster

VERSION = 1
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
Point = Digest
Signature = Annotated[bytes, Meta(max_length=64)]
Number = Annotated[int, Meta(ge=0, le=2**62)]
Name = Annotated[str, Meta(max_length=64)]


class Kind(IntEnum):
    """What a round carries upstream."""

    DATA = 0  # the owner's cell
    MAP = 1  # one bit for each slot whose owner wants it
    ACCUSE = 2  # the owner's answer to a cell that did not open


class Message(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Base of all messages."""

    epoch: Number

    def __repr__(self) -> str:
        number = getattr(self, "number", None)
        return f"{type(self).__name__}(epoch={self.epoch}{'' if number is None else f', number={number}'})"

    def __rich_repr__(self) -> Any:
        yield "epoch", self.epoch


# Set-up of an epoch, in the order in which it happens.


class Propose(Message, frozen=True, tag=1):
    """Relay to trustees: an epoch with these parameters is wanted."""

    parameters: Digest
    hunt: bool


class TrusteeKey(Message, frozen=True, tag=2):
    """A trustee's fresh key of one epoch."""

    name: Name
    pad_key: Point
    parameters: Digest
    signature: Signature = b""


class Invite(Message, frozen=True, tag=3):
    """Relay to clients: the trustees' keys of the coming epoch."""

    hunt: bool
    trustees: tuple[TrusteeKey, ...]


class ClientKeys(Message, frozen=True, tag=4):
    """A client's fresh keys of one epoch: one for pads, and one for each slot (two slots in a hunt)."""

    name: Name
    pad_key: Point
    slot_keys: tuple[Point, ...]
    invitation: Digest
    signature: Signature = b""


class Assemble(Message, frozen=True, tag=5):
    """Relay to trustees: all keys of the epoch. The set of clients is fixed from here on."""

    hunt: bool
    trustees: tuple[TrusteeKey, ...]
    clients: tuple[ClientKeys, ...]


class Hop(Message, frozen=True, tag=6):
    """One shuffle hop of the trustee at this place."""

    place: Number
    base: Point
    keys: tuple[Point, ...]
    signature: Signature = b""


class HopProof(Message, frozen=True, tag=7):
    """The proof of a hop."""

    place: Number
    proof: bytes


class Transcript(Message, frozen=True, tag=8):
    """A trustee's word that it has verified all hops and all keys."""

    name: Name
    hops: Digest
    signature: Signature = b""


class HopRefused(Message, frozen=True, tag=9):
    """A trustee's word that a hop does not hold, or that the keys are not those of the roster."""

    name: Name
    place: int
    reason: Annotated[str, Meta(max_length=200)]
    signature: Signature = b""


class Start(Message, frozen=True, tag=10):
    """Relay to clients: the schedule and what proves it."""

    clients: tuple[ClientKeys, ...]
    base: Point
    keys: tuple[Point, ...]
    transcripts: tuple[Transcript, ...]


class Ready(Message, frozen=True, tag=11):
    """A client has found its slot."""


class Begin(Message, frozen=True, tag=12):
    """Relay to trustees: send ciphertexts ahead."""


# Rounds.


class Flow(Message, frozen=True, tag=13):
    """Relay to a trustee: stop or resume the ciphertexts."""

    resume: bool


class Ahead(Message, frozen=True, tag=14):
    """A trustee's ciphertext of one round: XOR of its pads, and the sums of its scalars."""

    number: Number
    name: Name
    body: bytes
    sums: tuple[Digest, ...]
    signature: Signature = b""


class Echo(Struct, frozen=True, array_like=True, gc=False):
    """What the relay decoded in an earlier round."""

    number: Number
    check: Annotated[bytes, Meta(min_length=16, max_length=16)]


class Garbled(Struct, frozen=True, array_like=True, gc=False):
    """A decoded cell that is in question, repeated for its owner."""

    number: Number
    body: bytes


class Go(Message, frozen=True, tag=15):
    """The relay's broadcast that opens a round."""

    number: Number
    kind: Kind
    slot: Number
    down: bytes
    echoes: tuple[Echo, ...] = ()
    garbled: Garbled | None = None
    signature: Signature = b""


class Cell(Message, frozen=True, tag=16):
    """A client's answer to `Go`: body, masked scalars, and the history that it has seen."""

    number: Number
    name: Name
    body: bytes
    masked: tuple[Digest, ...]
    history: Annotated[bytes, Meta(max_length=32)]
    signature: Signature = b""


class Resend(Message, frozen=True, tag=17):
    """Relay to a client: the cell of this round has not come."""

    number: Number


# Diagnosis and blame.


class ShowHistory(Message, frozen=True, tag=18):
    """Relay to a client: show the relay's signature on the history of this round."""

    number: Number


class History(Message, frozen=True, tag=19):
    """A client's history of a round with the relay's signature on it."""

    number: Number
    name: Name
    history: Digest
    relay_signature: Signature


class Accusation(Message, frozen=True, tag=20):
    """An owner's claim, sent in its slot: this bit was 0 and came out 1."""

    number: Number
    slot: Number
    position: Number
    proof: bytes


class TrapOpened(Message, frozen=True, tag=21):
    """A client opens its dummy slot, whose content follows from the secret."""

    number: Number
    name: Name
    slot: Number
    secret: Digest
    signature: Signature = b""


class Evidence(Message, frozen=True, tag=22):
    """Relay to trustees: everything signed about a round in question, and the grounds of the inquiry."""

    number: Number
    before: Digest
    go: Go
    cells: tuple[Cell, ...]
    aheads: tuple[Ahead, ...]
    claimed: bytes
    grounds: Accusation | TrapOpened | None
    histories: tuple[History, ...]


class Inquire(Message, frozen=True, tag=23):
    """Relay to clients: the grounds on which everybody reveals one pad bit or scalar of a round."""

    number: Number
    claimed: bytes
    grounds: Accusation | TrapOpened
    position: int


class Reveal(Message, frozen=True, tag=24):
    """A party's pad bits (or scalars) at the position in question, by the other parties in the session's order."""

    number: Number
    name: Name
    position: int
    values: tuple[Annotated[bytes, Meta(max_length=32)], ...]
    signature: Signature = b""


class OpenPair(Message, frozen=True, tag=25):
    """Relay to a client and a trustee whose reveals differ: both signed reveals."""

    number: Number
    client: Reveal
    trustee: Reveal


class Opening(Message, frozen=True, tag=26):
    """The shared point of a pair, and the proof that it is the right one."""

    number: Number
    name: Name
    other: Name
    shared: Point
    proof: bytes
    signature: Signature = b""


class Judge(Message, frozen=True, tag=27):
    """Relay to trustees: reveals and openings, for a verdict."""

    number: Number
    reveals: tuple[Reveal, ...]
    openings: tuple[Opening, ...]


class Finding(Struct, frozen=True, array_like=True):
    """One party in a verdict. `outcome` is disrupted, lied, equivocated or absent; absent is not guilty."""

    party: Name
    outcome: Name
    reason: Annotated[str, Meta(max_length=200)]


class Verdict(Message, frozen=True, tag=28):
    """A trustee's judgement of a round."""

    number: Number
    name: Name
    findings: tuple[Finding, ...]
    signature: Signature = b""


class Ping(Message, frozen=True, tag=29):
    """A sign of life; the answer is the same message."""


class Stopped(Message, frozen=True, tag=30):
    """A role ends its service."""

    reason: Annotated[str, Meta(max_length=200)]


AnyMessage = (
    Propose | TrusteeKey | Invite | ClientKeys | Assemble | Hop | HopProof | Transcript | HopRefused | Start | Ready
    | Begin | Flow | Ahead | Go | Cell | Resend | ShowHistory | History | Accusation | TrapOpened | Evidence | Inquire
    | Reveal | OpenPair | Opening | Judge | Verdict | Ping | Stopped
)  # fmt: skip
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)
_SomeSigned = TypeVar("_SomeSigned", bound=Message)


def encode(message: Struct) -> bytes:
    """Return the bytes of a message."""
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    """Return the message in bytes from the network.

    Raises:
        BadMessage: The bytes are no message of this version. The error names the field, never its value.
    """
    try:
        message: Message = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadMessage("a message that is malformed or of another version") from error
    return message


def statement(message: Message, context: bytes) -> bytes:
    """Return what the signature of a message covers."""
    unsigned = msgspec.structs.replace(message, signature=b"")
    return digest("signed", context, _encoder.encode(unsigned))


def signed(message: _SomeSigned, identity: Identity, context: bytes) -> _SomeSigned:
    """Return the message with its sender's signature."""
    return msgspec.structs.replace(message, signature=identity.sign(statement(message, context)))


def check(message: Message, name: str, roster: Roster, context: bytes) -> None:
    """Check the signature of a message.

    Raises:
        BadProof: The signature is not this member's.
    """
    roster.check(name, statement(message, context), message.signature)  # type: ignore[attr-defined]
