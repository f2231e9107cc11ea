"""A pipeline stage that is longer than the others on all of its workers: how the model is cut, and nobody's fault."""

from __future__ import annotations

import numpy as np

from eroica.diagnosis.block import Block, Culprit
from eroica.diagnosis.frames import HALF, MOST
from eroica.diagnosis.outliers import LEAST_AGREEMENT
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, name_workers
from eroica.localize.excess import SURE
from eroica.model.series import decode_series

#: Every worker of a long stage is longer than any other worker by this share, and they differ by less than this share
#: of the excess.
_LONGER = 0.15


def find_long_stage(view: View) -> Block | None:
    """Return the stage that stands out as a whole, now and in the baseline window if there is one; else None."""
    places = view.stages
    known = sorted({place for place in places if place is not None})
    if len(known) < 2 or None in places:
        return None
    busy_W, place_W = view.fleet.busy_us.mean(axis=1), np.asarray(places, dtype=np.intp)
    means = {place: float(busy_W[place_W == place].mean()) for place in known}
    longest = max(known, key=lambda place: means[place])
    own_W = place_W == longest
    own, others = busy_W[own_W], busy_W[~own_W]
    excess = float(own.mean() - others.mean())
    stands_out = float(own.min()) >= (1 + _LONGER) * float(others.max()) and float(np.ptp(own)) <= HALF * excess
    stands_out &= float(view.wait_us[~own_W].mean() - view.wait_us[own_W].mean()) >= LEAST_AGREEMENT * excess
    then_W = view.suspects.then(lambda past: np.asarray(past.busy_us.mean(axis=1)))
    if not np.isnan(then_W).all():
        then = float(np.nanmean(then_W[own_W]) / max(float(np.nanmean(then_W[~own_W])), 1e-9)) - 1
        stands_out &= then >= MOST * (float(own.mean() / max(float(others.mean()), 1e-9)) - 1)
    if not stands_out:
        return None
    # With M microbatches an iteration is about sum(t) + (M - 1) * max(t), t = busy / M: filling and draining pass all
    # stages once, and the longest one sets the pace of the rest. Balancing leaves the sum as it is.
    many = _microbatches(view)
    saved_us = ((many - 1) / many if many else 1.0) * (means[longest] - float(np.mean(list(means.values()))))
    most_us = max(time for place, time in means.items() if place != longest)
    who = name_workers([view.fleet.ranks[worker] for worker in np.flatnonzero(own_W).tolist()])
    name = f"{'The last' if longest == len(known) - 1 else f'Number {longest + 1}'} of {len(known)} pipeline stages"
    times = f"{format_ms(means[longest])} of each {view.now_text} iteration"
    return Block(
        cell="operators",
        workers=(),
        scope="all",
        reference="peers",
        removed_us=np.zeros_like(view.fleet.iteration_us),
        mean_us=means[longest],
        reference_us=most_us,
        strength=3 * SURE,
        culprit=Culprit(
            kind="stage",
            subject=f"{name} ({who}) computes {times}, the others at most {format_ms(most_us)}",
            ending=": the stages are cut unequally, and no worker is to blame.",
        ),
        gain=saved_us / max(view.iteration_us, 1e-9),
    )


def _microbatches(view: View) -> int:
    """Return the receives per iteration from one neighbour, the most of any worker; 0 if unknown."""
    most = 0
    for pattern in view.fleet.patterns:
        iterations = max(pattern.last_iteration - pattern.first_iteration, 1)
        for record in pattern.collectives:
            if record.kind == "recv" and record.peers:
                peers = decode_series(record.peers, np.int32)
                _, counts = np.unique(peers[peers >= 0], return_counts=True)
                whole = (record.executions + record.dropped) / max(record.executions, 1)
                most = max(most, round(float(counts.max(initial=0)) * whole / iterations))
    return most
