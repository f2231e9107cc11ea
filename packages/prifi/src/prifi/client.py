"""The client's role: checks the epoch, answers every broadcast with a cell of the same size at the same offset.

A machine without I/O: `handle` takes a message and returns outputs. Any check that fails ends the epoch for this client
(fail closed): it sends nothing more until a new epoch holds.
"""

from __future__ import annotations

import os
import random
from collections import OrderedDict
from dataclasses import dataclass, field

from prifi import cells
from prifi import messages as msg
from prifi.blame import make_reveal, open_pair
from prifi.errors import BadMessage, BadProof, PrifiError
from prifi.group import Entropy, base_times, random_scalar, scalar_bytes, times
from prifi.identity import RELAY, Identity, Roster
from prifi.member import Member
from prifi.messages import encode, signed
from prifi.outputs import Arrived, Note, Output, Send
from prifi.pads import PadBook, pair_secret
from prifi.parameters import Parameters
from prifi.proofs import prove_log
from prifi.session import (
    Session,
    accusation_context,
    check_client_keys,
    check_grounds,
    check_transcripts,
    check_trustee_keys,
    invitation_digest,
)
from prifi.shuffle import Keys
from prifi.streams import Streams

#: Rounds that a client remembers for repeats and inquiries; the relay asks about no older ones.
REMEMBERED = 256
_TO_RELAY = (RELAY,)


@dataclass(slots=True)
class _Invited:
    """An epoch in preparation, with the secrets of this client's fresh keys."""

    invite: msg.Invite
    keys: msg.ClientKeys
    pad_secret: int
    slot_secrets: tuple[int, ...]


@dataclass(slots=True)
class _Round:
    slot: int
    history: bytes
    relay_signature: bytes
    cell: msg.Cell
    body: bytes = b""  # what the owner sent, before pads
    sent_at: float = 0.0


@dataclass(slots=True)
class _Epoch:
    """A running epoch of this client."""

    session: Session
    slots: dict[int, int]  # own slot -> its secret; the first is for data, the second a trap
    pad_secret: int
    pads: PadBook
    history: bytes
    next: int = 0
    rounds: OrderedDict[int, _Round] = field(default_factory=OrderedDict)
    reveals: dict[int, msg.Reveal] = field(default_factory=dict)
    repeat: int = 0  # round to be repeated, plus one

    @property
    def data_slot(self) -> int:
        return next(iter(self.slots))


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """What a client shows its user. `problem` says why no epoch is running."""

    epoch: int
    anonymity_set: int
    rounds: int
    latency_s: float
    problem: str


class Client(Member):
    """A member whose traffic is hidden among the clients of its epoch."""

    def __init__(
        self, identity: Identity, roster: Roster, parameters: Parameters, entropy: Entropy = os.urandom
    ) -> None:
        super().__init__(identity, roster, parameters, entropy)
        self.streams = Streams(entropy=entropy)
        self._chance = random.Random(entropy(16))  # which usable bit is accused; not a secret
        self._invited: _Invited | None = None
        self._prepared: _Epoch | None = None
        self._running: _Epoch | None = None
        self._busy_until = 0.0
        self._touched = 0.0
        self._problem = "not connected"
        self._answered = 0
        self._latency = 0.0

    @property
    def status(self) -> ClientStatus:
        """What the client shows its user."""
        epoch = self._running
        size = len(epoch.session.clients) if epoch else 0
        number = epoch.session.epoch if epoch else 0
        return ClientStatus(number, size, self._answered, self._latency, "" if epoch else self._problem)

    # Events.

    def connected(self, peer: str, now: float) -> list[Output]:
        """The link to the relay is there."""
        self._problem = "waiting for an epoch"
        return super().connected(peer, now)

    def _take(self, message: msg.Message, now: float) -> list[Output]:
        try:
            return self._handle(message, now)
        except PrifiError as error:
            in_setup = isinstance(message, msg.Invite | msg.Start)
            word = Send(_TO_RELAY, msg.Stopped(message.epoch, f"refused: {error}"[:200]))
            return [*self._close(str(error)), *([word] if in_setup else [])]

    def _handle(self, message: msg.Message, now: float) -> list[Output]:
        match message:
            case msg.Go():
                return self._go(message, now)
            case msg.Invite():
                return self._invite(message)
            case msg.Start():
                return self._start(message)
            case msg.Stopped():
                return self._stopped(message)
        epoch = self._running
        if epoch is None or message.epoch != epoch.session.epoch:
            return [Note("late", f"{message!r} belongs to no running epoch and was ignored")]
        match message:
            case msg.Resend():
                known = epoch.rounds.get(message.number)
                return [Send(_TO_RELAY, known.cell)] if known else []
            case msg.ShowHistory():
                return self._show_history(epoch, message)
            case msg.Inquire():
                return self._inquire(epoch, message)
            case msg.OpenPair():
                return self._open_pair(epoch, message)
        raise BadMessage(f"{message!r} is not for a client")

    def _stopped(self, message: msg.Stopped) -> list[Output]:
        """The relay ends its service, or one epoch."""
        invited = self._invited.invite.epoch if self._invited else 0
        if message.epoch and message.epoch < invited:
            self._running = None  # the next epoch is being set up already
            return []
        return self._close(message.reason)

    def _close(self, reason: str) -> list[Output]:
        """Leave the epoch; nothing is sent until a new one holds."""
        new = reason != self._problem or self._running is not None
        self._running = self._prepared = self._invited = None
        self._problem = reason
        return [Note("closed", reason)] if new else []

    # Set-up.

    def _invite(self, invite: msg.Invite) -> list[Output]:
        self._accept_epoch(invite.epoch)
        check_trustee_keys(invite.trustees, invite.epoch, self.parameters, self.roster)
        pad_secret = random_scalar(self._entropy)
        secrets = tuple(random_scalar(self._entropy) for _ in range(2 if invite.hunt else 1))
        keys = msg.ClientKeys(
            invite.epoch,
            self.identity.name,
            base_times(pad_secret),
            tuple(base_times(secret) for secret in secrets),
            invitation_digest(invite.epoch, invite.hunt, invite.trustees),
        )
        keys = signed(keys, self.identity, b"client keys")
        self._invited = _Invited(invite, keys, pad_secret, secrets)
        return [Send(_TO_RELAY, keys)]

    def _start(self, start: msg.Start) -> list[Output]:
        invited = self._invited
        if invited is None or invited.invite.epoch != start.epoch:
            return [Note("late", f"{start!r} belongs to no invitation and was ignored")]
        final = Keys(start.base, start.keys)
        invite = invited.invite
        session = Session(start.epoch, self.parameters, self.roster, invite.hunt, invite.trustees, start.clients, final)
        check_client_keys(session, self.parameters.minimum_set)
        if invited.keys not in start.clients:
            raise BadProof("the relay has left out or replaced this client's keys")
        check_transcripts(session, final, start.transcripts)
        place = {key: slot for slot, key in enumerate(final.keys)}
        own = [place.get(times(secret, final.base)) for secret in invited.slot_secrets]
        if None in own:
            raise BadProof("the shuffle has lost this client's slot")
        slots = {slot: secret for slot, secret in zip(own, invited.slot_secrets, strict=True) if slot is not None}
        secrets = {
            key.name: pair_secret(times(invited.pad_secret, key.pad_key), session.id, self.identity.name, key.name)
            for key in session.trustee_keys
        }
        pads = PadBook(secrets, self.parameters.cell_bytes, session.scalars)
        self._prepared = _Epoch(session, slots, invited.pad_secret, pads, cells.first_history(session.id))
        self._invited = None
        return [Send(_TO_RELAY, msg.Ready(start.epoch))]

    # Rounds.

    def _go(self, go: msg.Go, now: float) -> list[Output]:
        outputs: list[Output] = []
        prepared = self._prepared
        if prepared is not None and go.epoch == prepared.session.epoch:
            self._running, self._prepared = prepared, None
            self.streams.rewind()
            outputs.append(Note("epoch", f"epoch {go.epoch} with {len(prepared.session.clients)} clients"))
        epoch = self._running
        if epoch is None or go.epoch != epoch.session.epoch or go.number < epoch.next:
            return [Note("late", f"{go!r} was ignored")]
        if go.number > epoch.next:
            raise BadMessage(f"the broadcasts before round {go.number} are missing")
        if len(go.down) != self.parameters.down_bytes or go.slot >= epoch.session.slots:
            raise BadMessage("a broadcast of another size or of an unknown slot")
        history = cells.next_history(epoch.history, go)
        if self.parameters.blame:
            self.roster.check(RELAY, cells.history_statement(epoch.session.id, go.number, history), go.signature)
        epoch.history, epoch.next = history, go.number + 1
        known = self._answer(epoch, go, now)
        outputs.append(Send(_TO_RELAY, known.cell, after=self.parameters.offset_s))
        self._take_echoes(epoch, go, now)
        outputs += self._open_trap(epoch, go)
        outputs += self._take_down(go, now)
        return outputs

    def _answer(self, epoch: _Epoch, go: msg.Go, now: float) -> _Round:
        """Return this round with the cell that answers it."""
        session, bound = epoch.session, self.parameters.bound
        carries = go.kind != msg.Kind.MAP
        mixed, sums = epoch.pads.take(go.number, body=carries)
        own = [0] * session.scalars
        body = b""
        if not carries:
            own = cells.map_scalars([epoch.data_slot] if self._wants(now) else [], session.slots)
        elif go.slot in epoch.slots:
            own[0], body = self._own_cell(epoch, go, now)
            mixed ^= int.from_bytes(body, "little")
        h = cells.history_scalar(epoch.history, self.parameters)
        masked = cells.mask(h, sums, own) if not carries else cells.mask(h, sums[:1], own[:1]) if bound else ()
        sent = mixed.to_bytes(self.parameters.cell_bytes, "little") if carries else b""
        cell = msg.Cell(session.epoch, go.number, self.identity.name, sent, masked, epoch.history if bound else b"")
        if self.parameters.blame:
            cell = signed(cell, self.identity, session.id)
        known = _Round(go.slot, epoch.history, go.signature, cell, body, now)
        epoch.rounds[go.number] = known
        while len(epoch.rounds) > REMEMBERED:
            epoch.rounds.popitem(last=False)
        self._answered += 1
        return known

    def _own_cell(self, epoch: _Epoch, go: msg.Go, now: float) -> tuple[int, bytes]:
        """Return key and body of a round that this client owns."""
        place = epoch.session.place(go.number)
        if go.slot != epoch.data_slot and go.kind == msg.Kind.DATA:
            return cells.trap(epoch.slots[go.slot], place, self.parameters)
        length = self.parameters.payload_bytes
        if go.kind == msg.Kind.ACCUSE:
            accusation = self._accuse(epoch, go)
            use = cells.Use.ACCUSATION if accusation else cells.Use.NO_BIT
            content = encode(accusation) if accusation else b""
            payload = cells.pack(use, 0, len(content).to_bytes(2, "little") + content, length)
        else:
            if self.streams.wanting:
                self._busy_until = now + self.parameters.linger_s
            content = self.streams.pull(length - cells.HEADER_BYTES)
            payload = cells.pack(cells.Use.STREAMS, epoch.repeat, content, length)
            epoch.repeat = 0
        if not self.parameters.bound:
            return 0, payload
        key = random_scalar(self._entropy)
        return key, cells.seal(key, payload, place)

    def _wants(self, now: float) -> bool:
        if now - self._touched > 30.0:  # the exit gives up streams that are silent for two minutes
            self._touched = now
            self.streams.touch()
        return self.streams.wanting or now < self._busy_until

    def _take_echoes(self, epoch: _Epoch, go: msg.Go, now: float) -> None:
        """Compare what the relay decoded with what was sent; send again what was lost."""
        for echo in go.echoes:
            known = epoch.rounds.get(echo.number)
            if known is None or known.slot not in epoch.slots or not known.body:
                continue
            self._latency = 0.8 * self._latency + 0.2 * (now - known.sent_at) if self._latency else now - known.sent_at
            if echo.check != cells.echo_check(known.body):
                self.streams.rewind()
                epoch.repeat = echo.number + 1 if self.parameters.blame else 0

    def _take_down(self, go: msg.Go, now: float) -> list[Output]:
        events = self.streams.push(go.down, now)
        if events:
            self._busy_until = now + self.parameters.linger_s
        return [Arrived(event) for event in events]

    # Blame.

    def _accuse(self, epoch: _Epoch, go: msg.Go) -> msg.Accusation | None:
        known = epoch.rounds.get(go.garbled.number) if go.garbled else None
        if known is None or go.garbled is None or known.slot != go.slot or not known.body:
            return None
        usable = cells.usable_bits(known.body, go.garbled.body)
        if not usable or go.slot != epoch.data_slot:
            return None
        number, position, secret = go.garbled.number, self._chance.choice(usable), epoch.slots[go.slot]
        owned = epoch.session.slot_key(go.slot)
        context = accusation_context(epoch.session, number, go.slot, position)
        proof = prove_log(secret, owned.base, owned.keys[0], context, self._entropy)
        return msg.Accusation(epoch.session.epoch, number, go.slot, position, proof)

    def _open_trap(self, epoch: _Epoch, go: msg.Go) -> list[Output]:
        """Open a garbled dummy slot. It tells which slot was this client's dummy, and nothing of its data slot."""
        if go.garbled is None or not epoch.session.hunt:
            return []
        known = epoch.rounds.get(go.garbled.number)
        if known is None or known.slot not in epoch.slots or known.slot == epoch.data_slot:
            return []
        secret = scalar_bytes(epoch.slots[known.slot])
        opened = msg.TrapOpened(epoch.session.epoch, go.garbled.number, self.identity.name, known.slot, secret)
        return [Send(_TO_RELAY, signed(opened, self.identity, epoch.session.id))]

    def _show_history(self, epoch: _Epoch, message: msg.ShowHistory) -> list[Output]:
        known = epoch.rounds.get(message.number)
        if known is None:
            return []
        shown = msg.History(message.epoch, message.number, self.identity.name, known.history, known.relay_signature)
        return [Send(_TO_RELAY, shown)]

    def _inquire(self, epoch: _Epoch, inquiry: msg.Inquire) -> list[Output]:
        known = epoch.rounds.get(inquiry.number)
        if known is None or not self.parameters.blame or not known.cell.body:
            raise BadMessage("an inquiry into a round that is not remembered")
        position, _ = check_grounds(epoch.session, inquiry.grounds, known.slot, inquiry.number, inquiry.claimed)
        if position != inquiry.position:
            raise BadProof("the inquiry is into another position than its grounds")
        if inquiry.number in epoch.reveals:  # one position a round, however often it is asked for
            return [Send(_TO_RELAY, epoch.reveals[inquiry.number])]
        reveal = make_reveal(epoch.session, self.identity, epoch.pads, epoch.session.trustees, inquiry)
        epoch.reveals[inquiry.number] = reveal
        return [Send(_TO_RELAY, reveal)]

    def _open_pair(self, epoch: _Epoch, message: msg.OpenPair) -> list[Output]:
        mine = epoch.reveals.get(message.number)
        if mine is None or message.client != mine:
            raise BadMessage("a pair is to be opened whose reveals are not those of this client")
        secret = epoch.pad_secret
        return [Send(_TO_RELAY, open_pair(epoch.session, self.identity, secret, message, self._entropy))]
