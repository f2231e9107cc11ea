"""The ristretto255 group, scalars modulo its order, and domain-separated hashing.

Points are 32 bytes in the canonical encoding. Scalars are Python integers below ORDER. Ristretto has no cofactor, so a
valid point needs no subgroup check.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

import rbcl  # type: ignore[import-untyped]

from prifi.errors import BadProof

#: Order of the group, a prime (RFC 9496).
ORDER = 2**252 + 27742317777372353535851937790883648493
POINT_BYTES = 32
SCALAR_BYTES = 32
#: A source of random bytes. Roles take one as an argument, so that simulations and test vectors are reproducible.
Entropy = Callable[[int], bytes]

BASE = bytes(rbcl.crypto_scalarmult_ristretto255_base((1).to_bytes(SCALAR_BYTES, "little")))


def times(scalar: int, point: bytes) -> bytes:
    """Return scalar·point.

    Raises:
        BadProof: The point is no valid encoding, or the result is the identity.
    """
    try:
        return bytes(rbcl.crypto_scalarmult_ristretto255((scalar % ORDER).to_bytes(SCALAR_BYTES, "little"), point))
    except (RuntimeError, ValueError, TypeError) as error:
        raise BadProof("not a point of the group, or the identity") from error


def base_times(scalar: int) -> bytes:
    """Return scalar·B of the standard base B."""
    return bytes(rbcl.crypto_scalarmult_ristretto255_base((scalar % ORDER).to_bytes(SCALAR_BYTES, "little")))


def add(left: bytes, right: bytes) -> bytes:
    """Return the sum of two points."""
    try:
        return bytes(rbcl.crypto_core_ristretto255_add(left, right))
    except (RuntimeError, ValueError, TypeError) as error:
        raise BadProof("not a point of the group") from error


def checked_point(point: bytes) -> bytes:
    """Return the point itself if it is a valid encoding other than the identity.

    Raises:
        BadProof: It is not.
    """
    if len(point) != POINT_BYTES or not any(point) or not rbcl.crypto_core_ristretto255_is_valid_point(point):
        raise BadProof("not a point of the group, or the identity")
    return point


def digest(label: str, *parts: bytes) -> bytes:
    """Return 32 bytes that bind a label and each part with its length."""
    state = hashlib.blake2b(digest_size=32, person=b"prifi/1")
    for part in (label.encode(), *parts):
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()


def hash_scalar(label: str, *parts: bytes) -> int:
    """Return a scalar that is uniform modulo ORDER up to a bias below 2⁻²⁵⁰."""
    wide = hashlib.blake2b(digest(label, *parts), digest_size=64, person=b"prifi/scalar").digest()
    return int.from_bytes(wide, "little") % ORDER


def random_scalar(entropy: Entropy = os.urandom) -> int:
    """Return a random scalar other than 0."""
    while True:
        value = int.from_bytes(entropy(64), "little") % ORDER
        if value:
            return value


def scalar_bytes(value: int) -> bytes:
    """Return the 32 bytes of a scalar."""
    return (value % ORDER).to_bytes(SCALAR_BYTES, "little")


def scalar_from(data: bytes) -> int:
    """Return the scalar of 32 bytes.

    Raises:
        BadProof: The bytes are no canonical scalar.
    """
    value = int.from_bytes(data, "little")
    if len(data) != SCALAR_BYTES or value >= ORDER:
        raise BadProof("not a canonical scalar")
    return value
