"""Choose the causes among candidates: one account, from which each cause takes what it explains.

Candidates are taken by what they gain. A taken cause books its own time and what it brings about elsewhere; another
candidate counts only with what is left. So no candidate needs to know of the others: two that hold the same time are
told apart by which says more of it (`catalog.CatalogEntry.brings_about`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.confidence import believed_strength
from eroica.diagnosis.lateness import LEAST_STRENGTH
from eroica.diagnosis.pre_existing import without_older
from eroica.diagnosis.reading import INPUT_CAUSES
from eroica.diagnosis.simulate import share_gains, simulated_gain
from eroica.diagnosis.view import View
from eroica.model.causes import CATALOG
from eroica.model.shares import percent

Floats = NDArray[np.float64]
#: A cause that says more must hold this share of another one's gain, or of its rows' time, to tell the same time.
_MOST = 0.6
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
    """

    candidate: Candidate
    gain: float
    is_growth: bool = False

    @property
    def weight(self) -> float:
        """The gain, half of it for what is slower everywhere."""
        return self.gain * self.candidate.doubt * (_GENERAL if self.candidate.is_general else 1.0)


def select_causes(view: View, candidates: Sequence[Candidate]) -> list[Cause]:
    """Select causes in order of falling weight; empty if nothing costs enough.

    Args:
        view: The window; what is not selected is noted in it with the reason.
        candidates: Of all rules, in any order.
    """
    weighed = _weighed(view, list(_believed(view, candidates)))
    account = _Account(view, weighed)
    waiting = [one for one in weighed if _costs_enough(view, one)]
    while waiting:
        best = _says_most(view, max(waiting, key=lambda one: one.weight), waiting)
        waiting.remove(best)
        reason = account.refusal(best)
        if reason:
            view.refuse(best.candidate, reason, best.gain)
        else:
            account.book(best)
    return sorted(account.taken, key=lambda one: one.weight, reverse=True)


class _Account:
    """Time that the taken causes have booked, by worker and iteration.

    Attributes:
        taken: Causes, in the order in which they were taken.
    """

    def __init__(self, view: View, weighed: Sequence[Cause]) -> None:
        self.taken: list[Cause] = []
        self._view = view
        self._quicker_WI = _slow_transfers(weighed)
        zero = np.zeros_like(view.fleet.iteration_us)
        self._booked_WI = zero
        self._gained = 0.0 if self._quicker_WI is None else self._gain(zero)
        known = [one.candidate.removed_us for one in weighed if _is_measured_work(view, one)]
        self._hidden_WI = sum(known, zero)  # what it hides counts, though it is no rival
        self._uncovered = self._gain(self._hidden_WI) if known else 1.0

    def _gain(self, removed_WI: Floats) -> float:
        return simulated_gain(self._view.fleet, removed_WI, self._quicker_WI)

    def refusal(self, cause: Cause) -> str:
        """Say why a cause does not count beside those taken; "" if it does."""
        for other in self.taken:
            if _follows(self._view, cause.candidate, other.candidate):
                return f"it follows from {CATALOG[other.candidate.cause].title.lower()}"
            if _is_same_time(self._view, cause.candidate, other.candidate):
                return f"{other.candidate.focus.label} tells the same time"
        if self.taken and not _is_measured(cause.candidate) and self._adds(cause) < self._view.settings.min_gain:
            return "beside the causes that are named it gains nothing more"
        return ""

    def _adds(self, cause: Cause) -> float:
        removed_WI = cause.candidate.removed_us
        adds = self._gain(self._booked_WI + removed_WI) - self._gained
        return max(adds, self._gain(self._hidden_WI + removed_WI) - self._uncovered)

    def book(self, cause: Cause) -> None:
        """Take a cause."""
        self.taken.append(cause)
        if not _is_measured(cause.candidate):
            self._booked_WI = self._booked_WI + cause.candidate.removed_us
            self._gained = self._gain(self._booked_WI)


def is_told_by(view: View, one: Candidate, other: Candidate) -> bool:
    """True if another candidate that is named tells the time of a candidate, too."""
    return _follows(view, one, other) or _is_same_time(view, one, other)


def _says_most(view: View, best: Cause, waiting: Sequence[Cause]) -> Cause:
    """Return the cause that says most of the time that the best one holds: one that brings it about, if any does."""
    if best.gain <= 0:
        return best
    closer = [
        one
        for one in waiting
        if one is not best
        and one.gain >= _MOST * best.gain
        and _follows(view, best.candidate, one.candidate)
        and not _follows(view, one.candidate, best.candidate)
    ]
    return max(closer, key=lambda one: one.weight, default=best)


def _follows(view: View, one: Candidate, other: Candidate) -> bool:
    """True if another candidate brings about, or says more exactly, what a candidate sees.

    What takes turns over workers is said more exactly than the same function on all of them; but queues of batches run
    dry in turn where the loaders of all set the pace. What all have does not explain what only some of them have.
    """
    if not _overlap(one, other):
        return False
    if other.scope == "all" and other.cause in INPUT_CAUSES and one.scope == "rotating":
        return one.cause in INPUT_CAUSES or one.cause == "unknown"
    in_turn = one.scope == "all" and other.scope == "rotating" and one.cause == other.cause
    if in_turn and one.cause not in INPUT_CAUSES and _is_same_time(view, one, other):
        return True
    if one.scope == "some" and other.scope == "all":
        return False
    if one.cause in other.stands_for:
        return True
    if one.cause not in CATALOG[other.cause].brings_about:
        return False
    return one.kind != "python" or _is_same_time(view, one, other) or _is_around(one, other)


def _is_around(one: Candidate, other: Candidate) -> bool:
    """True if a candidate's function is the other's, or calls it; without the other's stack, any that is a library's.

    Rows of Python hold the time of their own lines: other functions' is other time, whatever the cause is called.
    """
    if (one.focus.name, one.focus.place) == (other.focus.name, other.focus.place):
        return True
    if not other.focus.stack or not one.focus.is_own:
        return not one.focus.is_own
    return any(frame.startswith(f"{one.focus.name} (") for frame in other.focus.stack)


def _overlap(one: Candidate, two: Candidate) -> bool:
    """True if two candidates have a worker in common; changing workers may be any."""
    anybody = not one.workers or not two.workers or "rotating" in (one.scope, two.scope)
    return anybody or bool(set(one.workers) & set(two.workers))


def _is_same_time(view: View, one: Candidate, other: Candidate) -> bool:
    """True if the rows of one candidate hold most of the other's time, on the same workers."""
    shared = list(set(one.functions) & set(other.functions))
    if not shared or not _overlap(one, other):
        return False
    held_W = view.fleet.critical_us
    least = min(float(held_W[list(each.functions)].sum()) for each in (one, other))
    return float(held_W[shared].sum()) >= _MOST * least


def _is_measured(candidate: Candidate) -> bool:
    """True if the gain of a candidate is known otherwise than by running the window again."""
    return candidate.gain is not None or candidate.kind == "collective"


def _is_measured_work(view: View, cause: Cause) -> bool:
    """True if a measured cause is a worker's work, which hides what is shorter on others."""
    found = cause.candidate
    return found.gain is not None and found.kind != "collective" and cause.gain >= _least_gain(view, found)


def _weighed(view: View, candidates: Sequence[Candidate]) -> list[Cause]:
    """Work out the gain of each candidate, with and beside the others."""
    measured = [_measured(view, one) for one in candidates if _is_measured(one)]
    inside = [one for one in candidates if not _is_measured(one)]
    known = [one.candidate.removed_us for one in measured if _is_measured_work(view, one)]
    gains = share_gains(view.fleet, [*(one.removed_us for one in inside), *known], _slow_transfers(measured))
    return [*measured, *(Cause(candidate=one, gain=gain) for one, gain in zip(inside, gains, strict=False))]


def _measured(view: View, candidate: Candidate) -> Cause:
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


def _believed(view: View, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
    """Keep candidates that are no accident, less what was there when the job was healthy."""
    for candidate in candidates:
        if not is_believed(view, candidate):
            view.refuse(candidate, f"{view.iterations} iterations are too few to be sure of it")
            continue
        left = without_older(view, candidate)
        if left is None:
            view.refuse(candidate, "it was so when the job was healthy, too")
        else:
            yield left


def is_believed(view: View, candidate: Candidate) -> bool:
    """True if a window holds enough iterations to believe a candidate; in longer ones the rules see to that."""
    if view.strictness < 1 or (not view.is_trace and view.iterations > MOST_DOUBTED):
        return True
    least = LEAST_STRENGTH if candidate.is_latecomer else _LEAST_BELIEVED  # only waiting speaks for it
    return believed_strength(view, candidate) >= (least if view.iterations > 1 else _LEAST_BELIEVED_ONCE)


def _costs_enough(view: View, cause: Cause) -> bool:
    least = _least_gain(view, cause.candidate)
    if cause.gain >= least:
        return True
    view.refuse(cause.candidate, f"it gains less than the {percent(least)} from which it counts", cause.gain)
    return False


def _least_gain(view: View, candidate: Candidate) -> float:
    """Return the gain from which a candidate counts: in a job on CPUs that nobody finds slow it must stand out more."""
    if view.is_slow or view.is_trace or view.fleet.has_accelerator:
        return candidate.least_gain
    if candidate.reference == "baseline":
        return max(candidate.least_gain, _LEAST_CHANGE)
    is_function = candidate.reference == "peers" and candidate.kind == "python"
    return max(candidate.least_gain, _LEAST_DIFFERENCE) if is_function else candidate.least_gain
