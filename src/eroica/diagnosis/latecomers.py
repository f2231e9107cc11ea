"""Workers of a recorded job for whom the others wait in collectives, whether or not their traces show what kept them.

Online, repetition over many iterations tells a latecomer from chance. A recording often holds one to five iterations;
there the executions of its collectives take their place: whoever comes last again and again is late. Everything is read
from durations on each worker's own clock.

Array suffixes: M members of a group, K matched executions in order of time, W workers, F functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.candidate import Candidate, FindingKind
from eroica.diagnosis.frames import NOTHING, OUTSIDE, Focus, is_whole_step, split_frame
from eroica.diagnosis.lateness import LEAST_STRENGTH
from eroica.diagnosis.reading import doing, python_cause
from eroica.diagnosis.uneven import find_uneven_work
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, list_numbers, name_workers
from eroica.localize.chains import Chain, began_late, blame_of, chain_executions, held_up, time_since, without
from eroica.localize.excess import mean_error
from eroica.model.lost import noise_factor

#: Others wait at least this share of the iteration, mean over them; in a single one healthy workers wait for each other
#: now and then for 5 %.
_LEAST_WAIT = 0.03
_LEAST_WAIT_ONCE = 0.1
#: Executions in which somebody must be late.
_FEWEST_LATE = 2
#: Two workers that are late in mostly the same executions are one finding.
_ALIKE = 0.5
#: A function is named if it holds this share of the lateness; a wait elsewhere for this share passes it on.
_MOST = 0.5
#: Repetition over a few iterations is no repetition over many.
_HIGHEST_STRENGTH = 5.0
#: What a finding is worth that names no function and says so, against one that names the right one.
_UNNAMED = 0.5
#: Doubt left where the profiler may have started later on the late ones.
_STARTED_LATER = 0.5
#: A function runs more often than on the peers if it does so by this share.
_MORE = 0.1
_MOST_TIMES = 6
#: Iterations from which their own scatter tells chance.
_FEWEST_TESTED = 4


def find_latecomers(view: View) -> list[Candidate]:
    """Accuse workers that come last again and again. Recorded traces only."""
    if not view.is_trace:
        return []
    chains = chain_executions(view.suspects.arrivals.matched)
    late = [(chain, rows, at) for chain in chains for rows, at in _groups_of_late(chain)]
    late.sort(key=lambda each: -float(blame_of(each[0])[each[1]].sum()))
    late_in = _late_in_each(chains, late)
    found: list[Candidate] = []
    known: set[int] = set()
    for whole, rows, at in late:
        passing = _passing_on(view, whole, rows, at)
        chain = without(whole, passing)
        own = [chain.members.index(whole.members[row]) for row in rows if row not in passing]
        if not 0 < len(own) < len(chain.members) or {chain.members[row] for row in own} <= known:
            continue
        if not (_are_a_whole_role(view, chain, own, late_in) or _is_chance(view, chain, own, at)):
            candidates = _candidate(view, chain, own, at)
            found += candidates
            known |= {worker for each in candidates if (each.gain or 0) >= each.least_gain for worker in each.workers}
    return found


def _groups_of_late(chain: Chain) -> Iterator[tuple[list[int], NDArray[np.intp]]]:
    """Group members (rows of the chain) that are late together, with the executions, the most waited for first."""
    blame_M = blame_of(chain)
    left = [int(row) for row in np.argsort(-blame_M, kind="stable") if blame_M[row] > 0]
    while left:
        first = left.pop(0)
        own = chain.nearly_last[first]
        alike = [row for row in left if _overlap(own, chain.nearly_last[row]) >= _ALIKE]
        left = [row for row in left if row not in alike]
        at = np.flatnonzero((chain.share[[first, *alike]] > 0).any(axis=0))
        if at.size >= _FEWEST_LATE and 1 + len(alike) < len(chain.members):
            yield [first, *alike], at


def _overlap(one_K: NDArray[np.bool_], other_K: NDArray[np.bool_]) -> float:
    return float((one_K & other_K).sum() / max(int((one_K | other_K).sum()), 1))


def _passing_on(view: View, chain: Chain, rows: list[int], at: NDArray[np.intp]) -> list[int]:
    """List the late members that wait in other collectives longer than the others do: they pass lateness on."""
    elsewhere_M = view.wait_us[list(chain.members)] - chain.wait_us.sum(axis=1) / view.iterations
    others = [row for row in range(len(chain.members)) if row not in rows]
    late_us = float(chain.wait_us[others][:, at].sum(axis=1).mean()) / view.iterations
    usual_us = float(np.median(elsewhere_M[others]))
    return [row for row in rows if float(elsewhere_M[row]) - usual_us >= _MOST * late_us]


def _is_chance(view: View, chain: Chain, rows: list[int], at: NDArray[np.intp]) -> bool:
    """True if the late come last as anybody does by chance: somebody always does, and of many workers some do more.

    How much longer others wait for them than they for others is summed by iteration: executions of one are late
    together. With few iterations, only one of two that comes last every time has a reason.
    """
    is_late_M = np.isin(np.arange(len(chain.members)), rows)
    signed_K = chain.wait_us[~is_late_M].mean(axis=0) - chain.wait_us[is_late_M].mean(axis=0)
    inside = chain.iteration >= 0
    iterations, at_K = np.unique(chain.iteration[inside], return_inverse=True)
    if iterations.size < _FEWEST_TESTED:
        return len(chain.members) == 2 and at.size < len(chain.kinds)
    signed_I = np.bincount(at_K, weights=signed_K[inside]).astype(np.float64)
    few = 1.0 if (signed_I > 0).all() else noise_factor(iterations.size - 1)
    own = _own_error(view, [chain.members[row] for row in rows]) if len(chain.members) > 2 else 0.0
    least = float(np.hypot(LEAST_STRENGTH, np.sqrt(2 * np.log(view.workers / 2))))  # of the largest of so many
    return bool(signed_I.mean() < least * max(few * float(mean_error(signed_I[None])[0]), own))


def _own_error(view: View, workers: Sequence[int]) -> float:
    """Return the standard error of own work over the iterations of those who do the same as some workers."""
    alike_W = np.isin(view.fleet.roles, view.fleet.roles[list(workers)])
    return float(np.sqrt(view.fleet.busy_us[alike_W].var(axis=1, ddof=1).mean() / view.iterations))


def _late_in_each(
    chains: Sequence[Chain], late: Sequence[tuple[Chain, list[int], NDArray[np.intp]]]
) -> list[tuple[frozenset[int], frozenset[int]]]:
    """List the members of each chain, and those of them that are late in it."""
    found: dict[int, set[int]] = {id(chain): set() for chain in chains}
    for chain, rows, _ in late:
        found[id(chain)] |= {chain.members[row] for row in rows}
    return [(frozenset(chain.members), frozenset(found[id(chain)])) for chain in chains]


def _are_a_whole_role(
    view: View, chain: Chain, rows: list[int], late_in: Sequence[tuple[frozenset[int], frozenset[int]]]
) -> bool:
    """True if the late are all workers of a role beside other roles: that is how work is cut, and no lateness.

    Together in one group, or each in its own: the first and the last stage meet in groups of two. Where no other group
    is like this one and workers are missing, nothing tells structure from lateness, and nobody is accused.
    """
    roles = view.fleet.roles
    late, members = {chain.members[row] for row in rows}, set(chain.members)
    own = {int(roles[worker]) for worker in late}
    alike = {int(worker) for worker in np.flatnonzero(np.isin(roles, list(own)))}
    others = {int(roles[worker]) for worker in members} - own
    if not others or (alike - late) & members:
        return False
    counts = [int((roles == role).sum()) for role in own]
    if min(counts, default=0) > 1 and late == alike:
        return True
    here = sorted(int(roles[worker]) for worker in members)
    siblings = [
        late_there
        for there, late_there in late_in
        if there != members and sorted(int(roles[worker]) for worker in there) == here
    ]
    if not siblings:
        return bool(view.context.missing)
    return all(late_there and {int(roles[worker]) for worker in late_there} <= own for late_there in siblings)


def _candidate(view: View, chain: Chain, rows: list[int], at: NDArray[np.intp]) -> list[Candidate]:
    others = [row for row in range(len(chain.members)) if row not in rows]
    waited_RK = chain.wait_us[others][:, at]
    each_us = float(waited_RK.sum(axis=1).mean()) / view.iterations
    is_doubted = view.iterations == 1 and view.strictness >= 1
    if each_us < (_LEAST_WAIT_ONCE if is_doubted else _LEAST_WAIT) * view.iteration_us:
        return []
    workers = tuple(sorted(chain.members[row] for row in rows))
    focus, kind, cause = _focus(view, workers, each_us)
    mean_us, reference_us = _spent(view, workers, focus, each_us)
    once = view.iterations == 1 and began_late(chain, rows, at)
    saved_us = held_up(chain, rows, at) / view.iterations
    if view.iterations == 1 and (kind == "compute" or not focus.functions):
        longer_us = _worked_longer(view, workers)
        if longer_us >= _MOST * each_us:  # the device worked longer before each of them: all waits go with it
            saved_us = max(saved_us, min(longer_us, float(waited_RK.sum(axis=1).min())))
    return [
        Candidate(
            cause=cause,
            scope="some",
            workers=workers,
            functions=focus.functions,
            focus=focus,
            kind=kind,
            removed_us=np.zeros_like(view.fleet.iteration_us),
            mean_us=mean_us,
            reference_us=reference_us,
            reference="peers",
            strength=_strength(view, workers, at.size),
            coverage=focus.share,
            agreement=1.0,
            least_gain=view.settings.min_gain,
            evidence=(*_evidence(view, chain, rows, at), *_more_often(view, workers, cause)),
            gain=saved_us / max(float(view.fleet.iteration_us[list(chain.members)].mean()), 1e-9),
            sentence=_sentence(view, chain, rows, at, each_us, focus, cause),
            doubt=_STARTED_LATER if once else 1.0,
            is_latecomer=True,
            may_be_recording=once,
        )
    ]


def _spent(view: View, workers: tuple[int, ...], focus: Focus, each_us: float) -> tuple[float, float]:
    """Return the time in the named function on the late and on their peers; without one, the waiting of the others."""
    if not focus.functions:
        return each_us, 0.0
    fleet, rows = view.fleet, list(focus.functions)
    own = float(fleet.critical_us[rows][:, list(workers)].sum(axis=0).mean())
    return own, float(np.nan_to_num(view.suspects.peers_us[rows][:, list(workers)]).sum(axis=0).mean())


def _worked_longer(view: View, workers: tuple[int, ...]) -> float:
    """Measure how much longer the devices of the late computed than those of their peers, all kernels together."""
    rows = [at for at, key in enumerate(view.fleet.keys) if key.kind == "compute"]
    over = np.nan_to_num(view.fleet.critical_us - view.suspects.peers_us)[np.ix_(rows, list(workers))]
    return float(over.sum(axis=0).mean())


def _strength(view: View, workers: tuple[int, ...], times: int) -> float:
    """Return the waiting for late workers in standard errors over iterations.

    In a single one each execution is an observation: one delay is taken to vary as much as it is long, so the mean of n
    is known to one part in the root of n. Over several, also in those by which the workers' own time varies, all taken
    together: of two or three iterations each worker's alone says nothing.
    """
    if view.iterations == 1:
        return min(float(np.sqrt(times)), _HIGHEST_STRENGTH)
    blamed_I = view.suspects.arrivals.blamed_us[list(workers)].sum(axis=0)
    error = float(mean_error(blamed_I[None])[0])
    freedom = view.workers * (view.iterations - 1)
    varies = _own_error(view, range(view.workers))
    by_both = float(blamed_I.mean()) / max(error, varies, 1e-9) / noise_factor(freedom)
    return min(by_both, _HIGHEST_STRENGTH)


def _focus(view: View, workers: tuple[int, ...], each_us: float) -> tuple[Focus, FindingKind, str]:
    """Find the row that holds most of the lateness, and the cause that it means; "no function" where none does."""
    keys = view.fleet.keys
    over_F = np.nan_to_num(view.fleet.critical_us - view.suspects.peers_us)[:, list(workers)].mean(axis=1)
    order = [int(row) for row in np.argsort(-over_F) if keys[row].kind != "collective"]
    if not order or over_F[order[0]] < _MOST * each_us:
        return _NOTHING, "other", "unknown"
    key = keys[order[0]]
    if is_whole_step(key.name):
        return msgspec.structs.replace(_NOTHING, place=OUTSIDE), "other", "unknown"
    focus = Focus(
        name=key.name,
        place=split_frame(key.stack[-1]).place if key.stack else "",
        stack=key.stack,
        functions=(order[0],),
        share=min(float(over_F[order[0]]) / each_us, 1.0),
    )
    if key.phase == "input":
        return focus, "python", python_cause(doing(view, focus.functions, workers), is_input=True)
    if _runs_more(view, order[0], workers):
        return focus, "compute", "load-imbalance"
    if key.kind == "python":
        return focus, "python", python_cause(doing(view, focus.functions, workers), is_input=False)
    known = {"gc": "garbage-collection"}
    return focus, "other" if key.kind == "gc" else key.kind, known.get(key.kind, "unknown")


def _runs_more(view: View, row: int, workers: tuple[int, ...]) -> bool:
    """True if a row is an operator that runs more often there, on workers that run more operators than their peers."""
    if not any(set(workers) <= set(remark.workers) and row in remark.functions for remark in find_uneven_work(view)):
        return False
    count_W = view.fleet.count[row]
    usual_W = np.nan_to_num(view.fleet.usual(count_W), nan=np.inf)
    return bool((count_W > (1 + _MORE) * usual_W)[list(workers)].all())


_NOTHING = msgspec.structs.replace(NOTHING, share=_UNNAMED)


# --- words ---


def _sentence(
    view: View, chain: Chain, rows: list[int], at: NDArray[np.intp], each_us: float, focus: Focus, cause: str
) -> str:
    who = _names(view, chain, rows)
    ending, whom = ("s", "it") if len(rows) == 1 else ("", "them")
    others = len(chain.members) - len(rows)
    wait = f"the other {others} workers wait" if others > 1 else "the other worker waits"
    longest = float(chain.wait_us[:, at].max())
    text = (
        f"{who[0].upper()}{who[1:]} come{ending} last to {_which(chain, at, view)}: {wait} {format_ms(each_us)} of "
        f"each {format_ms(view.iteration_us)} iteration for {whom}, up to {format_ms(longest)} at once"
    )
    why = f"; {_why_late(view, chain, rows, at)}"
    if focus.functions:
        more = ", which runs more often there" if cause == "load-imbalance" else ""
        why = f", most of all because of {focus.label}{more}"
    elif focus.place == OUTSIDE:
        why = f", most of all because of the {OUTSIDE}"
    return f"{text}{why}."


def _names(view: View, chain: Chain, rows: Sequence[int]) -> str:
    return name_workers(sorted(view.fleet.ranks[chain.members[row]] for row in rows))


def _which(chain: Chain, at: NDArray[np.intp], view: View) -> str:
    """Name the executions, as in "collectives 0 to 4 (all_to_all)"; where there are many, say how many."""
    kinds = " and ".join(sorted({chain.kinds[place] for place in at}))
    if view.iterations > 1 or at.size > 2 * _MOST_TIMES:
        return f"{at.size} of {len(chain.kinds)} matched collectives ({kinds}{_of_group(view, chain)})"
    return f"collective{'s' if at.size > 1 else ''} {list_numbers(at.tolist())} ({kinds}{_of_group(view, chain)})"


def _of_group(view: View, chain: Chain) -> str:
    """Name the process group, where there are several."""
    several = len({(one.group, one.members) for one in view.suspects.arrivals.matched}) > 1
    return f" of process group {chain.group!r}" if several else ""


def _why_late(view: View, chain: Chain, rows: list[int], at: NDArray[np.intp]) -> str:
    if began_late(chain, rows, at):
        whose = "its step" if len(rows) == 1 else "their steps"
        or_else = ", or the profiler started there later" if view.iterations == 1 else ""
        return f"{whose} began late already, and what came before was not recorded{or_else}"
    whose = "its trace does" if len(rows) == 1 else "their traces do"
    return f"{whose} not show what kept {'it' if len(rows) == 1 else 'them'}"


def _evidence(view: View, chain: Chain, rows: list[int], at: NDArray[np.intp]) -> Iterator[str]:
    others = [row for row in range(len(chain.members)) if row not in rows]
    worst = at[np.argsort(-chain.wait_us[others][:, at].max(axis=0), kind="stable")[:_MOST_TIMES]]
    shown = sorted(worst.tolist())
    times = ", ".join(f"{place}: {format_ms(float(chain.wait_us[others, place].max()))}" for place in shown)
    own = chain.duration_us[rows][:, at]
    spans = f"{format_ms(float(own.min()))} to {format_ms(float(own.max()))}"
    who = _names(view, chain, rows)
    yield f"Longest wait of the others by collective: {times}; in the same ones {who} stay{_s(rows)} {spans}."
    first = int(at[0])
    before = "the start of the step" if first == 0 else f"the end of collective {first - 1}"
    own_us, usual_us = (format_ms(time) for time in time_since(chain, rows, first))
    yield f"From {before} to collective {first} {who} take{_s(rows)} {own_us}, the others {usual_us}."
    if began_late(chain, rows, at):
        yield (
            "So the delay is older than the recorded step: the step before, or the start of the profiler itself, which "
            "does not take equally long everywhere."
        )
    if view.iterations == 1:
        yield f"One iteration was recorded: this is repeated over {at.size} collectives, not over iterations."


def _more_often(view: View, workers: tuple[int, ...], cause: str) -> Iterator[str]:
    """Repeat the evidence of the rule for unequal work, without its sentence that nobody waits."""
    for remark in find_uneven_work(view) if cause == "load-imbalance" else ():
        if set(workers) <= set(remark.workers):
            yield from remark.evidence[:-1]


def _s(rows: Sequence[int]) -> str:
    return "s" if len(rows) == 1 else ""
