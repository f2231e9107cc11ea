"""The trustee's role: shuffles, verifies every hop, sends ciphertexts ahead, reveals pads only on checked grounds.

A machine without I/O. One honest trustee is enough for anonymity, so a trustee trusts neither relay nor other trustees:
it stops when a verdict names one of them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

from prifi import messages as msg
from prifi.blame import Inquest, make_judgement, make_reveal, open_pair, read_evidence
from prifi.errors import BadMessage, BadProof, PrifiError, Unsafe
from prifi.group import Entropy, base_times, digest, random_scalar, scalar_bytes, times
from prifi.identity import RELAY, Identity, Roster
from prifi.member import Member
from prifi.messages import check, encode, signed
from prifi.outputs import Halt, Note, Output, Send, blame_note
from prifi.pads import PadBook, pair_secret
from prifi.parameters import Parameters
from prifi.session import Session, check_client_keys, check_trustee_keys, transcript_context
from prifi.shuffle import Keys, Secret, check_hop, hop, hop_context, prove_hop

_TO_RELAY = (RELAY,)
#: Ciphertexts made at once, so that other messages are answered in between.
BATCH = 8


@dataclass(slots=True)
class _Epoch:
    """One epoch of this trustee, from its proposal on."""

    number: int
    hunt: bool
    pad_secret: int
    key: msg.TrusteeKey
    session: Session | None = None
    pads: PadBook | None = None
    hops: list[Keys] = field(default_factory=list)
    hop_messages: list[msg.Hop] = field(default_factory=list)
    verified: set[int] = field(default_factory=set)
    to_prove: tuple[int, Secret] | None = None
    allowed: int = 0  # ciphertexts that fit into the relay's buffer
    next: int = 0
    inquests: dict[int, Inquest] = field(default_factory=dict)
    reveals: dict[int, msg.Reveal] = field(default_factory=dict)

    def known(self) -> Session:
        """Return the session.

        Raises:
            BadMessage: The epoch is not assembled yet.
        """
        if self.session is None:
            raise BadMessage("a message that is too early: the epoch is not assembled")
        return self.session


@dataclass(frozen=True, slots=True)
class TrusteeStatus:
    """What a trustee's page and metrics show: nothing about single clients."""

    epoch: int
    anonymity_set: int
    ciphertexts: int
    verified_hops: int
    refused: int


class Trustee(Member):
    """A helper of the network that streams ciphertexts which do not depend on anybody's data."""

    def __init__(
        self, identity: Identity, roster: Roster, parameters: Parameters, entropy: Entropy = os.urandom
    ) -> None:
        super().__init__(identity, roster, parameters, entropy)
        self._epochs: dict[int, _Epoch] = {}
        self._sent = self._verified = self._refused = 0

    @property
    def status(self) -> TrusteeStatus:
        """What the trustee's page and metrics show."""
        running = [epoch for epoch in self._epochs.values() if epoch.next]
        session = running[-1].session if running else None
        size = len(session.clients) if session else 0
        return TrusteeStatus(session.epoch if session else 0, size, self._sent, self._verified, self._refused)

    # Events.

    def deadline(self, now: float) -> float | None:
        """Return when `tick` is wanted: at once while ciphertexts flow or a proof is due."""
        busy = any(epoch.allowed or epoch.to_prove for epoch in self._epochs.values())
        return now if busy else super().deadline(now)

    def tick(self, now: float) -> list[Output]:
        """Prove a hop, or send some ciphertexts ahead; leave a silent relay."""
        outputs = super().tick(now)
        for epoch in self._epochs.values():
            if epoch.to_prove is not None:  # after the hop has left, so that all trustees prove at the same time
                place, secret = epoch.to_prove
                epoch.to_prove = None
                outputs.append(self._prove(epoch, place, secret))
            for _ in range(min(BATCH, epoch.allowed)):
                outputs.append(Send(_TO_RELAY, self._ahead(epoch)))
                epoch.allowed -= 1
        return outputs

    def _close(self, reason: str) -> list[Output]:
        self._epochs.clear()
        return [Note("closed", reason)]

    def _take(self, message: msg.Message, now: float) -> list[Output]:
        del now
        try:
            return self._handle(message)
        except Unsafe as error:
            return [Send(_TO_RELAY, msg.Stopped(message.epoch, str(error)[:200])), Halt(str(error))]
        except PrifiError as error:
            self._refused += 1
            return [Note("refused", f"{message!r} was refused: {error}")]

    def _handle(self, message: msg.Message) -> list[Output]:  # noqa: PLR0912
        if isinstance(message, msg.Propose):
            return self._propose(message)
        if isinstance(message, msg.Stopped):
            return self._close(f"the relay has stopped: {message.reason}")
        epoch = self._epochs.get(message.epoch)
        if epoch is None:
            return [Note("late", f"{message!r} belongs to no epoch and was ignored")]
        match message:
            case msg.Assemble():
                return self._assemble(epoch, message)
            case msg.Hop():
                return self._take_hop(epoch, message)
            case msg.HopProof():
                return self._take_proof(epoch, message)
            case msg.Begin():
                if len(epoch.verified) < len(self.roster.trustees):
                    raise BadMessage("the epoch is to begin before its shuffle is verified")
                epoch.allowed = self.parameters.ahead_most
                self._epochs = {number: one for number, one in self._epochs.items() if number >= epoch.number}
                return [Note("epoch", f"epoch {epoch.number} with {len(epoch.known().clients)} clients")]
            case msg.Flow():
                begun = epoch.next > 0  # a full buffer stops a trustee even if the relay's word is late
                epoch.allowed = (
                    self.parameters.ahead_most - self.parameters.ahead_least if message.resume and begun else 0
                )
                return []
            case msg.Evidence():
                return self._take_evidence(epoch, message)
            case msg.OpenPair():
                if epoch.reveals.get(message.number) != message.trustee:
                    raise BadMessage("a pair is to be opened whose reveals are not those of this trustee")
                opening = open_pair(epoch.known(), self.identity, epoch.pad_secret, message, self._entropy)
                return [Send(_TO_RELAY, opening)]
            case msg.Judge():
                inquest = epoch.inquests.get(message.number)
                if inquest is None:
                    raise BadMessage("a verdict is wanted on a round without an inquest")
                return self._verdict(epoch, message.number, make_judgement(inquest, message.reveals, message.openings))
        raise BadMessage(f"{message!r} is not for a trustee")

    # Set-up.

    def _propose(self, proposal: msg.Propose) -> list[Output]:
        if proposal.parameters != self.parameters.digest():
            raise Unsafe("the relay's settings differ from this trustee's; compare the two config files")
        self._accept_epoch(proposal.epoch)
        secret = random_scalar(self._entropy)
        key = msg.TrusteeKey(proposal.epoch, self.identity.name, base_times(secret), proposal.parameters)
        key = signed(key, self.identity, b"trustee key")
        keep = {number: one for number, one in self._epochs.items() if one.allowed or one.next}
        self._epochs = {**keep, proposal.epoch: _Epoch(proposal.epoch, proposal.hunt, secret, key)}
        return [Send(_TO_RELAY, key)]

    def _assemble(self, epoch: _Epoch, message: msg.Assemble) -> list[Output]:
        if epoch.session is not None or message.hunt != epoch.hunt:
            raise BadMessage("the epoch is assembled already, or of another kind")
        session = Session(message.epoch, self.parameters, self.roster, message.hunt, message.trustees, message.clients)
        try:
            check_trustee_keys(message.trustees, message.epoch, self.parameters, self.roster)
            if epoch.key not in message.trustees:
                raise BadProof("the relay has replaced this trustee's key")
            check_client_keys(session, self.parameters.minimum_set)
        except BadProof as error:
            return self._refuse(epoch, session, -1, str(error))
        secrets = {
            key.name: pair_secret(times(epoch.pad_secret, key.pad_key), session.id, key.name, self.identity.name)
            for key in message.clients
        }
        epoch.session = session
        epoch.pads = PadBook(secrets, self.parameters.cell_bytes, session.scalars)
        epoch.hops = [session.unshuffled]
        return self._hop_if_next(epoch, session)

    def _hop_if_next(self, epoch: _Epoch, session: Session) -> list[Output]:
        place = len(epoch.hops) - 1
        if place >= len(session.trustees) or session.trustees[place] != self.identity.name:
            return []
        given = epoch.hops[-1]
        output, secret = hop(given, self._entropy)
        message = signed(msg.Hop(session.epoch, place, output.base, output.keys), self.identity, session.id)
        epoch.hops.append(output)
        epoch.hop_messages.append(message)
        epoch.verified.add(place)
        epoch.to_prove = (place, secret)
        return [Send(_TO_RELAY, message), *self._sign_if_verified(epoch, session)]

    def _prove(self, epoch: _Epoch, place: int, secret: Secret) -> Output:
        session, given, output = epoch.known(), epoch.hops[place], epoch.hops[place + 1]
        context = hop_context(session.id, place, self.identity.name)
        proof = prove_hop(given, output, secret, context, self.parameters.shuffle_rounds, self._entropy)
        return Send(_TO_RELAY, msg.HopProof(session.epoch, place, proof))

    def _take_hop(self, epoch: _Epoch, message: msg.Hop) -> list[Output]:
        session = epoch.known()
        if message.place != len(epoch.hops) - 1 or message.place >= len(session.trustees):
            raise BadMessage("a hop out of order")
        try:
            check(message, session.trustees[message.place], self.roster, session.id)
            if len(message.keys) != session.slots or len(set(message.keys)) != session.slots:
                raise BadProof("a hop whose keys are not distinct")  # at once: later hops would look false, too
        except BadProof as error:
            return self._refuse(epoch, session, message.place, str(error))
        epoch.hops.append(Keys(message.base, message.keys))
        epoch.hop_messages.append(message)
        return self._hop_if_next(epoch, session)

    def _take_proof(self, epoch: _Epoch, message: msg.HopProof) -> list[Output]:
        session = epoch.known()
        place = message.place
        if place + 1 >= len(epoch.hops) or place in epoch.verified:
            raise BadMessage("a proof of no hop, or a second one")
        context = hop_context(session.id, place, session.trustees[place])
        try:
            rounds = self.parameters.shuffle_rounds
            check_hop(epoch.hops[place], epoch.hops[place + 1], message.proof, context, rounds)
        except BadProof as error:
            return self._refuse(epoch, session, place, str(error))
        epoch.verified.add(place)
        self._verified += 1
        return self._sign_if_verified(epoch, session)

    def _sign_if_verified(self, epoch: _Epoch, session: Session) -> list[Output]:
        if len(epoch.verified) < len(session.trustees):
            return []
        final = epoch.hops[-1]
        epoch.session = session = replace(session, schedule=final)
        hops = digest("hops", *(encode(one) for one in epoch.hop_messages))
        word = msg.Transcript(session.epoch, self.identity.name, hops)
        return [Send(_TO_RELAY, signed(word, self.identity, transcript_context(session, final)))]

    def _refuse(self, epoch: _Epoch, session: Session, place: int, reason: str) -> list[Output]:
        self._refused += 1
        del self._epochs[epoch.number]
        word = msg.HopRefused(epoch.number, self.identity.name, place, reason[:200])
        who = f"hop {place} of {session.trustees[place]}" if place >= 0 else "the epoch's keys"
        note = Note("refused", f"{who}: {reason}", session.trustees[place] if place >= 0 else "")
        return [note, Send(_TO_RELAY, signed(word, self.identity, session.id))]

    # Rounds and blame.

    def _ahead(self, epoch: _Epoch) -> msg.Ahead:
        session, pads = epoch.known(), epoch.pads
        assert pads is not None
        number, epoch.next = epoch.next, epoch.next + 1
        mixed, sums = pads.take(number)
        self._sent += 1
        body = mixed.to_bytes(self.parameters.cell_bytes, "little")
        message = msg.Ahead(session.epoch, number, self.identity.name, body, tuple(map(scalar_bytes, sums)))
        return signed(message, self.identity, session.id) if self.parameters.blame else message

    def _take_evidence(self, epoch: _Epoch, evidence: msg.Evidence) -> list[Output]:
        session, pads = epoch.known(), epoch.pads
        number = evidence.number
        if not self.parameters.blame or pads is None or number in epoch.inquests:
            raise BadMessage("evidence that is not wanted, or of a round that is judged already")
        inquest, findings = read_evidence(session, evidence)
        if inquest is None:
            return self._verdict(epoch, number, findings)
        epoch.inquests[number] = inquest
        grounds = evidence.grounds
        assert grounds is not None
        inquiry = msg.Inquire(session.epoch, number, evidence.claimed, grounds, inquest.position)
        epoch.reveals[number] = make_reveal(session, self.identity, pads, session.clients, inquiry)
        return [Send(_TO_RELAY, epoch.reveals[number])]

    def _verdict(self, epoch: _Epoch, number: int, findings: tuple[msg.Finding, ...]) -> list[Output]:
        verdict = msg.Verdict(epoch.number, number, self.identity.name, findings)
        outputs: list[Output] = [Send(_TO_RELAY, signed(verdict, self.identity, epoch.known().id))]
        outputs += [blame_note(one) for one in findings]
        core = [one.party for one in findings if one.outcome != "absent" and one.party not in self.roster.clients]
        if core:
            outputs.append(Halt(f"{core[0]} is not honest; the roster must change before the service goes on"))
        return outputs
