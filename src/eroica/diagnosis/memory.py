"""Memory operations that take a share of the critical path: more of them, or larger ones, than there should be.

With an accelerator: copies, fills and allocations of the device while no kernel runs, against what is expected of them,
the peers and the job's baseline window. Without one, copies are operators like others and no share is too much by
itself; only more of them than on the peers or than before is a finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import Focus
from eroica.diagnosis.lateness import Lateness, accuse, judge_group
from eroica.diagnosis.limits import LISTED, MOST
from eroica.diagnosis.rows import reference_of_rows
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, short_name
from eroica.trace.schema import ALLOCATIONS

Floats = NDArray[np.float64]
#: Operators that only move or fill memory.
_MOVES = frozenset(
    {
        "aten::copy_", "aten::_to_copy", "aten::clone", "aten::contiguous", "aten::to", "aten::fill_", "aten::zero_",
        "aten::_foreach_copy_", "aten::_foreach_zero_", "aten::cat", "aten::_pin_memory", "aten::empty",
        "aten::empty_like", "aten::empty_strided", "aten::resize_", "aten::repeat", "aten::stack",
    }
)  # fmt: skip
#: Without an accelerator: so many times the reference's executions are more; or some more, with so many times its time.
_MORE = 1.5
_LARGER = 3.0
#: One execution more in every second iteration is no accident of counting.
_SOME_MORE = 0.5


def find_memory_storms(view: View) -> list[Candidate]:
    """Accuse workers, or all, on which memory operations take more of the iteration than they should."""
    if view.fleet.has_accelerator:
        rows = _busy(view, [at for at, key in enumerate(view.fleet.keys) if key.kind == "memory"])
        found = judge_group(view, rows, view.settings.expected_memory)
        return [_candidate(view, rows, late) for late in found]
    rows = _busy(view, [at for at, key in enumerate(view.fleet.keys) if _moves(view, at)])
    return [_candidate(view, rows, late) for late in judge_group(view, rows, None) if _runs_more(view, rows, late)]


def _moves(view: View, row: int) -> bool:
    key = view.fleet.keys[row]
    return key.kind == "compute" and key.name in _MOVES and key.phase != "input"


def _busy(view: View, rows: Sequence[int]) -> list[int]:
    return [row for row in rows if view.fleet.critical_us[row].max() > 0]


def _runs_more(view: View, rows: list[int], late: Lateness) -> bool:
    """True if more copies run, be it a few large ones; the same ones slower would be the processor's matter."""
    usual_R, count_R = _usual_counts(view, rows, late), _counts(view, rows, late)
    if usual_R is None:
        return False
    usual, count = float(usual_R.sum()), float(count_R.sum())
    larger = count >= usual + _SOME_MORE and late.mean_us >= _LARGER * late.reference_us
    return larger or count >= _MORE * usual or _in_more(view, rows, late, count_R, usual_R)


def _in_more(view: View, rows: list[int], late: Lateness, count_R: Floats, usual_R: Floats) -> bool:
    """True if most of the excess lies in rows that run more often: a few large copies among hundreds of small ones."""
    excess_R = _excess(view, rows, late)
    more_R = (count_R >= usual_R + _SOME_MORE) & (count_R >= _MORE * usual_R)
    return bool(excess_R.sum() > 0 and excess_R[more_R].sum() >= MOST * excess_R.sum())


def _excess(view: View, rows: list[int], late: Lateness) -> Floats:
    """Return the time of each row beyond its reference, on the accused. float64 [R]."""
    time_R = view.fleet.critical_us[rows][:, list(late.workers)].mean(axis=1)
    return np.asarray(time_R - reference_of_rows(view, rows, late))


def _counts(view: View, rows: Sequence[int], late: Lateness) -> Floats:
    """Count executions per iteration on the accused. float64 [R]."""
    return np.asarray(view.fleet.count[list(rows)][:, list(late.workers)].mean(axis=1))


def _usual_counts(view: View, rows: Sequence[int], late: Lateness) -> Floats | None:
    """Count executions per iteration on the reference of the accused. float64 [R]."""
    members = list(late.workers)
    if late.reference == "peers":
        usual_RW = view.fleet.usual(view.fleet.count[list(rows)])
        return np.asarray(np.nan_to_num(usual_RW[:, members]).mean(axis=1))
    past = view.suspects.baseline
    if late.reference != "baseline" or past is None:
        return None
    places = {key: place for place, key in enumerate(past.keys)}
    ranks = {view.fleet.ranks[worker] for worker in members}
    columns = [column for column, rank in enumerate(past.ranks) if rank in ranks]
    at = [places.get(view.fleet.keys[row], -1) for row in rows]
    return np.asarray([past.count[place, columns].mean() if place >= 0 and columns else 0.0 for place in at])


def _candidate(view: View, rows: list[int], late: Lateness) -> Candidate:
    focus = _focus(view, rows, late)
    evidence = tuple(_evidence(view, rows, late))
    return accuse(late, "memory-operation-storm", "memory", focus, rows, view.settings.min_gain, evidence)


def _focus(view: View, rows: list[int], late: Lateness) -> Focus:
    excess_R = _excess(view, rows, late)
    key = view.fleet.keys[rows[int(np.argmax(excess_R))]]
    same = [row for row in rows if view.fleet.keys[row].name == key.name]
    share = float(sum(excess for row, excess in zip(rows, excess_R, strict=True) if row in same))
    return Focus(
        name=key.name, functions=tuple(rows), share=float(np.clip(share / max(float(excess_R.sum()), 1e-9), 0.0, 1.0))
    )


def _evidence(view: View, rows: list[int], late: Lateness) -> Iterator[str]:
    members = list(late.workers)
    by_name: dict[str, tuple[float, float, float]] = {}
    for row in rows:
        name = short_name(view.fleet.keys[row].name)
        sums = (view.fleet.critical_us, view.fleet.count, view.fleet.total_us)
        now = tuple(float(table[row][members].mean()) for table in sums)
        before = by_name.get(name, (0.0, 0.0, 0.0))
        by_name[name] = (before[0] + now[0], before[1] + now[1], before[2] + now[2])
    top = sorted(by_name.items(), key=lambda item: -item[1][0])[:LISTED]
    parts = [
        f"{name} {count:.0f} times, {total / max(count, 1e-9) / 1e3:.3g} ms each, {format_ms(time)} of it critical"
        for name, (time, count, total) in top
    ]
    yield f"Per iteration: {'; '.join(parts)}."
    usual_R = _usual_counts(view, rows, late)
    if usual_R is not None:
        whom = "on their peers" if late.reference == "peers" else f"in the {view.past_window}"
        count = _counts(view, rows, late).sum()
        yield f"{count:.0f} memory operations per iteration against {usual_R.sum():.0f} {whom}."
    if any(name.startswith(ALLOCATIONS) for name, _ in top):
        yield (
            "The allocator asks the device for memory, or gives it back, during training: its cache is full or broken "
            "into pieces."
        )
