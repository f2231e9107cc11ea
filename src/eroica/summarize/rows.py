"""Rows of a pattern from sums: which functions get one, and what stands in it.

A trace may hold millions of call stacks and names; the pattern has room for some hundred. So only the candidates for a
place get names, series and records here: the longest on the critical path, and those that explain waits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import FunctionPattern
from eroica.summarize.call_trees import CallTrees
from eroica.summarize.functions import UNNAMED, Functions
from eroica.summarize.series import encode_series
from eroica.summarize.tally import Tally, Totals
from eroica.summarize.utilization import Use

_MOST_ROWS = 3000
_MOST_FIRST = 500
_EXPLAINING_SHARE = 0.01
_LEAST_SERIES = 0.001


def build_rows(
    functions: Functions,
    tally: Tally,
    uses: Sequence[Use],
    errors: NDArray[np.float64],
    trees: CallTrees | None,
    device_ns: NDArray[np.float64],
) -> tuple[tuple[FunctionPattern, ...], list[bytes], float]:
    """Candidates in order of falling beta, then total.

    Args:
        functions: F of them; call stacks among the candidates get their names here.
        tally: What was added up.
        uses: Utilization, F of them.
        errors: Standard errors of beta. float64 [F].
        trees: Call stacks that have no names yet; where there are some, nothing is known of devices.
        device_ns: What a device does for each function, F of them. float64 [F].

    Returns:
        Rows, the encoded series of each, and the critical seconds of all functions without one.
    """
    count = len(functions)
    critical, totals = tally.critical_ns(count), tally.totals(count)
    window_ns = int(tally.edges_ns[-1] - tally.edges_ns[0])
    candidates = _candidates(functions, critical, totals, window_ns)
    group = _name(functions, candidates, trees)
    critical, totals = _joined(group, critical, totals)
    order = np.flatnonzero((group == np.arange(count)) & ((critical > 0) | (totals.total_ns > 0)))
    order = order[np.lexsort((-totals.total_ns[order], -critical[order]))]
    place = np.full(count, -1, dtype=np.int64)
    place[order] = np.arange(len(order))
    per_iteration = tally.per_iteration_ns(np.where(group >= 0, place[group], -1), len(order))
    rows = tuple(
        FunctionPattern(
            key=functions.keys[number],
            beta=_short(critical[number] / window_ns),
            mu=_short(uses[number].mean),
            sigma=_short(uses[number].deviation),
            resource=uses[number].resource,
            resource_samples=uses[number].samples,
            critical_s=int(critical[number]) / 1e9,
            total_s=_short(totals.total_ns[number] / 1e9),
            count=int(totals.count[number]),
            max_s=_short(totals.longest_ns[number] / 1e9),
            active_iterations=int(np.count_nonzero(per_iteration[at])),
            beta_error=_short(errors[number]),
            device_s=_short(device_ns[number] / 1e9),
        )
        for at, number in enumerate(order.tolist())
    )
    series = [
        encode_series((part / 1000.0).astype(np.float32)) if _deserves(row) else b""
        for row, part in zip(rows, per_iteration, strict=True)
    ]
    left_out = int(critical[group < 0].sum())
    return rows, series, left_out / 1e9


def _deserves(row: FunctionPattern) -> bool:
    """Return whether a row may get its series (`budget.attach_series` chooses among these)."""
    return row.beta >= _LEAST_SERIES or (row.key.kind == "gc" and row.critical_s > 0)


def _candidates(functions: Functions, critical: NDArray[np.int64], totals: Totals, window_ns: int) -> NDArray[np.int64]:
    """Functions that may find a place among the rows."""
    seen = np.flatnonzero((critical > 0) | (totals.total_ns > 0))
    order = seen[np.lexsort((-totals.total_ns[seen], -critical[seen]))]
    if len(order) <= _MOST_ROWS:
        return order
    first = np.array([key.kind in ("gc", "collective") for key in functions.keys], dtype=np.bool_)
    explains = (critical == 0) & (totals.total_ns >= _EXPLAINING_SHARE * window_ns)
    kept = np.zeros(len(functions), dtype=np.bool_)
    kept[order[:_MOST_ROWS]] = True
    kept[order[first[order]][:_MOST_FIRST]] = True
    kept[order[explains[order]][:_MOST_FIRST]] = True
    return order[kept[order]]


def _name(functions: Functions, candidates: NDArray[np.int64], trees: CallTrees | None) -> NDArray[np.int64]:
    """The function that each one stands for after naming: itself, one of the same name, -1 for none."""
    group = np.full(len(functions), -1, dtype=np.int64)
    group[candidates] = candidates
    nameless = {number for number in candidates.tolist() if functions.keys[number] is UNNAMED}
    if trees is not None and nameless:
        for tree in trees:
            for number, key in tree.keys(nameless).items():
                group[number] = functions.name(number, key)
    return group


def _joined(group: NDArray[np.int64], critical: NDArray[np.int64], totals: Totals) -> tuple[NDArray[np.int64], Totals]:
    """Sums of functions of one name under its first number."""
    moved = np.flatnonzero((group >= 0) & (group != np.arange(len(group))))
    if not len(moved):
        return critical, totals
    to = group[moved]
    critical, count = critical.copy(), totals.count.copy()
    total, longest = totals.total_ns.copy(), totals.longest_ns.copy()
    np.add.at(critical, to, critical[moved])
    np.add.at(count, to, count[moved])
    np.add.at(total, to, total[moved])
    np.maximum.at(longest, to, longest[moved])
    return critical, Totals(count, total, longest)


def _short(value: float) -> float:
    """Six significant digits: what is not measured need not travel."""
    return float(f"{float(value):.6g}")
