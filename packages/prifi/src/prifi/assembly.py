"""The relay's side of an epoch's set-up: fresh keys, the shuffle, the start. A machine without I/O."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from prifi import messages as msg
from prifi.errors import BadMessage, BadProof
from prifi.identity import Roster
from prifi.messages import check
from prifi.outputs import Note, Output, Send
from prifi.parameters import Parameters
from prifi.session import Session, check_trustee_keys, invitation_digest, transcript_context
from prifi.shuffle import Keys, check_hop, hop_context


@dataclass(slots=True)
class Assembly:
    """One attempt to set up an epoch.

    Attributes:
        epoch: Its number.
        hunt: Whether each client gets a trap slot, too.
        clients: Invited clients that are still here.
        done: The session, once every client is ready.
        failed: Why the attempt is over; empty if it is not.
        missing: Members that did not answer in time.
        culprit: A trustee whose hop or word was false.
    """

    roster: Roster
    parameters: Parameters
    epoch: int
    hunt: bool
    clients: set[str]
    since: float
    done: Session | None = None
    failed: str = ""
    missing: set[str] = field(default_factory=set)
    culprit: str = ""
    _step: str = "trustees"
    _trustees: dict[str, msg.TrusteeKey] = field(default_factory=dict)
    _keys: dict[str, msg.ClientKeys] = field(default_factory=dict)
    _session: Session | None = None
    _hops: list[Keys] = field(default_factory=list)
    _proofs: dict[int, bytes] = field(default_factory=dict)
    _transcripts: dict[str, msg.Transcript] = field(default_factory=dict)
    _ready: set[str] = field(default_factory=set)

    def begin(self) -> list[Output]:
        """Ask the trustees for fresh keys."""
        return [Send(self.roster.trustees, msg.Propose(self.epoch, self.parameters.digest(), self.hunt))]

    @property
    def deadline(self) -> float:
        """When the present step has taken too long."""
        return self.since + self.parameters.setup_s

    def leave(self, name: str, now: float) -> list[Output]:
        """A client's link is gone."""
        self.clients.discard(name)
        if self._step in ("shuffle", "start"):
            self.failed = f"{name} left during the set-up"
            return []
        self._keys.pop(name, None)
        return self._invite_done(now) if self._step == "clients" else []

    def expire(self, now: float) -> list[Output]:
        """The present step has taken too long: go on without the silent clients, or give up."""
        if self._step == "clients":
            self.missing |= self.clients - set(self._keys)
            self.clients &= set(self._keys)
            return self._invite_done(now)
        waiting = {
            "trustees": set(self.roster.trustees) - set(self._trustees),
            "shuffle": set(self.roster.trustees) - set(self._transcripts),
            "start": self.clients - self._ready,
        }[self._step]
        self.missing |= waiting
        self.failed = f"no answer from {', '.join(sorted(waiting))} in {self.parameters.setup_s:g} s"
        return []

    def handle(self, peer: str, message: msg.Message, now: float) -> list[Output]:
        """Take a message of the set-up.

        Raises:
            BadMessage: It is out of place.
            BadProof: A signature in it does not hold.
        """
        match message:
            case msg.TrusteeKey() if self._step == "trustees" and message.name == peer:
                return self._take_trustee(message, now)
            case msg.ClientKeys() if self._step == "clients" and message.name == peer and peer in self.clients:
                if len(message.slot_keys) != (2 if self.hunt else 1) or message.invitation != self._invitation():
                    raise BadMessage("keys for another epoch")
                check(message, peer, self.roster, b"client keys")
                self._keys[peer] = message
                return self._invite_done(now)
            case msg.Hop() if self._step == "shuffle" and self._place(peer) == message.place == len(self._hops) - 1:
                check(message, peer, self.roster, self._known().id)
                self._hops.append(Keys(message.base, message.keys))
                return [Send(self._other_trustees(peer), message)]
            case msg.HopProof() if self._step == "shuffle" and self._place(peer) == message.place < len(self._hops) - 1:
                self._proofs[message.place] = message.proof
                return [Send(self._other_trustees(peer), message)]
            case msg.Transcript() if self._step == "shuffle" and message.name == peer:
                return self._take_transcript(message, now)
            case msg.HopRefused() if self._step == "shuffle" and message.name == peer:
                return self._take_refusal(message)
            case msg.Ready() if self._step == "start" and peer in self.clients:
                self._ready.add(peer)
                return self._finish()
        raise BadMessage(f"{message!r} from {peer} is out of place in the set-up")

    def _place(self, trustee: str) -> int:
        return self.roster.trustees.index(trustee) if trustee in self.roster.trustees else -1

    def _other_trustees(self, name: str) -> tuple[str, ...]:
        return tuple(other for other in self.roster.trustees if other != name)

    def _ordered_trustees(self) -> tuple[msg.TrusteeKey, ...]:
        return tuple(self._trustees[name] for name in self.roster.trustees)

    def _invitation(self) -> bytes:
        return invitation_digest(self.epoch, self.hunt, self._ordered_trustees())

    def _take_trustee(self, key: msg.TrusteeKey, now: float) -> list[Output]:
        self._trustees[key.name] = key
        if len(self._trustees) < len(self.roster.trustees):
            return []
        check_trustee_keys(self._ordered_trustees(), self.epoch, self.parameters, self.roster)
        self._step, self.since = "clients", now
        return [Send(tuple(sorted(self.clients)), msg.Invite(self.epoch, self.hunt, self._ordered_trustees()))]

    def _invite_done(self, now: float) -> list[Output]:
        """Fix the set of clients once all have answered."""
        if self.clients - set(self._keys):
            return []
        if len(self.clients) < self.parameters.minimum_set:
            self.failed = f"{len(self.clients)} clients are fewer than the minimum of {self.parameters.minimum_set}"
            return []
        keys = tuple(self._keys[name] for name in sorted(self.clients))
        self._session = Session(self.epoch, self.parameters, self.roster, self.hunt, self._ordered_trustees(), keys)
        self._step, self.since = "shuffle", now
        self._hops = [self._session.unshuffled]
        return [Send(self.roster.trustees, msg.Assemble(self.epoch, self.hunt, self._ordered_trustees(), keys))]

    def _known(self) -> Session:
        assert self._session is not None
        return self._session

    def _take_transcript(self, word: msg.Transcript, now: float) -> list[Output]:
        session, final = self._known(), self._hops[-1]
        if len(self._hops) <= len(self.roster.trustees):
            raise BadMessage("a transcript before the last hop")
        check(word, word.name, self.roster, transcript_context(session, final))
        self._transcripts[word.name] = word
        if len(self._transcripts) < len(self.roster.trustees):
            return []
        self._step, self.since = "start", now
        words = tuple(self._transcripts[name] for name in self.roster.trustees)
        start = msg.Start(self.epoch, session.client_keys, final.base, final.keys, words)
        return [Send(tuple(sorted(self.clients)), start)]

    def _take_refusal(self, word: msg.HopRefused) -> list[Output]:
        """Find out whether the hop or the refusal is false: the relay checks the hop itself."""
        session, place = self._known(), word.place
        check(word, word.name, self.roster, session.id)
        self.culprit = word.name
        if 0 <= place < len(self._hops) - 1:
            author, keys = session.trustees[place], self._hops[place + 1].keys
            if len(keys) != session.slots or len(set(keys)) != session.slots or not self._proven(place, author):
                self.culprit = author
        self.failed = f"{word.name} refuses the shuffle: {word.reason}"
        text = f"the shuffle hop of {self.culprit} is forged" if self.culprit != word.name else "a false refusal"
        return [Note("blame", f"{self.culprit} disrupted: {text}", self.culprit)]

    def _proven(self, place: int, author: str) -> bool:
        """Return whether a hop's proof holds; a proof that has not come yet is not held against its author."""
        if place not in self._proofs:
            return True
        context = hop_context(self._known().id, place, author)
        try:
            rounds = self.parameters.shuffle_rounds
            check_hop(self._hops[place], self._hops[place + 1], self._proofs[place], context, rounds)
        except BadProof:
            return False
        return True

    def _finish(self) -> list[Output]:
        if self.clients - self._ready:
            return []
        self.done = replace(self._known(), schedule=self._hops[-1])
        return [Send(self.roster.trustees, msg.Begin(self.epoch))]
