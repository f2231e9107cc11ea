"""The relay's side of blame: collects histories, reveals, openings and verdicts about one round, with time limits.

A machine without I/O. The judgement itself is in `blame`; the trustees make the same one from the same records.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from prifi import messages as msg
from prifi.blame import Inquest, contradictions, judge_histories, make_judgement, read_evidence
from prifi.errors import BadProof
from prifi.messages import check
from prifi.outputs import Output, Send
from prifi.rounds import Round
from prifi.session import Session


@dataclass(slots=True)
class Diagnosis:
    """The inquiry into one round.

    Attributes:
        session: The epoch.
        round: The round in question.
        grounds: The owner's wish, or None if the clients' signed histories differ.
        since: When the present step began.
        findings: The relay's own judgement.
        verdicts: The trustees' judgements by name.
        over: Whether findings and verdicts are complete.
    """

    session: Session
    round: Round
    grounds: msg.Accusation | msg.TrapOpened | None
    since: float
    findings: tuple[msg.Finding, ...] = ()
    verdicts: dict[str, tuple[msg.Finding, ...]] = field(default_factory=dict)
    over: bool = False
    _step: str = ""
    _histories: dict[str, msg.History] = field(default_factory=dict)
    _reveals: dict[str, msg.Reveal] = field(default_factory=dict)
    _openings: dict[tuple[str, str], msg.Opening | None] = field(default_factory=dict)
    _inquest: Inquest | None = None

    @property
    def number(self) -> int:
        """Number of the round in question."""
        return self.round.go.number

    @property
    def deadline(self) -> float:
        """When the present step has taken too long."""
        return self.since + self.session.parameters.absent_s

    def begin(self, now: float) -> list[Output]:
        """Ask for histories, or for reveals."""
        if self.grounds is None:
            self._step = "histories"
            return [Send(self._strangers(), msg.ShowHistory(self.session.epoch, self.number))]
        return self._ask_reveals(now)

    def handle(self, peer: str, message: msg.Message, now: float) -> list[Output]:
        """Take an answer; what is not part of the present step is ignored."""
        match message:
            case msg.History() if self._step == "histories" and message.name == peer:
                self._histories[peer] = message
                return [] if set(self._strangers()) - set(self._histories) else self._histories_done(now)
            case msg.Reveal() if self._step == "reveals" and message.name == peer:
                self._reveals[peer] = message
                parties = {*self.session.clients, *self.session.trustees}
                return [] if parties - set(self._reveals) else self._reveals_done(now)
            case msg.Opening() if self._step == "openings" and message.name == peer:
                if (peer, message.other) in self._openings:
                    self._openings[peer, message.other] = message
                return [] if None in self._openings.values() else self._judge(now)
            case msg.Verdict() if message.name == peer:
                try:
                    check(message, peer, self.session.roster, self.session.id)
                except BadProof:
                    return []
                self.verdicts[peer] = message.findings
                if self._step == "reveals" and self._inquest is None:
                    self._step = "verdicts"  # the evidence alone names a culprit
                self._finish_if_complete()
        return []

    def expire(self, now: float) -> list[Output]:
        """The present step has taken too long: the silent ones are absent."""
        match self._step:
            case "histories":
                return self._histories_done(now)
            case "reveals":
                return self._reveals_done(now)
            case "openings":
                return self._judge(now)
        self.over = True
        return []

    def evidence(self) -> msg.Evidence:
        """Return everything signed about the round."""
        one = self.round
        return msg.Evidence(
            self.session.epoch,
            self.number,
            one.before,
            one.go,
            tuple(one.cells[name] for name in self.session.clients),
            tuple(one.aheads[name] for name in self.session.trustees),
            one.body,
            self.grounds,
            tuple(self._histories.values()),
        )

    def _strangers(self) -> tuple[str, ...]:
        """Clients whose signed history is not the relay's."""
        return tuple(name for name, cell in self.round.cells.items() if cell.history != self.round.history)

    def _histories_done(self, now: float) -> list[Output]:
        evidence = self.evidence()
        self.findings = judge_histories(self.session, evidence, self.round.history, evidence.histories)
        self._step, self.since = "verdicts", now
        return [Send(self.session.trustees, evidence)]

    def _ask_reveals(self, now: float) -> list[Output]:
        assert self.grounds is not None
        self._step, self.since = "reveals", now
        evidence = self.evidence()
        outputs: list[Output] = [Send(self.session.trustees, evidence)]
        try:
            self._inquest, self.findings = read_evidence(self.session, evidence)
        except BadProof:
            self.over = True  # the accusation is not its owner's; nobody is asked
            return []
        if self._inquest is None:
            self._step = "verdicts"
            return outputs
        position = self._inquest.position
        inquiry = msg.Inquire(self.session.epoch, self.number, self.round.body, self.grounds, position)
        return [*outputs, Send(self.session.clients, inquiry)]

    def _reveals_done(self, now: float) -> list[Output]:
        if self._inquest is None:
            self._step, self.since = "verdicts", now
            return []
        pairs = contradictions(self._inquest, tuple(self._reveals.values()))
        for client, trustee in pairs:
            self._openings[client.name, trustee.name] = self._openings[trustee.name, client.name] = None
        if not pairs:
            return self._judge(now)
        self._step, self.since = "openings", now
        epoch, number = self.session.epoch, self.number
        return [
            Send((client.name, trustee.name), msg.OpenPair(epoch, number, client, trustee)) for client, trustee in pairs
        ]

    def _judge(self, now: float) -> list[Output]:
        assert self._inquest is not None
        reveals, openings = tuple(self._reveals.values()), tuple(filter(None, self._openings.values()))
        self.findings = make_judgement(self._inquest, reveals, openings)
        self._step, self.since = "verdicts", now
        return [Send(self.session.trustees, msg.Judge(self.session.epoch, self.number, reveals, openings))]

    def _finish_if_complete(self) -> None:
        self.over = self._step == "verdicts" and set(self.verdicts) == set(self.session.trustees)
