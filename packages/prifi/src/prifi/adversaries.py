"""Members that misbehave, for tests, demos and studies. Each is the honest role with one method changed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from prifi import cells
from prifi.client import Client
from prifi.group import ORDER, base_times, scalar_bytes
from prifi.messages import Cell, Go, Kind, Message, Resend, Reveal, signed
from prifi.outputs import Output, Send
from prifi.relay import Relay
from prifi.rounds import Round, Rounds
from prifi.shuffle import Keys
from prifi.trustee import Trustee

#: What a disruptor spoils, and how it answers when everybody reveals.
SPOILS = ("bit", "scalar", "history", "unsigned")
ANSWERS = ("honest", "lie", "silent")


def flipped(body: bytes, position: int) -> bytes:
    """Return the bytes with one bit flipped."""
    changed = bytearray(body)
    changed[position // 8] ^= 1 << (position % 8)
    return bytes(changed)


class Disruptor(Client):
    """A client that spoils cells of rounds that it does not own.

    Attributes:
        spoil: What it spoils: "bit", "scalar", "history" or "unsigned".
        answer: How it answers an inquiry: "honest", "lie" (its bits fit its cell) or "silent".
        rate: Probability that it spoils a round.
        after: Round from which on it does so.
    """

    spoil = "bit"
    answer = "honest"
    rate = 0.3
    after = 10
    chance = random.Random(1)

    def _answer(self, epoch: Any, go: Go, now: float) -> Any:
        known = super()._answer(epoch, go, now)
        mine = go.slot in epoch.slots
        if go.kind != Kind.DATA or mine or go.number < self.after or self.chance.random() >= self.rate:
            return known
        known.cell = self._spoiled(epoch, known.cell)
        return known

    def _spoiled(self, epoch: Any, cell: Cell) -> Cell:
        change: dict[str, Any] = {}
        if self.spoil == "bit":
            change["body"] = flipped(cell.body, self.chance.randrange(8 * len(cell.body)))
        elif self.spoil in ("scalar", "history"):
            total = int.from_bytes(cell.masked[0], "little") + self.chance.randrange(1, ORDER)
            change["masked"] = (scalar_bytes(total), *cell.masked[1:])
        if self.spoil == "history":
            change["history"] = self.chance.randbytes(32)
        cell = msgspec.structs.replace(cell, **change)
        if self.spoil == "unsigned":
            return msgspec.structs.replace(cell, body=flipped(cell.body, 0))
        return signed(cell, self.identity, epoch.session.id) if self.parameters.blame else cell

    def _inquire(self, epoch: Any, inquiry: Any) -> list[Output]:
        if self.answer == "silent":
            return []
        outputs = super()._inquire(epoch, inquiry)
        if self.answer == "lie":
            reveal = _other_value(epoch.reveals[inquiry.number], self.chance)
            epoch.reveals[inquiry.number] = reveal = signed(reveal, self.identity, epoch.session.id)
            return [Send(outputs[0].to, reveal)] if isinstance(outputs[0], Send) else []
        return outputs


class BrokenClient(Client):
    """A client that sends by itself only when it has data; else it waits until it is asked. It is easily told apart."""

    def _handle(self, message: Message, now: float) -> list[Output]:
        outputs = super()._handle(message, now)
        if isinstance(message, Go) and not self._wants(now):
            return [one for one in outputs if not (isinstance(one, Send) and isinstance(one.message, Cell))]
        if isinstance(message, Resend):
            return [one for one in outputs if isinstance(one, Send)]
        return outputs


class SilentClient(Client):
    """A client that answers no broadcast any more after some rounds; its link stays."""

    after = 20

    def _handle(self, message: Message, now: float) -> list[Output]:
        outputs = super()._handle(message, now)
        running = self._running
        return [] if running is not None and running.next > self.after else outputs


class DisruptingTrustee(Trustee):
    """A trustee that spoils its ciphertexts: a bit, or a scalar."""

    spoil = "bit"
    answer = "honest"
    rate = 0.3
    after = 10
    chance = random.Random(2)

    def _ahead(self, epoch: Any) -> Any:
        ahead = super()._ahead(epoch)
        if ahead.number < self.after or self.chance.random() >= self.rate:
            return ahead
        if self.spoil == "bit":
            ahead = msgspec.structs.replace(ahead, body=flipped(ahead.body, self.chance.randrange(8 * len(ahead.body))))
        else:
            total = int.from_bytes(ahead.sums[0], "little") + self.chance.randrange(1, ORDER)
            ahead = msgspec.structs.replace(ahead, sums=(scalar_bytes(total), *ahead.sums[1:]))
        return signed(ahead, self.identity, epoch.known().id) if self.parameters.blame else ahead

    def _take_evidence(self, epoch: Any, evidence: Any) -> list[Output]:
        outputs = super()._take_evidence(epoch, evidence)
        if self.answer == "silent":
            return []
        if self.answer == "lie" and evidence.number in epoch.reveals:
            reveal = _other_value(epoch.reveals[evidence.number], self.chance)
            epoch.reveals[evidence.number] = reveal = signed(reveal, self.identity, epoch.known().id)
            return [Send(one.to, reveal) if isinstance(one, Send) else one for one in outputs]
        return outputs


class ForgingTrustee(Trustee):
    """A trustee whose shuffle hop is false: a foreign key, a duplicate, a wrong base, or replayed keys."""

    forgery = "foreign"

    def _hop_if_next(self, epoch: Any, session: Any) -> list[Output]:
        outputs = super()._hop_if_next(epoch, session)
        if not outputs:
            return outputs
        send = outputs[0]
        assert isinstance(send, Send)
        hop: Any = send.message
        keys = list(hop.keys)
        change: dict[str, Any] = {}
        if self.forgery == "foreign":
            keys[0] = base_times(4711)
        elif self.forgery == "duplicate":
            keys[0] = keys[1]
        elif self.forgery == "replayed":
            keys = list(epoch.hops[-2].keys)
        elif self.forgery == "base":
            change["base"] = base_times(4711)
        hop = signed(msgspec.structs.replace(hop, keys=tuple(keys), **change), self.identity, session.id)
        epoch.hops[-1] = Keys(hop.base, hop.keys)
        epoch.hop_messages[-1] = hop
        return [Send(send.to, hop), *outputs[1:]]


class FlippingRounds(Rounds):
    """Rounds of a relay that spoils what it has decoded."""

    rate = 0.3
    after = 10
    chance = random.Random(3)

    def decode(self, current: Round) -> bytes:
        """Return the decoded body, sometimes with a flipped bit."""
        body = super().decode(current)
        if current.go.number < self.after or self.chance.random() >= self.rate:
            return body
        return flipped(body, self.chance.randrange(8 * len(body)))


class FlippingRelay(Relay):
    """A relay that spoils cells and blames others."""

    rounds_class = FlippingRounds


#: Bytes that an equivocating relay replaces by a token of the same length, another one for each client.
PLACEHOLDER = b"<token:0000>"


def token(index: int) -> bytes:
    """Return the token of a client."""
    return b"<token:%04d>" % (index + 1)


class EquivocatingRounds(Rounds):
    """Rounds of a relay that tells each client something else, and waits for the token to come back."""

    def tailor(self, name: str, go: Go) -> Go:
        """Return the broadcast for one client."""
        index = self.session.roster.clients.index(name)
        return msgspec.structs.replace(go, down=go.down.replace(PLACEHOLDER, token(index)))

    def broadcast(self, go: Go) -> list[Output]:
        """Send each client a broadcast of its own, with a signature that holds."""
        histories: dict[str, bytes] = self.__dict__.setdefault("histories", {})
        outputs: list[Output] = []
        for name in self.session.clients:
            mine = self.tailor(name, go)
            before = histories.get(name, cells.first_history(self.session.id))
            histories[name] = cells.next_history(before, mine)
            statement = cells.history_statement(self.session.id, go.number, histories[name])
            if self.session.parameters.blame:
                mine = msgspec.structs.replace(mine, signature=self.identity.sign(statement))
            outputs.append(Send((name,), mine))
        return outputs


class EquivocatingRelay(Relay):
    """A relay that tells each client something else."""

    rounds_class = EquivocatingRounds


#: Misbehaviours of `prifi client|trustee|relay --insecure-misbehave`.
MISBEHAVIOURS: dict[str, Callable[..., Any]] = {
    "flip": Disruptor,
    "silent": SilentClient,
    "broken": BrokenClient,
    "flip-trustee": DisruptingTrustee,
    "forge-shuffle": ForgingTrustee,
    "flip-relay": FlippingRelay,
    "equivocate": EquivocatingRelay,
}


def _other_value(reveal: Reveal, chance: random.Random) -> Reveal:
    """Return a reveal in which one value is another one, so that the sum changes."""
    values = list(reveal.values)
    index = chance.randrange(len(values))
    value = int.from_bytes(values[index], "little")
    if reveal.position >= 0:
        values[index] = bytes([value ^ 1])
    else:
        values[index] = scalar_bytes(value + chance.randrange(1, ORDER))
    return msgspec.structs.replace(reveal, values=tuple(values))
