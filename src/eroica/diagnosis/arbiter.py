"""Choose the causes among candidates: one account, in which each cause books the time that it explains.

Candidates that another one tells more exactly are left out first: which of two causes says more of the same time is
data (`causes.CatalogEntry.brings_about`). The others are taken by what they gain, and one counts only with what those
taken before have left. So no rule needs to know of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.confidence import believed_strength
from eroica.diagnosis.lateness import LEAST_STRENGTH
from eroica.diagnosis.limits import MOST
from eroica.diagnosis.pre_existing import without_older
from eroica.diagnosis.reading import INPUT_CAUSES
from eroica.diagnosis.stopped_or_throttled import without_holding
from eroica.diagnosis.view import View
from eroica.localize.simulate import Removal, most_held, share_gains, simulated_gain
from eroica.model.causes import CATALOG
from eroica.model.shares import percent

Floats = NDArray[np.float64]
#: What is slower everywhere is worth half: others bring it about, too.
_GENERAL = 0.5
#: On busy cores some function takes up to 5 % of the iteration more in one baseline window than in another.
_LEAST_CHANGE = 0.08
#: And takes up to 3.5 % more on one worker than on another.
_LEAST_DIFFERENCE = 0.05
#: Standard errors that a cause in a recording must be worth once the small number of iterations is allowed for.
_LEAST_BELIEVED = 2.5
_LEAST_BELIEVED_ONCE = 1.5
#: In longer windows the rules themselves see to that.
MOST_DOUBTED = 9


class Cause(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A candidate that counts.

    Attributes:
        candidate: The cause.
        gain: Gain of its removal, as a fraction of the iteration, 0-1.
        is_growth: The gain is by how much the iteration has grown, not what the window run again shows.
        why: What decided for it, a clause.
    """

    candidate: Candidate
    gain: float
    is_growth: bool = False
    why: str = ""

    @property
    def weight(self) -> float:
        """The gain, half of it for what is slower everywhere."""
        return self.gain * (_GENERAL if self.candidate.is_general else 1.0)


def select_causes(view: View, candidates: Sequence[Candidate]) -> list[Cause]:
    """Select causes in order of falling weight; empty if nothing costs enough.

    Args:
        view: The window; what is not selected is noted in it with the reason.
        candidates: Of all rules, in any order.
    """
    weighed = _weigh_exact(view, without_holding(list(_keep_believed(view, candidates))))
    account = _Account(view, weighed)
    ranked = sorted(weighed, key=lambda one: one.weight, reverse=True)
    for at, cause in enumerate(ranked, 1):
        if reason := account.refusal(cause):
            view.refuse(cause.candidate, reason, cause.gain)
        else:
            account.book(msgspec.structs.replace(cause, why=_why(cause, account.taken, ranked[at:])))
    return account.taken


def _why(cause: Cause, taken: Sequence[Cause], later: Sequence[Cause]) -> str:
    if taken:
        return f"beside {_names(taken)} it gains {percent(cause.gain)} of the iteration"
    half = ", which counts half as it is slower everywhere" if cause.candidate.is_general else ""
    rival = f"; next is {_names(later[:1])} with {percent(later[0].gain)}" if later and later[0].gain else ""
    return f"it gains most, {percent(cause.gain)} of the iteration{half}{rival}"


def _names(causes: Sequence[Cause]) -> str:
    return ", ".join(f"{one.candidate.cause} ({one.candidate.focus.label})" for one in causes)


def drop(view: View, causes: Sequence[Cause], kept: Sequence[Cause], decision: str) -> None:
    """Note why some causes are not among those that are kept."""
    for one in causes:
        if all(one.candidate is not other.candidate for other in kept):
            view.refuse(one.candidate, decision, one.gain)


class _Account:
    """Account of the time that causes have booked, by worker and iteration.

    Causes whose gain is known otherwise than by running the window again book none: they are no rivals for its time.

    Attributes:
        taken: Causes, in the order in which they were taken.
    """

    def __init__(self, view: View, weighed: Sequence[Cause]) -> None:
        self.taken: list[Cause] = []
        self._view = view
        self._quicker_WI = _slow_transfers(weighed)
        self._held_W: Floats | None = None
        zero = np.zeros_like(view.fleet.iteration_us)
        self._booked_WI, self._booked_any = zero, False
        self._gained = 0.0 if self._quicker_WI is None else self._gain(zero)
        known = [one.candidate.removed_us for one in weighed if _is_measured_work(view, one)]
        self._hidden_WI = sum(known, zero) if known else None  # what it hides counts, though it is no rival
        self._uncovered = 0.0 if self._hidden_WI is None else self._gain(self._hidden_WI)

    def _gain(self, removed_WI: Floats, held_W: Floats | None = None) -> float:
        held_W = most_held([self._held_W, held_W])
        return simulated_gain(self._view.fleet, removed_WI, self._quicker_WI, held_W)

    def refusal(self, cause: Cause) -> str:
        """Say why a cause does not count beside those taken; "" if it does."""
        if cause.gain < _least_gain(self._view, cause.candidate):
            return _too_little(self._view, cause.candidate)
        same = next((one for one in self.taken if _is_same_time(cause.candidate, one.candidate)), None)
        if same is not None:
            return f"{_names([same])} tells the same time"
        is_rival = self._booked_any and not _is_measured(cause.candidate)
        if is_rival and self._added_gain(cause) < self._view.settings.min_gain:
            return f"beside {_names(self.taken)} it gains nothing more"
        return ""

    def _added_gain(self, cause: Cause) -> float:
        removed_WI, held_W = cause.candidate.removed_us, cause.candidate.held_W
        adds = self._gain(self._booked_WI + removed_WI, held_W) - self._gained
        if self._hidden_WI is None:
            return adds
        return max(adds, self._gain(self._hidden_WI + removed_WI, held_W) - self._uncovered)

    def book(self, cause: Cause) -> None:
        """Take a cause."""
        self.taken.append(cause)
        if not _is_measured(cause.candidate):
            self._booked_WI, self._booked_any = self._booked_WI + cause.candidate.removed_us, True
            self._held_W = most_held([self._held_W, cause.candidate.held_W])
            self._gained = self._gain(self._booked_WI)
            if self._hidden_WI is not None and cause.candidate.held_W is not None:
                self._uncovered = self._gain(self._hidden_WI)


def is_told_by(one: Candidate, other: Candidate) -> bool:
    """True if another candidate that is named tells the time of a candidate, too."""
    return _is_vaguer(one, other) or _is_same_time(one, other)


def _weigh_exact(view: View, candidates: Sequence[Candidate]) -> list[Cause]:
    """Weigh candidates but those whose time another one tells more exactly, which must gain enough to be told."""
    told = {id(one): _more_exact(one, candidates) for one in candidates}
    weighed = _weigh_candidates(view, [one for one in candidates if not told[id(one)]])
    exact = {id(other) for others in told.values() for other in others}
    small = [one for one in weighed if id(one.candidate) in exact and one.gain < _least_gain(view, one.candidate)]
    for one in small:
        view.refuse(one.candidate, _too_little(view, one.candidate), one.gain)
    if gone := {id(one.candidate) for one in small}:
        return _weigh_exact(view, [one for one in candidates if id(one) not in gone])
    for vague, named in ((one, told[id(one)][0]) for one in candidates if told[id(one)]):
        view.refuse(vague, f"{named.cause} ({named.focus.label}) tells the same time more exactly", vague.gain)
    return weighed


def _more_exact(one: Candidate, candidates: Sequence[Candidate]) -> list[Candidate]:
    """List the candidates that tell a candidate's time more exactly; of collectives, links that stand out do."""
    others = [other for other in candidates if other is not one]
    links = [other for other in others if other.hosts and _is_plain_transfer(other)]
    exact = [other for other in others if _is_vaguer(one, other) and not _is_vaguer(other, one)]
    return exact + (links if _is_plain_transfer(one) and not one.hosts else [])


def _is_plain_transfer(candidate: Candidate) -> bool:
    return candidate.kind == "collective" and candidate.gain is None


def _too_little(view: View, candidate: Candidate) -> str:
    return f"it gains less than the {percent(_least_gain(view, candidate))} from which it counts"


def _is_vaguer(one: Candidate, other: Candidate) -> bool:
    """True if another candidate tells more exactly what a candidate sees, and holds most of its time.

    What takes turns over workers is told more exactly than the same function on all of them, and a rhythm than a mean;
    but queues of batches run dry in turn where the loaders of all set the pace. What some have is not explained by what
    all have, nor messages that grew by anybody's lack of cores.
    """
    if not _overlap(one, other) or not _holds_most(other, one):
        return False
    if other.scope == "all" and other.cause in INPUT_CAUSES and one.scope == "rotating":
        return one.cause in INPUT_CAUSES or one.cause == "unknown"
    if _is_alike(one, other) and _share_rows(one, other):
        wanders = one.scope == "all" and other.scope == "rotating" and one.cause not in INPUT_CAUSES
        has_rhythm = one.gain is None and other.gain is not None and other.scope in (one.scope, "rotating")
        if wanders or has_rhythm:
            return True
    if one.cause in other.stands_for and not other.functions:  # a lack of cores, or a process that is held back
        return _is_within(one, other)
    follows = one.cause in other.stands_for or one.cause in CATALOG[other.cause].brings_about
    return follows and _is_within(one, other) and _is_same_place(one, other)


def _is_within(one: Candidate, other: Candidate) -> bool:
    """True if a candidate lies where another one is, so that it may follow from it.

    Without functions the other is a lack of cores: it explains what all its workers have, but no function of the user's
    that all run for longer.
    """
    if one.scope == "some":
        same = set(one.workers) == set(other.workers)
        return same or (other.scope != "all" and bool(other.functions))
    grew = one.is_own_doing or (one.kind == "python" and one.focus.is_own and one.reference == "baseline")
    return bool(other.functions) or (not grew and set(one.workers) <= set(other.workers or one.workers))


def _is_same_place(one: Candidate, other: Candidate) -> bool:
    """True if a candidate is no Python, or is the other's function; of what waits for a device, also what calls it.

    Rows of Python hold the time of their own lines: other functions' is other time, whatever the cause is called.
    """
    if one.kind != "python" or _share_rows(one, other):
        return True
    if (one.focus.name, one.focus.place) == (other.focus.name, other.focus.place):
        return True
    if other.cause != "host-device-sync":
        return False
    if not one.focus.is_own or not other.focus.stack:
        return not one.focus.is_own
    return any(frame.startswith(f"{one.focus.name} (") for frame in other.focus.stack)


def _holds_most(one: Candidate, other: Candidate) -> bool:
    """True if a candidate holds most of another one's time."""
    return float(one.removed_us.sum()) >= MOST * float(other.removed_us.sum())


def _is_alike(one: Candidate, other: Candidate) -> bool:
    """True if two candidates on the same rows would be one problem told twice."""
    related = other.cause in CATALOG[one.cause].brings_about or one.cause in CATALOG[other.cause].brings_about
    return one.cause == other.cause or related


def _share_rows(one: Candidate, other: Candidate) -> bool:
    return bool(set(one.functions) & set(other.functions))


def _overlap(one: Candidate, two: Candidate) -> bool:
    """True if two candidates have a worker in common; changing workers may be any."""
    anybody = not one.workers or not two.workers or "rotating" in (one.scope, two.scope)
    return anybody or bool(set(one.workers) & set(two.workers))


def _is_same_time(one: Candidate, other: Candidate) -> bool:
    """True if two candidates of a kind share rows, on workers that overlap."""
    return _is_alike(one, other) and _share_rows(one, other) and _overlap(one, other)


def _is_measured(candidate: Candidate) -> bool:
    """True if the gain of a candidate is known otherwise than by running the window again."""
    return candidate.gain is not None or candidate.kind == "collective"


def _is_measured_work(view: View, cause: Cause) -> bool:
    """True if a measured cause is a worker's work, which hides what is shorter on others."""
    found = cause.candidate
    return found.gain is not None and found.kind != "collective" and cause.gain >= _least_gain(view, found)


def _weigh_candidates(view: View, candidates: Sequence[Candidate]) -> list[Cause]:
    """Work out the gain of each candidate, with and beside the others."""
    measured = [_with_known_gain(view, one) for one in candidates if _is_measured(one)]
    inside = [one for one in candidates if not _is_measured(one)]
    known = [one.candidate.removed_us for one in measured if _is_measured_work(view, one)]
    removed = [Removal(one.removed_us, one.held_W) for one in inside]
    gains = share_gains(view.fleet, [*removed, *map(Removal, known)], _slow_transfers(measured))
    return [*measured, *(Cause(candidate=one, gain=gain) for one, gain in zip(inside, gains, strict=False))]


def _with_known_gain(view: View, candidate: Candidate) -> Cause:
    """Return a cause whose gain is known; of collectives, all of their time."""
    gain = candidate.gain
    if gain is None:
        gain = float(candidate.removed_us.mean() / max(view.iteration_us, 1e-9))
    return Cause(candidate=candidate, gain=gain)


def _slow_transfers(weighed: Sequence[Cause]) -> Floats | None:
    """Return the excess of transfers of slow process groups; None if all gain too little. float64 [W, I]."""
    slow = [one.candidate for one in weighed if one.candidate.kind == "collective" and one.candidate.gain is not None]
    worth = [one.removed_us for one in slow if (one.gain or 0.0) >= one.least_gain]
    return np.max(worth, axis=0) if worth else None


def _keep_believed(view: View, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
    """Keep candidates that are no accident, less what was there when the job was healthy."""
    for candidate in candidates:
        if not is_believed(view, candidate):
            view.refuse(candidate, f"{view.iterations} iterations are too few to be sure of it")
            continue
        left = without_older(view, candidate)
        if left is None:
            view.refuse(candidate, f"it was so {view.back_then}, too")
        else:
            yield left


def is_believed(view: View, candidate: Candidate) -> bool:
    """True if a window holds enough iterations to believe a candidate; in longer ones the rules see to that."""
    if view.strictness < 1 or (not view.is_trace and view.iterations > MOST_DOUBTED):
        return True
    least = LEAST_STRENGTH if candidate.is_latecomer else _LEAST_BELIEVED  # only waiting speaks for it
    return believed_strength(view, candidate) >= (least if view.iterations > 1 else _LEAST_BELIEVED_ONCE)


def _least_gain(view: View, candidate: Candidate) -> float:
    """Return the gain from which a candidate counts: in a job on CPUs that nobody finds slow it must stand out more."""
    if view.is_slow or view.is_trace or view.fleet.has_accelerator:
        return candidate.least_gain
    if candidate.reference == "baseline":
        return max(candidate.least_gain, _LEAST_CHANGE)
    is_function = candidate.reference == "peers" and candidate.kind == "python"
    return max(candidate.least_gain, _LEAST_DIFFERENCE) if is_function else candidate.least_gain
