"""Iterations that take longer because each holds more: larger batches, longer sequences, more of them.

Processors that compute more slowly while memory keeps its speed look like larger batches, so nothing is accused and
nothing called healthy.
"""

from __future__ import annotations

import numpy as np

from eroica.diagnosis.lateness import JOB_WIDE
from eroica.diagnosis.more_data import growth_since, has_more_data_since
from eroica.diagnosis.speed import operators
from eroica.diagnosis.under_operators import find_called_focus, past_of, whole_us
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms

#: Growth of forward and backward that is worth a word, and the share of the longer iteration that it must explain.
_LEAST_GROWTH = 1.1
_EXPLAINS = 0.5
#: Operators run more often from this factor on, and are other ones than then if each takes at most this share.
_MORE_OFTEN = 1.2
SHORTER = 0.75


def has_grown(view: View) -> bool:
    """True if more data on most workers explains most of what iterations take beyond `View.baseline_us`."""
    more = _is_by_operators(view) and has_more_data_since(view).mean() >= JOB_WIDE
    return bool(more and growth_since(view)[0] >= _LEAST_GROWTH)


def has_more_to_do(view: View) -> bool:
    """True if most workers' operators run more often than in the baseline window, and explain most of the growth."""
    if not _is_by_operators(view):
        return False
    change = view.speed_change
    more_W = (np.nan_to_num(change.count_ratio) >= _MORE_OFTEN) & (np.nan_to_num(change.more_work) > 0)
    return bool(more_W.mean() >= JOB_WIDE)


def _is_by_operators(view: View) -> bool:
    """True if iterations take noticeably longer than `View.baseline_us`, and operators take most of that."""
    grown_us = 0.0 if view.is_trace else view.iteration_us - (view.baseline_us or np.inf)
    if grown_us <= 0 or grown_us < view.settings.min_gain * view.iteration_us:
        return False
    rows = operators(view.fleet)
    more_W = view.fleet.series(rows).mean(axis=1) - view.before(rows).mean(axis=1)
    return float(np.median(np.nan_to_num(more_W))) >= _EXPLAINS * grown_us  # a worker without a past tells nothing


def describe_more_to_do(view: View) -> str:
    """Say that operators run more often, with the function under which they are called where stacks tell."""
    past = past_of(view, whole_us)
    focus = find_called_focus(view, range(view.workers), past) if past is not None else None
    before = f" instead of {format_ms(view.baseline_us)}" if view.baseline_us else ""
    under = f", mainly under {focus.label}" if focus is not None else ""
    often, each = (
        float(np.nanmedian(ratio_W)) for ratio_W in (view.speed_change.count_ratio, view.speed_change.factor)
    )
    what = "holds more batches, or something is done more often than then"
    if each <= SHORTER:
        what = "does the same work in smaller pieces, or more of what takes little (generating, evaluating)"
    return (
        f"Iterations take {format_ms(view.iteration_us)}{before}: operators run {often:.1f} times as often as in the "
        f"{view.past_window}, each {each:.1f} times as long, on all workers alike{under}. So each iteration {what}; "
        "look what was changed there."
    )


def describe_growth(view: View) -> str:
    """Say that operators take longer as they do with larger batches or sequences."""
    grows, fixed = growth_since(view)
    before = f" instead of {format_ms(view.baseline_us)}" if view.baseline_us else ""
    return (
        f"Iterations take {format_ms(view.iteration_us)}{before}: operators of forward and backward run as often as in "
        f"the {view.past_window} and take {grows:.1f} times as long, those of the optimizer {fixed:.1f} times, on all "
        "workers alike. So batches or sequences have grown, which is no fault, or processors compute more slowly while "
        "memory is as fast as before; the sizes of the batches tell which."
    )


def describe_larger_iterations(view: View) -> str:
    """Say that each iteration of a window without a cause holds more than in the baseline window; "" where not."""
    if has_grown(view):
        return describe_growth(view)
    return describe_more_to_do(view) if view.is_slow and has_more_to_do(view) else ""
