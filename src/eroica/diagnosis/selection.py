"""Which candidates are causes: those whose removal makes iterations shorter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.communication import find_slow_communication
from eroica.diagnosis.compute import find_compute
from eroica.diagnosis.confidence import believed_strength
from eroica.diagnosis.garbage import find_collections
from eroica.diagnosis.host import find_host_bound
from eroica.diagnosis.latecomers import find_latecomers
from eroica.diagnosis.link import find_slow_links
from eroica.diagnosis.loading import find_slow_loading
from eroica.diagnosis.python_code import find_python
from eroica.diagnosis.simulate import share_gains, simulated_gain
from eroica.diagnosis.stages import find_long_stages
from eroica.diagnosis.uneven import find_uneven_work
from eroica.diagnosis.unexplained import find_unexplained
from eroica.diagnosis.view import View

Floats = NDArray[np.float64]
#: A general cause must cost twice as much as a specific one to stand before it.
_GENERAL = 0.5
#: Standard errors that a cause in a recording must be worth once the small number of iterations is allowed for.
_LEAST_BELIEVED = 2.5
_LEAST_BELIEVED_ONCE = 1.5
#: What fails for few iterations alone is worth a doubt from this share of the standard errors and of the iteration on,
#: in iterations that leave doubt.
_DOUBTED = 1 / 3
_LEAST_DOUBTED_GAIN = 0.06
_MOST_DOUBTED = 9
_RULES = (
    find_slow_loading,
    find_python,
    find_collections,
    find_compute,
    find_slow_links,
    find_slow_communication,
    find_host_bound,
    find_long_stages,
)


class Cause(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A candidate that counts, and what removing it would gain (fraction of the iteration, 0-1)."""

    candidate: Candidate
    gain: float


def find_causes(view: View) -> list[Cause]:
    """All causes of a window in order of falling gain; empty if nothing costs enough."""
    causes = select_causes(view, [candidate for rule in _RULES for candidate in rule(view)])
    if view.is_trace:
        causes += select_causes(view, find_latecomers(view, _accused(causes)))
    explained = {worker for cause in causes for worker in cause.candidate.workers}
    if not any(cause.candidate.scope == "some" for cause in causes):
        causes += select_causes(view, find_unexplained(view, explained))
    return [*causes, *_remarks(view, causes)] if view.is_trace else causes


def find_doubted(view: View) -> Cause | None:
    """What seems to cost most in a recording without a cause, but has too few iterations to tell it from noise."""
    if not view.is_trace or view.iterations > _MOST_DOUBTED:
        return None
    lenient = View(view.suspects, view.context, view.settings, strictness=_DOUBTED)
    candidates = [candidate for rule in _RULES for candidate in rule(lenient)]
    found = select_causes(lenient, [*candidates, *find_latecomers(lenient, set())])
    large = [cause for cause in found if cause.gain >= max(_LEAST_DOUBTED_GAIN, 2 * view.settings.min_gain)]
    return max(large, key=_weight, default=None)


def _accused(causes: Sequence[Cause]) -> set[int]:
    return {worker for cause in causes if cause.candidate.scope == "some" for worker in cause.candidate.workers}


def _remarks(view: View, causes: Sequence[Cause]) -> list[Cause]:
    """What costs nothing by itself, beside causes that do, unless one of them says it already."""
    known = {cause.candidate.cause for cause in causes}
    if not causes:
        return []
    return [Cause(candidate=remark, gain=0.0) for remark in find_uneven_work(view) if remark.cause not in known]


def select_causes(view: View, candidates: Sequence[Candidate]) -> list[Cause]:
    """Gains of candidates, less those that cost too little and those that only say again what a larger one says.

    Taken by falling gain; each must still gain `min_gain` once all taken before it are removed.
    """
    candidates = [candidate for candidate in candidates if _is_believed(view, candidate)]
    measured = [Cause(candidate=own, gain=own.gain) for own in candidates if own.gain is not None]
    inside = [candidate for candidate in candidates if candidate.kind != "collective" and candidate.gain is None]
    gains = share_gains(view.fleet, [candidate.removed_us for candidate in inside])
    causes = [Cause(candidate=candidate, gain=gain) for candidate, gain in zip(inside, gains, strict=True)]
    chosen = list(_taken(view, sorted(causes, key=_weight, reverse=True)))
    measured += _communication(view, candidates)
    chosen += [cause for cause in measured if cause.gain >= cause.candidate.least_gain]
    return sorted(chosen, key=_weight, reverse=True)


def _is_believed(view: View, candidate: Candidate) -> bool:
    """Whether a recording holds enough iterations for it; online, the rules themselves see to that."""
    if not view.is_trace:
        return True
    if view.strictness < 1:
        return True
    return believed_strength(view, candidate) >= (_LEAST_BELIEVED if view.iterations > 1 else _LEAST_BELIEVED_ONCE)


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
    mine = [candidate for candidate in candidates if candidate.kind == "collective" and candidate.gain is None]
    for candidate in mine:
        if candidate.hosts or not any(other.hosts for other in mine):
            yield Cause(candidate=candidate, gain=float(candidate.removed_us.mean() / max(view.iteration_us, 1e-9)))
