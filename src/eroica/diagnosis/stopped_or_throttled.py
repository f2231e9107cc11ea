"""Workers whose processes were stopped, or held back by a quota, while the others' were not.

That shows without a peer or a baseline window: a training process has no reason to stand still on its own. Workers are
accused only if their operators do not tell the loss: there is nobody to compare them with, or they do little else than
wait for a device and go on late.

Array suffixes: W workers, I iterations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import NOTHING
from eroica.diagnosis.lateness import JOB_WIDE, LEAST_AGREEMENT, LEAST_STRENGTH
from eroica.diagnosis.limits import HELD, MOST
from eroica.diagnosis.speed import held_share, host_fact
from eroica.diagnosis.view import View
from eroica.diagnosis.words import name_workers
from eroica.localize.simulate import most_held
from eroica.model.shares import percent

CAUSE = "compute-slow"
#: Whatever a process is at when it is stopped takes longer.
_LONGER_TOO = frozenset({CAUSE, "python-on-critical-path", "slow-data-loading", "slow-storage-read"})
#: Share of the time from which a process is held for no good reason, and by how much the others must be held less.
_LONG = 0.2
#: What follows from the host's word, not from the window run again.
_DOUBT = 0.9
_NEXT_STEP = (
    "Find out who stops the process (kill -STOP, a debugger, a scheduler that suspends jobs) or what quota holds it "
    "back (cpu.max and cpu.stat of its cgroup), and take that away."
)


def find_held(view: View, slow: Sequence[Candidate]) -> Iterator[Candidate]:
    """Accuse workers that were stopped or throttled for long, for whom the others wait.

    Args:
        view: The window.
        slow: Candidates of slow computation; they stand for a worker's loss where they account for most of it.
    """
    if view.is_trace:
        return
    held_W = held_share(view.fleet)
    late_W = held_W >= _LONG
    if not late_W.any() or late_W.mean() >= JOB_WIDE:
        return
    late_W &= held_W - float(np.median(held_W[~late_W])) >= _LONG
    lost_W = held_W * view.fleet.busy_us.mean(axis=1)
    waits_W = np.median(view.wait_us[held_W < _LONG]) - view.wait_us
    agreement_W = np.clip(waits_W / np.maximum(lost_W, 1e-9), 0.0, 1.0)
    late_W &= agreement_W >= LEAST_AGREEMENT
    for one in slow:
        late_W[[*one.workers]] &= one.excess_us < MOST * lost_W[[*one.workers]]
    members = np.flatnonzero(late_W)
    if members.size:
        yield _candidate(view, members, held_W, float(agreement_W[members].min()))


def with_holding(view: View, candidate: Candidate) -> Candidate:
    """Let a candidate hold what its workers lose by being held: that share of whatever they do, transfers included.

    It is no more than the share that they are busy longer than their role's others, if there are any, or than in the
    healthy window. The kernel adds up the throttled time of all processors and of all processes of a group.
    """
    members, held_W = list(candidate.workers), np.zeros(view.workers)
    busy_W = view.fleet.busy_us.mean(axis=1)
    if candidate.reference == "baseline":
        usual_W = view.then(lambda past: past.busy_us.mean(axis=1))
    else:
        others = np.delete(view.fleet.roles, members)
        usual_W = np.where(np.isin(view.fleet.roles, others), view.fleet.usual(busy_W), np.nan)
    most_W = np.nan_to_num(1 - usual_W / np.maximum(busy_W, 1e-9), nan=1.0).clip(0.0, 1.0)
    held_W[members] = np.minimum(held_share(view.fleet), most_W)[members]
    if held_W.max() <= HELD:
        return candidate
    removed_WI = np.maximum(candidate.removed_us, held_W[:, None] * view.fleet.busy_us)
    shares_W = None if view.fleet.has_accelerator else held_W  # a device goes on without its process
    return msgspec.structs.replace(candidate, removed_us=removed_WI, held_W=shares_W)


def without_holding(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Leave to each Python function what is longer beyond its worker being held, which takes that share of its time."""
    held_W = most_held([one.held_W for one in candidates])
    if held_W is None:
        return list(candidates)

    def left(one: Candidate) -> Candidate:
        if one.kind != "python" or one.held_W is not None or one.gain is not None or one.excess_us <= 0:
            return one
        left_W = np.maximum(1 - held_W * one.mean_us / one.excess_us, 0.0)
        return msgspec.structs.replace(one, removed_us=one.removed_us * left_W[:, None])

    return [left(one) for one in candidates]


def _candidate(view: View, members: NDArray[np.intp], held_W: NDArray[np.float64], agreement: float) -> Candidate:
    busy_WI = view.fleet.busy_us
    mean_us, held = float(busy_WI[members].mean()), float(held_W[members].mean())
    whom = name_workers([view.fleet.ranks[at] for at in members])
    stopped = float(np.nan_to_num(host_fact(view.fleet, "stopped"))[members].mean())
    how = "stopped" if stopped >= held / 2 else "held back by a CPU quota"
    whose, be = ("The process", "is") if members.size == 1 else ("The processes", "are")
    found = Candidate(
        cause=CAUSE,
        scope="some",
        workers=tuple(members.tolist()),
        focus=NOTHING,
        kind="compute",
        removed_us=np.zeros_like(busy_WI),
        mean_us=mean_us,
        reference_us=mean_us * (1 - held),
        reference="expectation",
        strength=3 * LEAST_STRENGTH,
        agreement=agreement,
        least_gain=view.settings.min_gain,
        evidence=(f"{whose} of {whom} {be} {how} {percent(held)} of the time, those of the others are not.",),
        sentence=f"{whose} of {whom} {be} {how} {percent(held)} of the time, and the others wait.",
        next_step=_NEXT_STEP,
        doubt=_DOUBT,
        stands_for=_LONGER_TOO,
    )
    return with_holding(view, found)
