"""Culprits outside the job: processes of the same host or device that take what slow workers lack.

A rule of computing accuses workers of an excess. This module asks what they lacked, in cores or in a device's time, and
whether processes beside the job took at least half of that: more than on hosts that are not slow, and more than in the
baseline window. A process that is busy while nobody is slow is of no interest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.hosts import Compared, Hosts, Others, fact, name_use
from eroica.diagnosis.lateness import accuse_growth
from eroica.diagnosis.limits import HELD, LISTED
from eroica.diagnosis.neighbor_use import (
    LARGE,
    LEAST_CORES,
    Taken,
    device_taken,
    host_taken,
    lack_of,
    usual_devices,
)
from eroica.diagnosis.reading import INPUT_CAUSES
from eroica.diagnosis.speed import host_fact
from eroica.diagnosis.view import View
from eroica.diagnosis.words import name_workers
from eroica.model.pattern import WorkerPattern

CAUSE = "sibling-process"
#: Causes that somebody else may have brought about.
_ATTRIBUTABLE = frozenset({"cpu-contention", "compute-slow", "unknown"})
_MOST_FACTOR = 10.0
#: What a lower clock of the device leaves of the slowness must be at least this share of it.
_LEAST_BY_OTHERS = 0.5
_LEAST_CLOCK = 0.01
#: Share of the iteration that has come since the baseline window from which turns are told as others' doing.
_LEAST_LOST = 0.1
#: Somebody else on the same cores makes a job's own work take longer, but not by more than this.
_OWN_WORK = 2.0


def attribute_to_neighbors(view: View, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Name in candidates the processes beside the job that account for them; candidates of one host become one."""
    if view.is_trace or not any(pattern.host_facts for pattern in view.fleet.patterns):
        return list(candidates)
    hosts = Hosts(view)
    return _merged(view, [part for candidate in candidates for part in _attributed(hosts, candidate)])


def is_concealing(candidate: Candidate) -> bool:
    """True if a candidate is how a lack of cores may show on everybody, besides as no cause at all.

    A function that is only as large as the slowdown, without any reference, may be that, too. Collectives that carry
    more, or are more, than in the baseline window are the job's own doing.
    """
    contention = candidate.cause == "cpu-contention" and candidate.scope == "rotating"
    longer = candidate.cause == "slow-collective-everywhere" and not candidate.is_own_doing
    return contention or longer or candidate.reference == "slowdown"


def find_sibling_processes(view: View) -> list[Candidate]:
    """Accuse processes that filled hosts since the baseline window, where the job got slower and nobody stands out.

    The whole time lost is theirs then: what a thread without a core delays, all others wait for. Without a healthy
    window it is what iterations take beyond what the user expects, and all that others take counts.
    """
    past, before_us = view.suspects.baseline, view.baseline_us
    told = past is not None or view.context.window.purpose == "expected"
    if view.is_trace or not told or not view.is_slow or not before_us or before_us >= view.iteration_us:
        return []
    lost = 1 - before_us / view.iteration_us
    hosts = Hosts(view)
    taken = [one for host in hosts.workers if (one := _taken_since(hosts, host, lost)) is not None]
    members = tuple(sorted(at for one in taken for at in hosts.workers[one.host]))
    if not taken:
        return []
    return [_job_candidate(view, taken, members, lost)]


def unexplained_neighbors(view: View) -> Iterator[str]:
    """Name other processes that are busy on the hosts of a job that is slow for no known reason."""
    for host, members in Hosts(view).workers.items():
        worker = view.fleet.patterns[members[0]]
        heavy = [one for one in worker.neighbors if one.cpu_cores >= LEAST_CORES or one.device]
        cores = worker.host_facts.get("cpu_count", 0)
        heavy.sort(key=lambda one: -one.cpu_cores)
        if heavy and sum(one.cpu_cores for one in heavy) >= LARGE * cores:
            total = fact(worker, "cores_outside")
            yield f"On {host or 'its host'} {name_use(heavy, total, cores)}, and do not belong to the job."


# --- one candidate ---


def _attributed(hosts: Hosts, candidate: Candidate) -> Iterator[Candidate]:
    """Attribute a candidate to neighbors; in two parts where only some of its hosts have such neighbors."""
    view = hosts.view
    accused = [view.fleet.patterns[worker] for worker in candidate.workers]
    if candidate.cause in INPUT_CAUSES:  # their own function is named: loader processes need cores, too
        yield _beside_loading(hosts, candidate)
        return
    if candidate.scope == "rotating" and candidate.cause in _ATTRIBUTABLE:
        yield _instead_of_turns(hosts, candidate)
        return
    held = any(fact(one, "stopped") + fact(one, "throttled") > HELD for one in accused)  # itself, not by what it lacks
    if candidate.cause not in _ATTRIBUTABLE or not accused or candidate.reference_us <= 0 or held:
        yield candidate
        return
    if candidate.is_one_operator:
        yield candidate
        return
    factor = min(candidate.mean_us / candidate.reference_us, _MOST_FACTOR)
    theirs = sorted({one.worker.host for one in accused})
    take = _taken_by_device if view.fleet.has_accelerator and candidate.kind == "compute" else _taken_by_host
    taken = take(hosts, candidate, theirs, factor)
    unseen = tuple(one.what for one in taken if not one.is_seen)
    if unseen:
        candidate = msgspec.structs.replace(candidate, evidence=(*candidate.evidence, *unseen[:LISTED]))
        taken = [one for one in taken if one.is_seen]
    if len(taken) < len(theirs) and (not taken or candidate.scope == "all"):
        yield candidate
        return
    noisy = {one.host for one in taken}
    mine = [at for at, one in zip(candidate.workers, accused, strict=True) if one.worker.host in noisy]
    rest = sorted(set(candidate.workers) - set(mine))
    yield _blaming(view, _of_workers(candidate, mine), taken)
    if rest:
        yield _of_workers(candidate, rest)


def _instead_of_turns(hosts: Hosts, candidate: Candidate) -> Candidate:
    """Replace a rotating candidate by what other processes have taken of all hosts since the baseline window."""
    view, past = hosts.view, hosts.view.suspects.baseline
    if past is None or view.fleet.has_accelerator:
        return candidate
    lost = 1 - past.mean_iteration_us / max(view.iteration_us, 1e-9)
    if lost < _LEAST_LOST:
        return candidate
    taken = [_taken_since(hosts, host, lost) for host in hosts.workers]
    known = [one for one in taken if one is not None]
    if len(known) < len(taken):
        return candidate
    found = _job_candidate(view, known, tuple(range(view.workers)), lost)
    if (found.gain or 0.0) < _LEAST_LOST:
        return candidate
    return msgspec.structs.replace(found, evidence=(*found.evidence, *candidate.evidence))


def _beside_loading(hosts: Hosts, candidate: Candidate) -> Candidate:
    """Add a sentence on each host of which others take more cores than elsewhere or before."""
    theirs = sorted({hosts.view.fleet.patterns[worker].worker.host for worker in candidate.workers})
    others, beside = Others(hosts, candidate.workers, candidate.reference), []
    for host in theirs:
        compared = Compared(others, host)
        worker = hosts.view.fleet.patterns[hosts.workers[host][0]]
        cores = fact(worker, "cpu_count")
        if compared.is_compared and compared.more_on_host("cores_outside") >= max(LEAST_CORES, LARGE * cores):
            clause = name_use(compared.newcomers(worker.neighbors), fact(worker, "cores_outside"), cores)
            usual = compared.usual("cores_outside")
            beside.append(f"On {host or 'its host'} {clause}, and may slow the loading down; {usual}.")
    return msgspec.structs.replace(candidate, evidence=(*candidate.evidence, *beside[:LISTED]))


def _of_workers(candidate: Candidate, workers: Sequence[int]) -> Candidate:
    """Take the part of a candidate that is these workers'."""
    removed_WI = np.zeros_like(candidate.removed_us)
    removed_WI[list(workers)] = candidate.removed_us[list(workers)]
    return msgspec.structs.replace(candidate, workers=tuple(workers), removed_us=removed_WI)


def _blaming(view: View, candidate: Candidate, taken: Sequence[Taken]) -> Candidate:
    told = candidate.told_as(CAUSE, _subject(view, candidate, taken), tuple(one.what for one in taken))
    return msgspec.structs.replace(told, doubt=candidate.doubt * min(one.doubt for one in taken))


def _subject(view: View, candidate: Candidate, taken: Sequence[Taken]) -> str:
    ranks = [view.fleet.ranks[worker] for worker in candidate.workers]
    ending = "s" if len(ranks) == 1 else ""
    times = f"{candidate.mean_us / max(candidate.reference_us, 1e-9):.1f} times"
    beside = " and ".join(one.short for one in taken[:2])
    return f"{name_workers(ranks, capital=True)} compute{ending} {times} as slowly beside {beside}"


def _taken_by_device(hosts: Hosts, candidate: Candidate, theirs: Sequence[str], factor: float) -> list[Taken]:
    """Find what others take of devices, if these do not run more slowly by themselves, with a lower clock."""
    left = factor / _clock_ratio(hosts.view, candidate)
    if left - 1 < _LEAST_BY_OTHERS * (factor - 1):
        return []
    usual, members = usual_devices(hosts.view, candidate), _members(hosts, candidate)
    found = (device_taken(hosts.view, usual, host, members[host], left) for host in theirs)
    return [one for one in found if one is not None]


def _clock_ratio(view: View, candidate: Candidate) -> float:
    """Return the ratio of the reference devices' clock to that of the accused; at least 1, also where unknown."""
    own_W = host_fact(view.fleet, "gpu_sm_clock")
    usual_W = view.fleet.usual(own_W)
    if candidate.reference == "baseline":
        usual_W = view.then(lambda past: host_fact(past, "gpu_sm_clock"))
    members = list(candidate.workers)
    ratio_W = usual_W[members] / np.maximum(own_W[members], _LEAST_CLOCK)
    return 1.0 if np.isnan(ratio_W).all() else max(float(np.nanmedian(ratio_W)), 1.0)


def _taken_by_host(hosts: Hosts, candidate: Candidate, theirs: Sequence[str], factor: float) -> list[Taken]:
    others, members = Others(hosts, candidate.workers, candidate.reference), _members(hosts, candidate)
    patterns, found = hosts.view.fleet.patterns, []
    for host in theirs:
        compared, here = Compared(others, host), members[host]
        lacked = sum(fact(patterns[at], "cores_worker", 1.0) * (factor - 1) for at in here)
        found.append(host_taken(compared, patterns[here[0]], lack_of(compared, here, lacked, 1 - 1 / factor)))
    return [one for one in found if one is not None]


def _members(hosts: Hosts, candidate: Candidate) -> dict[str, list[int]]:
    """Return a candidate's workers by host."""
    found: dict[str, list[int]] = {}
    for worker in candidate.workers:
        found.setdefault(hosts.view.fleet.patterns[worker].worker.host, []).append(worker)
    return found


def _taken_since(hosts: Hosts, host: str, lost: float) -> Taken | None:
    """Find what others have taken on a host since the baseline window, if its workers lack it now; else None."""
    members, before = hosts.workers[host], hosts.before.get(host)
    if not before and hosts.view.suspects.baseline is not None:
        return None
    compared = Compared(Others(hosts, members, "baseline"), host)
    if before and _work_of_job(hosts, members) > _OWN_WORK * _work_then(hosts, before):
        return None
    if before:
        lacked = max(fact(one, "cores_job", float(len(members))) for one in before) * lost
    else:
        lacked = fact(hosts.view.fleet.patterns[members[0]], "cores_job", float(len(members))) * lost / (1 - lost)
    return host_taken(compared, hosts.view.fleet.patterns[members[0]], lack_of(compared, members, lacked, lost))


def _work_of_job(hosts: Hosts, members: Sequence[int]) -> float:
    """Return the core time of the job's processes on a host in an iteration, microseconds."""
    return fact(hosts.view.fleet.patterns[members[0]], "cores_job") * hosts.view.iteration_us


def _work_then(hosts: Hosts, before: Sequence[WorkerPattern]) -> float:
    """Return the core time of the job's processes in the baseline window; infinite where nobody looked."""
    past = hosts.view.suspects.baseline
    cores = max(fact(one, "cores_job") for one in before)
    return cores * past.mean_iteration_us if past is not None and cores > 0 else np.inf


def _job_candidate(view: View, taken: Sequence[Taken], members: tuple[int, ...], lost: float) -> Candidate:
    beside = f"beside {' and '.join(one.short for one in taken[:2])}"
    share, what = min(one.share for one in taken), [one.what for one in taken]
    found = accuse_growth(view, CAUSE, members, lost, share, what, beside)
    return msgspec.structs.replace(found, doubt=min(one.doubt for one in taken))


# --- merging ---


def _merged(view: View, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Merge candidates that blame processes of the same hosts, and contention that rotates with one of all workers."""
    merged: list[Candidate] = []
    everybodys = any(candidate.cause == CAUSE and candidate.scope == "all" for candidate in candidates)
    for candidate in candidates:
        if everybodys and is_concealing(candidate):
            continue
        at = next((at for at, other in enumerate(merged) if _is_same(view, candidate, other)), None)
        if at is None:
            merged.append(candidate)
        else:
            merged[at] = _together(view, merged[at], candidate)
    return merged


def _is_same(view: View, one: Candidate, two: Candidate) -> bool:
    if one.cause != CAUSE or two.cause != CAUSE or (one.reference, one.scope) != (two.reference, two.scope):
        return False
    hosts = [{view.fleet.patterns[worker].worker.host for worker in found.workers} for found in (one, two)]
    return bool(hosts[0] & hosts[1])


def _together(view: View, one: Candidate, two: Candidate) -> Candidate:
    first, second = len(one.workers), len(two.workers)
    weights = np.asarray([first, second]) / (first + second)
    known = [found.agreement for found in (one, two) if found.agreement is not None]
    joined = msgspec.structs.replace(
        one,
        workers=tuple(sorted({*one.workers, *two.workers})),
        functions=tuple(sorted({*one.functions, *two.functions})),
        removed_us=np.maximum(one.removed_us, two.removed_us),
        mean_us=float(weights @ [one.mean_us, two.mean_us]),
        reference_us=float(weights @ [one.reference_us, two.reference_us]),
        strength=min(one.strength, two.strength),
        coverage=min(one.coverage, two.coverage),
        agreement=min(known, default=None),
        evidence=tuple(dict.fromkeys((*one.evidence, *two.evidence))),
        doubt=min(one.doubt, two.doubt),
    )
    _, beside, rest = one.subject.partition(" beside ")
    subject, _, _ = _subject(view, joined, ()).partition(" beside ")
    return msgspec.structs.replace(joined, subject=f"{subject}{beside}{rest}")
