"""The verdict on slow ways between hosts."""

from __future__ import annotations

import msgspec
from eroica import __version__
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

from eroica_c4d.matrix import build_matrix
from eroica_c4d.records import Communication, Place
from eroica_c4d.slow import Slow, Usual
from eroica_c4d.stretch import Stretch

_STEP = (
    "Check this way between the hosts: errors and speed of the port at either end (ethtool, counters of the switch), "
    "other traffic on it, a rate limit."
)
#: Confidence: so much at least, so much more where bytes wait this many times as long as usual, and at most.
_LEAST, _MORE, _SURE_AT, _MOST = 0.5, 0.45, 6.0, 0.97
#: A place that may as well be another one is so much less sure.
_OR_ELSE = 0.9


def place_in_words(place: Place) -> str:
    """Return a place as part of a sentence."""
    host = place.hosts[0]
    if place.kind == "connection":
        return f"the connection from {host} to {place.hosts[1]}"
    return f"the link of {host}" if place.kind == "link" else f"the {place.kind} direction of {host}'s link"


def slow_verdict(job: str, window: Window, slow: Slow, now: Stretch, usual: Usual, coverage: Coverage) -> Verdict:
    """Return the verdict on a job that ways make slow.

    Args:
        job: Name of the job.
        window: Window under which it is kept.
        slow: The slowdown.
        now: The stretch that showed it.
        usual: The job's healthy past.
        coverage: Who was heard.
    """
    before_ms, current_ms = usual.iteration_s * 1000, (now.iteration_s or 0.0) * 1000
    where = " and ".join(place_in_words(place) for place in slow.places[:3])
    confidence = min(_MOST, _LEAST + _MORE * min(1.0, slow.sureness / _SURE_AT))
    evidence = _evidence(slow, now)
    found = Communication(place=slow.places[0], further=slow.places[1:], matrix=build_matrix(now, usual.cells))
    return Verdict(
        eroica_version=__version__,
        job=job,
        verdict="slow",
        summary=(
            f"The job is slow in communication: {where}. It costs about {percent(slow.gain)} of an iteration "
            f"({current_ms:.0f} ms now, {before_ms:.0f} ms before)."
        ),
        window=VerdictWindow(
            kind="iterations",
            first_iteration=window.first_iteration,
            last_iteration=window.last_iteration,
            duration_s=round(now.seconds, 3),
            reason=window.reason,
        ),
        iteration=IterationTimes(baseline_ms=before_ms, current_ms=current_ms),
        coverage=coverage,
        findings=tuple(
            Finding(
                order=order,
                role="cause",
                cause="slow-link",
                function=FindingFunction(name=NO_FUNCTION, kind="other"),
                workers=(),
                scope="some",
                hosts=place.hosts,
                gain=round(min(slow.gain, 0.99), 4),
                confidence=round(confidence * _OR_ELSE if place.instead else confidence, 3),
                evidence=(*evidence, *(f"It may as well be {other}." for other in place.instead)),
                next_step=_STEP,
            )
            for order, place in enumerate(slow.places, 1)
        ),
        found_by="communication",
        communication=msgspec.to_builtins(found),
    )


def _evidence(slow: Slow, now: Stretch) -> tuple[str, ...]:
    said = []
    for cell, more in sorted(slow.hot.items(), key=lambda item: -item[1])[:4]:
        reading = now.cells[cell]
        said.append(
            f"A byte from {cell[0]} to {cell[1]} waits {reading.delay_s * 1000:.1f} ms, {more * 1000:.1f} ms more than "
            f"it should; data is under way {percent(reading.busy)} of the time, {reading.bytes_per_s / 1e6:.1f} MB/s."
        )
    return tuple(said)
