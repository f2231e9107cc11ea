"""Long-term identities: Ed25519 keys, key files, and the roster of members."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from prifi.errors import BadConfig, BadProof
from prifi.group import Entropy

RELAY = "relay"
_PREFIX = "prifi-key-1"


class Identity:
    """A member's name and private key."""

    __slots__ = ("_key", "name", "public")

    def __init__(self, name: str, seed: bytes) -> None:
        self.name = name
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = self._key.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"Identity({self.name!r})"

    def sign(self, statement: bytes) -> bytes:
        """Return the signature of a statement."""
        return self._key.sign(statement)


@dataclass(frozen=True, slots=True)
class Roster:
    """Public keys of all members by name. The relay is called "relay"; every other name is a trustee or a client."""

    keys: dict[str, bytes]
    trustees: tuple[str, ...]
    clients: tuple[str, ...]

    def check(self, name: str, statement: bytes, signature: bytes) -> None:
        """Check a member's signature.

        Raises:
            BadProof: It does not hold, or there is no such member.
        """
        if name not in self.keys:
            raise BadProof(f"{name!r} is not on the roster")
        try:
            Ed25519PublicKey.from_public_bytes(self.keys[name]).verify(signature, statement)
        except InvalidSignature as error:
            raise BadProof(f"the signature of {name} does not hold") from error


def generate(name: str, entropy: Entropy = os.urandom) -> tuple[Identity, bytes]:
    """Return a new identity and its seed."""
    seed = entropy(32)
    return Identity(name, seed), seed


def write_key(path: Path, name: str, seed: bytes) -> None:
    """Write a key file that only its owner reads. It never replaces a file."""
    text = f"{_PREFIX} {name} {seed.hex()} {_checksum(name, seed)}\n"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise BadConfig(f"cannot write {path}: {error.strerror}; choose another folder") from error
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def read_key(path: Path) -> Identity:
    """Read a key file.

    Raises:
        BadConfig: The file is missing, damaged, or readable by others. The message holds nothing of the key.
    """
    try:
        fields = path.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"cannot read the key file {path}; make one with `prifi keys`") from error
    damaged = BadConfig(f"the key file {path} is damaged; restore it, or make new keys with `prifi keys`")
    if len(fields) != 4 or fields[0] != _PREFIX:
        raise damaged
    try:
        seed = bytes.fromhex(fields[2])
    except ValueError:
        raise damaged from None
    if len(seed) != 32 or fields[3] != _checksum(fields[1], seed):
        raise damaged
    if path.stat().st_mode & 0o077:
        raise BadConfig(f"others can read the key file {path}; run `chmod 600 {path}`")
    return Identity(fields[1], seed)


def _checksum(name: str, seed: bytes) -> str:
    return hashlib.blake2b(name.encode() + b"\0" + seed, digest_size=4).hexdigest()
