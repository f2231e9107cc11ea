"""Two non-interactive proofs: knowledge of a logarithm (Schnorr), and equality of two logarithms (Chaum–Pedersen).

Each challenge binds the whole statement and the caller's context, so a proof fits one place only.
"""

from __future__ import annotations

import os

from prifi.errors import BadProof
from prifi.group import BASE, SCALAR_BYTES, Entropy, add, hash_scalar, random_scalar, scalar_bytes, scalar_from, times

PROOF_BYTES = 2 * SCALAR_BYTES


def prove_log(secret: int, base: bytes, point: bytes, context: bytes, entropy: Entropy = os.urandom) -> bytes:
    """Prove knowledge of secret with point = secret·base; 64 bytes."""
    nonce = random_scalar(entropy)
    challenge = hash_scalar("schnorr", base, point, times(nonce, base), context)
    return scalar_bytes(challenge) + scalar_bytes(nonce - challenge * secret)


def check_log(proof: bytes, base: bytes, point: bytes, context: bytes) -> None:
    """Check a proof of `prove_log`.

    Raises:
        BadProof: It does not hold for this base, point and context.
    """
    challenge, response = _split(proof)
    commitment = add(times(response, base), times(challenge, point))
    if hash_scalar("schnorr", base, point, commitment, context) != challenge:
        raise BadProof("the proof of knowledge does not hold")


def prove_same_log(secret: int, other: bytes, context: bytes, entropy: Entropy = os.urandom) -> tuple[bytes, bytes]:
    """Return secret·other and a proof that its logarithm to other equals that of secret·B to B."""
    public, shared = times(secret, BASE), times(secret, other)
    nonce = random_scalar(entropy)
    challenge = _same_challenge(public, other, shared, times(nonce, BASE), times(nonce, other), context)
    return shared, scalar_bytes(challenge) + scalar_bytes(nonce - challenge * secret)


def check_same_log(proof: bytes, public: bytes, other: bytes, shared: bytes, context: bytes) -> None:
    """Check that log_B(public) = log_other(shared).

    Raises:
        BadProof: The proof does not hold.
    """
    challenge, response = _split(proof)
    first = add(times(response, BASE), times(challenge, public))
    second = add(times(response, other), times(challenge, shared))
    if _same_challenge(public, other, shared, first, second, context) != challenge:
        raise BadProof("the proof of equal logarithms does not hold")


def _same_challenge(public: bytes, other: bytes, shared: bytes, first: bytes, second: bytes, context: bytes) -> int:
    return hash_scalar("chaum-pedersen", BASE, public, other, shared, first, second, context)


def _split(proof: bytes) -> tuple[int, int]:
    if len(proof) != PROOF_BYTES:
        raise BadProof("a proof has 64 bytes")
    challenge, response = scalar_from(proof[:SCALAR_BYTES]), scalar_from(proof[SCALAR_BYTES:])
    if not challenge or not response:
        raise BadProof("a proof of zeros")
    return challenge, response
