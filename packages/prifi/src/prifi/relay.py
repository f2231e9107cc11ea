"""The relay's role: keeps the set of clients, sets up epochs, runs rounds, and finds out who spoils them.

A machine without I/O. It is trusted for availability only: every other role checks what it says.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass

from prifi import cells
from prifi import messages as msg
from prifi.assembly import Assembly
from prifi.blame import unsigned_cells
from prifi.diagnosis import Diagnosis
from prifi.errors import BadMessage, PrifiError
from prifi.group import Entropy
from prifi.identity import Identity, Roster
from prifi.messages import decode
from prifi.outputs import Close, Halt, Note, Output, Send, blame_note
from prifi.parameters import Parameters
from prifi.rounds import Opened, Round, Rounds
from prifi.session import Session
from prifi.streams import Streams

#: Garbled rounds without a named culprit after which the next epoch is a hunt.
PATIENCE = 4
#: Rounds of each slot without trouble after which a hunt ends.
QUIET_TURNS = 4


@dataclass(frozen=True, slots=True)
class RelayStatus:
    """What the relay's page and metrics show: nothing about single clients. Counts are since the start."""

    epoch: int
    anonymity_set: int
    connected: int
    rounds: int
    failed: int
    open_slots: int
    streams: int
    round_s: float
    hunting: bool
    epochs: int


class Relay:
    """The router of the local network, as a member of the protocol.

    Args:
        identity: The relay's key.
        roster: Public keys of all members.
        parameters: Settings of the network.
        entropy: Source of random bytes.
        first_epoch: Lowest epoch number; 0 takes the clock, so that numbers grow over restarts.
    """

    rounds_class: type[Rounds] = Rounds

    def __init__(
        self,
        identity: Identity,
        roster: Roster,
        parameters: Parameters,
        entropy: Entropy = os.urandom,
        first_epoch: int = 0,
    ) -> None:
        self.identity = identity
        self.roster = roster
        self.parameters = parameters
        self.streams = Streams(exit_side=True, entropy=entropy)
        self.banned: set[str] = set()
        self.rounds: Rounds | None = None
        self._last_epoch = first_epoch or time.time_ns() // 1_000_000
        self._links: dict[str, float] = {}  # member -> when it was heard
        self._assembly: Assembly | None = None
        self._diagnosis: Diagnosis | None = None
        self._gather_at: float | None = None
        self._hunt_next = False
        self._unresolved = 0
        self._quiet = 0
        self._unfit: set[str] = set()  # have refused the set-up; a new link is a new try
        self._rejected: Counter[str] = Counter()
        self._pinged: dict[str, float] = {}
        self._ticked = 0.0
        self._totals = [0, 0, 0]  # rounds, failed rounds, epochs of earlier epochs

    @property
    def status(self) -> RelayStatus:
        """What the relay's page and metrics show."""
        rounds = self.rounds
        return RelayStatus(
            epoch=rounds.session.epoch if rounds else 0,
            anonymity_set=len(rounds.session.clients) if rounds else 0,
            connected=sum(name in self._links for name in self.roster.clients),
            rounds=self._totals[0] + (rounds.completed if rounds else 0),
            failed=self._totals[1] + (rounds.failed if rounds else 0),
            open_slots=len(rounds.open_slots) if rounds else 0,
            streams=len(self.streams),
            round_s=rounds.last_duration_s if rounds else 0.0,
            hunting=bool(rounds and rounds.session.hunt),
            epochs=self._totals[2],
        )

    # Events.

    def connected(self, peer: str, now: float) -> list[Output]:
        """A member's link is there."""
        if peer in self.banned:
            return [Send((peer,), msg.Stopped(0, "this client was named as a disruptor")), Close(peer)]
        outputs = self.disconnected(peer, now)  # a member that starts again while its old link lives
        self._links[peer] = now
        if self._gather_at is None or peer in self.roster.clients:
            self._gather_at = now + self.parameters.gather_s
        return [*outputs, Note("link", f"{peer} is connected", peer)]

    def disconnected(self, peer: str, now: float) -> list[Output]:
        """A member's link is gone: the epoch cannot go on without it."""
        if self._links.pop(peer, None) is None:
            return []
        self._unfit.discard(peer)
        outputs: list[Output] = [Note("link", f"{peer} is gone", peer)]
        if self._assembly is not None:
            if peer in self.roster.trustees:
                self._assembly.failed = f"{peer} left during the set-up"
            elif peer in self._assembly.clients:
                outputs += self._assembly.leave(peer, now)
        if self.rounds is not None and (peer in self.rounds.session.clients or peer in self.roster.trustees):
            outputs += self._end_epoch(now, "a member has left; the next epoch is set up")
        return outputs + self._advance(now)

    def handle(self, peer: str, message: msg.Message, now: float) -> list[Output]:
        """Take a message from a member."""
        if peer not in self._links:
            return []
        self._links[peer] = now
        try:
            outputs = self._handle(peer, message, now)
        except PrifiError as error:
            self._rejected[peer] += 1
            outputs = [Note("refused", f"{message!r} of {peer} was refused: {error}", peer)]
            if self._rejected[peer] > 100:
                return [*outputs, *self._drop(peer, now, "sends what is refused")]
        return outputs + self._advance(now)

    def tick(self, now: float) -> list[Output]:
        """Do what is due."""
        outputs: list[Output] = []
        if now - self._ticked > self.parameters.absent_s / 2:  # the relay itself was away; nobody else was
            self._links = dict.fromkeys(self._links, now)
        self._ticked = now
        for name, heard in list(self._links.items()):
            silence = now - heard
            if silence > max(self.parameters.absent_s, 1.0) and self._blamable(name):
                outputs += self._drop(name, now, f"silent for {silence:.1f} s")
            elif silence > self.parameters.absent_s / 3 and now - self._pinged.get(name, 0.0) > self._ping_every:
                self._pinged[name] = now
                outputs.append(Send((name,), msg.Ping(0)))
        return outputs + self._advance(now)

    def deadline(self, now: float) -> float:
        """Return when `tick` is wanted next."""
        times = [now + self._ping_every]
        if self._gather_at is not None and self._assembly is None:
            times.append(max(self._gather_at, now + 0.01))
        if self._assembly is not None:
            times.append(self._assembly.deadline)
        if self._diagnosis is not None:
            times.append(self._diagnosis.deadline)
        if self.rounds is not None:
            times.append(self.rounds.deadline(now))
        return min(times)

    @property
    def _ping_every(self) -> float:
        return self.parameters.absent_s / 6

    def _blamable(self, name: str) -> bool:
        """Whether a member that says nothing should have: a trustee that proves or verifies is busy."""
        return not (self._assembly is not None and name in self.roster.trustees)

    def _handle(self, peer: str, message: msg.Message, now: float) -> list[Output]:
        rounds = self.rounds
        if isinstance(message, msg.Ping):
            return []
        if isinstance(message, msg.Stopped):
            return self._stopped(peer, message, now)
        if rounds is not None and message.epoch == rounds.session.epoch:
            match message:
                case msg.Cell():
                    return rounds.take_cell(peer, message, now)
                case msg.Ahead():
                    return rounds.take_ahead(peer, message)
                case msg.History() | msg.Reveal() | msg.Opening() | msg.Verdict():
                    diagnosis = self._diagnosis
                    fits = diagnosis is not None and diagnosis.number == message.number
                    return diagnosis.handle(peer, message, now) if diagnosis is not None and fits else []
                case msg.TrapOpened() if message.name == peer and message.number in rounds.asked:
                    return self._diagnose(rounds, message.number, message, now)
        if self._assembly is not None and message.epoch == self._assembly.epoch:
            return self._assembly.handle(peer, message, now)
        if isinstance(message, msg.Cell | msg.Ahead | msg.Verdict | msg.Reveal | msg.Opening):
            return []  # of an epoch that is over
        raise BadMessage("it belongs to no epoch")

    def _stopped(self, peer: str, message: msg.Message, now: float) -> list[Output]:
        reason = getattr(message, "reason", "")
        if peer in self.roster.trustees:
            return [self._stop_all(reason), Halt(f"{peer} has stopped: {reason}")]
        if self._assembly is None or message.epoch != self._assembly.epoch:
            return [Note("link", f"{peer} has stopped", peer)]
        self._unfit.add(peer)
        return [Note("refused", f"{peer} takes no part: {reason}", peer), *self._assembly.leave(peer, now)]

    def _stop_all(self, reason: str) -> Send:
        epoch = self.rounds.session.epoch if self.rounds else 0
        return Send(tuple(self._links), msg.Stopped(epoch, reason[:200]))

    def stop(self) -> list[Output]:
        """Tell everybody that the service ends."""
        return [self._stop_all("the relay was shut down")]

    # Epochs.

    def _drop(self, peer: str, now: float, reason: str, guilty: bool = False) -> list[Output]:
        """Give a member up; it may connect again unless it is guilty."""
        note = (
            Note("dropped", f"{peer} is excluded", peer) if guilty else Note("absent", f"{peer} absent: {reason}", peer)
        )
        return [note, Send((peer,), msg.Stopped(0, f"dropped: {reason}")), Close(peer), *self.disconnected(peer, now)]

    def _end_epoch(self, now: float, reason: str) -> list[Output]:
        """Void the running epoch; its pads are never used again."""
        outputs: list[Output] = []
        if self.rounds is not None:
            session = self.rounds.session
            here = tuple(name for name in session.clients if name in self._links)
            outputs = [Send(here, msg.Stopped(session.epoch, reason))]
            self._totals[0] += self.rounds.completed
            self._totals[1] += self.rounds.failed
        self.rounds, self._diagnosis = None, None
        if self._gather_at is None:
            self._gather_at = now + self.parameters.gather_s
        return outputs

    def _advance(self, now: float) -> list[Output]:
        """Go on with set-up, diagnosis and rounds."""
        outputs = self._advance_assembly(now)
        rounds = self.rounds
        if rounds is not None:
            outputs += rounds.advance(now)
            for name in rounds.silent(now):
                outputs += self._drop(name, now, "did not send its cell")
        if self.rounds is not None:
            outputs += self._look_at_failures(self.rounds, now)
        return outputs

    def _advance_assembly(self, now: float) -> list[Output]:
        outputs: list[Output] = []
        assembly = self._assembly
        if assembly is not None and now >= assembly.deadline:
            outputs += assembly.expire(now)
            for name in sorted(assembly.missing & set(self._links)):
                assembly.missing.discard(name)
                outputs += self._drop(name, now, "did not answer in the set-up")
            assembly = self._assembly
        if assembly is not None and assembly.done is not None:
            outputs += self._begin_epoch(assembly.done)
        elif assembly is not None and assembly.failed:
            self._assembly = None
            self._gather_at = now + self.parameters.gather_s
            outputs.append(Note("setup", assembly.failed))
            if assembly.culprit:
                reason = f"{assembly.culprit} is not honest; the roster must change before the service goes on"
                outputs += [self._stop_all(reason), Halt(reason)]
        if self._assembly is None and self._gather_at is not None and now >= self._gather_at:
            outputs += self._begin_assembly(now)
        return outputs

    def _begin_assembly(self, now: float) -> list[Output]:
        here = {name for name in self.roster.clients if name in self._links and name not in self.banned | self._unfit}
        trustees = all(name in self._links for name in self.roster.trustees)
        self._gather_at = None
        if not trustees or len(here) < self.parameters.minimum_set:
            return []  # the next connection asks again
        self._last_epoch += 1
        hunt = self._hunt_next and self.parameters.blame
        self._assembly = Assembly(self.roster, self.parameters, self._last_epoch, hunt, here, now)
        return self._assembly.begin()

    def _begin_epoch(self, session: Session) -> list[Output]:
        if self.rounds is not None:
            self._totals[0] += self.rounds.completed
            self._totals[1] += self.rounds.failed
        self._assembly, self._diagnosis = None, None
        self._totals[2] += 1
        self._unresolved = self._quiet = 0
        self.rounds = self.rounds_class(self.identity, session, self.streams)
        kind = "hunt, " if session.hunt else ""
        return [Note("epoch", f"epoch {session.epoch}: {kind}{len(session.clients)} clients")]

    # Failures.

    def _look_at_failures(self, rounds: Rounds, now: float) -> list[Output]:
        outputs: list[Output] = []
        while rounds.garbled and self.rounds is rounds:
            outputs += self._garbled(rounds, rounds.garbled.popleft(), now)
        while rounds.opened and self.rounds is rounds:
            outputs += self._answered(rounds, rounds.opened.popleft(), now)
        diagnosis = self._diagnosis
        if diagnosis is not None and not diagnosis.over and now >= diagnosis.deadline:
            outputs += diagnosis.expire(now)
        if diagnosis is not None and diagnosis.over:
            self._diagnosis = None
            outputs += self._act_on(diagnosis, now)
        if rounds.session.hunt and self.rounds is rounds:
            outputs += self._end_quiet_hunt(rounds, now)
        return outputs

    def _garbled(self, rounds: Rounds, wrong: Round, now: float) -> list[Output]:
        """A round did not open: unsigned cells first, then histories, then an accusation by the owner."""
        self._quiet = rounds.completed
        if not self.parameters.blame:
            return []
        unsigned = unsigned_cells(rounds.session, list(wrong.cells.values()))
        if unsigned:
            outputs: list[Output] = []
            for name in unsigned:
                outputs += self._drop(name, now, "its cell carries no valid signature")
            return outputs
        if self._diagnosis is not None:
            return []
        if any(cell.history != wrong.history for cell in wrong.cells.values()):
            self._diagnosis = Diagnosis(rounds.session, wrong, None, now)
            return self._diagnosis.begin(now)
        if wrong.go.kind == msg.Kind.DATA:
            self._ask_owner(rounds, wrong.go.number)
            return []
        return self._count_unresolved(rounds, now)  # a map, or an accusation that was garbled, too

    @staticmethod
    def _ask_owner(rounds: Rounds, number: int) -> None:
        """Repeat a cell to its owner, once."""
        if number not in rounds.asked:
            rounds.asked.add(number)
            rounds.accuse.append(number)

    def _answered(self, rounds: Rounds, opened: Opened, now: float) -> list[Output]:
        """An owner has accused, could not, or wants a cell repeated."""
        garbled = opened.round.go.garbled
        if opened.repeat and opened.repeat - 1 in rounds.done:
            wanted = rounds.done[opened.repeat - 1]
            if wanted.go.slot == opened.round.go.slot:
                self._ask_owner(rounds, opened.repeat - 1)
        if garbled is None:
            return []
        if opened.use == cells.Use.ACCUSATION:
            length = int.from_bytes(opened.content[:2], "little")
            try:
                accusation = decode(opened.content[2 : 2 + length])
            except BadMessage:
                return self._count_unresolved(rounds, now)
            if isinstance(accusation, msg.Accusation) and accusation.number == garbled.number:
                return self._diagnose(rounds, accusation.number, accusation, now)
        return self._count_unresolved(rounds, now)

    def _count_unresolved(self, rounds: Rounds, now: float) -> list[Output]:
        if self._diagnosis is not None or rounds.session.hunt:
            return []
        self._unresolved += 1
        if self._unresolved < PATIENCE:
            return []
        self._hunt_next, self._unresolved = True, 0
        note = Note("hunt", "rounds are spoiled and no bit tells by whom; the next epoch has trap slots")
        return [note, *self._end_epoch(now, "rounds are spoiled; the next epoch is set up")]

    def _end_quiet_hunt(self, rounds: Rounds, now: float) -> list[Output]:
        if rounds.completed - self._quiet < QUIET_TURNS * rounds.session.slots:
            return []
        self._hunt_next = False
        if self._assembly is None and self._gather_at is None:
            self._gather_at = now  # the next epoch is set up while this one goes on
        return []

    def _diagnose(
        self, rounds: Rounds, number: int, grounds: msg.Accusation | msg.TrapOpened, now: float
    ) -> list[Output]:
        wrong = rounds.done.get(number)
        if self._diagnosis is not None or wrong is None or not self.parameters.blame:
            return []
        self._diagnosis = Diagnosis(rounds.session, wrong, grounds, now)
        return self._diagnosis.begin(now)

    def _act_on(self, diagnosis: Diagnosis, now: float) -> list[Output]:
        """Exclude guilty and absent clients; stop if a trustee or this relay is named."""
        outputs: list[Output] = []
        for name, verdict in diagnosis.verdicts.items():
            same = set(verdict) == set(diagnosis.findings)
            outputs.append(Note("verdict", f"{name} {'agrees' if same else 'judges otherwise'}"))
        named = {*diagnosis.findings, *(one for verdict in diagnosis.verdicts.values() for one in verdict)}
        core = sorted(one.party for one in named if one.outcome != "absent" and one.party not in self.roster.clients)
        outputs += [blame_note(one) for one in diagnosis.findings]
        if core:
            reason = f"{core[0]} is not honest; the roster must change before the service goes on"
            return [*outputs, self._stop_all(reason), Halt(reason)]
        for one in diagnosis.findings:
            outputs += self._exclude(one, now)
        return outputs

    def _exclude(self, finding: msg.Finding, now: float) -> list[Output]:
        guilty = finding.outcome != "absent"
        if guilty:
            self.banned.add(finding.party)
        return self._drop(finding.party, now, finding.reason, guilty) if finding.party in self._links else []
