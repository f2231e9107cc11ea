"""Cells of a round: pads combined, the key that binds a cell to the downstream history, and the map of wanted slots.

Notation: q_ij is the scalar of client i and trustee j in a round, h the history as a scalar. A client that does not own
the round sends κ_i = h·Σ_j q_ij. The owner adds a fresh scalar k and encrypts its body under it. Trustees send
σ_j = Σ_i q_ij. The relay gets k = Σ_i κ_i − h·Σ_j σ_j only if all clients have seen the relay's own history.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import IntEnum

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from prifi.errors import BadMessage, BadProof
from prifi.group import ORDER, digest, hash_scalar, scalar_bytes
from prifi.messages import Go, encode
from prifi.pads import derive
from prifi.parameters import SLOTS_PER_SCALAR, Parameters

#: Bytes before a payload's content: its use, and the round that the owner wants repeated (0: none).
HEADER_BYTES = 9


class Use(IntEnum):
    """What an opened cell holds."""

    STREAMS = 0
    ACCUSATION = 1
    NO_BIT = 2  # the owner found no bit that went from 0 to 1


def scalars_for(slots: int) -> int:
    """Return how many scalars a round has."""
    return -(-slots // SLOTS_PER_SCALAR)


# History: what a client has been told so far.


def first_history(session: bytes) -> bytes:
    """Return the history before the first round."""
    return digest("first history", session)


def next_history(history: bytes, go: Go) -> bytes:
    """Return the history after a broadcast. It covers every field: round, kind, owner, data, echoes, repeated cells."""
    return digest("history", history, encode(msgspec.structs.replace(go, signature=b"")))


def history_statement(session: bytes, number: int, history: bytes) -> bytes:
    """Return what the relay signs of each broadcast."""
    return digest("go", session, number.to_bytes(8, "little"), history)


def history_scalar(history: bytes, parameters: Parameters) -> int:
    """Return h; 1 when cells are not bound to the history."""
    return hash_scalar("history", history) if parameters.bound else 1


# The key of a cell.


def mask(h: int, sums: Sequence[int], own: Sequence[int]) -> tuple[bytes, ...]:
    """Return κ for each scalar of the round: h·Σq plus the party's own contribution."""
    return tuple(scalar_bytes(h * total + mine) for total, mine in zip(sums, own, strict=True))


def unmask(h: int, masked: Iterable[Sequence[bytes]], sums: Iterable[Sequence[bytes]], count: int) -> list[int]:
    """Return the sums of the own contributions: Σκ − h·Σσ, for each of `count` scalars."""
    totals = [0] * count
    for row in masked:
        for index in range(count):
            totals[index] += int.from_bytes(row[index], "little")
    for row in sums:
        for index in range(count):
            totals[index] -= h * int.from_bytes(row[index], "little")
    return [total % ORDER for total in totals]


def cell_place(session: bytes, number: int) -> bytes:
    """Return the context of a round's cell."""
    return digest("cell", session, number.to_bytes(8, "little"))


def seal(key: int, payload: bytes, place: bytes) -> bytes:
    """Encrypt a payload under a fresh scalar. The nonce is zero: no scalar is used twice."""
    return AESGCM(derive(scalar_bytes(key), "cell body", place)).encrypt(bytes(12), payload, place)


def unseal(key: int, body: bytes, place: bytes) -> bytes:
    """Decrypt a cell's body.

    Raises:
        BadProof: The key or the body is not what the owner sent.
    """
    try:
        return AESGCM(derive(scalar_bytes(key), "cell body", place)).decrypt(bytes(12), body, place)
    except InvalidTag as error:
        raise BadProof("the cell does not open") from error


def combine(bodies: Iterable[bytes], length: int) -> bytes:
    """Return the XOR of bodies."""
    mixed = 0
    for body in bodies:
        mixed ^= int.from_bytes(body, "little")
    return mixed.to_bytes(length, "little")


def echo_check(body: bytes) -> bytes:
    """Return what the relay says of a decoded body."""
    return digest("echo", body)[:16]


# Payloads and the map of wanted slots.


def pack(use: Use, repeat: int, content: bytes, length: int) -> bytes:
    """Return a payload: use, the round to repeat plus one, content, zeros."""
    return (bytes([use]) + repeat.to_bytes(8, "little") + content).ljust(length, b"\0")


def unpack(payload: bytes) -> tuple[Use, int, bytes]:
    """Return use, the round to repeat plus one, and content.

    Raises:
        BadMessage: There is no such use.
    """
    try:
        return Use(payload[0]), int.from_bytes(payload[1:HEADER_BYTES], "little"), payload[HEADER_BYTES:]
    except ValueError as error:
        raise BadMessage("a payload of unknown use") from error


def map_scalars(wanted: Collection[int], slots: int) -> list[int]:
    """Return the scalars of the slots that one client wants."""
    totals = [0] * scalars_for(slots)
    for slot in wanted:
        totals[slot // SLOTS_PER_SCALAR] |= 1 << (slot % SLOTS_PER_SCALAR)
    return totals


def map_slots(totals: Sequence[int], slots: int) -> list[int]:
    """Return all wanted slots.

    Raises:
        BadProof: The map is garbled.
    """
    found: list[int] = []
    for index, total in enumerate(totals):
        width = min(SLOTS_PER_SCALAR, slots - index * SLOTS_PER_SCALAR)
        if total >> width:
            raise BadProof("the map of wanted slots is garbled")
        found += [index * SLOTS_PER_SCALAR + place for place in range(width) if total >> place & 1]
    return found


# Trap cells: dummies whose content follows from the slot's secret.


def trap(secret: int, place: bytes, parameters: Parameters) -> tuple[int, bytes]:
    """Return the key and the body of a dummy cell that its owner can open later by its slot's secret.

    Its payload is that of a client without data, so not even the relay tells dummies from idle slots.
    """
    key = hash_scalar("trap key", derive(scalar_bytes(secret), "trap", place))
    return key, seal(key, pack(Use.STREAMS, 0, b"", parameters.payload_bytes), place)


def first_wrong_bit(truth: bytes, claimed: bytes) -> int:
    """Return the position of the lowest bit that differs, or −1 (the first scalar) if none does."""
    wrong = int.from_bytes(truth, "little") ^ int.from_bytes(claimed, "little")
    return (wrong & -wrong).bit_length() - 1


def usable_bits(truth: bytes, claimed: bytes) -> list[int]:
    """Return the positions of all bits that were sent as 0 and came out as 1."""
    wrong = ~int.from_bytes(truth, "little") & int.from_bytes(claimed, "little")
    found = []
    while wrong:
        lowest = wrong & -wrong
        found.append(lowest.bit_length() - 1)
        wrong ^= lowest
    return found
