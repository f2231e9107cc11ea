"""Fragmented collectives: too many of them, whose time is what each call costs and not the data.

Array suffixes: W workers, I iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.communication import called_from, common_wait
from eroica.diagnosis.frames import whole_rows
from eroica.diagnosis.lateness import LEAST_STRENGTH
from eroica.diagnosis.rows import record_of
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, name_workers
from eroica.localize.excess import mean_error
from eroica.localize.fleet import Fleet
from eroica.model.pattern import CollectiveRecord, FunctionKey
from eroica.model.series import decode_series
from eroica.summarize.collectives import collective_kind

Floats = NDArray[np.float64]
#: Elements up to which a call costs its latency: 64 KB at four bytes each.
_TINY = 16_384
#: So many calls of a kind in each iteration are many; a norm, a loss and some metrics are not.
LEAST_CALLS = 20
#: So many of a kind's executions must be tiny to speak of it as such.
_MOSTLY = 0.7
#: Elements of one call that does the work of many: 25 MB, the default bucket of DistributedDataParallel.
_BUCKET = 6_250_000
#: Share of the iteration that they must take: by themselves, and where there are more of them than before.
_SHARE_ALONE = 0.10
_SHARE_MORE = 0.05
_MORE = 1.5
#: Kinds that carry no data; and those that wait for a partner rather than for data, which are judged only where there
#: are so many times as many as in the baseline window: one message has become many.
_NOT_JUDGED = frozenset({"barrier"})
_PARTNERS = frozenset({"send", "recv"})
CUT_UP = 4.0
SHORTER = 0.5
_MOST_READ = 64
#: Share of what some would save that all others wait longer than in the baseline window.
_WAITED_FOR = 0.5
#: A call that waits for nobody lasts about as long as this percentile of them; what comes after a longer pause does not
#: come right after another. A host that does nothing else needs so many microseconds between two calls.
_QUICK = 25
_LEAST_PAUSE_US = 200.0
#: Layers of a split model, and tries of a line search, exchange tensors of one or two sizes (nearly all of them; looked
#: up in a few iterations), or of as many as data is routed: no gradients travel so.
_ROUTED = "all_to_all"
_FEW_SIZES = 2
_NEARLY_ALL = 0.9
_MOST_ITERATIONS = 8


class _Tiny(NamedTuple):
    """Collectives of one kind in one group that are many and tiny.

    `row` is the kind's row, `calls` are those of one iteration, `merged` the calls that would do. `mean_elements` are
    of a call, None for messages that the baseline window had fewer of. `runs` counts sequences of calls right after one
    another, the fewest that would do where each call needs the result of the one before (0 = unknown).
    """

    row: int
    calls: float
    mean_elements: float | None
    merged: float
    runs: float = 0.0


def find_fragmented(view: View) -> list[Candidate]:
    """Accuse kinds of collectives that are tiny and many, in which even the last worker to arrive spends a share.

    Collectives of some workers count only where the others have come to wait for these.
    """
    if view.workers < 2:
        return []
    found = [tiny for row in _rows(view.fleet) if (tiny := _judged(view, row)) is not None]
    if not found:
        return []
    rows, is_new = [tiny.row for tiny in found], _is_new(view, found)
    members = np.flatnonzero(view.fleet.count[rows].sum(axis=0) > 0)
    now_I = common_wait(view.fleet.series(rows, members))
    if not is_new:  # what has become many could be few before
        found = [tiny._replace(merged=max(tiny.merged, tiny.runs)) for tiny in found]
    saved = 1 - min(sum(tiny.merged for tiny in found) / sum(tiny.calls for tiny in found), 1.0)
    least = (_SHARE_MORE if is_new else _SHARE_ALONE) * view.iteration_us
    strength = float((now_I.mean() - least / 2) / max(float(mean_error(now_I)[0]), 1e-9))
    if all(tiny.mean_elements is None for tiny in found):  # stages have always waited for each other
        before_us = _common_wait_before(view, rows, members)
        saved = min(saved, max(1 - before_us / max(float(now_I.mean()), 1e-9), 0.0))
    if now_I.mean() * saved < least or strength < LEAST_STRENGTH * view.strictness:
        return []
    if members.size < view.workers and not (is_new and _others_wait(view, found, members, float(now_I.mean()) * saved)):
        return []
    return [_candidate(view, found, members, now_I * saved, float(now_I.mean()), min(strength, 99.0))]


def _common_wait_before(view: View, rows: Sequence[int], members: NDArray[np.intp]) -> float:
    """Return the least time that any of some workers spent in some kinds in the baseline window; us per iteration."""
    then = view.rows_before(rows)
    waited_W = view.then(lambda past: np.asarray(past.series(then).mean(axis=1)))[members]
    return 0.0 if np.isnan(waited_W).all() else float(np.nanmin(waited_W))


def _others_wait(view: View, found: list[_Tiny], members: NDArray[np.intp], saved_us: float) -> bool:
    """True if the workers that take no part have come to wait longer for some that exchange among themselves."""
    others_W = ~np.isin(np.arange(view.workers), members)
    rise_W = np.nan_to_num(view.wait_us - view.then(lambda past: np.asarray(past.wait_us.mean(axis=1))))
    among_some = members.size > 1 and all(tiny.mean_elements is not None for tiny in found)
    return view.is_slow and among_some and bool((rise_W[others_W] >= _WAITED_FOR * saved_us).all())


def _rows(fleet: Fleet) -> list[int]:
    return [at for at, key in enumerate(fleet.keys) if key.kind == "collective" and fleet.critical_us[at].max() > 0]


def _judged(view: View, row: int) -> _Tiny | None:
    kind = collective_kind(view.fleet.keys[row].name)
    if kind in _PARTNERS:
        return _cut_up(view, row)
    return None if kind in _NOT_JUDGED else _tiny(view.fleet, row)


def _cut_up(view: View, row: int) -> _Tiny | None:
    """Find messages between partners that are many times as many as in the baseline window, and shorter."""
    past, key = view.suspects.baseline, view.fleet.keys[row]
    then = past.keys.index(key) if past is not None and key in past.keys else -1
    if past is None or then < 0:
        return None
    now_W, then_W = view.fleet.count[row], past.count[then]
    if not (now_W > 0).any() or not (then_W > 0).any():
        return None
    calls, before = float(np.median(now_W[now_W > 0])), float(np.median(then_W[then_W > 0]))
    ratios_W = view.speed_change.count_ratio
    more_batches = 1.0 if np.isnan(ratios_W).all() else max(1.0, float(np.nanmedian(ratios_W)))
    own_W = now_W / view.then(lambda past: np.where(past.count[then] > 0, past.count[then], np.nan))
    if calls < LEAST_CALLS or np.isnan(own_W).all() or np.nanmedian(own_W) < CUT_UP * more_batches:
        return None
    each_us, each_then_us = view.fleet.total_us[row].sum() / now_W.sum(), past.total_us[then].sum() / then_W.sum()
    return _Tiny(row, calls, None, before) if each_us <= SHORTER * each_then_us else None


def _tiny(fleet: Fleet, row: int) -> _Tiny | None:
    """Read the kind of one row; None unless it is many tiny calls on a typical worker that takes part."""
    key = fleet.keys[row]
    count_W = fleet.count[row]
    members = np.flatnonzero(count_W > 0)
    calls = float(np.median(count_W[members])) if members.size else 0.0
    if calls < LEAST_CALLS:
        return None
    records = [record_of(fleet, int(worker), key) for worker in members[:_MOST_READ]]
    sizes = [decode_series(record.elements, np.int64) for record in records if record is not None and record.elements]
    known = np.concatenate(sizes) if sizes else np.empty(0, np.int64)
    known = known[known > 0]
    if not known.size or float((known <= _TINY).mean()) < _MOSTLY:
        return None
    mean = float(known[known <= _TINY].mean())
    tiny_calls = calls * float((known <= _TINY).mean())
    merged = max(1.0, tiny_calls * mean / _BUCKET) + calls - tiny_calls
    known_records = [record for record in records if record is not None]
    of_layers = collective_kind(key.name) == _ROUTED or _of_like_sizes(known_records)
    runs = calls * _share_of_runs(fleet, key, members[:_MOST_READ]) if of_layers else 0.0
    return _Tiny(row, calls, mean, merged, runs)


def _of_like_sizes(records: Sequence[CollectiveRecord]) -> bool:
    """True if the calls of an iteration have few sizes: layers exchange alike, gradients are of all sizes."""
    shares = []
    for record in records:
        sizes, iteration = decode_series(record.elements, np.int64), decode_series(record.iteration, np.int32)
        if sizes.size == iteration.size:
            for one in np.unique(iteration)[:_MOST_ITERATIONS]:
                _, counts = np.unique(sizes[iteration == one], return_counts=True)
                shares.append(float(np.sort(counts)[-_FEW_SIZES:].sum() / counts.sum()))
    return bool(shares) and float(np.median(shares)) >= _NEARLY_ALL


def _share_of_runs(fleet: Fleet, key: FunctionKey, members: NDArray[np.intp]) -> float:
    """Return the share of executions that begin a run right after one another; 0 if unknown.

    What computes between two exchanges needs the result of the first: parts of a layer, split over workers, exchange
    their sums again and again, and no two of these can be one.
    """
    shares = [_alone(fleet.patterns[worker].collectives, record_of(fleet, int(worker), key)) for worker in members]
    known = [share for share in shares if share is not None]
    return float(np.median(known)) if known else 0.0


def _alone(records: Sequence[CollectiveRecord], own: CollectiveRecord | None) -> float | None:
    """Return the share of a record's executions that no other of the worker's collectives comes right before."""
    if own is None or not own.end_us:
        return None
    ends_us = np.sort(np.concatenate([decode_series(one.end_us, np.float64) for one in records if one.end_us]))
    end_us, duration_us = decode_series(own.end_us, np.float64), decode_series(own.duration_us, np.float32)
    if end_us.size != duration_us.size or not end_us.size:
        return None
    place = np.searchsorted(ends_us, end_us, side="left") - 1
    before_us = np.where(place >= 0, ends_us[np.maximum(place, 0)], -np.inf)
    pause_us = max(float(np.percentile(duration_us, _QUICK)), _LEAST_PAUSE_US)
    return float((end_us - duration_us - before_us > pause_us).mean())


def _calls(fleet: Fleet, rows: Sequence[int]) -> float:
    """Count executions of rows per iteration on a typical worker that has any; each is in a few of many like groups."""
    count_W = fleet.count[list(rows)].sum(axis=0)
    return float(np.median(count_W[count_W > 0])) if (count_W > 0).any() else 0.0


def _is_new(view: View, found: list[_Tiny]) -> bool:
    """True if the baseline window had far fewer of these calls."""
    past = view.suspects.baseline
    if past is None:
        return False
    keys = {view.fleet.keys[tiny.row] for tiny in found}
    rows = [row for row, key in enumerate(past.keys) if key in keys]
    return _calls(view.fleet, [tiny.row for tiny in found]) >= _MORE * _calls(past, rows)


def _candidate(
    view: View, found: list[_Tiny], members: NDArray[np.intp], saved_I: Floats, mean_us: float, strength: float
) -> Candidate:
    heaviest = max(found, key=lambda tiny: float(view.fleet.critical_us[tiny.row].mean()))
    rows = tuple(tiny.row for tiny in found)
    focus = whole_rows(view.fleet.keys[heaviest.row].name, rows)
    calls, is_all = _calls(view.fleet, rows), members.size == view.workers
    who = f"All {view.workers} workers"
    if not is_all:
        who = name_workers([view.fleet.ranks[worker] for worker in members], capital=True)
    removed_WI = np.zeros(view.fleet.iteration_us.shape)
    removed_WI[members] = saved_I
    return Candidate(
        cause="fragmented-collectives",
        scope="all" if is_all else "some",
        workers=tuple(members.tolist()),
        functions=rows,
        focus=focus,
        kind="collective",
        removed_us=removed_WI,
        mean_us=mean_us,
        reference_us=mean_us - float(saved_I.mean()),
        reference="expectation",
        strength=strength,
        least_gain=view.settings.min_gain,
        evidence=tuple(_evidence(view, found, calls, mean_us)),
        sentence=(
            f"{who} run {calls:.0f} {_what(view, found)} in each {format_ms(view.iteration_us)} iteration, "
            f"{format_ms(mean_us)} of it: what they cost is the calls, not the data."
        ),
        gain=None if is_all else min(float(saved_I.mean()) / max(view.iteration_us, 1e-9), 1.0),
    )


def _what(view: View, found: list[_Tiny]) -> str:
    cut_up = all(tiny.mean_elements is None for tiny in found)
    return f"sends and receives, many times as many as {view.back_then}," if cut_up else "tiny collectives"


def _evidence(view: View, found: list[_Tiny], calls: float, mean_us: float) -> list[str]:
    sentences = [_counts(view, tiny) for tiny in found]
    each = f"{mean_us / max(calls, 1e-9):.0f} us"
    sentences.append(f"Even the worker that arrives last spends {format_ms(mean_us)} in them, {each} a call.")
    return [*sentences, *called_from(view, mean_us)]


def _counts(view: View, tiny: _Tiny) -> str:
    name = view.fleet.keys[tiny.row].name
    if tiny.mean_elements is None:
        return f"{name}: {tiny.calls:.0f} times per iteration, {tiny.merged:.0f} times {view.back_then}."
    return (
        f"{name}: {tiny.calls:.0f} times per iteration, {tiny.mean_elements:.0f} elements each on average; "
        f"{tiny.merged:.0f} would carry the same data."
    )
