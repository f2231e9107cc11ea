"""Communication in one piece: what could travel while backward or forward runs, but all goes at once.

DistributedDataParallel sends gradients bucket by bucket (`bucket_cap_mb`, 25 MB each by default), FSDP gathers
parameters module by module. With one bucket for everything, or one wrapped module, nothing hides the transfer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from eroica.diagnosis.rows import record_of
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms
from eroica.model.series import decode_series

#: Elements of one execution from which pieces would be worth it: 100 MB at four bytes each, four default buckets.
_LARGE = 25_000_000
#: One execution of an iteration, and at most one more, carries this share of all that the kind carries in it.
_MOST_EXECUTIONS = 2.0
_MOSTLY = 0.8
#: Share of its time in which nothing else runs.
_EXPOSED = 0.8
_HOW = {
    "all_reduce": (
        "gradients",
        "lower bucket_cap_mb of DistributedDataParallel (25 by default) so that they travel while backward still runs, "
        "or start the all-reduce of each part from a gradient hook where it is called by hand",
    ),
    "reduce_scatter": ("gradients", "apply fully_shard to each block, not to the model alone"),
    "all_gather": ("parameters", "apply fully_shard to each block, not to the model alone"),
}


class Piece(NamedTuple):
    """Data sent at once: kind of collective, what the data are, elements of one execution, and the remedy."""

    kind: str
    what: str
    elements: float
    remedy: str

    @property
    def sentence(self) -> str:
        """Sentence for the evidence."""
        return (
            f"The {self.what} travel in one piece, {self.elements / 1e6:.0f} million elements in one {self.kind} of "
            "each iteration, and nothing else runs meanwhile."
        )

    def describe(self, view: View, mean_us: float) -> str:
        """Describe what the piece costs, where it is the cause."""
        return (
            f"All {view.workers} workers send their {self.what} in one piece, {format_ms(mean_us)} of each "
            f"{format_ms(view.iteration_us)} iteration: none of it travels while they compute."
        )

    @property
    def next_step(self) -> str:
        """Next step: send the data in pieces."""
        return f"Let the {self.what} travel in pieces: {self.remedy}."


def find_piece(view: View, rows: Sequence[int]) -> Piece | None:
    """Find the one large execution that a collective is made of; None where there are several, or it is hidden.

    Args:
        view: The window.
        rows: Rows of one kind of collective, one for each group.
    """
    counted = [(at, float(np.median(count[count > 0]))) for at in rows if (count := view.fleet.count[at]).any()]
    if not counted or max(calls for _, calls in counted) > _MOST_EXECUTIONS:
        return None
    pieces = [piece for at, _ in counted if (piece := _piece(view, at)) is not None]
    return max(pieces, key=lambda piece: piece.elements) if len(pieces) == len(counted) else None


def _piece(view: View, row: int) -> Piece | None:
    fleet, key = view.fleet, view.fleet.keys[row]
    worker = int(fleet.critical_us[row].argmax())
    record = record_of(fleet, worker, key)
    if record is None or record.kind not in _HOW or not record.elements:
        return None
    sizes = decode_series(record.elements, np.int64).astype(np.float64)
    large = sizes >= _LARGE
    if not large.any() or sizes[large].sum() < _MOSTLY * sizes.sum():
        return None
    critical, duration = (decode_series(data, np.float32)[large] for data in (record.critical_us, record.duration_us))
    if float(critical.sum()) < _EXPOSED * float(duration.sum()):
        return None
    return Piece(record.kind, _HOW[record.kind][0], float(sizes[large].mean()), _HOW[record.kind][1])
