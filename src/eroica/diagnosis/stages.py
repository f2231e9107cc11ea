"""A pipeline stage that is longer than the others on all of its workers: how the model is cut, and nobody's fault."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from eroica.diagnosis.block import Block, Culprit
from eroica.diagnosis.frames import HALF, MOST, NOTHING
from eroica.diagnosis.outliers import LEAST_AGREEMENT
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, name_workers
from eroica.localize.excess import SURE
from eroica.model.series import decode_series

#: Every worker of a long stage is longer than any other worker by this share, and they differ by less than this share
#: of the excess.
_LONGER = 0.15
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """The longest stage of a pipeline: its place, 0 = first; its workers (indices); times in microseconds.

    Attributes:
        place: Place in the pipeline, 0 = first.
        stages: Number of stages.
        workers: Workers (indices) that run it.
        busy_us: Mean time outside communication on them.
        balanced_us: Time of every stage if all work were spread evenly.
        others_us: Longest of the other stages' means.
        microbatches: Passes through the pipeline in an iteration; 0 where the records do not tell.
    """

    place: int
    stages: int
    workers: tuple[int, ...]
    busy_us: float
    balanced_us: float
    others_us: float
    microbatches: int

    @property
    def name(self) -> str:
        """For sentences: "the second of 4 stages"."""
        ordinal = _ORDINALS[self.place] if self.place < len(_ORDINALS) else f"{self.place + 1}th"
        return f"the {'last' if self.place == self.stages - 1 else ordinal} of {self.stages} pipeline stages"

    def balanced_gain(self, iteration_us: float) -> float:
        """Return the gain of equal stages as a share of the iteration, 0-1.

        With M microbatches an iteration is about sum(t) + (M - 1) * max(t), t = busy / M: filling and draining pass all
        stages once, and the longest one sets the pace of the rest. Balancing leaves the sum as it is.
        """
        repeats = (self.microbatches - 1) / self.microbatches if self.microbatches else 1.0
        return repeats * (self.busy_us - self.balanced_us) / max(iteration_us, 1e-9)


def find_long_stage(view: View) -> Stage | None:
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
    stands_out = float(own.min()) >= (1 + _LONGER) * float(others.max())
    stands_out &= float(np.ptp(own)) <= HALF * excess
    stands_out &= float(view.wait_us[~own_W].mean() - view.wait_us[own_W].mean()) >= LEAST_AGREEMENT * excess
    then_W = view.then(lambda past: np.asarray(past.busy_us.mean(axis=1)))
    if not np.isnan(then_W).all():
        then = float(np.nanmean(then_W[own_W]) / max(float(np.nanmean(then_W[~own_W])), 1e-9)) - 1
        stands_out &= then >= MOST * (float(own.mean() / max(float(others.mean()), 1e-9)) - 1)
    if not stands_out:
        return None
    return Stage(
        place=longest,
        stages=len(known),
        workers=tuple(np.flatnonzero(own_W).tolist()),
        busy_us=means[longest],
        balanced_us=float(np.mean(list(means.values()))),
        others_us=max(time for place, time in means.items() if place != longest),
        microbatches=_microbatches(view),
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


def find_structure(view: View) -> Iterator[Block]:
    """Yield a long stage where structure counts as a cause: in recordings, and against a stated iteration time."""
    stage = find_long_stage(view) if view.is_trace or view.context.window.purpose == "expected" else None
    if stage is None:
        return
    yield Block(
        cell="operators",
        rows=(),
        focus=NOTHING,
        workers=(),
        scope="all",
        reference="peers",
        removed_us=np.zeros_like(view.fleet.iteration_us),
        mean_us=stage.busy_us,
        reference_us=stage.others_us,
        strength=3 * SURE,
        culprit=Culprit(kind="stage", subject=describe_stage(view, stage)),
        gain=stage.balanced_gain(view.iteration_us),
    )


def describe_stage(view: View, stage: Stage) -> str:
    """Return a sentence on a long stage, without its end."""
    times = f"{format_ms(stage.busy_us)} of each {view.now_text} iteration"
    who = name_workers([view.fleet.ranks[worker] for worker in stage.workers])
    name = f"{stage.name[0].upper()}{stage.name[1:]}"
    return f"{name} ({who}) computes {times}, the others at most {format_ms(stage.others_us)}"
