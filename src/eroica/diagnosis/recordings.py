"""Recorded traces: what a device that idles tells, who comes last, and how much a few iterations are worth.

A recording holds one to five iterations, all events and no samples. Gaps of a device show its host; standard errors
over so few iterations say less than they seem to. So executions of collectives take the place of iterations: a worker
that comes last again and again is late. That is read from durations on each worker's own clock.

Array suffixes: W workers, I iterations, R rows, F functions, M members of a group, K matched executions in order of
time. All times are microseconds per iteration.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.block import Block, Cell, Culprit
from eroica.diagnosis.frames import HALF, MOST, NOTHING, Focus, focus_on_row, is_own_frame, split_frame
from eroica.diagnosis.outliers import time_above
from eroica.diagnosis.view import View
from eroica.diagnosis.words import format_ms, name_workers, short_name, verb
from eroica.localize.blame import BEYOND_CHANCE
from eroica.localize.excess import SURE, UNKNOWN_NOISE, mean_error
from eroica.localize.matching import Chain, began_late, blame_of, chain_executions, held_up, without
from eroica.model.lost import noise_factor
from eroica.model.shares import percent

Floats = NDArray[np.float64]
_HOST_THREADS, _HOST_KINDS = frozenset({"training", "autograd"}), frozenset({"compute", "other", "python"})
#: A recording should hold at least so many iterations; the reader is told of fewer.
FEW_STEPS = 5
#: Standard errors that a cause must be worth once few iterations are allowed for, and of a single iteration.
_LEAST_BELIEVED, _LEAST_BELIEVED_ONCE = 2.5, 1.5
#: So few iterations that are alike to the last digit say at most so many times what is known without them.
FEWEST_TOLD, _MOST_BEYOND_KNOWN = 4, 1.5
#: Share of the iteration from which waiting is worth a word.
WORTH_A_WORD = 0.1


def find_idle_devices(view: View) -> Iterator[Block]:
    """Yield hosts that leave devices idle for over `expected_host` of the iteration, input and collectives aside."""
    if not view.is_trace or not view.fleet.has_accelerator or view.suspects.arrivals.contradicted:
        return
    busy = view.fleet.critical_us.max(axis=1) > 0
    rows = [
        row
        for row, key in enumerate(view.fleet.keys)
        if busy[row] and key.thread in _HOST_THREADS and key.kind in _HOST_KINDS and key.phase != "input"
    ]
    unheld_WI = np.maximum(view.fleet.iteration_us - view.fleet.series(range(len(view.fleet.keys))), 0.0)
    host_WI = view.fleet.series(rows) + unheld_WI
    mean_W, allowed = host_WI.mean(axis=1), view.settings.expected_host * view.iteration_us
    strength_W = (mean_W - allowed) / np.maximum(mean_error(host_WI), 1e-9)
    late_W = (mean_W - allowed >= view.settings.min_gain * view.iteration_us) & (strength_W >= SURE * view.strictness)
    python = [row for row in rows if view.fleet.keys[row].kind == "python"]
    python_us = float(view.fleet.critical_us[python].sum(axis=0).mean())
    if late_W.mean() < MOST or python_us >= HALF * float(mean_W.mean()):
        return
    members = np.flatnonzero(late_W).tolist()
    time_R = view.fleet.critical_us[rows][:, members].mean(axis=1)
    row, mean_us = rows[int(np.argmax(time_R))] if rows else -1, float(host_WI[late_W].mean())
    focus, where = NOTHING, "the host outside any recorded operator"
    if row >= 0 and not view.fleet.keys[row].name.startswith("ProfilerStep"):  # around an iteration, and no function
        focus = focus_on_row(view.fleet.keys, row, float(time_R.max() / max(float(time_R.sum()), 1e-9)))
        where = short_name(focus.name)
    who, inside = name_workers([view.fleet.ranks[at] for at in members]), _launched_from(view, members)
    share = percent(mean_us / max(view.iteration_us, 1e-9))
    culprit = Culprit(
        kind="late",
        subject=f"The device{'s' if len(members) > 1 else ''} of {who} {verb(members, 'waits', 'wait')} for the host "
        f"{format_ms(mean_us)} of each {view.now_text} iteration, most of all in {where}{inside}",
        ending=".",
        evidence=(
            f"The device has no work for {share} of the iteration, at most {percent(view.settings.expected_host)} is "
            "expected.",
            "Profiling itself slows the host: without it the gaps are somewhat shorter.",
        ),
        doubt=0.8,
    )
    yield Block(
        cell="launches",
        rows=tuple(rows),
        focus=focus,
        workers=tuple(members),
        scope="all",
        reference="expectation",
        removed_us=time_above(host_WI, np.full(view.workers, allowed), late_W),
        mean_us=mean_us,
        reference_us=allowed,
        strength=float(np.median(strength_W[late_W])),
        culprit=culprit,
    )


def _launched_from(view: View, members: list[int]) -> str:
    """Name the user's deepest function in the stack that ran longest; "" where no Python was recorded."""
    total_F = view.fleet.total_us[:, members].mean(axis=1)
    python = [at for at, key in enumerate(view.fleet.keys) if key.kind == "python" and key.thread in _HOST_THREADS]
    if not python:
        return ""
    stack = view.fleet.keys[max(python, key=lambda at: float(total_F[at]))].stack
    return next((f", inside {split_frame(entry).label}" for entry in reversed(stack) if is_own_frame(entry)), "")


def believed_strength(view: View, block: Block) -> float:
    """Return a block's standard errors, less what few recorded iterations may pretend.

    By Student's distribution, but not less than what is known without any repetition: functions of healthy workers vary
    by less than `UNKNOWN_NOISE` of their time.
    """
    few = noise_factor(view.iterations - 1)
    if few <= 1 or block.cell == "late":
        return block.strength
    scale = UNKNOWN_NOISE * float(np.hypot(block.mean_us, block.reference_us)) / view.iterations**0.5
    known, by_student = block.excess_us / max(scale, 1e-9), block.strength / few
    is_clear = by_student >= SURE and view.iterations >= FEWEST_TOLD
    most = block.strength if is_clear else _MOST_BEYOND_KNOWN * known
    return float(min(block.strength, max(by_student, known), most))


def is_believed(view: View, block: Block) -> bool:
    """Return True if a recording holds enough iterations to believe a block."""
    least = SURE if block.cell == "late" else _LEAST_BELIEVED
    least = least if view.iterations > 1 else _LEAST_BELIEVED_ONCE
    return not view.is_trace or view.strictness < 1 or believed_strength(view, block) >= least


def recorded_probability(view: View, block: Block) -> float:
    """Return the probability that a recording's cause is real: the gate is fitted on windows of running jobs."""
    strength = believed_strength(view, block)
    heard = max((view.workers / max(view.context.expected_workers, view.workers)) ** 0.5, 0.8)
    alone = 0.75 if view.workers == 1 else 1.0  # it has nobody to be compared with
    effect = strength**2 / (strength**2 + _LEAST_BELIEVED**2)
    return float(min(effect * (0.5 + 0.5 * block.focus.share) * heard * alone, 0.99))


def describe_turns(view: View) -> str:
    """Return a sentence on waiting for a different slowest worker in each iteration; "" if there is little of it.

    Stages of a pipeline wait for each other however even their work is.
    """
    arrivals, is_pipeline = view.suspects.arrivals, len({*view.stages} - {None}) > 1
    waited_us, most_us = float(arrivals.waited_us.sum()), float(arrivals.blamed_us.sum(axis=1).max(initial=0.0))
    each_us = float(view.wait_us.mean()) if is_pipeline else waited_us / max(view.iterations * (view.workers - 1), 1)
    is_of_one = most_us > (1 / view.workers + BEYOND_CHANCE) * waited_us and not is_pipeline
    if each_us < WORTH_A_WORD * view.iteration_us or is_of_one:
        return ""
    share = f"{percent(each_us / view.iteration_us)} of each iteration ({format_ms(each_us)})"
    if is_pipeline:
        why = "they wait while it fills and drains, and for each other. More microbatches make that less"
        return f" But stages of the pipeline spend {share} in communication: {why}."
    who = "another worker each time: nobody is to blame, and evener work would save most of it"
    if view.iterations == 1:
        who = "and one iteration does not tell whether that is always the same worker"
    return f" But {share} is waiting for whoever is slowest in it, {who}."


# --- workers for whom the others wait in collectives, whether or not their traces show what kept them ---


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
        others = [(row, chain.nearly_last[row]) for row in left]
        alike = [row for row, one_K in others if (own_K & one_K).sum() >= HALF * max((own_K | one_K).sum(), 1)]
        left = [row for row in left if row not in alike]
        at = np.flatnonzero((chain.share[[first, *alike]] > 0).any(axis=0))
        if at.size > 1 and 1 + len(alike) < len(chain.members):
            yield [first, *alike], at


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
    own = 0.0
    if len(chain.members) > 2:  # the own work of workers that do the same varies, too
        alike_W = np.isin(view.fleet.roles, view.fleet.roles[[chain.members[row] for row in rows]])
        own = float(np.sqrt(view.fleet.busy_us[alike_W].var(axis=1, ddof=1).mean() / view.iterations))
    least = float(np.hypot(SURE, np.sqrt(2 * np.log(view.workers / 2))))  # of the largest of so many
    return bool(signed_I.mean() < least * max(few * float(mean_error(signed_I[None])[0]), own))


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
        kernels = [row for row, key in enumerate(view.fleet.keys) if key.kind == "compute"]
        over_W = np.nan_to_num(view.fleet.critical_us - view.suspects.peers_us)[kernels].sum(axis=0)
        longer_us = float(over_W[workers].mean())
        if longer_us >= HALF * each_us:  # the device worked longer before each of them: all waits go with it
            saved_us = max(saved_us, min(longer_us, float(waited_RK.sum(axis=1).min())))
    # what is no chance over iterations is sure; of a single one its executions tell
    strength = max(float(np.sqrt(at.size)), SURE if view.iterations > 1 else 0.0)
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
        strength=min(strength, _HIGHEST_STRENGTH),
        agreement=1.0,
        culprit=_told(view, chain, rows, at, each_us, focus),
        gain=saved_us / max(float(view.fleet.iteration_us[list(chain.members)].mean()), 1e-9),
    )


def _function(view: View, workers: list[int], each_us: float) -> tuple[Focus, Cell]:
    """Return the row that holds most of the lateness and its cell; no function where none does."""
    keys = view.fleet.keys
    over_F = np.nan_to_num(view.fleet.critical_us - view.suspects.peers_us)[:, workers].mean(axis=1)
    order = [int(row) for row in np.argsort(-over_F) if keys[row].kind != "collective"]
    if not order or over_F[order[0]] < HALF * each_us:
        return NOTHING, "late"
    row, key = order[0], keys[order[0]]
    focus = focus_on_row(keys, row, float(over_F[row]) / each_us)
    cells: dict[str, Cell] = {"python": "python", "gc": "collections"}
    return focus, "input" if key.phase == "input" else cells.get(key.kind, "late")


def _told(view: View, chain: Chain, rows: list[int], at: Places, each_us: float, focus: Focus) -> Culprit:
    """Return the sentence: to which collectives the workers come last, and what kept them."""
    who = name_workers(sorted(view.fleet.ranks[chain.members[row]] for row in rows), capital=True)
    ending, whom = ("s", "it") if len(rows) == 1 else ("", "them")
    others = len(chain.members) - len(rows)
    waits = f"the other {others} workers wait" if others > 1 else "the other worker waits"
    kinds = " and ".join(sorted({chain.kinds[place] for place in at}))
    which = f"{at.size} of {len(chain.kinds)} matched collectives ({kinds})"
    why = f"most of all because of {focus.label}" if focus.functions else "its trace does not show what kept it"
    is_older = began_late(chain, rows, at)
    if is_older and not focus.functions:
        why = "its step began late already, and what came before was not recorded"
    evidence = [f"One iteration was recorded: this is repeated over {at.size} collectives."] * (view.iterations == 1)
    if is_older:
        evidence.append(
            "The delay is older than the recorded step: the step before, or the start of the profiler itself."
        )
    return Culprit(
        kind="late",
        subject=f"{who} come{ending} last to {which}: {waits} {format_ms(each_us)} of each {view.now_text} "
        f"iteration for {whom}, up to {format_ms(float(chain.wait_us[:, at].max()))} at once; {why}",
        ending=".",
        evidence=tuple(evidence),
        doubt=0.5 if is_older and view.iterations == 1 else 1.0,
    )
