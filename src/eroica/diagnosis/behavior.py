"""Ask the paper's own rule about a suspect: its pattern (β, μ, σ) against expectation and against its peers.

Source: EROICA, section 4.3, equations 6-11. The rule sees what times alone do not: a function that is as busy as its
peers' but slower, a link that is low and steady where others beside it are low and flicker.
"""

from __future__ import annotations

from eroica.diagnosis.block import Block
from eroica.diagnosis.view import View
from eroica.localize.suspects import SuspectRow
from eroica.model.shares import percent

#: Share of the accused on which the rule must flag one of the block's functions.
_MOST = 0.5


def flagged_row(view: View, block: Block) -> SuspectRow | None:
    """Find the candidate's row that the rule flags most clearly; None if it flags none on most of the accused."""
    keys = {view.fleet.keys[row] for row in (*block.rows, *block.focus.functions)}
    accused = {view.fleet.ranks[worker] for worker in block.workers}
    found = [
        row
        for row in view.suspects.abnormal
        if row.key in keys and (not accused or len(accused.intersection(row.workers)) >= _MOST * len(accused))
    ]
    return max(found, key=lambda row: (row.beta * row.distance, row.key), default=None)


def describe_row(row: SuspectRow) -> str:
    """Describe in one clause what the rule flags, and in which of its two halves."""
    where = f"{row.key.name}, on the critical path for {percent(row.beta)} of the window"
    if row.why == "expectation":
        return f"equation 11 flags {where}: {percent(row.distance)} more than its kind should be"
    return f"equation 11 flags {where}: its pattern differs from {percent(row.distance)} of its peers'"
