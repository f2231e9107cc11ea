"""Measure the training thread's time in operators under functions of the user's, and its usual value.

Operators stand before the Python around them, but stacks are sampled during operators, too.

Array suffixes: R rows, W workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Reference
from eroica.diagnosis.frames import Focus, find_focus, is_own_frame, split_frame
from eroica.diagnosis.limits import MOST
from eroica.diagnosis.python_code import is_judged_elsewhere
from eroica.diagnosis.view import View
from eroica.localize.fleet import Fleet
from eroica.model.pattern import FunctionKey

Floats = NDArray[np.float64]
#: Rows that hold less of it decide nothing: there are hundreds, and a look at the peers costs much at 100,000 workers.
_LEAST_SHARE = 0.001


Measure = Callable[[Fleet, list[int]], Floats]


def host_us(fleet: Fleet, rows: list[int]) -> Floats:
    """Return the host's time in these rows while an operator ran, or a device worked or was launched for. [W]."""
    return np.asarray(np.maximum(fleet.total_us[rows] - fleet.critical_us[rows], 0.0).sum(axis=0))


def whole_us(fleet: Fleet, rows: list[int]) -> Floats:
    """Return the time under these rows, with the operators that they call. float64 [W]."""
    return np.asarray(fleet.total_us[rows].sum(axis=0))


def inside_us(fleet: Fleet, rows: list[int]) -> Floats:
    """Return the time of these rows while an operator ran; where a device runs it, the device's time. float64 [W]."""
    return fleet.device_us(rows) if fleet.knows_launchers else host_us(fleet, rows)


class Usual(Protocol):
    """Usual time in operators under Python, microseconds per iteration. float64 [W]."""

    @property
    def measure(self) -> Measure:
        """Time of rows that is compared."""

    def row(self, at: int) -> Floats:
        """Return the usual time under one row."""

    def under(self, focus: Focus) -> Floats:
        """Return the usual time under a function, whatever it calls."""


class Peers(NamedTuple):
    """Reference of each worker: its peers."""

    fleet: Fleet
    measure: Measure = inside_us

    def row(self, at: int) -> Floats:
        """Return the median of the peers under one row."""
        return self._usual([at])

    def under(self, focus: Focus) -> Floats:
        """Return the median of the peers under a function."""
        return self._usual(rows_under(self.fleet, focus))

    def _usual(self, rows: list[int]) -> Floats:
        return np.nan_to_num(self.fleet.usual(self.measure(self.fleet, rows)))


class Past(NamedTuple):
    """Reference of each worker: itself in the baseline window; `order` finds today's workers among those of then."""

    keys: Sequence[FunctionKey]
    fleet: Fleet
    places: dict[FunctionKey, int]
    order: list[int]
    measure: Measure = inside_us

    def row(self, at: int) -> Floats:
        """Return the time under the same row in the baseline window."""
        place = self.places.get(self.keys[at])
        return np.zeros(len(self.order)) if place is None else self.measure(self.fleet, [place])[self.order]

    def under(self, focus: Focus) -> Floats:
        """Return the time under the same function in the baseline window."""
        return self.measure(self.fleet, rows_under(self.fleet, focus))[self.order]


def past_of(view: View, measure: Measure = inside_us) -> Past | None:
    """Return the baseline window, if it has all workers and tells the same of what operators take."""
    past = view.suspects.baseline
    if past is None or not set(view.fleet.ranks) <= set(past.ranks):
        return None
    if measure is inside_us and past.knows_launchers != view.fleet.knows_launchers:
        return None
    columns = {rank: column for column, rank in enumerate(past.ranks)}
    places = {key: at for at, key in enumerate(past.keys)}
    return Past(view.fleet.keys, past, places, [columns[rank] for rank in view.fleet.ranks], measure)


def usual_of(view: View, reference: Reference, measure: Measure = inside_us) -> Usual | None:
    """Return the reference of some workers; None where the reference tells nothing of functions."""
    if reference == "peers":
        return Peers(view.fleet, measure)
    return past_of(view, measure) if reference == "baseline" else None


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """A function, and what the training thread spends in operators under it, microseconds per iteration."""

    focus: Focus
    own_us: float
    other_us: float

    @property
    def excess_us(self) -> float:
        """Time beyond the reference."""
        return self.own_us - self.other_us

    def accounts_for(self, least_us: float, most_us: float | None = None) -> bool:
        """True if the excess is about what operators take longer: one number, or the least and the most it may be."""
        return MOST * least_us <= self.excess_us <= (least_us if most_us is None else most_us) / MOST


def find_caller(view: View, workers: Sequence[int], usual: Usual) -> Caller | None:
    """Find the own function under which most of some workers' excess in operators lies.

    Not of the autograd engine's: Python knows of none of those. Times are means over the workers.
    """
    focus = find_called_focus(view, workers, usual)
    if focus is None:
        return None
    members = list(workers)
    own_us = float(usual.measure(view.fleet, rows_under(view.fleet, focus))[members].mean())
    return Caller(focus=focus, own_us=own_us, other_us=float(usual.under(focus)[members].mean()))


def find_called_focus(view: View, workers: Sequence[int], usual: Usual, most_then: float = 1.0) -> Focus | None:
    """Find the own function with most excess in operators, in rows that took at most `most_then` of it before."""
    rows, members = own_rows(view.fleet), list(workers)
    if not rows:
        return None
    time_R = np.asarray([np.nan_to_num(usual.measure(view.fleet, [row])[members]).mean() for row in rows])
    usual_R = time_R.copy()
    for at in np.flatnonzero(time_R >= _LEAST_SHARE * time_R.sum()):
        usual_R[at] = usual.row(rows[at])[members].mean()
    more_R = np.where(
        usual_R <= most_then * time_R, np.maximum(time_R - usual_R, 0.0), 0.0
    )  # who waits less does no less
    focus = find_focus(view.fleet.keys, rows, more_R, time_R)
    return focus if focus is not None and focus.is_own and focus.is_specific else None


def newest_around(view: View, focus: Focus, past: Past) -> Focus:
    """Return the function if it did not run in the baseline window, else the user's next one around it that did not.

    What everybody calls anyway is called more often by something new: that is what to look at.
    """
    known = {frame for key in past.fleet.keys for frame in key.stack}
    inner = focus.stack[: focus.stack.index(focus.entry) + 1] if focus.entry else ()
    for entry in reversed(inner if focus.entry in known else ()):
        if entry not in known and is_own_frame(entry):
            frame = split_frame(entry)
            around = msgspec.structs.replace(focus, name=frame.name, place=frame.place)
            return msgspec.structs.replace(around, functions=tuple(rows_under(view.fleet, around)))
    return focus


def phases_called_in(view: View, caller: Caller) -> set[str]:
    """Return the parts of the iteration in which the function's operators run."""
    phases: set[str] = {view.fleet.keys[row].phase for row in caller.focus.functions}
    if "other" in phases:  # outside modules: its operators count as forward's until backward begins
        phases.add("forward")
    return phases


def own_rows(fleet: Fleet) -> list[int]:
    """List Python rows of the training thread, but for other rules' ones; also those that operators cover wholly."""
    python = [at for at, key in enumerate(fleet.keys) if key.kind == "python" and key.thread == "training"]
    return [at for at in python if fleet.keys[at].phase != "input" and not is_judged_elsewhere(fleet.keys[at].stack)]


def rows_under(fleet: Fleet, focus: Focus) -> list[int]:
    """List rows below a function."""
    entry = focus.entry
    return [at for at in own_rows(fleet) if entry in fleet.keys[at].stack]
