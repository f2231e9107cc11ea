"""Pipeline stages of unequal length: one stage of the model takes longer than the others on everybody who runs it.

That is how the model was cut, nobody's fault. Stages are read from process groups and from the order of sends and
receives (`localize.roles`), never from timings. In a recording it is a cause, and so it is where somebody expects
shorter iterations; in any other window of a running job it is told, but nothing has happened that should alarm anybody.
A stage that was not as long in the baseline window is not long by structure.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate
from eroica.diagnosis.frames import Focus
from eroica.diagnosis.pre_existing import is_older
from eroica.diagnosis.setup import set_up_otherwise
from eroica.diagnosis.speed import operators
from eroica.diagnosis.stage_code import find_code_of_stage
from eroica.diagnosis.stage_hosts import find_held_stage
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, name_workers
from eroica.localize.excess import mean_error
from eroica.model.series import decode_series
from eroica.model.verdict import NO_FUNCTION

Floats = NDArray[np.float64]
#: Every worker of the long stage is longer than any other worker by this share.
_LONGER = 0.15
#: Workers of one stage are alike: they differ by less than this share of its excess.
_ALIKE = 0.5
#: By structure means that a stage exceeded the others in the baseline window too, by at least this share of what it
#: does now.
_AS_BEFORE = 0.6
#: Share of the excess that the other stages must be seen to wait.
_LEAST_WAITED = 0.4
#: A stage of one worker without a past: structure is as likely as a slow worker.
_OR_ITS_WORKER = 0.5
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


class Stage(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The longest stage of a pipeline.

    Attributes:
        place: Place in the pipeline, 0 = first.
        stages: Number of stages.
        workers: Workers (indices) that run it.
        busy_us: Mean time outside communication on them.
        balanced_us: Time of every stage if all work were spread evenly.
        others_us: Longest of the other stages' means.
        microbatches: Passes through the pipeline in an iteration, None where the records do not tell.
    """

    place: int
    stages: int
    workers: tuple[int, ...]
    busy_us: float
    balanced_us: float
    others_us: float
    microbatches: int | None


def find_long_stages(view: View) -> list[Candidate]:
    """Accuse the stage that all others wait for, or the Python function or setting that makes it long.

    Structure is a cause in recordings, and against an expectation.
    """
    found = _longest(view)
    if found is None:
        return []
    own_W = _runs(view, found)
    code = find_code_of_stage(view, own_W, found.busy_us - found.others_us)
    if code is not None:
        return [code]
    candidate = _candidate(view, found, own_W)
    above_WI = np.where(own_W[:, None], np.maximum(view.fleet.busy_us - found.others_us, 0.0), 0.0)
    longer = msgspec.structs.replace(
        candidate,
        removed_us=above_WI,
        gain=None,
        reference_us=found.others_us,
        reference="stages",
        evidence=candidate.evidence[:2],
        doubt=1.0,
    )
    otherwise = set_up_otherwise(view, longer, found.workers, found.busy_us / max(found.others_us, 1e-9))
    held = None if view.is_trace else find_held_stage(view, longer, own_W, _called(found))
    reason = otherwise or held
    if reason is not None and not is_older(view, found.busy_us - found.others_us, _over_before(view, own_W)):
        return [reason]
    is_cause = view.is_trace or view.context.window.purpose == "expected"
    return [candidate] if is_cause else []


def describe_long_stage(view: View, accused: Collection[int] = ()) -> tuple[str, str]:
    """Describe unequal stages where they are no cause, in short and in full; "" where there is nothing to say.

    Args:
        view: The window.
        accused: Workers (indices) that a cause was found for; a stage with one of them is not told as structure.
    """
    found = None if view.is_trace else _longest(view)
    if found is None or not set(found.workers).isdisjoint(accused):
        return "", ""
    share = max(round(100 * balanced_gain(found, view.iteration_us)), 1)
    gain = f"balanced stages would make iterations about {share} % shorter."
    times = f"{format_ms(found.busy_us)} per iteration, the others at most {format_ms(found.others_us)}"
    before = "It was so in the baseline window, too."
    if view.suspects.baseline is None:
        before = "Whether it has always been so, a baseline window would tell."
    if _may_be_its_worker(view, found):
        who = name_workers([view.fleet.ranks[found.workers[0]]])
        text = f"{_called(found)[0].upper()}{_called(found)[1:]} ({who}) takes {times}: by structure, or {who} is slow."
        return text, f"{text} With one worker a stage, only a baseline window would tell which."
    short = f"{_called(found)[0].upper()}{_called(found)[1:]} is long by structure ({times}); {gain}"
    return short, f"{_sentence(view, found)} {gain[0].upper()}{gain[1:]} {before}"


def has_lost_peers(view: View) -> bool:
    """True if the longest stage is that of one worker whose peers did not report, and nothing else tells of it."""
    found = None if view.is_trace or not view.context.missing else _longest(view)
    return found is not None and _may_be_its_worker(view, found)


def _longest(view: View) -> Stage | None:
    """Find the stage that stands out as a whole, unless it did not do so in the baseline window."""
    places = view.stages
    known = sorted({place for place in places if place is not None})
    if len(known) < 2 or None in places:
        return None
    busy_W = view.fleet.busy_us.mean(axis=1)
    place_W = np.asarray(places, dtype=np.intp)
    means = {place: float(busy_W[place_W == place].mean()) for place in known}
    longest = max(known, key=lambda place: means[place])
    own_W = place_W == longest
    if not _stands_out(view, busy_W, own_W) or not _was_long(view, busy_W, own_W):
        return None
    return Stage(
        place=longest,
        stages=len(known),
        workers=tuple(int(worker) for worker in np.flatnonzero(own_W)),
        busy_us=means[longest],
        balanced_us=float(np.mean(list(means.values()))),
        others_us=max(time for place, time in means.items() if place != longest),
        microbatches=_microbatches(view),
    )


def _may_be_its_worker(view: View, stage: Stage) -> bool:
    """True if the stage may as well be one slow worker: it has only one, and there is no baseline window."""
    return view.suspects.baseline is None and len(stage.workers) == 1


def _runs(view: View, stage: Stage) -> NDArray[np.bool_]:
    """Mark the workers that run a stage. bool [W]."""
    return np.isin(np.arange(view.workers), stage.workers)


def _was_long(view: View, busy_W: Floats, own_W: NDArray[np.bool_]) -> bool:
    """True if the stage was about as much longer than the others in the baseline window; true without one."""
    before_W = view.then(lambda past: np.asarray(past.busy_us.mean(axis=1)))
    if np.isnan(before_W[own_W]).all() or np.isnan(before_W[~own_W]).all():
        return True
    now = float(busy_W[own_W].mean() / max(float(busy_W[~own_W].mean()), 1e-9)) - 1
    then = float(np.nanmean(before_W[own_W]) / max(float(np.nanmean(before_W[~own_W])), 1e-9)) - 1
    return then >= _AS_BEFORE * now


def _over_before(view: View, own_W: NDArray[np.bool_]) -> float:
    """Return the stage's time beyond the longest other in the baseline window, microseconds; 0 where there is none."""
    before_W = view.then(lambda past: np.asarray(past.busy_us.mean(axis=1)))
    if np.isnan(before_W[own_W]).all() or np.isnan(before_W[~own_W]).all():
        return 0.0
    place_W = np.asarray(view.stages, dtype=np.intp)
    others = [before_W[place_W == place] for place in np.unique(place_W[~own_W])]
    return float(np.nanmean(before_W[own_W]) - max(np.nanmean(one) for one in others if not np.isnan(one).all()))


def _stands_out(view: View, busy_W: Floats, own_W: NDArray[np.bool_]) -> bool:
    """True if all of the stage is longer than everybody else, alike among its workers, and the others wait for it."""
    own, others = busy_W[own_W], busy_W[~own_W]
    excess = float(own.mean() - others.mean())
    longer = float(own.min()) >= (1 + _LONGER) * float(others.max())
    alike = float(own.max() - own.min()) <= _ALIKE * excess
    waited = float(view.wait_us[~own_W].mean() - view.wait_us[own_W].mean())
    return longer and alike and waited >= _LEAST_WAITED * excess


def _microbatches(view: View) -> int | None:
    """Count receives per iteration from one neighbour, the most of any worker."""
    most = 0
    for pattern in view.fleet.patterns:
        iterations = max(pattern.last_iteration - pattern.first_iteration, 1)
        for record in pattern.collectives:
            if record.kind == "recv" and record.peers:
                peers = decode_series(record.peers, np.int32)
                _, counts = np.unique(peers[peers >= 0], return_counts=True)
                whole = (record.executions + record.dropped) / max(record.executions, 1)
                most = max(most, round(float(counts.max(initial=0)) * whole / iterations))
    return most or None


def balanced_gain(stage: Stage, iteration_us: float) -> float:
    """Compute the gain of equal stages, as a fraction of the iteration.

    With M microbatches of t = busy / M on each stage, an iteration is about sum(t) + (M - 1) * max(t): filling and
    draining pass all stages once, and the longest one sets the pace of the rest. Balancing leaves the sum as it is.
    """
    repeats = 1.0 if stage.microbatches is None else (stage.microbatches - 1) / stage.microbatches
    return repeats * (stage.busy_us - stage.balanced_us) / max(iteration_us, 1e-9)


def _candidate(view: View, stage: Stage, own_W: NDArray[np.bool_]) -> Candidate:
    rows = operators(view.fleet)
    over_R = view.fleet.critical_us[rows][:, own_W].mean(axis=1) - view.fleet.critical_us[rows][:, ~own_W].mean(axis=1)
    at = rows[int(np.argmax(over_R))] if rows else None
    focus = Focus(
        name=view.fleet.keys[at].name if at is not None else NO_FUNCTION, functions=(at,) if at is not None else ()
    )
    difference_I = view.fleet.busy_us[own_W].mean(axis=0) - view.fleet.busy_us[~own_W].mean(axis=0)
    strength = float(difference_I.mean()) / max(float(mean_error(difference_I[None])[0]), 1e-9)
    return Candidate(
        cause="stage-imbalance",
        scope="all",
        workers=(),
        functions=focus.functions,
        focus=focus,
        kind="compute",
        removed_us=np.zeros_like(view.fleet.iteration_us),
        mean_us=stage.busy_us,
        reference_us=stage.balanced_us,
        reference="peers",
        strength=strength,
        least_gain=view.settings.min_gain,
        evidence=tuple(_evidence(view, stage, own_W)),
        gain=balanced_gain(stage, view.iteration_us),
        sentence=_sentence(view, stage),
        doubt=_OR_ITS_WORKER if _may_be_its_worker(view, stage) else 1.0,
    )


def _called(stage: Stage) -> str:
    ordinal = _ORDINALS[stage.place] if stage.place < len(_ORDINALS) else f"number {stage.place + 1}"
    return f"the {'last' if stage.place == stage.stages - 1 else ordinal} of {stage.stages} pipeline stages"


def _sentence(view: View, stage: Stage) -> str:
    who = name_workers([view.fleet.ranks[worker] for worker in stage.workers])
    called = _called(stage)
    doubted = _may_be_its_worker(view, stage)
    is_long = "is long, by structure or because its worker is slow" if doubted else "is structurally long"
    past = "a recording of a healthy time" if view.is_trace else "a baseline window"
    end = f"only {past} would tell which" if doubted else "no worker is to blame"
    return (
        f"{called[0].upper()}{called[1:]} ({who}) {is_long}: it computes {format_ms(stage.busy_us)} of each "
        f"{format_ms(view.iteration_us)} iteration, the others at most {format_ms(stage.others_us)}, and they wait; "
        f"{end}."
    )


def _span(times_us: Floats) -> str:
    """Format the span of times, as in "20 ms" or "20 ms to 25 ms"."""
    least, most = format_ms(float(times_us.min())), format_ms(float(times_us.max()))
    return least if least == most else f"{least} to {most}"


def _evidence(view: View, stage: Stage, own_W: NDArray[np.bool_]) -> list[str]:
    own, others = view.fleet.busy_us[own_W].mean(axis=1), view.fleet.busy_us[~own_W].mean(axis=1)
    waits = [format_ms(float(view.wait_us[side].mean())) for side in (~own_W, own_W)]
    passes = (
        f"{stage.microbatches} microbatches" if stage.microbatches else "many microbatches (their number is unknown)"
    )
    who = f"All {own.size} workers of the stage compute" if own.size > 1 else "The worker of the stage computes"
    return [
        f"{who} {_span(own)} per iteration, all others {_span(others)}.",
        f"The other stages spend {waits[0]} per iteration in communication, this one {waits[1]}.",
        f"Spread evenly, every stage would take {format_ms(stage.balanced_us)}; the longest sets the pace of {passes}.",
    ]
