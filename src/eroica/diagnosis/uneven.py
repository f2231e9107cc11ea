"""Unequal work that nobody waits for, in recorded traces: worth knowing beside a cause, though it costs nothing now.

Array suffixes: F functions, W workers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import whole_rows
from eroica.diagnosis.speed import operators
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, name_workers, short_name

Floats = NDArray[np.float64]
#: Executions above the peers' from which work is unequal, and the peers' own spread, which it must exceed by far.
_MORE = 0.1
_SPREADS = 5.0
#: Fewer peers than this cannot show what is usual.
_FEWEST_PEERS = 3
#: Counts are exact, but one recording tells only of itself.
_STRENGTH = 3.0


def find_uneven_work(view: View) -> list[Candidate]:
    """Remark on workers that run more operators than their role's peers, whoever waits. Recorded traces only."""
    rows = operators(view.fleet)
    if not view.is_trace or not rows or view.workers <= _FEWEST_PEERS:
        return []
    count_FW = view.fleet.count[rows]
    count_W = count_FW.sum(axis=0)
    usual_W = view.fleet.usual(count_W)
    spread_W = view.fleet.usual(np.abs(count_W - usual_W))
    more_W = np.nan_to_num(count_W - usual_W)
    members = np.flatnonzero(more_W > np.maximum(_MORE * np.nan_to_num(usual_W), _SPREADS * np.nan_to_num(spread_W)))
    if not members.size or 2 * members.size >= view.workers:
        return []
    return [_candidate(view, rows, members, more_W, usual_W)]


def _candidate(view: View, rows: list[int], members: NDArray[np.intp], more_W: Floats, usual_W: Floats) -> Candidate:
    count_FW, total_FW = view.fleet.count[rows], view.fleet.total_us[rows]
    extra_FW = np.maximum(count_FW - np.nan_to_num(view.fleet.usual(count_FW)), 0.0)
    each_FW = np.divide(total_FW, count_FW, out=np.zeros_like(total_FW), where=count_FW > 0)
    price_F = (extra_FW * each_FW)[:, members].mean(axis=1)
    top = int(np.argmax(price_F))
    key = view.fleet.keys[rows[top]]
    amount = float(price_F.sum())
    who = name_workers([view.fleet.ranks[worker] for worker in members], capital=True)
    runs, whose = ("runs", "its") if members.size == 1 else ("run", "their")
    counts = " and ".join(f"{count:.0f}" for count in sorted(count_FW.sum(axis=0)[members]))
    usual = float(np.nanmean(usual_W[members]))
    focus = whole_rows(key.name, (rows[top],))
    time_us = float(total_FW[:, members].sum(axis=0).mean())
    return Candidate(
        cause="load-imbalance",
        scope="some",
        workers=tuple(int(worker) for worker in members),
        functions=tuple(rows),
        focus=focus,
        kind="compute",
        removed_us=np.zeros_like(view.fleet.iteration_us),
        mean_us=time_us,
        reference_us=time_us - amount,
        reference="peers",
        strength=_STRENGTH,
        least_gain=view.settings.min_gain,
        evidence=(
            f"{who} {runs} {counts} operators per iteration, {more_W[members].mean():.0f} more than {whose} peers "
            f"({usual:.0f}); that takes {format_ms(amount)}.",
            *_most_repeated(view, rows, members),
            "Nobody is seen to wait for it, so it costs nothing as things are; it will once other delays are gone.",
        ),
        gain=0.0,
        sentence=(
            f"{who} {runs} {more_W[members].mean():.0f} more operators per iteration than {whose} peers ({usual:.0f}), "
            f"most of all {short_name(key.name)}."
        ),
        is_remark=True,
    )


def _most_repeated(view: View, rows: list[int], members: NDArray[np.intp]) -> tuple[str, ...]:
    """Name the operator whose executions multiply most."""
    count_FW = view.fleet.count[rows]
    usual_FW = np.nan_to_num(view.fleet.usual(count_FW))
    extra_F = (count_FW - usual_FW)[:, members].mean(axis=1)
    top = int(np.argmax(extra_F))
    own, usual = count_FW[top, members].mean(), usual_FW[top, members].mean()
    if usual <= 0:
        return ()
    return (
        f"{short_name(view.fleet.keys[rows[top]].name)} runs {own:.0f} times per iteration instead of {usual:.0f}.",
    )
