"""Misconfiguration: slow workers that are set up differently from their peers, or from how they were when all was well.

Only a difference that can explain the very cause and as much time as is lost counts, and only in the direction that
makes things slower. Other differences, and the same setting on everybody, are mentioned beside a cause that they can
concern, never accused. A process seen to take what the workers lack stays the cause: it was measured.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.lateness import JOB_WIDE, accuse_growth
from eroica.diagnosis.limits import LISTED
from eroica.diagnosis.placement import name_accused
from eroica.diagnosis.setup_everywhere import known_bad
from eroica.diagnosis.setup_rules import ALL, RULES, TOLD, Loss, Rule, number
from eroica.diagnosis.speed import queued_share
from eroica.diagnosis.view import View
from eroica.diagnosis.words import name_workers

CAUSE = "misconfiguration"
_MOST_DIFFERENCES = 3
#: Causes that say no more than that somebody lacks cores or computes slowly.
_GENERAL = frozenset({"compute-slow", "cpu-contention", "sibling-process"})
#: Measured culprits keep their name; settings are told beside them as beside the slowness that they explain.
_MEASURED = {"sibling-process": "compute-slow"}


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of the accused against that of those they are compared with, in words."""

    rule: Rule
    own: str
    other: str
    is_proof: bool

    def phrase(self, whom: str, whose: str) -> str:
        """Return the difference as a clause."""
        return f"{self.rule.name} is {self.own} for {whom} and {self.other} {whose}"

    def sentence(self, whom: str, whose: str) -> str:
        """Return the difference as a sentence for the evidence."""
        text = self.phrase(whom, whose)
        is_identifier = "." in self.rule.name
        return f"{text if is_identifier else text[0].upper() + text[1:]}."


class Setups:
    """The workers' set-ups, equal ones told apart once.

    Attributes:
        view: The window.
        kinds: Every set-up that somebody has.
        of_W: Index into `kinds` for each worker. int64 [W].
    """

    def __init__(self, view: View) -> None:
        self.view = view
        known: dict[tuple[tuple[str, str], ...], int] = {}
        self.kinds: list[dict[str, str]] = []
        self.of_W = np.empty(view.workers, dtype=np.int64)
        for worker, pattern in enumerate(view.fleet.patterns):
            at = known.setdefault(tuple(sorted(pattern.setup.items())), len(known))
            if at == len(self.kinds):
                self.kinds.append(pattern.setup)
            self.of_W[worker] = at

    def by_role(self, workers_W: NDArray[np.bool_]) -> dict[int, list[dict[str, str]]]:
        """Return the set-ups of these workers (bool [W]), by role."""
        roles_W = np.asarray(self.view.fleet.roles)
        return {
            int(role): [self.kinds[at] for at in np.unique(self.of_W[workers_W & (roles_W == role)])]
            for role in np.unique(roles_W)
        }


def attribute_to_setup(view: View, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Name in candidates the setting of the accused that explains them."""
    if view.is_trace or not candidates or not any(pattern.setup for pattern in view.fleet.patterns):
        return list(candidates)
    setups = Setups(view)
    return [_attributed(setups, candidate) for candidate in candidates]


def set_up_otherwise(view: View, candidate: Candidate, workers: Sequence[int], factor: float) -> Candidate | None:
    """Call a candidate misconfiguration of workers of other roles than the rest; None where no setting explains it.

    Which stage a worker runs does not decide how many threads it has.

    Args:
        view: The window.
        candidate: Candidate to replace.
        workers: Workers (indices) that take longer.
        factor: Factor by which they take longer than everybody else.
    """
    setups, own_W = Setups(view), np.isin(np.arange(view.workers), workers)
    own, others = ([setups.kinds[at] for at in np.unique(setups.of_W[side])] for side in (own_W, ~own_W))
    if view.is_trace or not all(own) or not others or not all(others):
        return None
    waiting, queue = _waiting(view, workers, "peers")
    loss = Loss(
        cause="compute-slow",
        factor=factor,
        waiting=waiting,
        queue=queue,
        on_device=view.fleet.has_accelerator,
        operators=_operators(view, workers, "peers"),
    )
    pairs = [(one, others) for one in own]
    proof = [one for one in _differences(pairs, frozenset({"compute-slow"}), loss) if one.is_proof]
    if not proof:
        return None
    whom, whose = _whom(view, workers), "for all others"
    told = tuple(one.sentence(whom, whose) for one in proof[:LISTED])
    found = candidate.told_as(CAUSE, _subject(proof[0], whom, whose), told)
    return msgspec.structs.replace(found, scope="some", workers=tuple(workers))


def find_misconfiguration(view: View) -> list[Candidate]:
    """Accuse settings that were different in the baseline window, where the job got slower for no known reason."""
    before_us = view.baseline_us
    if view.is_trace or view.suspects.baseline is None or not view.is_slow or not before_us:
        return []
    everybody = tuple(range(view.workers))
    lost = 1 - before_us / view.iteration_us
    waiting, queue = _waiting(view, everybody, "baseline")
    loss = Loss(
        cause="unknown",
        factor=max(view.iteration_us / before_us, 1.0),
        waiting=waiting,
        queue=queue,
        threads=_threads_by_cores(view, everybody),
        operators=_operators(view, everybody, "baseline"),
    )
    found = [one for one in _against_baseline(view, everybody, ALL, loss) if one.is_proof]
    if not found or lost <= 0:
        return []
    return [_job_candidate(view, everybody, found, lost)]


def setup_notes(view: View, causes: Collection[str]) -> Iterator[str]:
    """Note settings that differ between workers of a role, if few do; and bad ones where a slow job is not explained.

    Args:
        view: The window.
        causes: Causes that were found. Beside causes in the code differences are of no interest.
    """
    facts = [pattern.setup for pattern in view.fleet.patterns]
    if view.is_trace or not all(facts):
        return
    differing = _differing(view) if _GENERAL.issuperset(causes) else []
    if differing and (causes or view.is_slow or len(differing) <= _MOST_DIFFERENCES):
        told = "; ".join(_by_value(view, name) for name in differing[:_MOST_DIFFERENCES])
        more = len(differing) - _MOST_DIFFERENCES
        yield f"Settings differ between workers: {told}{f'; and {more} more' if more > 0 else ''}."
    if not causes and view.is_slow:
        yield from (text for text in known_bad(view, range(view.workers), None))


# --- one candidate ---


def _attributed(setups: Setups, candidate: Candidate) -> Candidate:
    view, cause = setups.view, _MEASURED.get(candidate.cause, candidate.cause)
    if not candidate.workers or candidate.cause == CAUSE:
        return candidate
    workers = candidate.workers
    found, whose = _compared(setups, candidate, cause)
    whom = _whom(view, workers)
    proof = [one for one in found if one.is_proof] if candidate.cause not in _MEASURED else []
    told = [one.sentence(whom, whose) for one in proof[:LISTED]]
    beside = [one.phrase(whom, whose) for one in found if one not in proof][:LISTED]
    told += [f"Settings differ there: {'; '.join(beside)}."] if beside else []
    told += known_bad(view, workers, cause)
    if not proof:
        return msgspec.structs.replace(candidate, evidence=(*candidate.evidence, *told))
    return candidate.told_as(CAUSE, _subject(proof[0], whom, whose), tuple(told))


def _compared(setups: Setups, candidate: Candidate, cause: str) -> tuple[list[Difference], str]:
    """Find settings in which the accused are worse off than the reference, and name the reference.

    Some of a role are compared with its others, unless their own past accuses them; what is more than expected may also
    have come with a setting.
    """
    view, workers, causes = setups.view, candidate.workers, frozenset({cause})
    found: list[Difference] = []
    if candidate.scope == "some" and candidate.reference in ("peers", "expectation"):
        found = _against_peers(setups, workers, causes, _loss(view, candidate, cause, "peers"))
    if (candidate.reference == "peers" and candidate.scope == "some") or any(one.is_proof for one in found):
        return found, "for the peers"
    loss = _loss(view, candidate, cause, candidate.reference)
    return _against_baseline(view, workers, causes, loss), f"in the {view.past_window}"


def _whom(view: View, workers: Sequence[int]) -> str:
    return _ranks(view, workers) if len(workers) == view.workers else name_accused(view, workers)[0]


def _subject(first: Difference, whom: str, whose: str) -> str:
    be = "is" if whom.startswith(("worker ", "host ")) else "are"
    capital = whom[0].upper() + whom[1:]
    return f"{capital} {be} set up differently: {first.rule.name} is {first.own}, and {first.other} {whose}"


def _loss(view: View, candidate: Candidate, cause: str, reference: str) -> Loss:
    factor = candidate.mean_us / candidate.reference_us if candidate.reference_us > 0 else np.inf
    waiting, queue = _waiting(view, candidate.workers, reference)
    return Loss(
        cause=cause,
        factor=max(factor, 1.0),
        waiting=waiting,
        queue=queue,
        on_device=view.fleet.has_accelerator and candidate.kind == "compute",
        is_one_operator=candidate.is_one_operator,
        threads=_threads_by_cores(view, candidate.workers)
        if reference != "peers"
        else 0.0,  # a worker that crowds a host crowds its peers there, too
        operators=_operators(view, candidate.workers, reference),
    )


def _operators(view: View, workers: Sequence[int], reference: str) -> float:
    """Return the factor by which operators of some workers take longer on the host; NaN where nothing tells."""
    speed = view.speed if reference == "peers" else view.speed_change
    factor_W = speed.factor[list(workers)]
    return float("nan") if view.fleet.has_accelerator or np.isnan(factor_W).all() else float(np.nanmedian(factor_W))


def _threads_by_cores(view: View, workers: Sequence[int]) -> float:
    """Return computing threads of a host's workers per core, on the accused's host with fewest; 0 where unknown."""
    theirs = {view.fleet.patterns[worker].worker.host for worker in workers}
    shares = [
        sum(number(view.fleet.patterns[at].setup.get("torch_threads")) or 0.0 for at in members)
        / max(view.cores[host].allowed, 1.0)
        for host, members in view.homes.items()
        if host in theirs
    ]
    return min((share for share in shares if not np.isnan(share)), default=0.0)


def _waiting(view: View, workers: Sequence[int], reference: str) -> tuple[float, float]:
    """Measure how much longer some workers wait for a core than the reference, and than other hosts' workers.

    As shares of an iteration of this window: a share of the time may stay what it was while iterations get longer.
    """
    wait_W = np.nan_to_num(queued_share(view.fleet))
    now, past = float(wait_W[list(workers)].mean()), view.suspects.baseline
    if reference != "peers":
        before_us = 0.0 if past is None else float(np.nan_to_num(queued_share(past)).mean()) * past.mean_iteration_us
        more = now - before_us / max(view.iteration_us, 1e-9)
        return more, more
    homes = {view.fleet.patterns[worker].worker.host for worker in workers}
    away = [at for host, members in view.homes.items() if host not in homes for at in members]
    peers_W = np.ones(view.workers, dtype=np.bool_)
    peers_W[list(workers)] = False
    usual = float(wait_W[peers_W].mean()) if peers_W.any() else 0.0
    return now - usual, now - float(wait_W[away].mean()) if away else now


def _against_peers(setups: Setups, accused: Sequence[int], causes: frozenset[str], loss: Loss) -> list[Difference]:
    """Find settings in which every accused worker is worse off than every other worker of its role."""
    guilty_W = np.zeros(setups.view.workers, dtype=np.bool_)
    guilty_W[list(accused)] = True
    own, others = setups.by_role(guilty_W), setups.by_role(~guilty_W)
    pairs = [(one, others[role]) for role, mine in own.items() for one in mine]
    if not all(one and peers and all(peers) for one, peers in pairs):
        return []
    return _differences(pairs, causes, loss)


def _against_baseline(view: View, accused: Sequence[int], causes: frozenset[str], loss: Loss) -> list[Difference]:
    """Find settings in which most of the accused are worse off than in the baseline window."""
    past = view.suspects.baseline
    before = {pattern.worker.global_rank: pattern.setup for pattern in past.patterns} if past is not None else {}
    setups = [(view.fleet.patterns[at].setup, before.get(view.fleet.ranks[at], {})) for at in accused]
    pairs = [(now, then) for now, then in setups if now and then]
    if not pairs or len(pairs) < JOB_WIDE * len(accused):
        return []
    distinct = {(tuple(now.items()), tuple(then.items())): (now, [then]) for now, then in pairs}
    return _differences(list(distinct.values()), causes, loss)


def _differences(
    pairs: Sequence[tuple[dict[str, str], Sequence[dict[str, str]]]], causes: frozenset[str], loss: Loss
) -> list[Difference]:
    found = []
    for rule in RULES:
        if not rule.causes & causes or not all(rule.is_worse(own, one) for own, others in pairs for one in others):
            continue
        values = _values(own.get(rule.fact) for own, _ in pairs)
        usual = _values(one.get(rule.fact) for _, others in pairs for one in others)
        proof = rule.is_proof and all(rule.explains(own, one, loss) for own, others in pairs for one in others)
        found.append(Difference(rule=rule, own=values, other=usual, is_proof=proof))
    return found


def _values(values: Iterable[str | None]) -> str:
    distinct = sorted({"not set" if value is None else value for value in values})
    return " or ".join(distinct[:LISTED])


def _ranks(view: View, workers: Sequence[int]) -> str:
    if len(workers) == view.workers > 1:
        return f"all {view.workers} workers"
    return name_workers([view.fleet.ranks[worker] for worker in workers])


# --- the whole job, and notes ---


def _job_candidate(view: View, members: tuple[int, ...], found: Sequence[Difference], lost: float) -> Candidate:
    first, then = found[0], f"in the {view.past_window}"
    evidence = [one.sentence(_ranks(view, members), then) for one in found[:LISTED]]
    since = f"since {first.rule.name} became {first.own} ({first.other} {view.back_then})"
    job = accuse_growth(view, CAUSE, members, lost, 1.0, evidence, since)
    return msgspec.structs.replace(job, coverage=0.5, doubt=0.8)


def _differing(view: View) -> list[str]:
    """List settings worth a word that are not the same on all workers of a role."""
    distinct = Setups(view).by_role(np.ones(view.workers, dtype=np.bool_)).values()
    return [name for name in sorted(TOLD) if any(len({one.get(name) for one in setups}) > 1 for setups in distinct)]


def _by_value(view: View, name: str) -> str:
    owners: dict[str, list[int]] = {}
    for pattern in view.fleet.patterns:
        owners.setdefault(pattern.setup.get(name, "not set"), []).append(pattern.worker.global_rank)
    listed = [f"{value} on {name_workers(ranks)}" for value, ranks in list(owners.items())[:LISTED]]
    return f"{name.removeprefix('env:')} is {' and '.join(listed)}"
