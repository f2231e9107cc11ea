"""What all parties know of one epoch, and how each of them checks it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from prifi.cells import cell_place, first_wrong_bit, scalars_for, trap
from prifi.errors import BadMessage, BadProof
from prifi.group import BASE, base_times, checked_point, digest, scalar_from, times
from prifi.identity import Roster
from prifi.messages import Accusation, ClientKeys, Transcript, TrapOpened, TrusteeKey, check, encode
from prifi.parameters import Parameters
from prifi.proofs import check_log
from prifi.shuffle import Keys


@dataclass(frozen=True)
class Session:
    """An epoch with its members' fresh keys; the schedule is known once the shuffle is over."""

    epoch: int
    parameters: Parameters
    roster: Roster
    hunt: bool
    trustee_keys: tuple[TrusteeKey, ...]
    client_keys: tuple[ClientKeys, ...]
    schedule: Keys | None = None

    @cached_property
    def trustees(self) -> tuple[str, ...]:
        """Names of the trustees, in the order of their hops."""
        return tuple(key.name for key in self.trustee_keys)

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """Names of the clients of the epoch: its anonymity set."""
        return tuple(key.name for key in self.client_keys)

    @cached_property
    def id(self) -> bytes:
        """32 bytes that bind parameters, epoch and all fresh keys."""
        keys = (encode(key) for key in (*self.trustee_keys, *self.client_keys))
        mode = b"hunt" if self.hunt else b"usual"
        return digest("session", self.parameters.digest(), self.epoch.to_bytes(8, "little"), mode, *keys)

    @cached_property
    def slots(self) -> int:
        """Number of slots."""
        return len(self.client_keys) * (2 if self.hunt else 1)

    @cached_property
    def scalars(self) -> int:
        """Scalars of a round."""
        return scalars_for(self.slots)

    @cached_property
    def unshuffled(self) -> Keys:
        """The slot keys before the first hop, in an order that tells nothing of their use."""
        return Keys(BASE, tuple(sorted(key for client in self.client_keys for key in client.slot_keys)))

    @cached_property
    def pad_keys(self) -> dict[str, bytes]:
        """Fresh Diffie–Hellman key of each party."""
        keys: tuple[TrusteeKey | ClientKeys, ...] = (*self.trustee_keys, *self.client_keys)
        return {key.name: key.pad_key for key in keys}

    def place(self, number: int) -> bytes:
        """Return the context of a round."""
        return cell_place(self.id, number)

    def slot_key(self, slot: int) -> Keys:
        """Return base and key of a slot.

        Raises:
            BadMessage: There is no such slot.
        """
        if self.schedule is None or not 0 <= slot < self.slots:
            raise BadMessage(f"there is no slot {slot}")
        return Keys(self.schedule.base, (self.schedule.keys[slot],))


def invitation_digest(epoch: int, hunt: bool, trustees: Sequence[TrusteeKey]) -> bytes:
    """Return what a client's fresh keys are bound to."""
    return digest("invitation", epoch.to_bytes(8, "little"), bytes([hunt]), *(encode(key) for key in trustees))


def check_trustee_keys(keys: Sequence[TrusteeKey], epoch: int, parameters: Parameters, roster: Roster) -> None:
    """Check that every trustee of the roster gave one signed fresh key for this epoch and these parameters.

    Raises:
        BadProof: One is missing, or its signature does not hold.
    """
    if tuple(key.name for key in keys) != roster.trustees:
        raise BadProof("the epoch's trustees are not those of the roster")
    for key in keys:
        if key.epoch != epoch or key.parameters != parameters.digest():
            raise BadProof(f"{key.name} gave its key for another epoch or other parameters")
        check(key, key.name, roster, b"trustee key")
        checked_point(key.pad_key)


def check_client_keys(session: Session, minimum: int) -> None:
    """Check that the fresh keys are those of distinct clients of the roster, all signed and all different.

    Raises:
        BadProof: They are not, or there are fewer clients than the minimum.
    """
    invitation = invitation_digest(session.epoch, session.hunt, session.trustee_keys)
    names, keys = session.clients, session.unshuffled.keys
    if len(names) < minimum:
        raise BadProof(f"{len(names)} clients are fewer than the minimum of {minimum}")
    if len(set(names)) != len(names) or not set(names) <= set(session.roster.clients):
        raise BadProof("the epoch's clients are not distinct members of the roster")
    if len(set(keys)) != len(keys) or len(keys) != session.slots:
        raise BadProof("the epoch's slot keys are not distinct")
    for client in session.client_keys:
        if client.epoch != session.epoch or client.invitation != invitation:
            raise BadProof(f"{client.name} gave its keys for another epoch")
        check(client, client.name, session.roster, b"client keys")
        checked_point(client.pad_key)


def transcript_context(session: Session, final: Keys) -> bytes:
    """Return what a trustee's signature under the shuffle is bound to."""
    return digest("transcript", session.id, session.unshuffled.digest(), final.digest())


def check_transcripts(session: Session, final: Keys, transcripts: Sequence[Transcript]) -> None:
    """Check that every trustee has signed the same shuffle.

    Raises:
        BadProof: A signature is missing or does not hold.
    """
    if tuple(one.name for one in transcripts) != session.trustees or len({one.hops for one in transcripts}) != 1:
        raise BadProof("not every trustee has verified the same shuffle")
    if len(set(final.keys)) != session.slots or len(final.keys) != session.slots:
        raise BadProof("the shuffle's output has another number of slots")
    for one in transcripts:
        check(one, one.name, session.roster, transcript_context(session, final))


def accusation_context(session: Session, number: int, slot: int, position: int) -> bytes:
    """Return what the proof in an accusation is bound to."""
    parts = (value.to_bytes(8, "little") for value in (number, slot, position))
    return digest("accusation", session.id, *parts)


def check_grounds(
    session: Session, grounds: Accusation | TrapOpened, slot: int, number: int, claimed: bytes
) -> tuple[int, int | None]:
    """Check that an inquiry into a round is its owner's wish.

    Args:
        session: The epoch.
        grounds: What the owner sent.
        slot: The round's slot, by the relay's signed broadcast.
        number: The round.
        claimed: The decoded body that is in question.

    Returns:
        The position to reveal, and the owner's true contribution there (None where the owner stays unknown: 0).

    Raises:
        BadProof: The owner did not ask for this, or the cell is what the owner had sent.
    """
    if grounds.epoch != session.epoch or grounds.number != number or grounds.slot != slot:
        raise BadProof("the accusation is of another round or slot")
    owned = session.slot_key(slot)
    if isinstance(grounds, Accusation):
        position = grounds.position
        if not 0 <= position < 8 * len(claimed) or not claimed[position // 8] >> (position % 8) & 1:
            raise BadProof("the accused bit did not come out as 1")
        check_log(grounds.proof, owned.base, owned.keys[0], accusation_context(session, number, slot, position))
        return position, None
    if not session.hunt or grounds.name not in session.clients:
        raise BadProof("there are no traps in this epoch")
    check(grounds, grounds.name, session.roster, session.id)
    secret = scalar_from(grounds.secret)
    own = next(key for key in session.client_keys if key.name == grounds.name)
    if times(secret, owned.base) != owned.keys[0] or base_times(secret) != own.slot_keys[1]:
        raise BadProof("the opened slot is not a trap of this client")
    key, body = trap(secret, session.place(number), session.parameters)
    position = first_wrong_bit(body, claimed)
    if position < 0:
        return position, key
    return position, body[position // 8] >> (position % 8) & 1
