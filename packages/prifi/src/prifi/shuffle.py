"""The verifiable shuffle: each trustee raises all keys to one secret exponent and permutes them.

A hop maps (base, keys) to (c·base, permuted c·keys). Its proof is cut and choose with the Fiat–Shamir transform. The
prover commits to `rounds` hidden hops of the same input. The hash of all commitments decides for each hidden hop
whether the way from the input to it or from it to the output is opened. A false hop passes with probability 2⁻ʳᵒᵘⁿᵈˢ.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from prifi.errors import BadProof
from prifi.group import (
    ORDER,
    POINT_BYTES,
    SCALAR_BYTES,
    Entropy,
    digest,
    random_scalar,
    scalar_bytes,
    scalar_from,
    times,
)


@dataclass(frozen=True, slots=True)
class Keys:
    """A base and public keys over it, the state between two hops."""

    base: bytes
    keys: tuple[bytes, ...]

    def raised(self, exponent: int, order: Sequence[int]) -> Keys:
        """Return the keys raised to the exponent, with the key at place order[k] moved to place k."""
        return Keys(times(exponent, self.base), tuple(times(exponent, self.keys[k]) for k in order))

    def digest(self) -> bytes:
        """Return 32 bytes that bind base and keys."""
        return digest("keys", self.base, *self.keys)


@dataclass(frozen=True, slots=True)
class Secret:
    """A trustee's secret of one hop. It never leaves the trustee."""

    exponent: int
    order: tuple[int, ...]

    def __repr__(self) -> str:
        return "Secret(hidden)"


def hop(given: Keys, entropy: Entropy = os.urandom) -> tuple[Keys, Secret]:
    """Shuffle the keys once and return the output and the secret that `prove_hop` needs."""
    secret = Secret(random_scalar(entropy), _random_order(len(given.keys), entropy))
    return given.raised(secret.exponent, secret.order), secret


def prove_hop(
    given: Keys, output: Keys, secret: Secret, context: bytes, rounds: int, entropy: Entropy = os.urandom
) -> bytes:
    """Prove that output is an honest hop of given.

    Args:
        given: Keys before the hop.
        output: Keys after the hop.
        secret: Secret of the hop.
        context: What the proof belongs to: epoch, trustee, place of the hop.
        rounds: Hidden hops; the soundness error is 2⁻ʳᵒᵘⁿᵈˢ.
        entropy: Source of random bytes.

    Returns:
        The challenge, then for each hidden hop a scalar and an order of two bytes a key.
    """
    hidden = [Secret(random_scalar(entropy), _random_order(len(given.keys), entropy)) for _ in range(rounds)]
    commitments = [given.raised(one.exponent, one.order).digest() for one in hidden]
    challenge = _challenge(given, output, commitments, context)
    parts = [challenge]
    for index, one in enumerate(hidden):
        opened = _from_hidden(one, secret) if _bit(challenge, index) else one
        parts.append(scalar_bytes(opened.exponent) + b"".join(k.to_bytes(2, "little") for k in opened.order))
    return b"".join(parts)


def check_hop(given: Keys, output: Keys, proof: bytes, context: bytes, rounds: int) -> None:
    """Check a proof of `prove_hop`.

    Raises:
        BadProof: The output is no hop of given, or the proof is of another place.
    """
    count = len(given.keys)
    size = SCALAR_BYTES + 2 * count
    if len(output.keys) != count or len(set(output.keys)) != count:
        raise BadProof(f"a hop of {count} keys has {len(set(output.keys))} distinct keys")
    if len(proof) != 32 + rounds * size:
        raise BadProof("the proof of the hop has another length")
    challenge, commitments = proof[:32], []
    for index in range(rounds):
        part = proof[32 + index * size : 32 + (index + 1) * size]
        exponent = scalar_from(part[:SCALAR_BYTES])
        order = tuple(int.from_bytes(part[at : at + 2], "little") for at in range(SCALAR_BYTES, size, 2))
        if not exponent or sorted(order) != list(range(count)):
            raise BadProof("an opened hop is no permutation")
        if _bit(challenge, index):
            back = [0] * count
            for place, source in enumerate(order):
                back[source] = place
            commitments.append(output.raised(pow(exponent, -1, ORDER), back).digest())
        else:
            commitments.append(given.raised(exponent, order).digest())
    if _challenge(given, output, commitments, context) != challenge:
        raise BadProof("the proof of the hop does not hold")


def hop_context(session: bytes, place: int, trustee: str) -> bytes:
    """Return what the proof of a hop is bound to."""
    return digest("hop", session, place.to_bytes(4, "little"), trustee.encode())


def _from_hidden(hidden: Secret, secret: Secret) -> Secret:
    """Return the hop that leads from the hidden hop's output to the real output."""
    place = {source: at for at, source in enumerate(hidden.order)}
    exponent = secret.exponent * pow(hidden.exponent, -1, ORDER) % ORDER
    return Secret(exponent, tuple(place[source] for source in secret.order))


def _challenge(given: Keys, output: Keys, commitments: Sequence[bytes], context: bytes) -> bytes:
    return digest("shuffle", context, given.digest(), output.digest(), POINT_BYTES.to_bytes(1, "little"), *commitments)


def _bit(challenge: bytes, index: int) -> int:
    return challenge[(index // 8) % 32] >> (index % 8) & 1


def _random_order(count: int, entropy: Entropy) -> tuple[int, ...]:
    """Return a uniform permutation; a sort by random 128-bit tags has no two equal ones in practice."""
    return tuple(sorted(range(count), key=lambda _: entropy(16)))
