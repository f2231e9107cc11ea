"""An authenticated, encrypted link between a member and the relay: three handshake messages, then numbered records.

No I/O. Ephemeral X25519 keys give the record keys; Ed25519 signatures of both members cover the whole handshake. A
record is ChaCha20-Poly1305 with its number as nonce, so a replayed, reordered or foreign record does not open.
"""

from __future__ import annotations

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from prifi.errors import BadMessage, BadProof, LinkLost
from prifi.group import Entropy, digest
from prifi.identity import RELAY, Identity, Roster
from prifi.messages import VERSION
from prifi.pads import derive

_MAGIC = b"prifi" + bytes([VERSION])
#: Longest handshake message; an unknown peer makes nobody keep more bytes.
MOST_HANDSHAKE_BYTES = 256
#: Longest record. The longest message is the evidence of a round: about 1.2 kB a client with cells of 1,000 bytes.
MOST_RECORD_BYTES = 16 * 1024 * 1024


class Channel:
    """The record layer of a link whose handshake is over."""

    def __init__(self, peer: str, send_key: bytes, receive_key: bytes) -> None:
        self.peer = peer
        self._send, self._receive = ChaCha20Poly1305(send_key), ChaCha20Poly1305(receive_key)
        self._sent = self._received = 0

    def seal(self, data: bytes) -> bytes:
        """Return the next record."""
        number = self._sent
        self._sent += 1
        return self._send.encrypt(number.to_bytes(12, "little"), data, None)

    def open(self, record: bytes) -> bytes:
        """Return the content of the next record.

        Raises:
            LinkLost: The record is not the next one of the peer.
        """
        try:
            data = self._receive.decrypt(self._received.to_bytes(12, "little"), record, None)
        except InvalidTag as error:
            raise LinkLost(f"a record from {self.peer} does not open: damaged, replayed or foreign") from error
        self._received += 1
        return data


class Dialer:
    """The member's side of the handshake."""

    def __init__(self, identity: Identity, roster: Roster, entropy: Entropy = os.urandom) -> None:
        self._identity = identity
        self._roster = roster
        self._key = X25519PrivateKey.from_private_bytes(entropy(32))
        name = identity.name.encode()
        self.hello = _MAGIC + bytes([len(name)]) + name + self._key.public_key().public_bytes_raw()

    def finish(self, reply: bytes) -> tuple[bytes, Channel]:
        """Check the relay's reply; return the last handshake message and the channel.

        Raises:
            LinkLost: The peer is not the relay of the roster.
        """
        if len(reply) != 96:
            raise LinkLost("the relay's answer is malformed or of another version")
        try:
            self._roster.check(RELAY, digest("link reply", self.hello, reply[:32]), reply[32:])
        except BadProof as error:
            raise LinkLost("the peer is not the relay of the roster") from error
        send_key, receive_key = _record_keys(self._key, reply[:32], self.hello, reply)
        signature = self._identity.sign(digest("link finish", self.hello, reply))
        return signature, Channel(RELAY, send_key, receive_key)


class Listener:
    """The relay's side of the handshake."""

    def __init__(self, identity: Identity, roster: Roster, hello: bytes, entropy: Entropy = os.urandom) -> None:
        """Check a member's first message.

        Raises:
            BadMessage: It is malformed, of another version, or of no member.
        """
        size = len(_MAGIC)
        if hello[:5] != _MAGIC[:5] or len(hello) < size + 33:
            raise BadMessage("not a member's first message")
        if hello[5] != VERSION:
            raise BadMessage(f"version {hello[5]}, and this relay speaks version {VERSION}")
        name = hello[size + 1 : -32]
        if len(name) != hello[size]:
            raise BadMessage("not a member's first message")
        self.name = name.decode(errors="replace")
        if self.name not in roster.trustees and self.name not in roster.clients:
            raise BadMessage("a name that is not on the roster")
        self._roster = roster
        self._hello = hello
        key = X25519PrivateKey.from_private_bytes(entropy(32))
        public = key.public_key().public_bytes_raw()
        self.reply = public + identity.sign(digest("link reply", hello, public))
        self._receive_key, self._send_key = _record_keys(key, hello[-32:], hello, self.reply)

    def finish(self, signature: bytes) -> Channel:
        """Check the member's signature and return the channel.

        Raises:
            LinkLost: The peer is not the member that it says.
        """
        try:
            self._roster.check(self.name, digest("link finish", self._hello, self.reply), signature)
        except BadProof as error:
            raise LinkLost(f"a peer says to be {self.name} and is not") from error
        return Channel(self.name, self._send_key, self._receive_key)


def _record_keys(key: X25519PrivateKey, other: bytes, hello: bytes, reply: bytes) -> tuple[bytes, bytes]:
    """Return the keys of the member's and of the relay's records."""
    try:
        shared = key.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:
        raise LinkLost("a handshake with a key of low order") from error
    context = digest("link", hello, reply)
    return derive(shared, "member records", context), derive(shared, "relay records", context)
