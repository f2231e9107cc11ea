"""Judge one group of rows: find workers that spend more time in it than peers, than before, or than expected.

Array suffixes: W workers, I iterations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate, FindingKind, Reference
from eroica.diagnosis.frames import NOTHING, Focus
from eroica.diagnosis.margins import excuse, ratio_to_differ, stands_out, use_of_core
from eroica.diagnosis.speed import queued_share
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms
from eroica.localize.excess import SURE, Excess, excess_over_baseline, mean_error
from eroica.model.window import SLOWER

Floats = NDArray[np.float64]
#: Excess in standard errors from which it is no accident.
LEAST_STRENGTH = SURE
#: Excess relative to the reference from which a group differs: healthy workers on shared cores differ by 30 %.
LEAST_RATIO = 0.5
#: Share of the workers from which a change against the baseline is the whole job's.
JOB_WIDE = 0.6
#: So few iterations may be alike by chance.
_FEW_ITERATIONS = 9
#: Who is blamed for less than this share of what the most blamed one is, and waits for at least that share of what it
#: does more than its peers, is nobody whom they wait for.
_LEAST_OF_BLAME = 0.1
_MOST_OF_EXCESS = 0.5
#: Share of an excess that the others must wait for, or would if they were not as late by other work.
LEAST_AGREEMENT = 0.4


class Lateness(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Workers with excess time in a group of rows.

    Attributes:
        reference: Peers, baseline window or expectation.
        workers: Workers (indices), not empty.
        removed_us: Their time above the reference in each iteration. float64 [W, I], 0 for everybody else.
        mean_us: Time of the group on them.
        reference_us: Time to compare with.
        strength: Excess in standard errors: the median over them.
        agreement: Share of the excess the others wait for or hide, 0-1; None where everybody is accused.
        is_hidden: The others are seen to wait for less than `LEAST_AGREEMENT` of it, being late by other work.
    """

    reference: Reference
    workers: tuple[int, ...]
    removed_us: Floats
    mean_us: float
    reference_us: float
    strength: float
    agreement: float | None = None
    is_hidden: bool = False


def accuse(
    late: Lateness,
    cause: str,
    kind: FindingKind,
    focus: Focus,
    functions: Sequence[int],
    least_gain: float,
    evidence: tuple[str, ...] = (),
) -> Candidate:
    """Build a candidate of `cause` for workers with excess time: of some where others wait for them, else of all.

    Args:
        late: The accused and their excess.
        cause: Slug in the catalog.
        kind: Kind of the named function.
        focus: The function to name; its share of the excess is the coverage.
        functions: Rows whose time it is (indices into the fleet's keys).
        least_gain: Gain from which the cause counts.
        evidence: Sentences beyond those every cause gets.
    """
    return Candidate(
        cause=cause,
        scope="some" if late.agreement is not None else "all",
        workers=late.workers,
        functions=tuple(functions),
        focus=focus,
        kind=kind,
        removed_us=late.removed_us,
        mean_us=late.mean_us,
        reference_us=late.reference_us,
        reference=late.reference,
        strength=late.strength,
        coverage=focus.share,
        agreement=late.agreement,
        is_hidden=late.is_hidden,
        least_gain=least_gain,
        evidence=evidence,
    )


def growth_strength(view: View, before_us: float) -> float:
    """Return the standard errors by which iterations are longer than in the baseline window, else than `before_us`."""
    past, before_WJ = view.suspects.baseline, np.full((view.workers, 2), before_us)
    if past is not None:
        before_WJ = np.tile(past.iteration_us.mean(axis=0), (view.workers, 1))
    excess = excess_over_baseline(view.fleet.iteration_us, before_WJ)
    return max(float(np.nanmedian(excess.strength)), LEAST_STRENGTH * 0.5)


def accuse_growth(
    view: View, cause: str, workers: tuple[int, ...], lost: float, share: float, evidence: Sequence[str], sentence: str
) -> Candidate:
    """Build a candidate of `cause` for a share of what iterations have lost since the job was healthy.

    Args:
        view: The window.
        cause: Slug in the catalog.
        workers: The accused (indices).
        lost: Growth of the iteration as a fraction of itself, 0-1.
        share: Share of the growth that the cause accounts for, 0-1.
        evidence: Sentences.
        sentence: The summary's first one, after the two times.
    """
    mean_us, removed_WI = view.iteration_us, np.zeros_like(view.fleet.iteration_us)
    removed_WI[list(workers)] = lost * share * view.fleet.iteration_us[list(workers)]
    return Candidate(
        cause=cause,
        scope="all" if len(workers) == view.workers else "some",
        workers=workers,
        focus=NOTHING,
        kind="other",
        removed_us=removed_WI,
        mean_us=mean_us,
        reference_us=mean_us * (1 - lost),
        reference="baseline" if view.suspects.baseline is not None else "expectation",
        strength=growth_strength(view, mean_us * (1 - lost)),
        coverage=share,
        least_gain=view.settings.min_gain,
        evidence=tuple(evidence),
        gain=lost * share,
        sentence=f"Iterations take {format_ms(mean_us)} instead of {format_ms(mean_us * (1 - lost))} {sentence}.",
    )


class Spent(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Time in a group of rows.

    Attributes:
        functions: The rows (indices into the fleet's keys).
        time_us: Their time in each iteration. float64 [W, I].
        sampling_us: Standard error of its mean that stems from sampling. float64 [W].
        steady_us: The same with the jitter of sampling taken out: drawn towards the mean by the share of its variance
            that sampling explains. For recomputing iterations. float64 [W, I].
    """

    functions: list[int]
    time_us: Floats
    sampling_us: Floats
    steady_us: Floats


def measure(view: View, functions: Sequence[int]) -> Spent:
    """Read the time of a group of rows."""
    time_WI = view.fleet.series(functions)
    mean_W1 = time_WI.mean(axis=1, keepdims=True)
    error_W = np.sqrt((view.fleet.error_us[list(functions)] ** 2).sum(axis=0))
    sampling_W = error_W**2 * view.fleet.columns.shape[1]
    kept_W = 1 - sampling_W / np.maximum(time_WI.var(axis=1), 1e-9)
    steady_WI = mean_W1 + np.clip(kept_W, 0.0, 1.0)[:, None] * (time_WI - mean_W1)
    return Spent(functions=list(functions), time_us=time_WI, sampling_us=error_W, steady_us=steady_WI)


def judge_group(
    view: View, functions: list[int], expected_share: float | None, least_strength: float = LEAST_STRENGTH
) -> Iterator[Lateness]:
    """List all ways in which a group of rows takes too long: against peers, baseline and expectation.

    Args:
        view: The window.
        functions: Rows of the group.
        expected_share: Share of the iteration the group may take on any worker; None where nothing is expected.
        least_strength: Excess in standard errors from which it counts.
    """
    if not functions or not _worth_reading(view, functions, expected_share):
        return
    spent = measure(view, functions)
    yield from late_against_peers(view, spent, least_strength)
    yield from late_against_baseline(view, spent, least_strength)
    if expected_share is not None:
        yield from _late_against_expectation(view, spent, expected_share)


def _worth_reading(view: View, functions: Sequence[int], expected_share: float | None) -> bool:
    """True if means alone show enough excess: a look before any series is decoded."""
    total_W = view.fleet.critical_us[list(functions)].sum(axis=0)
    floor = view.settings.min_gain * view.iteration_us
    spread = float(total_W.max() - total_W.min())
    before_W = np.nan_to_num(view.suspects.before_us[list(functions)].sum(axis=0), nan=np.inf)
    beyond = expected_share is not None and float(total_W.max()) > expected_share * view.iteration_us
    return spread >= floor or bool((total_W - before_W >= floor).any()) or beyond


def late_against_peers(
    view: View,
    spent: Spent,
    least_strength: float = LEAST_STRENGTH,
    *,
    excused: bool = True,
    least_ratio: float = LEAST_RATIO,
) -> Iterator[Lateness]:
    """Find some workers above the median of their peers, for whom the peers wait.

    Double entry: `LEAST_AGREEMENT` of what a worker has too much, its peers wait for, or are as late by other work.

    Args:
        view: The window.
        spent: Time of the group of rows.
        least_strength: Excess in standard errors from which it counts.
        excused: A worker on which every operator is slower is allowed that much more time here too: its slowness is a
            cause of its own.
        least_ratio: Excess relative to the peers' time from which it counts.
    """
    use_W, queued_W = use_of_core(view, spent.functions, "peers"), queued_share(view.fleet)
    allowed_W = excuse(view, "peers", use_W) if excused else None
    excess = _with_sampling(view, spent, view.fleet.above_usual(spent.time_us, allowed_W))
    ratio_W = ratio_to_differ(view, excess, least_ratio, use_W, view.fleet.usual(queued_W))
    over_W = stands_out(view, excess, ratio_W, least_strength)
    agreement_W = agreement_with(view, excess.excess_us, spent.functions, over_W)
    all_W = over_W & (agreement_W >= LEAST_AGREEMENT)
    late_W = _without_waiters(view, all_W, np.nan_to_num(excess.excess_us))
    for these_W in (late_W, all_W & ~late_W):  # workers that wait for the first ones are next, once these are in time
        if these_W.any():
            late = lateness_of("peers", excess, spent.steady_us, these_W, agreement_W)
            yield msgspec.structs.replace(late, is_hidden=is_hidden(view, late))


def agreement_with(view: View, excess_W: Floats, functions: Sequence[int], over_W: NDArray[np.bool_]) -> Floats:
    """Return the share of an excess that the others wait for, or would if they had none of their own. float64 [W].

    Two workers that are late by different work hide each other. Late by as much between the same two collectives, none
    waits; between different ones, each waits for the other. So what others clearly have too much in another part of
    the iteration is set aside. In the same part it may be the same work under other names, unless workers are seen to
    wait for those who have it; the same function in another part is the same work. Where the job got slower, what a
    worker has not more of than before hides behind nobody.

    Args:
        view: The window.
        excess_W: Time that workers have too much. float64 [W].
        functions: Rows that it lies in.
        over_W: Workers that are asked about; without any that nobody waits for, nothing else is read. bool [W].
    """
    excess_W = np.maximum(np.nan_to_num(excess_W), 1e-9)
    agreement_W = np.asarray(view.deficit_us / excess_W)
    if not (over_W & (agreement_W < LEAST_AGREEMENT)).any():
        return agreement_W
    here = list(functions)
    most_W = np.maximum(view.deficit_us, 0.0) + _hidden_us(view, here, by_means=True)
    if not (over_W & (agreement_W < LEAST_AGREEMENT) & (most_W >= LEAST_AGREEMENT * excess_W)).any():
        return agreement_W
    late_us = view.deficit_us + _hidden_us(view, here)
    if view.context.window.purpose in SLOWER and view.suspects.baseline is not None:
        grown_W = view.fleet.critical_us[here].sum(axis=0) - view.before(here).mean(axis=1)
        late_us = np.minimum(late_us, np.nan_to_num(grown_W, nan=np.inf))
    return np.maximum(agreement_W, late_us / excess_W)


def is_hidden(view: View, late: Lateness) -> bool:
    """True if the others are seen to wait for too little of what each one has too much, being late by other work."""
    return bool((view.deficit_us[[*late.workers]] < LEAST_AGREEMENT * (late.mean_us - late.reference_us)).all())


def _hidden_us(view: View, here: list[int], *, by_means: bool = False) -> Floats:
    """Return how much longer others would wait without what some clearly have too much of beside these rows. [W].

    Beside all rows of their part of the iteration, wherever else the same runs; or beside these alone, as far as
    workers wait for such peers. Means, for which no series is read, count what noise may explain.
    """
    keys, direct, roles = view.fleet.keys, view.suspects.arrivals.direct, view.fleet.roles
    runs = [(key.kind, *(key.stack[-1:] if key.kind == "python" else (key.name,))) for key in keys]
    phases, mine = {keys[row].phase for row in here}, {runs[row] for row in here}
    same = [row for row, key in enumerate(keys) if key.phase in phases or runs[row] in mine]
    part_W, _ = _without_clear(view, [row for row in same if keys[row].kind != "collective"], by_means)
    here_W, clear_W = _without_clear(view, here, by_means)
    waits_E = np.where(clear_W[direct.on] & (roles[direct.on] == roles[direct.waiter]), direct.wait_us, 0.0)
    waits_W = np.bincount(direct.waiter, weights=waits_E, minlength=view.workers) / view.iterations
    return np.maximum(part_W, np.minimum(here_W, waits_W))


def _without_clear(view: View, rows: list[int], by_means: bool) -> tuple[Floats, NDArray[np.bool_]]:
    """Return how much longer others would wait without what some clearly have too much of beside rows, and who. [W]."""
    usual, busy_W = view.fleet.usual, view.fleet.busy_us.mean(axis=1)
    if by_means:
        mean_W = view.whole.busy_us.mean(axis=1) - view.fleet.critical_us[rows].sum(axis=0)
        beside = Excess(mean_us=mean_W, reference_us=usual(mean_W), error_us=np.zeros_like(mean_W))
    else:
        beside = view.fleet.above_usual(view.fleet.busy_us - view.fleet.series(rows))
    clear_W = stands_out(view, beside, 0.0, LEAST_STRENGTH)
    less_W = busy_W - np.where(clear_W, beside.excess_us, 0.0)
    return np.maximum(np.nan_to_num(usual(busy_W) - usual(less_W)), 0.0), clear_W


def _without_waiters(view: View, late_W: NDArray[np.bool_], excess_W: Floats) -> NDArray[np.bool_]:
    """Drop late workers that wait themselves instead of being waited for. bool [W].

    Such workers are blamed for hardly anything, and wait longer than the most blamed one by most of what they do more.
    """
    blamed_W = np.where(late_W, view.suspects.arrivals.blamed_us.mean(axis=1), 0.0)
    first = int(blamed_W.argmax())
    if blamed_W[first] < view.settings.min_gain * view.iteration_us:
        return late_W
    waits_W = view.wait_us - view.wait_us[first] >= _MOST_OF_EXCESS * excess_W
    return np.asarray(late_W & ~(waits_W & (blamed_W < _LEAST_OF_BLAME * blamed_W[first])))


def late_against_baseline(
    view: View,
    spent: Spent,
    least_strength: float = LEAST_STRENGTH,
    *,
    excused: bool = True,
    least_ratio: float = LEAST_RATIO,
) -> Iterator[Lateness]:
    """Find most workers, or all of one role, above their time in the baseline window, while iterations got longer.

    A role that others are seen to wait for more than then is accused alone: its workers, if there are several, are no
    measure for each other. Arguments as for `late_against_peers`.
    """
    least_us = (view.baseline_us or np.inf) * (1 + view.settings.min_gain)
    if view.suspects.baseline is None or view.iteration_us < least_us:
        return
    before_WJ = view.before(spent.functions) + view.uncovered(spent.functions)[:, None]
    use_W = use_of_core(view, spent.functions, "baseline")
    allowed_W = excuse(view, "baseline", use_W) if excused else None
    excess = excess_over_baseline(spent.time_us, before_WJ, allowed_W)
    excess = _with_sampling(view, spent, excess)
    ratio_W = ratio_to_differ(view, excess, least_ratio, use_W, view.then(queued_share))
    over_W = stands_out(view, excess, ratio_W, least_strength)
    late_W, agreement = late_together(excess, over_W, view.wait_rise_us)
    if late_W.any():
        yield lateness_of("baseline", excess, spent.steady_us, late_W, agreement)
        return
    agreement_W = view.deficit_since_us / np.maximum(np.nan_to_num(excess.excess_us), 1e-9)
    for role_W in late_roles(view, over_W, agreement_W):
        yield lateness_of("baseline", excess, spent.steady_us, role_W, agreement_W)


def late_as_all(view: View, spent: Spent, late_W: NDArray[np.bool_], strength: float, share: float | None) -> Lateness:
    """Accuse workers as the whole job though only some show it: above their own past, else above the expectation.

    Args:
        view: The window.
        spent: Time of the group of rows.
        late_W: The accused. bool [W].
        strength: Excess in standard errors of those that show it.
        share: Share of the iteration that the group may take; None to compare with the baseline window.
    """
    mean_W = spent.time_us.mean(axis=1)
    if share is None:
        reference: Reference = "baseline"
        before_W = np.nan_to_num(view.before(spent.functions).mean(axis=1))
        excess = Excess(mean_us=mean_W, reference_us=before_W, error_us=mean_W)
    else:
        reference, limit_W = "expectation", np.full(view.workers, share * view.iteration_us)
        excess = _share_of_rest(view, Excess(mean_us=mean_W, reference_us=limit_W, error_us=mean_W), share)
    late = lateness_of(reference, excess, spent.steady_us, late_W, None)
    return msgspec.structs.replace(late, strength=strength)


def late_roles(view: View, over_W: NDArray[np.bool_], agreement_W: Floats) -> Iterator[NDArray[np.bool_]]:
    """Find the late of each role that is late as a whole, while most of all others are not. bool [W] each.

    Args:
        view: The window.
        over_W: Workers clearly above their own past. bool [W].
        agreement_W: Share of that which workers of other roles are seen to wait longer. float64 [W].
    """
    late_W = over_W & (agreement_W >= LEAST_AGREEMENT)
    for role in np.unique(view.fleet.roles[late_W]):
        own_W = view.fleet.roles == role
        others = over_W[~own_W]
        if others.size and late_W[own_W].mean() >= JOB_WIDE and others.mean() < 1 - JOB_WIDE:
            yield late_W & own_W


def _with_sampling(view: View, spent: Spent, excess: Excess) -> Excess:
    """Add the error of sampling: as a part of its own in a single iteration, as the least error in a few.

    Over many, sampling shows in their spread already; of a few, each with one sample, the spread may be nothing.
    """
    if view.iterations > _FEW_ITERATIONS:
        return excess
    join = np.hypot if view.iterations == 1 else np.maximum
    return msgspec.structs.replace(excess, error_us=join(excess.error_us, spent.sampling_us))


def late_together(excess: Excess, over_W: NDArray[np.bool_], waits_W: Floats) -> tuple[NDArray[np.bool_], float | None]:
    """Find most workers late, those that are about as late included, noise or not.

    Where all others wait for them, they are some, however many; else they stand for the whole job from `JOB_WIDE` on.

    Args:
        excess: Of all workers.
        over_W: Workers with a clear excess. bool [W].
        waits_W: Waiting, or by how much it has risen. float64 [W].

    Returns:
        The late, bool [W]; and the share of their excess that the others wait for, None where they are the job.
    """
    amount_W, none_W = np.nan_to_num(excess.excess_us), np.zeros_like(over_W)
    if 2 * over_W.sum() <= over_W.size:  # so that the usual worker is not late
        return none_W, None
    late_W = np.asarray(over_W | (amount_W >= float(np.median(amount_W[over_W])) / 2), dtype=np.bool_)
    agreement = waited_for(late_W, amount_W, waits_W)
    return (late_W if agreement is not None or over_W.mean() >= JOB_WIDE else none_W), agreement


def waited_for(late_W: NDArray[np.bool_], amount_W: Floats, waits_W: Floats) -> float | None:
    """Return the share of their excess that all others wait for, 0-1; None where there are none, or they wait less.

    Args:
        late_W: The late. bool [W].
        amount_W: Their excess. float64 [W].
        waits_W: Waiting, or by how much it has risen. float64 [W].
    """
    longer_W = float(np.nan_to_num(waits_W)[~late_W].min(initial=np.inf)) - np.nan_to_num(waits_W)
    agreement = float((longer_W / np.maximum(np.nan_to_num(amount_W), 1e-9))[late_W].min())
    return min(agreement, 1.0) if agreement >= LEAST_AGREEMENT and not late_W.all() else None


def _late_against_expectation(view: View, spent: Spent, share: float) -> Iterator[Lateness]:
    """Find most workers above what any may spend here; or a role, if workers of other roles are seen to wait for it.

    Of a pipeline's workers only those of one stage read data.
    """
    allowed = share * view.iteration_us + view.recording_us
    if not (spent.time_us.mean(axis=1) > allowed).any():
        return
    before_W = _before_it_got_slow(view, spent.functions)
    limit_W = np.maximum(allowed, before_W)
    excess = Excess(mean_us=spent.time_us.mean(axis=1), reference_us=limit_W, error_us=mean_error(spent.time_us))
    excess = _with_sampling(view, spent, excess)
    over_W = stands_out(view, excess, 0.0, LEAST_STRENGTH)
    late_W, agreement = late_together(excess, over_W, view.wait_us)
    aim = _share_of_rest(view, excess, share)
    aim = msgspec.structs.replace(aim, reference_us=np.maximum(aim.reference_us, before_W))
    if late_W.any():
        yield lateness_of("expectation", aim, spent.steady_us, late_W, agreement)
        return
    for own_W in (view.fleet.roles == role for role in np.unique(view.fleet.roles[over_W])):
        if own_W.all():
            continue
        waits = float(np.median(view.wait_us[~own_W])) - view.wait_us
        agreement_W = np.clip(waits / np.maximum(excess.excess_us, 1e-9), 0.0, 1.0)
        for role_W in late_roles(view, over_W, np.where(own_W, agreement_W, 0.0)):
            yield lateness_of("expectation", aim, spent.steady_us, role_W, agreement_W)


def _before_it_got_slow(view: View, functions: list[int]) -> Floats:
    """Return the time in some rows in the baseline window of a job that got slower; 0 in other windows. float64 [W]."""
    if view.context.window.purpose != "slow" or view.suspects.baseline is None:
        return np.zeros(view.workers)
    return np.asarray(np.nan_to_num(view.before(functions).mean(axis=1)))


def _share_of_rest(view: View, excess: Excess, share: float) -> Excess:
    """Lower the reference to its share of the iteration that would be left, which is shorter than this one."""
    rest_W = np.maximum(view.iteration_us - excess.mean_us, 0.0)
    reference_W = np.minimum(excess.reference_us, share / max(1 - share, 1e-9) * rest_W)
    return msgspec.structs.replace(excess, reference_us=reference_W)


def lateness_of(
    reference: Reference,
    excess: Excess,
    time_WI: Floats,
    late_W: NDArray[np.bool_],
    agreement_W: Floats | float | None,
    reference_W: Floats | None = None,
) -> Lateness:
    """Put together the lateness of some workers; its strength is the median of theirs.

    Args:
        reference: The measure.
        excess: Of all workers, in the group of rows.
        time_WI: Their time in it.
        late_W: The accused, at least one. bool [W].
        agreement_W: Share of each one's excess that others wait for or hide; None where everybody is accused.
        reference_W: Time to compare with, where it is not that of the excess. float64 [W].
    """
    reference_W = excess.reference_us if reference_W is None else reference_W
    agreement = None if agreement_W is None else np.clip(np.broadcast_to(agreement_W, late_W.shape)[late_W], 0.0, 1.0)
    return Lateness(
        reference=reference,
        workers=tuple(int(worker) for worker in np.flatnonzero(late_W)),
        removed_us=time_above(time_WI, reference_W, late_W),
        mean_us=float(excess.mean_us[late_W].mean()),
        reference_us=float(reference_W[late_W].mean()),
        strength=float(np.median(excess.strength[late_W])),
        agreement=None if agreement is None else float(agreement.min()),
    )


def time_above(time_WI: Floats, reference_W: Floats, late_W: NDArray[np.bool_]) -> Floats:
    """Return the excess of the accused in each iteration, 0 for everybody else. float64 [W, I].

    Cutting sampled, hence jumpy, times off at the reference makes their mean too large; it is scaled back.
    """
    above_WI = np.maximum(time_WI - np.nan_to_num(reference_W)[:, None], 0.0)
    above_WI[~late_W] = 0.0
    mean_W = above_WI.mean(axis=1)
    wanted_W = np.maximum(time_WI.mean(axis=1) - np.nan_to_num(reference_W), 0.0)
    scale_W = np.divide(wanted_W, mean_W, out=np.zeros_like(mean_W), where=mean_W > 0)
    return np.asarray(above_WI * scale_W[:, None])
