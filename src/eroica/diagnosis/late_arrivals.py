"""Workers of a recorded job for whom the others wait in collectives, whether or not their traces show what kept them.

A recording holds one to five iterations, so executions of collectives take their place: a worker that comes last again
and again is late. Everything is read from durations on each worker's own clock.

Array suffixes: M members of a group, K matched executions in order of time, W workers, F functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.block import Block, Cell, Culprit
from eroica.diagnosis.frames import HALF, NOTHING, Focus, focus_on_row
from eroica.diagnosis.recordings import FEWEST_TOLD, WORTH_A_WORD
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, list_numbers, name_workers
from eroica.localize.chains import Chain, began_late, blame_of, chain_executions, held_up, without
from eroica.localize.excess import SURE, mean_error
from eroica.model.lost import noise_factor

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
#: The others wait at least this share of the iteration; more in a single one, in which healthy workers wait for 5 %.
_LEAST_WAIT = 0.03
#: Repetition over a few iterations is no repetition over many: standard errors at most.
_HIGHEST_STRENGTH = 5.0


def find_late_arrivals(view: View) -> Iterator[Block]:
    """Yield workers that come last again and again. Recorded traces only: online, iterations tell it better."""
    if not view.is_trace:
        return
    chains = chain_executions(view.suspects.arrivals.matched)
    late = [(chain, rows, at) for chain in chains for rows, at in _late_together(chain)]
    late.sort(key=lambda each: -float(blame_of(each[0])[each[1]].sum()))
    known: set[int] = set()
    for whole, rows, at in late:
        passing = _passing_on(view, whole, rows, at)
        chain = without(whole, passing)
        own = [chain.members.index(whole.members[row]) for row in rows if row not in passing]
        members = {chain.members[row] for row in own}
        if not 0 < len(own) < len(chain.members) or members <= known or _is_a_role(view, chain, members):
            continue
        if not _is_chance(view, chain, own, at) and (block := _block(view, chain, own, at)) is not None:
            known |= members
            yield block


def _late_together(chain: Chain) -> Iterator[tuple[list[int], Places]]:
    """Yield members (rows of the chain) that are late together, with the executions, the most waited for first."""
    blame_M = blame_of(chain)
    left = [int(row) for row in np.argsort(-blame_M, kind="stable") if blame_M[row] > 0]
    while left:
        first = left.pop(0)
        own_K = chain.nearly_last[first]
        alike = [row for row in left if _overlap(own_K, chain.nearly_last[row]) >= HALF]
        left = [row for row in left if row not in alike]
        at = np.flatnonzero((chain.share[[first, *alike]] > 0).any(axis=0))
        if at.size > 1 and 1 + len(alike) < len(chain.members):
            yield [first, *alike], at


def _overlap(one_K: NDArray[np.bool_], other_K: NDArray[np.bool_]) -> float:
    return float((one_K & other_K).sum() / max(int((one_K | other_K).sum()), 1))


def _passing_on(view: View, chain: Chain, rows: list[int], at: Places) -> list[int]:
    """Return the late members that wait in other collectives longer than the others do: they pass lateness on."""
    elsewhere_M = view.wait_us[list(chain.members)] - chain.wait_us.sum(axis=1) / view.iterations
    others = [row for row in range(len(chain.members)) if row not in rows]
    late_us = float(chain.wait_us[others][:, at].sum(axis=1).mean()) / view.iterations
    return [row for row in rows if float(elsewhere_M[row] - np.median(elsewhere_M[others])) >= HALF * late_us]


def _is_a_role(view: View, chain: Chain, late: set[int]) -> bool:
    """Return True if the late are all workers of their roles here, beside other roles: that is how work is cut.

    A role of one worker may be late or have more to do. It counts as structure only if workers are missing.
    """
    roles = view.fleet.roles
    own = {int(roles[worker]) for worker in late}
    alike = {worker for worker in chain.members if int(roles[worker]) in own}
    has_peers = min(int((roles == role).sum()) for role in own) > 1
    return late == alike and len(alike) < len(chain.members) and (has_peers or bool(view.context.missing))


def _is_chance(view: View, chain: Chain, rows: list[int], at: Places) -> bool:
    """Return True if the late come last as any worker does by chance: of many workers some do more often."""
    is_late_M = np.isin(np.arange(len(chain.members)), rows)
    signed_K = chain.wait_us[~is_late_M].mean(axis=0) - chain.wait_us[is_late_M].mean(axis=0)
    inside = chain.iteration >= 0
    iterations, at_K = np.unique(chain.iteration[inside], return_inverse=True)
    if iterations.size < FEWEST_TOLD:
        return len(chain.members) == 2 and at.size < len(chain.kinds)
    signed_I = np.bincount(at_K, weights=signed_K[inside]).astype(np.float64)
    few = 1.0 if (signed_I > 0).all() else noise_factor(iterations.size - 1)
    own = _own_error(view, [chain.members[row] for row in rows]) if len(chain.members) > 2 else 0.0
    least = float(np.hypot(SURE, np.sqrt(2 * np.log(view.workers / 2))))  # of the largest of so many
    return bool(signed_I.mean() < least * max(few * float(mean_error(signed_I[None])[0]), own))


def _own_error(view: View, workers: Sequence[int]) -> float:
    """Return the standard error of own work over the iterations of workers that do the same as some."""
    alike_W = np.isin(view.fleet.roles, view.fleet.roles[list(workers)])
    return float(np.sqrt(view.fleet.busy_us[alike_W].var(axis=1, ddof=1).mean() / view.iterations))


def _block(view: View, chain: Chain, rows: list[int], at: Places) -> Block | None:
    others = [row for row in range(len(chain.members)) if row not in rows]
    waited_RK = chain.wait_us[others][:, at]
    each_us = float(waited_RK.sum(axis=1).mean()) / view.iterations
    if each_us < (WORTH_A_WORD if view.iterations == 1 else _LEAST_WAIT) * view.iteration_us:
        return None
    workers = sorted(chain.members[row] for row in rows)
    focus, cell = _function(view, workers, each_us)
    named = list(focus.functions)
    mean_us, usual_us = each_us, 0.0
    if named:
        mean_us = float(view.fleet.critical_us[named][:, workers].sum(axis=0).mean())
        usual_us = float(np.nan_to_num(view.suspects.peers_us[named][:, workers]).sum(axis=0).mean())
    saved_us = held_up(chain, rows, at) / view.iterations
    if view.iterations == 1 and cell == "late":
        longer_us = _worked_longer(view, workers)
        if longer_us >= HALF * each_us:  # the device worked longer before each of them: all waits go with it
            saved_us = max(saved_us, min(longer_us, float(waited_RK.sum(axis=1).min())))
    return Block(
        cell=cell,
        rows=focus.functions,
        focus=focus,
        workers=tuple(workers),
        scope="some",
        reference="peers",
        removed_us=np.zeros_like(view.fleet.iteration_us),
        mean_us=mean_us,
        reference_us=usual_us,
        strength=_strength(view, workers, at.size),
        agreement=1.0,
        culprit=_told(view, chain, rows, at, each_us, focus),
        gain=saved_us / max(float(view.fleet.iteration_us[list(chain.members)].mean()), 1e-9),
    )


def _worked_longer(view: View, workers: list[int]) -> float:
    """Return how much longer the devices of the late computed than those of their peers, all kernels together."""
    rows = [row for row, key in enumerate(view.fleet.keys) if key.kind == "compute"]
    over = np.nan_to_num(view.fleet.critical_us - view.suspects.peers_us)[np.ix_(rows, workers)]
    return float(over.sum(axis=0).mean())


def _strength(view: View, workers: list[int], times: int) -> float:
    """Return the waiting for late workers in standard errors: over iterations, or over executions of a single one."""
    if view.iterations == 1:
        return min(float(np.sqrt(times)), _HIGHEST_STRENGTH)
    blamed_I = view.suspects.arrivals.blamed_us[workers].sum(axis=0)
    error = max(float(mean_error(blamed_I[None])[0]), _own_error(view, range(view.workers)), 1e-9)
    return min(float(blamed_I.mean()) / error / noise_factor(view.workers * (view.iterations - 1)), _HIGHEST_STRENGTH)


def _function(view: View, workers: list[int], each_us: float) -> tuple[Focus, Cell]:
    """Return the row that holds most of the lateness and its cell; no function where none does."""
    keys = view.fleet.keys
    over_F = np.nan_to_num(view.fleet.critical_us - view.suspects.peers_us)[:, workers].mean(axis=1)
    order = [int(row) for row in np.argsort(-over_F) if keys[row].kind != "collective"]
    if not order or over_F[order[0]] < HALF * each_us:
        return NOTHING, "late"
    row, key = order[0], keys[order[0]]
    focus = focus_on_row(keys, row, float(over_F[row]) / each_us)
    if key.phase == "input":
        return focus, "input"
    cells: dict[str, Cell] = {"python": "python", "gc": "collections"}
    return focus, cells.get(key.kind, "late")


def _told(view: View, chain: Chain, rows: list[int], at: Places, each_us: float, focus: Focus) -> Culprit:
    """Return the sentence: to which collectives the workers come last, and what kept them."""
    who = name_workers(sorted(view.fleet.ranks[chain.members[row]] for row in rows), capital=True)
    ending, whom = ("s", "it") if len(rows) == 1 else ("", "them")
    others = len(chain.members) - len(rows)
    waits = f"the other {others} workers wait" if others > 1 else "the other worker waits"
    kinds = " and ".join(sorted({chain.kinds[place] for place in at}))
    which = f"{at.size} of {len(chain.kinds)} matched collectives ({kinds})"
    if view.iterations == 1 and at.size <= 12:
        which = f"collective{'s' if at.size > 1 else ''} {list_numbers(at.tolist())} ({kinds})"
    why = f"most of all because of {focus.label}" if focus.functions else "its trace does not show what kept it"
    is_older = began_late(chain, rows, at)
    if is_older and not focus.functions:
        why = "its step began late already, and what came before was not recorded"
    return Culprit(
        kind="late",
        subject=(
            f"{who} come{ending} last to {which}: {waits} {format_ms(each_us)} of each {view.now_text} "
            f"iteration for {whom}, up to {format_ms(float(chain.wait_us[:, at].max()))} at once; {why}"
        ),
        evidence=(
            *(
                [f"One iteration was recorded: this is repeated over {at.size} collectives."]
                if view.iterations == 1
                else []
            ),
            *(
                ["The delay is older than the recorded step: the step before, or the start of the profiler itself."]
                if is_older
                else []
            ),
        ),
        doubt=0.5 if is_older and view.iterations == 1 else 1.0,
    )
