"""Collectives: slower on everybody while nobody is late; and, as symptoms, those that only wait."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.buckets import find_piece
from eroica.diagnosis.candidate import Candidate, Reference
from eroica.diagnosis.exchanges import Change, find_change
from eroica.diagnosis.frames import find_focus, whole_rows
from eroica.diagnosis.lateness import LEAST_RATIO, LEAST_STRENGTH
from eroica.diagnosis.limits import MOST
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, name_workers
from eroica.localize.excess import mean_error
from eroica.localize.families import likeness_of_groups
from eroica.localize.fleet import Fleet
from eroica.model.pattern import CollectiveRecord, FunctionKey
from eroica.model.series import decode_series
from eroica.model.window import SLOWER
from eroica.summarize.collectives import collective_kind
from eroica.summarize.phases import split_frame

Floats = NDArray[np.float64]
#: Least gain: the common part of waiting varies with everything else that a job does.
_LEAST_GAIN = 0.05
#: Collectives that take less than this share of the waiters' excess are not worth a line.
_LEAST_SHARE = 0.1
_MOST_SYMPTOMS = 3
#: Without a core to spare a transfer takes its turn on the cores too, and so varies this much.
_CROWDED_RATIO = 2.0
#: Unless it accounts for this share of what iterations have grown by, and what workers do themselves for little of it.
_MOST_OF_GROWTH = 0.5
_LITTLE_OF_GROWTH = 0.3
_NOT_ALL_OF_GROWTH = 0.8
_MEET_LESS = (
    "Find the collectives that are new: one in a loop, or over a larger group of workers than needs its result, makes "
    "all wait for whoever is last each time; call it once, or in the smaller group."
)
_IN_ORDER = (
    "Look at the order in which workers send and receive: who takes what others have yet to compute makes all work one "
    "after another. If nothing has changed there, check the network between the workers (link speed, congestion, which "
    "interface is used)."
)
#: Cores that nobody used, on average, from which none was short.
_IDLE_CORES = 0.5
#: Doubt left where waiting for somebody without a trace cannot be excluded.
_UNTOLD = 0.6


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A collective that is long because somebody is late.

    Attributes:
        functions: Its rows (indices into the fleet's keys).
        name: Name of the collective.
        group: Name that its process groups have in common.
        workers: Workers (indices) that wait in it.
        mean_us: Critical time per iteration on them.
        accused_us: The same on the accused; NaN where nobody is accused.
    """

    functions: tuple[int, ...]
    name: str
    group: str
    workers: tuple[int, ...]
    mean_us: float
    accused_us: float


class _Common(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Time in collectives that nobody escapes, and how much of it may be; infinite where nothing is known.

    `change` tells how the exchange itself has changed since the baseline window; `is_mutual` that time is counted in
    which all wait for each other alike.
    """

    now_I: Floats
    allowed_us: float
    reference: Reference
    change: Change | None = None
    is_mutual: bool = False

    @property
    def excess_us(self) -> float:
        return float(self.now_I.mean()) - self.allowed_us

    @property
    def meet_more(self) -> bool:
        """True if workers wait for each other because they meet more often."""
        return self.is_mutual and self.change is not None and self.change.meets_more


def collectives(view: View) -> list[int]:
    """List rows of collectives with critical time."""
    return [
        at
        for at, key in enumerate(view.fleet.keys)
        if key.kind == "collective" and view.fleet.critical_us[at].max() > 0
    ]


def _heaviest(view: View) -> int:
    """Find the row of the collective that takes most."""
    return max(collectives(view), key=lambda at: float(view.fleet.critical_us[at].mean()))


def common_wait(wait_WI: Floats) -> Floats:
    """Return an iteration's collective time that even the last to arrive spends. float64 [1, I]."""
    return np.asarray(wait_WI.min(axis=0)[None])


def find_slow_communication(view: View) -> list[Candidate]:
    """Accuse collectives that take longer than before, or than expected, on the last to arrive too.

    Against the baseline it is claimed only when somebody finds the job slow; against the expectation only with an
    accelerator, for collectives on busy cores take what they take.
    """
    rows = collectives(view)
    if not rows or (view.workers < 2 and not view.is_trace) or (view.is_trace and view.is_pipeline):
        return []
    too_long = [each for each in (_against_expectation(view), _against_baseline(view)) if each.excess_us > 0]
    for each in sorted(too_long, key=lambda one: -one.excess_us):
        strength = each.excess_us / max(float(mean_error(each.now_I)[0]), 1e-9)
        if strength >= LEAST_STRENGTH * view.strictness:
            return [_candidate(view, rows, each, strength)]
    return []


def _against_expectation(view: View) -> _Common:
    """Compare the shortest transfers of any worker with the expectation; waiting for others, in any group, is left out.

    Where a job has become slower, what they took in its baseline window is left out, too.
    """
    allowed_us = view.settings.expected_collective * view.iteration_us if view.fleet.has_accelerator else np.inf
    past = view.suspects.baseline
    if past is not None and view.context.window.purpose in SLOWER:
        allowed_us = max(allowed_us, float(common_wait(past.wait_us).mean()))
    now_I = common_wait(_transfers(view, with_missing(view)))
    return _Common(now_I=now_I, allowed_us=allowed_us, reference="expectation")


def _transfers(view: View, others: Sequence[int]) -> Floats:
    """Return the time in collectives less known waiting, and less receives from unknown senders. float64 [W, I].

    A pipeline's stages wait in such receives while it fills and drains, however fast the transfer is.

    Args:
        view: The window.
        others: Rows that are not counted either.
    """
    untold = set() if _tells_senders(view) else {at for at in collectives(view) if kind_of(view.fleet, at) == "recv"}
    known_WI = view.suspects.arrivals.waited_us + view.fleet.series(sorted(untold.union(others)))
    return np.maximum(view.fleet.wait_us - known_WI, 0.0)


def with_missing(view: View) -> list[int]:
    """List rows of collectives in which a worker that did not report may be the one that all wait for.

    These are rows of groups with such a member, and of groups of which nothing tells the members. Recorded traces tell
    it themselves (`_may_wait`).
    """
    missing = set(view.context.missing)
    if view.is_trace or not missing:
        return []
    groups = {group.name: group.ranks for pattern in view.fleet.patterns for group in pattern.process_groups}
    whole = {name for name, ranks in groups.items() if missing.isdisjoint(ranks)}
    return [at for at in collectives(view) if view.fleet.keys[at].group not in whole]


def kind_of(fleet: Fleet, row: int) -> str:
    """Return the kind of the collective in a row: "all_reduce", "recv"."""
    name = fleet.keys[row].name
    return collective_kind(name.partition(":")[2] or name)


def _tells_senders(view: View) -> bool:
    """True if the records of all receives name their senders, all of which reported, and pair with the sends."""
    receives = [one for pattern in view.fleet.patterns for one in pattern.collectives if one.kind == "recv"]
    return all(one.peers and one.paired_by != "none" and _reported(view, one) for one in receives)


def _reported(view: View, receives: CollectiveRecord) -> bool:
    return view.fleet.known_ranks.issuperset(decode_series(receives.peers, np.int32).tolist())


def _against_baseline(view: View) -> _Common:
    """Compare the collective time that even the last to arrive spends with that of the baseline window."""
    past = view.suspects.baseline
    if past is None or not view.is_slow:
        return _Common(now_I=np.zeros((1, view.iterations)), allowed_us=np.inf, reference="baseline")
    change = find_change(view, _heaviest(view))
    now_I = common_wait(_transfers(view, with_missing(view) if change is None else ()))
    is_larger = change is not None and change.is_larger
    ratio = LEAST_RATIO if is_larger or not _lacks_cores(view) else _CROWDED_RATIO
    before_us, is_mutual = float(common_wait(past.wait_us).mean()), False
    mutual = _wait_for_each_other(view, past, change)
    if mutual is not None and _is_the_growth(view, past, mutual[2]):
        now_I, before_us, _ = mutual
        is_mutual = True
    is_growth = is_mutual or (_has_idle_cores(view) and _is_the_growth(view, past, float(now_I.mean()) - before_us))
    allowed_us = before_us * (1 + (LEAST_RATIO if is_growth else ratio))
    if (change is not None or is_growth) and now_I.mean() > allowed_us:  # then it is known what for
        allowed_us = before_us
    return _Common(now_I=now_I, allowed_us=allowed_us, reference="baseline", change=change, is_mutual=is_mutual)


def _without_lateness(view: View) -> Floats:
    """Return the collective time less what each waits longer for others than others for it. float64 [W, I].

    In a ring whose data takes long everybody waits for the one before, and nobody is late.
    """
    arrivals = view.suspects.arrivals
    return np.maximum(view.fleet.wait_us - np.maximum(arrivals.waited_us - arrivals.blamed_us, 0.0), 0.0)


def _wait_for_each_other(view: View, past: Fleet, change: Change | None) -> tuple[Floats, float, float] | None:
    """Measure waiting of workers for each other alike: now [1, I], before, and the increase; None where it is not.

    All collectives count where like workers meet more often, for then everybody waits longer in turn; and where they
    carry more, for whoever sends first waits while the others send. Otherwise only sends and receives whose other side
    is known count, if these take most of the time: stages of a pipeline wait for each other however fast they send.
    """
    if np.unique(view.fleet.roles).size > 1 or not set(view.fleet.ranks) <= set(past.ranks):
        return None
    waited_us, grown_us = view.suspects.arrivals.waited_us.mean(), view.iteration_us - past.mean_iteration_us
    in_turn = change is not None and change.meets_more and waited_us >= _MOST_OF_GROWTH * grown_us
    if in_turn or (change is not None and change.carries_more):
        then_W = view.then(lambda fleet: np.asarray(fleet.wait_us.mean(axis=1)))
        return view.fleet.wait_us.mean(axis=0)[None], float(then_W.mean()), float((view.wait_us - then_W).min())
    if not (_is_between_two(view) and _tells_senders(view)):
        return None
    now_I, before_us = common_wait(_without_lateness(view)), float(common_wait(past.wait_us).mean())
    return now_I, before_us, float(now_I.mean()) - before_us


def _is_the_growth(view: View, past: Fleet, longer_us: float) -> bool:
    """True if iterations have grown by what workers spend longer in collectives, not in their own work.

    Workers that are late in turn look like nobody, but what each does longer adds up to what the iteration has grown.
    """
    grown_us = view.iteration_us - past.mean_iteration_us
    busier_W = view.fleet.busy_us.mean(axis=1) - view.busy_before().mean(axis=1)
    busier_W = np.maximum(busier_W - view.uncovered_us, 0.0)
    is_little = busier_W.max() <= _LITTLE_OF_GROWTH * grown_us and busier_W.sum() <= _NOT_ALL_OF_GROWTH * grown_us
    return bool(longer_us >= _MOST_OF_GROWTH * grown_us > 0 and is_little)


def _is_between_two(view: View) -> bool:
    """True if most of the time in collectives is spent in sends and receives."""
    spent = {at: float(view.fleet.critical_us[at].mean()) for at in collectives(view)}
    between_two = sum(us for at, us in spent.items() if kind_of(view.fleet, at) in ("send", "recv"))
    return between_two >= MOST * sum(spent.values())


def _lacks_cores(view: View) -> bool:
    """True if transfers run on the host, and some host has no core for them beside each worker's training thread."""
    if view.fleet.has_accelerator:
        return False
    return any(view.cores[host].allowed < 2 * len(members) for host, members in view.homes.items())


def _has_idle_cores(view: View) -> bool:
    """True if every host is seen to have idle cores: then transfers did not last longer for want of one."""
    return all(view.cores[host].idle >= _IDLE_CORES for host in view.homes)


def _candidate(view: View, rows: list[int], common: _Common, strength: float) -> Candidate:
    now_I, allowed = common.now_I, common.allowed_us
    heaviest = _heaviest(view)
    key = view.fleet.keys[heaviest]
    focus = whole_rows(key.name, rows)
    piece = find_piece(view, [at for at in rows if view.fleet.keys[at].name == key.name])
    may_wait, sentence = _may_wait(view), ""
    is_setting = piece is not None and not may_wait and _is_for_good(view, common, heaviest)
    if may_wait:
        sentence = _exposed(view, key.name, float(now_I.mean()))
    elif piece is not None and is_setting:
        sentence = piece.describe(view, float(now_I.mean()))
    elif common.meet_more and common.change is not None:
        sentence = _meet_more(view, key.name, common.change, float(now_I.mean()))
    elif common.change is not None:
        sentence = (
            f"{key.name} takes {format_ms(float(now_I.mean()))} of each {format_ms(view.iteration_us)} iteration on "
            f"all workers although nobody arrives late: {common.change.reason}."
        )
    uncovered_us = 0.0
    if common.change is not None and common.change.is_exposed and common.reference == "baseline":
        uncovered_us = float(view.uncovered_us.mean())  # what it was hidden behind is gained, too
    said = [one.sentence for one in (piece, common.change) if one is not None]
    remedy = piece if is_setting else common.change
    found = Candidate(
        cause="misconfiguration" if is_setting else "slow-collective-everywhere",
        scope="all",
        workers=tuple(range(view.workers)),
        functions=tuple(rows),
        focus=focus,
        kind="collective",
        removed_us=np.repeat(np.maximum(now_I - allowed, 0.0), view.workers, axis=0) + uncovered_us,
        mean_us=float(now_I.mean()),
        reference_us=allowed,
        reference=common.reference,
        strength=strength,
        coverage=float(view.fleet.critical_us[heaviest].mean() / view.fleet.critical_us[rows].mean(axis=1).sum()),
        least_gain=max(_LEAST_GAIN, view.settings.min_gain),
        is_general=common.change is None,
        is_own_doing=common.change is not None and common.change.is_larger,
        evidence=(*said, *called_from(view, float(now_I.mean())), _nobody_is_late(view, common.is_mutual)),
        sentence=sentence,
        next_step=remedy.next_step if remedy is not None else _IN_ORDER if _is_between_two(view) else "",
        doubt=_UNTOLD if may_wait or is_setting else 1.0,
    )
    return msgspec.structs.replace(found, next_step=_MEET_LESS) if common.meet_more else found


def _meet_more(view: View, name: str, change: Change, mean_us: float) -> str:
    return (
        f"All {view.workers} workers wait for each other more often: {name} runs {change.now.calls:.0f} times in each "
        f"{format_ms(view.iteration_us)} iteration, {change.then.calls:.0f} {view.back_then}, and they spend "
        f"{format_ms(mean_us)} in collectives though none of them does much more than then."
    )


def called_from(view: View, mean_us: float, workers: Sequence[int] = ()) -> list[str]:
    """Name the user's function in which most of this wait happens, as far as stacks were sampled meanwhile.

    Args:
        view: The window.
        mean_us: Time in collectives in an iteration.
        workers: On these (indices); on all if empty.
    """
    fleet, members = view.fleet, list(workers) or list(range(view.workers))
    rows = [at for at, key in enumerate(fleet.keys) if key.thread == "training" and _waits_in_torch(key)]
    inside_R = np.maximum(fleet.total_us[rows] - fleet.critical_us[rows], 0.0)[:, members].mean(axis=1)
    focus = find_focus(fleet.keys, rows, inside_R, inside_R) if inside_R.sum() >= MOST * mean_us else None
    return [f"Most of it is waited for in {focus.label}."] if focus is not None and focus.is_own else []


def _waits_in_torch(key: FunctionKey) -> bool:
    return bool(key.stack) and split_frame(key.stack[-1])[1].startswith("torch/distributed/")


def _is_for_good(view: View, common: _Common, row: int) -> bool:
    """True if one collective holds most of the excess over expectation, and nobody asks about a change."""
    name = view.fleet.keys[row].name
    spent_R = {at: float(view.fleet.critical_us[at].mean()) for at in collectives(view)}
    mine = sum(spent for at, spent in spent_R.items() if view.fleet.keys[at].name == name)
    is_news = view.context.window.purpose in SLOWER and view.suspects.baseline is not None
    return common.reference == "expectation" and not is_news and mine >= MOST * sum(spent_R.values())


def _may_wait(view: View) -> bool:
    """True if a worker without a trace may be the one that is waited for."""
    return view.is_trace and (view.workers == 1 or bool(view.context.missing))


def _nobody_is_late(view: View, is_mutual: bool) -> str:
    if is_mutual:
        than = f"longer than in the {view.past_window}"
        return f"All wait for each other alike, {than}, and nobody is waited for all the time."
    if _may_wait(view):
        return (
            "Traces of some workers only: nobody can tell from them whether these wait for a late one or the transfer "
            "itself is slow; traces of all ranks would."
        )
    return "Even the worker that arrives last spends this long in collectives: nobody is waited for."


def _exposed(view: View, name: str, mean_us: float) -> str:
    who = name_workers(view.fleet.ranks, capital=True)
    ending = "s" if view.workers == 1 else ""
    return (
        f"{who} spend{ending} {format_ms(mean_us)} of each {format_ms(view.iteration_us)} iteration in {name} while "
        "nothing else runs; whether that is slow transfer or waiting for others cannot be told without their traces."
    )


def find_waiting(view: View, accused: Sequence[int], excess_us: float) -> list[Waiting]:
    """List the collectives in which the others wait for the accused, longest first.

    Args:
        view: The window.
        accused: Late workers (indices); empty where these change from iteration to iteration.
        excess_us: Their lateness, microseconds per iteration.
    """
    others = np.setdiff1d(np.arange(view.workers), np.asarray(accused, dtype=np.intp)).tolist()
    if not others:
        return []
    found: dict[tuple[str, str], list[int]] = {}
    like = likeness_of_groups(view.fleet.patterns)
    for row in collectives(view):
        key = view.fleet.keys[row]
        # like groups wait alike: in a recording all of one name are one, online those that do the same job
        kind = str(like.get(key.group, key.group))
        found.setdefault((key.name, "" if view.is_trace else kind), []).append(row)
    waits = [_waiting(view, name, rows, others, list(accused)) for name, rows in sorted(found.items())]
    worth = [wait for wait in waits if wait is not None and _extra(wait) >= _LEAST_SHARE * excess_us]
    return sorted(worth, key=lambda wait: -_extra(wait))[:_MOST_SYMPTOMS]


def _extra(wait: Waiting) -> float:
    return wait.mean_us - (0.0 if np.isnan(wait.accused_us) else wait.accused_us)


def _beyond_shortest(time_GW: Floats) -> Floats:
    """Return the collective time of several groups beyond that of the group's shortest member. float64 [W]."""
    there_GW = time_GW > 0
    shortest_G1 = np.where(there_GW, time_GW, np.inf).min(axis=1, keepdims=True)
    return np.asarray(np.where(there_GW, time_GW - shortest_G1, 0.0).sum(axis=0))


def _waiting(
    view: View, name: tuple[str, str], rows: list[int], others: list[int], accused: list[int]
) -> Waiting | None:
    time_W = view.fleet.critical_us[rows].sum(axis=0)
    least = view.settings.beta_gate * view.iteration_us
    usual = float(time_W[accused].mean()) if accused else float("nan")
    own_W = time_W if view.is_trace else _beyond_shortest(view.fleet.critical_us[rows])
    own_usual = float(own_W[accused].mean()) if accused else 0.0
    longer_W = (time_W - np.nan_to_num(usual) >= least) & (own_W - own_usual >= least)
    waiters = [worker for worker in others if longer_W[worker]]
    if not waiters:
        return None
    return Waiting(
        functions=tuple(rows),
        name=name[0],
        group=name[1],
        workers=tuple(waiters),
        mean_us=float(time_W[waiters].mean()),
        accused_us=usual,
    )
