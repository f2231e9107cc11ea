"""Blame: who spoiled a round, judged from signed cells, signed ciphertexts, revealed pad bits and opened pairs.

Everything here is a pure function of signed records, so relay and trustees come to the same verdict. The order:

1. Unsigned cells and different histories (`judge_histories`). Nothing is revealed.
2. The relay's claim against the XOR of all signed bodies (`judge_claim`). Nothing is revealed.
3. One pad bit (or scalar) of each pair (`judge`). A party whose bits contradict its own cell has disrupted. Where a
   client's and a trustee's bits differ, both open their shared point, which shows who lied.

A silent party is absent, which is not guilty. The relay is named by elimination only if nobody is absent.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from prifi import cells
from prifi import messages as msg
from prifi.errors import BadProof
from prifi.group import ORDER, Entropy, scalar_from
from prifi.identity import RELAY, Identity
from prifi.messages import check, signed
from prifi.pads import PadBook, Pair, bit, pad_value, pair_secret
from prifi.proofs import check_same_log, prove_same_log
from prifi.session import Session, check_grounds


@dataclass(frozen=True, slots=True)
class Inquest:
    """The checked evidence of a round.

    Attributes:
        session: The epoch.
        number: The round.
        position: Bit of the body, or −1−index of a scalar.
        truth: The owner's true contribution at the position.
        owner: The owner, if it has opened itself; else empty.
        history: The history that all cells were made for.
        cells: Signed cell of each client.
        aheads: Signed ciphertext of each trustee.
    """

    session: Session
    number: int
    position: int
    truth: int
    owner: str
    history: bytes
    cells: dict[str, msg.Cell]
    aheads: dict[str, msg.Ahead]


def make_reveal(
    session: Session, identity: Identity, pads: PadBook, others: tuple[str, ...], inquiry: msg.Inquire
) -> msg.Reveal:
    """Return a party's signed pad bits or scalars at the position of an inquiry that it has checked."""
    width = 1 if inquiry.position >= 0 else 32
    values = tuple(pads.value(other, inquiry.number, inquiry.position).to_bytes(width, "little") for other in others)
    reveal = msg.Reveal(session.epoch, inquiry.number, identity.name, inquiry.position, values)
    return signed(reveal, identity, session.id)


def open_pair(
    session: Session, identity: Identity, secret: int, message: msg.OpenPair, entropy: Entropy = os.urandom
) -> msg.Opening:
    """Return the shared point of a pair whose two signed reveals contradict each other.

    Raises:
        BadProof: The reveals are not signed by the two, or do not contradict each other.
    """
    client, trustee = message.client, message.trustee
    if not reveals_differ(session, client, trustee):
        raise BadProof("the two reveals do not contradict each other; nothing is opened")
    for reveal in (client, trustee):
        check(reveal, reveal.name, session.roster, session.id)
    other = trustee.name if identity.name == client.name else client.name
    context = opening_context(session, message.number, identity.name, other)
    shared, proof = prove_same_log(secret, session.pad_keys[other], context, entropy)
    opening = msg.Opening(session.epoch, message.number, identity.name, other, shared, proof)
    return signed(opening, identity, session.id)


def reveals_differ(session: Session, client: msg.Reveal, trustee: msg.Reveal) -> bool:
    """Return whether a client's and a trustee's reveals of one position contradict each other."""
    if client.name not in session.clients or trustee.name not in session.trustees:
        return False
    same = (client.epoch, client.number, client.position) == (trustee.epoch, trustee.number, trustee.position)
    sizes = len(client.values) == len(session.trustees) and len(trustee.values) == len(session.clients)
    if not same or not sizes:
        return False
    mine = client.values[session.trustees.index(trustee.name)]
    return mine != trustee.values[session.clients.index(client.name)]


def opening_context(session: Session, number: int, name: str, other: str) -> bytes:
    """Return what the proof of a shared point is bound to."""
    return msgspec.msgpack.encode((session.id, number, name, other))


def unsigned_cells(session: Session, found: Sequence[msg.Cell]) -> list[str]:
    """Return the clients whose cells carry no valid signature."""
    bad = []
    for cell in found:
        try:
            check(cell, cell.name, session.roster, session.id)
        except BadProof:
            bad.append(cell.name)
    return bad


def judge_histories(
    session: Session, evidence: msg.Evidence, history: bytes, shown: Sequence[msg.History]
) -> tuple[msg.Finding, ...]:
    """Find who is to blame when clients signed different histories.

    Args:
        session: The epoch.
        evidence: The round's signed cells.
        history: The history that the relay shows and has signed.
        shown: Relay signatures that clients with another history have shown.

    Returns:
        One finding for each client with another history: it shows the relay's signature (then the relay equivocated),
        or it shows a wrong one (then it lied), or it is silent. Empty if all histories are the same.
    """
    by_name = {one.name: one for one in shown}
    findings = []
    for cell in evidence.cells:
        if cell.history == history:
            continue
        one = by_name.get(cell.name)
        if one is None:
            findings.append(msg.Finding(cell.name, "absent", "signed another history and did not show it"))
            continue
        statement = cells.history_statement(session.id, evidence.number, cell.history)
        try:
            if one.history != cell.history:
                raise BadProof("another history")
            session.roster.check(RELAY, statement, one.relay_signature)
        except BadProof:
            findings.append(msg.Finding(cell.name, "lied", "signed a history that the relay has not sent"))
        else:
            findings.append(msg.Finding(RELAY, "equivocated", f"signed two histories of round {evidence.number}"))
    return tuple(dict.fromkeys(findings))


def read_evidence(session: Session, evidence: msg.Evidence) -> tuple[Inquest | None, tuple[msg.Finding, ...]]:
    """Check evidence before anything is revealed.

    Returns:
        The inquest, or None with findings if the evidence alone names a culprit.

    Raises:
        BadProof: The evidence is not complete, or the round's owner has not asked for an inquiry.
    """
    number, go = evidence.number, evidence.go
    if go.number != number or go.epoch != session.epoch:
        raise BadProof("the evidence is of another round")
    history = cells.next_history(evidence.before, go)
    session.roster.check(RELAY, cells.history_statement(session.id, number, history), go.signature)
    by_client = {cell.name: cell for cell in evidence.cells}
    by_trustee = {ahead.name: ahead for ahead in evidence.aheads}
    if set(by_client) != set(session.clients) or set(by_trustee) != set(session.trustees):
        raise BadProof("the evidence does not hold the cells of all parties")
    size = session.parameters.cell_bytes
    parts: tuple[msg.Cell | msg.Ahead, ...] = (*by_client.values(), *by_trustee.values())
    for part in parts:
        empty = go.kind == msg.Kind.MAP and isinstance(part, msg.Cell)
        if part.number != number or len(part.body) != (0 if empty else size):
            raise BadProof("the evidence holds a cell of another round or size")
        check(part, part.name, session.roster, session.id)
    findings = judge_histories(session, evidence, history, evidence.histories)
    if findings:
        return None, findings
    if evidence.grounds is None or go.kind == msg.Kind.MAP:
        raise BadProof("nobody has asked for this inquiry")
    position, truth = check_grounds(session, evidence.grounds, go.slot, number, evidence.claimed)
    if cells.combine((part.body for part in parts), size) != evidence.claimed:
        return None, (msg.Finding(RELAY, "disrupted", "decoded another body than the signed cells give"),)
    owner = "" if truth is None else getattr(evidence.grounds, "name", "")
    return Inquest(session, number, position, truth or 0, owner, history, by_client, by_trustee), ()


def make_judgement(
    inquest: Inquest, reveals: Sequence[msg.Reveal], openings: Sequence[msg.Opening]
) -> tuple[msg.Finding, ...]:
    """Judge a round from reveals and openings; both may be incomplete.

    Returns:
        Guilty and absent parties. Pairs that contradict each other and are not opened yield absences.
    """
    session = inquest.session
    by_name = _valid_reveals(inquest, reveals)
    findings = [
        msg.Finding(name, "absent", "did not reveal its pads")
        for name in (*session.clients, *session.trustees)
        if name not in by_name
    ]
    for name, reveal in by_name.items():
        if not _consistent(inquest, name, reveal):
            findings.append(msg.Finding(name, "disrupted", "its pads contradict the cell that it signed"))
    guilty = {finding.party for finding in findings}
    for client, trustee in contradictions(inquest, reveals):
        if client.name not in guilty and trustee.name not in guilty:
            findings += _judge_pair(inquest, client, trustee, openings)
    if not findings:
        findings.append(msg.Finding(RELAY, "disrupted", "all other parties are consistent"))
    return tuple(dict.fromkeys(findings))


def contradictions(inquest: Inquest, reveals: Sequence[msg.Reveal]) -> list[tuple[msg.Reveal, msg.Reveal]]:
    """Return the pairs of client and trustee whose reveals differ, where both are consistent with their own cells."""
    session = inquest.session
    by_name = {name: one for name, one in _valid_reveals(inquest, reveals).items() if _consistent(inquest, name, one)}
    return [
        (by_name[client], by_name[trustee])
        for client in session.clients
        for trustee in session.trustees
        if client in by_name and trustee in by_name and reveals_differ(session, by_name[client], by_name[trustee])
    ]


def _valid_reveals(inquest: Inquest, reveals: Sequence[msg.Reveal]) -> dict[str, msg.Reveal]:
    """Return the reveals that are signed and of this inquest, by party; others count as missing."""
    session, found = inquest.session, dict[str, msg.Reveal]()
    for reveal in reveals:
        others = session.trustees if reveal.name in session.clients else session.clients
        fits = reveal.number == inquest.number and reveal.position == inquest.position
        if fits and reveal.epoch == session.epoch and len(reveal.values) == len(others):
            try:
                check(reveal, reveal.name, session.roster, session.id)
            except BadProof:
                continue
            found.setdefault(reveal.name, reveal)
    return found


def _consistent(inquest: Inquest, name: str, reveal: msg.Reveal) -> bool:
    """Return whether a party's revealed values give the cell or ciphertext that it signed."""
    position = inquest.position
    values = [int.from_bytes(value, "little") for value in reveal.values]
    truth = inquest.truth if name == inquest.owner else 0
    part: msg.Cell | msg.Ahead = inquest.cells.get(name) or inquest.aheads[name]
    if position >= 0:
        return sum(values) % 2 == bit(part.body, position) ^ truth and max(values) <= 1
    h = cells.history_scalar(inquest.history, inquest.session.parameters)
    total = (h * sum(values) + truth) % ORDER if isinstance(part, msg.Cell) else sum(values) % ORDER
    signed_values = part.masked if isinstance(part, msg.Cell) else part.sums
    try:
        return total == scalar_from(signed_values[-position - 1]) and max(values) < ORDER
    except (BadProof, IndexError):
        return False


def _judge_pair(
    inquest: Inquest, client: msg.Reveal, trustee: msg.Reveal, openings: Sequence[msg.Opening]
) -> list[msg.Finding]:
    session = inquest.session
    names = {client.name, trustee.name}
    findings = []
    value: int | None = None
    for name in (client.name, trustee.name):
        opened = [one for one in openings if one.name == name and {one.name, one.other} == names]
        if not opened:
            findings.append(msg.Finding(name, "absent", "did not open its pair"))
            continue
        try:
            value = _opened_value(inquest, opened[0])
        except BadProof:
            findings.append(msg.Finding(name, "lied", "opened its pair with a wrong proof"))
    if value is None:
        return findings
    claims = (
        (client.name, client.values[session.trustees.index(trustee.name)]),
        (trustee.name, trustee.values[session.clients.index(client.name)]),
    )
    for name, claimed in claims:
        if int.from_bytes(claimed, "little") != value:
            findings = [finding for finding in findings if finding.party != name]
            findings.append(msg.Finding(name, "lied", "revealed a pad that its key does not give"))
    return findings


def _opened_value(inquest: Inquest, opening: msg.Opening) -> int:
    """Return the pad value that an opened pair really has."""
    session = inquest.session
    check(opening, opening.name, session.roster, session.id)
    public, other = session.pad_keys[opening.name], session.pad_keys[opening.other]
    context = opening_context(session, inquest.number, opening.name, opening.other)
    check_same_log(opening.proof, public, other, opening.shared, context)
    is_client = opening.name in session.clients
    client, trustee = (opening.name, opening.other) if is_client else (opening.other, opening.name)
    pair = Pair(pair_secret(opening.shared, session.id, client, trustee))
    return pad_value(pair, inquest.number, inquest.position, session.parameters.cell_bytes)
