"""Which candidates are causes: those whose removal makes iterations shorter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.communication import find_slow_communication
from eroica.diagnosis.compute import find_compute
from eroica.diagnosis.garbage import find_collections
from eroica.diagnosis.link import find_slow_links
from eroica.diagnosis.loading import find_slow_loading
from eroica.diagnosis.python_code import find_python
from eroica.diagnosis.simulate import share_gains, simulated_gain
from eroica.diagnosis.unexplained import find_unexplained
from eroica.diagnosis.view import View

Floats = NDArray[np.float64]
#: A general cause must cost twice as much as a specific one to stand before it.
_GENERAL = 0.5
_RULES = (find_slow_loading, find_python, find_collections, find_compute, find_slow_links, find_slow_communication)


class Cause(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A candidate that counts, and what removing it would gain (fraction of the iteration, 0-1)."""

    candidate: Candidate
    gain: float


def find_causes(view: View) -> list[Cause]:
    """All causes of a window in order of falling gain; empty if nothing costs enough."""
    causes = select_causes(view, [candidate for rule in _RULES for candidate in rule(view)])
    explained = {worker for cause in causes for worker in cause.candidate.workers}
    if not any(cause.candidate.scope == "some" for cause in causes):
        causes += select_causes(view, find_unexplained(view, explained))
    return causes


def select_causes(view: View, candidates: Sequence[Candidate]) -> list[Cause]:
    """Gains of candidates, less those that cost too little and those that only say again what a larger one says.

    Taken by falling gain; each must still gain `min_gain` once all taken before it are removed.
    """
    inside = [candidate for candidate in candidates if candidate.kind != "collective"]
    gains = share_gains(view.fleet, [candidate.removed_us for candidate in inside])
    causes = [Cause(candidate=candidate, gain=gain) for candidate, gain in zip(inside, gains, strict=True)]
    chosen = list(_taken(view, sorted(causes, key=_weight, reverse=True)))
    chosen += [cause for cause in _communication(view, candidates) if cause.gain >= cause.candidate.least_gain]
    return sorted(chosen, key=_weight, reverse=True)


def _weight(cause: Cause) -> float:
    """Gain, half of it for what is slower everywhere."""
    return cause.gain * (_GENERAL if cause.candidate.is_general else 1.0)


def _taken(view: View, ranked: Sequence[Cause]) -> Iterator[Cause]:
    removed = np.zeros_like(view.fleet.iteration_us)
    taken: list[Cause] = []
    gained = 0.0
    for cause in ranked:
        if cause.gain < cause.candidate.least_gain or any(_says_the_same(cause, other) for other in taken):
            continue
        together = simulated_gain(view.fleet, removed + cause.candidate.removed_us)
        first_alone = not taken
        if not first_alone and together - gained < view.settings.min_gain:
            continue
        removed, gained = removed + cause.candidate.removed_us, together
        taken.append(cause)
        yield cause


def _says_the_same(cause: Cause, other: Cause) -> bool:
    """Same rows, on workers that overlap."""
    one, two = cause.candidate, other.candidate
    same_rows = bool(set(one.functions) & set(two.functions))
    return one.cause == two.cause and same_rows and bool(set(one.workers) & set(two.workers))


def _communication(view: View, candidates: Sequence[Candidate]) -> Iterator[Cause]:
    """Time in collectives that everybody spends is gained in full, once: a link that stands out explains it better."""
    mine = [candidate for candidate in candidates if candidate.kind == "collective"]
    for candidate in mine:
        if candidate.hosts or not any(other.hosts for other in mine):
            yield Cause(candidate=candidate, gain=float(candidate.removed_us.mean() / max(view.iteration_us, 1e-9)))
