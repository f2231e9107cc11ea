"""Pads of client and trustee pairs: a stream of bytes and scalars keyed by (secret, epoch, round, purpose).

Client i and trustee j make fresh Diffie–Hellman keys for each epoch, so a restart or a restored disk never repeats a
secret. A `PadBook` refuses to hand out a round that is not later than the last one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from prifi.errors import PadReuse
from prifi.group import ORDER


def derive(secret: bytes, purpose: str, context: bytes, length: int = 32) -> bytes:
    """Return a key for one purpose by HKDF-SHA256."""
    return HKDF(SHA256(), length, salt=context, info=b"prifi/1 " + purpose.encode()).derive(secret)


def pair_secret(shared: bytes, session: bytes, client: str, trustee: str) -> bytes:
    """Return the secret of one client and one trustee in one epoch."""
    return derive(shared, f"pair {client} {trustee}", session)


class Pair:
    """The pads of one client and one trustee in one epoch. It has no memory: `PadBook` keeps the order."""

    __slots__ = ("_cell_key", "_scalar_key")

    def __init__(self, secret: bytes) -> None:
        self._cell_key = derive(secret, "cell", b"")
        self._scalar_key = derive(secret, "scalar", b"")

    def cell(self, number: int, length: int) -> bytes:
        """Return the pad of a round's cell body."""
        nonce = bytes(4) + number.to_bytes(12, "little")  # block counter, then the round
        return Cipher(algorithms.ChaCha20(self._cell_key, nonce), None).encryptor().update(bytes(length))

    def scalar(self, number: int, index: int) -> int:
        """Return q of a round, its index-th, as a scalar."""
        place = number.to_bytes(12, "little") + index.to_bytes(4, "little")
        wide = hashlib.blake2b(place, digest_size=64, key=self._scalar_key).digest()
        return int.from_bytes(wide, "little") % ORDER


class PadBook:
    """All pads of one party in one epoch, each round used at most once.

    Args:
        secrets: Pair secret by the other party's name.
        length: Bytes of a cell's body.
        scalars: Scalars of a round.
    """

    def __init__(self, secrets: Mapping[str, bytes], length: int, scalars: int) -> None:
        self._pairs = {name: Pair(secret) for name, secret in secrets.items()}
        self._length = length
        self._scalars = scalars
        self._last = -1

    def __repr__(self) -> str:
        return f"PadBook(pairs={len(self._pairs)}, last={self._last})"

    def take(self, number: int, body: bool = True) -> tuple[int, list[int]]:
        """Return the round's combined pads and mark the round as used.

        Args:
            number: The round; it must be later than every round taken before.
            body: Whether the cell's pad is wanted, too.

        Returns:
            XOR of the pads as an integer, and the sums of the scalars modulo ORDER.

        Raises:
            PadReuse: The round, or a later one, was taken already.
        """
        if number <= self._last:
            raise PadReuse(f"pads of round {number} were asked for after round {self._last}; nothing was sent")
        self._last = number
        mixed = 0
        sums = [0] * self._scalars
        for pair in self._pairs.values():
            if body:
                mixed ^= int.from_bytes(pair.cell(number, self._length), "little")
            for index in range(self._scalars):
                sums[index] += pair.scalar(number, index)
        return mixed, [total % ORDER for total in sums]

    def value(self, party: str, number: int, position: int) -> int:
        """Return what blame asks for: bit `position` of the cell pad, or scalar −position−1. Only of used rounds."""
        if number > self._last:
            raise PadReuse(f"round {number} is not over; none of its pads is revealed")
        return pad_value(self._pairs[party], number, position, self._length)


def pad_value(pair: Pair, number: int, position: int, length: int) -> int:
    """Return bit `position` of the pair's cell pad of a round, or scalar −position−1 when the position is negative."""
    if position < 0:
        return pair.scalar(number, -position - 1)
    return bit(pair.cell(number, length), position)


def bit(data: bytes, position: int) -> int:
    """Return one bit of bytes in little-endian order."""
    return data[position // 8] >> (position % 8) & 1
