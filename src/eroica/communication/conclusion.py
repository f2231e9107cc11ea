"""Verdicts found by communication, from class and place."""

from __future__ import annotations

from msgspec.structs import replace

from eroica import __version__
from eroica.communication.hang import Hang
from eroica.communication.slow import Slow, Usual
from eroica.communication.stretch import Stretch, build_matrix
from eroica.model.communication import Communication, CommunicationClass, Place
from eroica.model.shares import percent
from eroica.model.verdict import (
    NO_FUNCTION,
    Coverage,
    Finding,
    FindingFunction,
    IterationTimes,
    Verdict,
    VerdictWindow,
)
from eroica.model.window import Window
from eroica.model.words import worker_list

_WORDS: dict[CommunicationClass, str] = {
    "communication-hang": "hangs in communication",
    "non-communication-hang": "hangs outside of communication",
    "communication-slow": "is slow in communication",
    "non-communication-slow": "is slow outside of communication",
    "both-slow": "is slow both in communication and outside of it",
}
_STEPS: dict[CommunicationClass, str] = {
    "communication-hang": (
        "Check what is named: the process (stopped?), the cable, the port, the route. Restart the job from its last "
        "checkpoint without it."
    ),
    "non-communication-hang": (
        "Look at the process that has not entered: the verdict that follows names where it stands. If it is stopped or "
        "gone, restart the job without it."
    ),
    "communication-slow": (
        "Check this way between the hosts: errors and speed of the port at either end (ethtool, counters of the "
        "switch), other traffic on it, a rate limit."
    ),
    "non-communication-slow": "Look at this worker's host; a window follows that names function and resource.",
    "both-slow": "These are two troubles: look at the worker's host, and at the way between the hosts named.",
}
_SURE_AT = 6.0


def place_in_words(place: Place) -> str:
    """Return a place as part of a sentence."""
    host = place.hosts[0] if place.hosts else ""
    if place.kind == "worker":
        return worker_list(place.workers) + (f" on {host}" if host else "")
    if place.kind == "host":
        return f"host {host} ({worker_list(place.workers)})"
    if place.kind == "connection":
        return f"the connection from {host} to {place.hosts[1]}"
    if place.kind == "link":
        return f"the link of {host}"
    return f"the {place.kind} direction of {host}'s link"


def stretch_in_words(stretch: Stretch) -> str:
    """Return a stretch of communication in one line."""
    said = []
    if stretch.operations_per_s:
        said.append(f"{stretch.operations_per_s:.3g} collectives/s")
    if stretch.outside:
        low, high = min(stretch.outside.values()), max(stretch.outside.values())
        said.append(f"own work {percent(low)} to {percent(high)} of the time")
    if stretch.cells:
        cell, reading = max(stretch.cells.items(), key=lambda item: item[1].delay_s)
        said.append(f"longest way {cell[0]} to {cell[1]}: {reading.delay_s * 1000:.1f} ms")
    return ", ".join(said)


def hang_verdict(
    job: str,
    window: Window,
    hang: Hang,
    waited_s: float,
    usual: Stretch,
    coverage: Coverage,
) -> Verdict:
    """Return the verdict on a job that stands still.

    Args:
        job: Name of the job.
        window: Window under which it is kept.
        hang: The hang, with a place.
        waited_s: Seconds without any movement.
        usual: The job while it moved.
        coverage: Who was heard.
    """
    where = " and ".join(place_in_words(place) for place in hang.places[:3])
    waiting = worker_list(hang.waiting)
    summary = (
        f"The job {_WORDS[hang.kind]}: {where}. {waiting[:1].upper()}{waiting[1:]} "
        f"{'waits' if len(hang.waiting) == 1 else 'wait'} in {hang.operation}; nothing has moved for {waited_s:.1f} s."
    )
    cause = "slow-link" if hang.kind == "communication-hang" and _is_way(hang.places) else "unknown"
    waits_in = f"a collective of {hang.group}"
    findings = _findings(hang.kind, cause, hang.places, waits_in, hang.confidence, hang.evidence)
    communication = Communication(
        kind=hang.kind,
        place=hang.places[0],
        further=hang.places[1:],
        operation=hang.operation,
        matrix=build_matrix(usual, {}),
        waited_s=round(waited_s, 3),
        usual_operation_s=_operation_s(usual),
    )
    return _verdict(job, window, summary, coverage, findings, communication, waited_s)


def slow_verdict(job: str, window: Window, slow: Slow, now: Stretch, usual: Usual, coverage: Coverage) -> Verdict:
    """Return the verdict on a slow job; arguments as in `hang_verdict`."""
    before_ms, current_ms = usual.iteration_s * 1000, (now.iteration_s or 0.0) * 1000
    where = " and ".join(place_in_words(place) for place in slow.places[:3])
    summary = (
        f"The job {_WORDS[slow.kind]}: {where}. It costs about {percent(slow.gain)} of an iteration "
        f"({current_ms:.0f} ms now, {before_ms:.0f} ms before)."
    )
    confidence = round(min(0.97, 0.5 + 0.45 * min(1.0, slow.sureness / _SURE_AT)), 3)
    ways = tuple(place for place in slow.places if _is_way((place,)))
    others = tuple(place for place in slow.places if not _is_way((place,)))
    evidence = _evidence(slow, now, usual)
    findings: tuple[Finding, ...] = ()
    for cause, places in (("slow-link", ways), ("unknown", others)):
        more = _findings(slow.kind, cause, places, "", confidence, evidence, slow.gain, len(findings))
        findings += more
    communication = Communication(
        kind=slow.kind,
        place=slow.places[0],
        further=slow.places[1:],
        matrix=build_matrix(now, usual.cells),
        own_work_ms={worker: round((now.work_s(worker) or 0) * 1000, 3) for worker in slow.late},
        usual_work_ms={worker: round(usual.work_s.get(worker, 0.0) * 1000, 3) for worker in slow.late},
        usual_operation_s=_operation_s(now),
    )
    verdict = _verdict(job, window, summary, coverage, findings, communication, now.seconds)
    return replace(verdict, iteration=IterationTimes(baseline_ms=before_ms, current_ms=current_ms))


def _verdict(
    job: str,
    window: Window,
    summary: str,
    coverage: Coverage,
    findings: tuple[Finding, ...],
    communication: Communication,
    duration_s: float,
) -> Verdict:
    hangs = communication.kind.endswith("hang")
    return Verdict(
        eroica_version=__version__,
        job=job,
        verdict="blocked" if hangs else "slow",
        summary=summary,
        window=VerdictWindow(
            kind="blocked" if hangs else "iterations",
            first_iteration=window.first_iteration,
            last_iteration=window.last_iteration,
            duration_s=round(duration_s, 3),
            reason=window.reason,
        ),
        iteration=IterationTimes(),
        coverage=coverage,
        findings=findings,
        found_by="communication",
        communication=communication,
    )


def _operation_s(stretch: Stretch) -> float:
    return round(1 / stretch.operations_per_s, 6) if stretch.operations_per_s else 0.0


def _is_way(places: tuple[Place, ...]) -> bool:
    return bool(places) and places[0].kind in ("connection", "sending", "receiving", "link")


def _findings(
    kind: CommunicationClass,
    cause: str,
    places: tuple[Place, ...],
    operation: str,
    confidence: float,
    evidence: tuple[str, ...],
    gain: float | None = None,
    before: int = 0,
) -> tuple[Finding, ...]:
    function = FindingFunction(name=operation or NO_FUNCTION, kind="collective" if operation else "other")
    return tuple(
        Finding(
            order=order,
            role="cause",
            cause=cause,
            function=function,
            workers=place.workers,
            scope="some",
            hosts=place.hosts,
            gain=None if gain is None else round(min(gain, 0.99), 4),
            confidence=confidence if not place.instead else round(confidence * 0.9, 3),
            evidence=(*evidence, *(f"It may as well be {other}." for other in place.instead)),
            next_step=_STEPS[kind],
        )
        for order, place in enumerate(places, before + 1)
    )


def _evidence(slow: Slow, now: Stretch, usual: Usual) -> tuple[str, ...]:
    said = []
    for worker, more in sorted(slow.late.items(), key=lambda item: -item[1])[:4]:
        work = (now.work_s(worker) or 0.0) * 1000
        before = f", {usual.work_s.get(worker, 0) * 1000:.0f} ms before"
        said.append(
            f"Worker {worker} spends {work:.0f} ms of an iteration in no collective{before}: {more * 1000:.0f} ms more "
            "than its peers do."
        )
    for cell, more in sorted(slow.hot.items(), key=lambda item: -item[1])[:4]:
        reading = now.cells[cell]
        said.append(
            f"A byte from {cell[0]} to {cell[1]} waits {reading.delay_s * 1000:.1f} ms, {more * 1000:.1f} ms more than "
            f"it should; data is under way {percent(reading.busy)} of the time, {reading.bytes_per_s / 1e6:.1f} MB/s."
        )
    return tuple(said)
