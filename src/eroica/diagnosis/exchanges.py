"""Compare what workers exchange in an iteration, and how much of it they wait for, with the baseline window."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from eroica.diagnosis.limits import MOST
from eroica.diagnosis.rows import record_of
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms
from eroica.localize.families import likeness_of_groups
from eroica.localize.fleet import Fleet
from eroica.model.series import decode_series

#: So many times as much data, or as many calls, is another exchange; up to `_SAME` times it is the same one.
_MORE = 1.5
_SAME = 1.2
#: From here on nobody reads tenths.
_MANY = 20.0
#: Workers whose records are read for sizes.
_MOST_READ = 16


class Exchange(NamedTuple):
    """Collectives of one kind in an iteration on a typical worker of those that take part.

    Attributes:
        calls: Number of calls.
        elements: Elements that all calls carry together, NaN where that is not recorded.
        lasting_us: Duration of all calls, in sum: calls that run at once count each.
        waited_us: The part of it on the critical path.
    """

    calls: float
    elements: float
    lasting_us: float
    waited_us: float

    @property
    def hidden_us(self) -> float:
        """The part that runs beside other work."""
        return self.lasting_us - self.waited_us


class Change(NamedTuple):
    """Change of an exchange since the baseline window: other data or calls, or no longer hidden."""

    now: Exchange
    then: Exchange
    past: str

    @property
    def data(self) -> float:
        """Ratio of the data exchanged to that of the baseline window; NaN where that is not recorded."""
        return self.now.elements / self.then.elements if self.then.elements > 0 else float("nan")

    @property
    def calls(self) -> float:
        """Ratio of the calls to those of the baseline window."""
        return self.now.calls / self.then.calls

    @property
    def is_larger(self) -> bool:
        """True if more data or more calls are exchanged."""
        return self.meets_more or self.carries_more

    @property
    def carries_more(self) -> bool:
        """True if more data is exchanged."""
        return float(np.nan_to_num(self.data)) >= _MORE

    @property
    def is_exposed(self) -> bool:
        """True if the exchange is the same, and what ran beside it no longer does."""
        return not self.is_larger

    @property
    def meets_more(self) -> bool:
        """True if there are more calls: workers wait for each other more often, though none does more than before."""
        return self.calls >= _MORE

    @property
    def reason(self) -> str:
        """Reason, as a clause."""
        if self.data >= _MORE:
            return f"workers exchange {_times(self.data)} times as much as in the {self.past}"
        if self.calls >= _MORE:
            same = ", which carry as much as the fewer ones of then" if _is_same(self.data) else ""
            return f"there are {_times(self.calls)} times as many calls as in the {self.past}{same}"
        return f"nothing runs beside it any more, as it did in the {self.past}"

    @property
    def sentence(self) -> str:
        """Sentence for the evidence."""
        now, then = self.now, self.then
        if self.is_larger:
            return f"In each iteration: {_amount(now)}; in the {self.past} {_amount(then)}."
        longer = "no" if now.lasting_us <= then.lasting_us else "hardly"
        return (
            f"It lasts {longer} longer than in the {self.past}, {format_ms(now.lasting_us)} in each iteration "
            f"({format_ms(then.lasting_us)} then), but workers wait for {format_ms(now.waited_us)} of it instead of "
            f"{format_ms(then.waited_us)}: what ran beside it no longer does."
        )

    @property
    def next_step(self) -> str:
        """Next step for what has changed: the data, the number of calls, or the waiting."""
        if self.data >= _MORE or (self.calls >= _MORE and np.isnan(self.data)):
            return (
                "Look for what was changed in the exchange: gradients sent after every backward pass of a step "
                "(no_sync(), set_requires_gradient_sync(False)), a wider dtype, whole tensors where a part or a sum "
                "would do."
            )
        if self.calls >= _MORE:
            return "Send as much at once as before: one flat tensor, larger buckets, coalesced calls."
        return (
            "Find what makes workers wait at once: a missing async_op=True, wait() right after the call, collectives "
            "that begin only when backward is over, a synchronization before the work that should run beside them."
        )


def _times(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= _MANY else f"{ratio:.1f}"


def _amount(one: Exchange) -> str:
    calls = f"{one.calls:.0f} call{'s' * (round(one.calls) != 1)}"
    return calls if np.isnan(one.elements) else f"{calls} with {one.elements / 1e6:.3g} million elements together"


def _is_same(ratio: float) -> bool:
    return 1 / _SAME <= ratio <= _SAME


def find_change(view: View, row: int) -> Change | None:
    """Find how an exchange differs from that of the baseline window; None where it does not, or that cannot be told.

    Nor where each step has more batches than then: that is another matter.

    Args:
        view: The window.
        row: Of a collective; those with its name in like groups are judged with it.
    """
    past, fleet = view.suspects.baseline, view.fleet
    if past is None or view.is_trace or not set(fleet.ranks) <= set(past.ranks):
        return None
    like, name = likeness_of_groups(fleet.patterns), fleet.keys[row].name
    kind = like.get(fleet.keys[row].group)
    groups = {key.group for key in fleet.keys if key.kind == "collective" and like.get(key.group) == kind}
    now, then = _measure(fleet, name, groups), _measure(past, name, groups)
    ratios_W = view.speed_change.count_ratio
    if not now.calls or not then.calls or (not np.isnan(ratios_W).all() and np.nanmedian(ratios_W) > _SAME):
        return None
    change = Change(now, then, view.past_window)
    return change if change.is_larger or _is_exposed(change, view.settings.min_gain * view.iteration_us) else None


def _is_exposed(change: Change, least_us: float) -> bool:
    """True if the same collectives last no longer, but are waited for as less of them is hidden."""
    now, then = change.now, change.then
    same = _is_same(change.calls) and (np.isnan(change.data) or _is_same(change.data))
    lasts = 0 < now.lasting_us <= _SAME * then.lasting_us
    longer_us = now.waited_us - then.waited_us
    bared = then.hidden_us - now.hidden_us >= MOST * longer_us  # else it lasts longer, and that is waited for
    return bool(same and lasts and bared and longer_us >= max(least_us, (_MORE - 1) * then.waited_us))


def _measure(fleet: Fleet, name: str, groups: set[str]) -> Exchange:
    rows = [at for at, key in enumerate(fleet.keys) if key.name == name and key.group in groups]
    calls_W = fleet.count[rows].sum(axis=0)
    members = np.flatnonzero(calls_W > 0)
    if not members.size:
        return Exchange(0.0, float("nan"), 0.0, 0.0)
    return Exchange(
        calls=float(np.median(calls_W[members])),
        elements=float(np.median([_elements(fleet, rows, worker) for worker in members[:_MOST_READ].tolist()])),
        lasting_us=float(fleet.total_us[rows].sum(axis=0)[members].mean()),
        waited_us=float(fleet.critical_us[rows].sum(axis=0)[members].mean()),
    )


def _elements(fleet: Fleet, rows: list[int], worker: int) -> float:
    """Count the elements that one worker's collectives carry in an iteration; NaN where some records hold no sizes."""
    total = 0.0
    for row in rows:
        calls = float(fleet.count[row, worker])
        if calls:
            record = record_of(fleet, worker, fleet.keys[row])
            sizes = decode_series(record.elements, np.int64) if record is not None and record.elements else None
            if sizes is None or not len(sizes) or not (sizes > 0).all():
                return float("nan")
            total += calls * float(sizes.mean())
    return total
