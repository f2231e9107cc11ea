"""Find the blocks of excess time in a window: in each cell, and by when it comes.

A block is in every iteration, in every so many, on another worker each time, or in the collectives of all workers. Each
way to look is a function from the window to blocks; none of them knows of the others.

Array suffixes: W workers, I iterations, A iterations asked about, R rows. All times are microseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.block import MANY_MORE_CALLS, Block, Cell, Facts, Reference
from eroica.diagnosis.cells import list_cells, rows_by_frame, with_caller
from eroica.diagnosis.facts import with_facts
from eroica.diagnosis.frames import HALF, LARGE_PART, MOST, NOTHING, activity_of, find_focus, is_own_frame
from eroica.diagnosis.links import find_slow_transfers, longer_collectives, whole_rows
from eroica.diagnosis.loaders import find_loading_function, join_equally_slow, reference_of_rows
from eroica.diagnosis.operators import held_share, queued_share
from eroica.diagnosis.outliers import FEW_ITERATIONS, LEAST_AGREEMENT, LEAST_RATIO, find_outliers, time_above
from eroica.diagnosis.recordings import find_idle_devices, find_late_arrivals
from eroica.diagnosis.stages import find_long_stage
from eroica.diagnosis.view import View
from eroica.localize.blame import OFTEN, is_often
from eroica.localize.excess import SURE, mean_error
from eroica.localize.fleet import Fleet
from eroica.model.window import SLOWER

Floats = NDArray[np.float64]
#: Least excess of operators relative to the reference: their times vary less than those of Python, on a device least.
_RATIO_OF_OPERATORS, _RATIO_ON_DEVICE = 0.3, 0.1
#: Prefetching loaders stall in bursts, so their excess is jumpy: standard errors that are enough.
_STRENGTH_OF_INPUT = 2.0
#: A deeper cell stands for the one around it if it gains this share of it.
HOLDS = 0.9
#: Few iterations show no rhythm, and on cores no turns; fewer are enough with a device, which is steady.
_FEWEST = {False: FEW_ITERATIONS + 1, True: 3}
#: An occurrence takes this share of the longest one, and of a usual iteration; it comes in at most half of them.
_OCCURRENCE, _LEAST_EACH = 0.2, 0.3
#: An occurrence shows in so many stack samples at least, or it may be one sample that fell there.
_FEWEST_SAMPLES = 3
#: One worker leads by this share of its usual time; with a device, by less.
_LEAD, _LEAD_ON_DEVICE = 0.25, 0.08
#: Share of the iteration from which collections count. Healthy jobs collect, too.
COLLECTIONS_GAIN = 0.07
#: A collection longer than this, microseconds, is a pause; if most workers pause in the same iterations, together.
_PAUSE_US, _TOGETHER = 500.0, 0.7
#: Share of the time from which a process that is stopped or throttled is a block by itself.
_LONG_HELD = 0.2
#: Share of the iteration by which workers, or the waiting of all, differ if it is no chance.
LEAST_DIFFERENCE = 0.05
#: All wait longer for their transfers only if own work makes up less than this share of the growth.
_LITTLE_OWN = 0.3
_Cells = dict[Cell, list[int]]
#: An excess, µs, whose it is, and its rows.
_Found = tuple[float, Block, tuple[int, ...]]


def find_blocks(view: View) -> list[Block]:
    """Return all blocks of excess, with their facts, in no order."""
    cells = list_cells(view)
    # structure is a cause in recordings, and against a stated iteration time
    stage = find_long_stage(view) if view.is_trace or view.context.window.purpose == "expected" else None
    found = [
        *_in_cells(view, cells),
        *_in_frames(view, cells["python"]),
        *_now_and_then(view, cells["python"]),
        *_collections_in_turn(view, cells["collections"]),
        *_in_turn(view, cells),
        *_waiting_of_all(view, cells["collectives"]),
        *find_slow_transfers(view, cells["collectives"]),
        *find_late_arrivals(view),
        *find_idle_devices(view),
        *([stage] if stage is not None else []),
    ]
    known = [with_facts(view, with_caller(view, block)) for block in found]
    return [*known, *(with_facts(view, block) for block in _held(view, known))]


def _in_cells(view: View, cells: _Cells) -> Iterator[Block]:
    """Yield blocks of whole cells, but for Python, whose tree is searched by itself."""
    is_device, settings = view.fleet.has_accelerator, view.settings
    limits = {"input": settings.expected_python, "memory": settings.expected_memory} if is_device else {}
    ratios = {"launches": _RATIO_OF_OPERATORS, "operators": _RATIO_ON_DEVICE if is_device else _RATIO_OF_OPERATORS}
    for cell in ("input", "collections", "memory", "operators", "launches"):
        if cell == "collections" and view.iterations < 3:
            continue  # a collection that falls into one of two iterations is none of the job's pace
        strength, ratio = _STRENGTH_OF_INPUT if cell == "input" else SURE, ratios.get(cell, LEAST_RATIO)
        for late in find_outliers(view, cells[cell], limit=limits.get(cell), strength=strength, ratio=ratio):
            joined = join_equally_slow(view, late) if cell == "input" else late
            yield from _block(view, cell, cells[cell], joined)


def _block(view: View, cell: Cell, rows: Sequence[int], late: Block) -> Iterator[Block]:
    """Yield the block of some workers' excess in a group of rows, if a function can be named for it."""
    time_R = view.fleet.critical_us[list(rows)][:, list(late.workers)].mean(axis=1)
    excess_R = np.maximum(time_R - reference_of_rows(view, rows, late), 0.0)
    focus = find_focus(view.fleet.keys, rows, excess_R, time_R)
    if cell == "input":
        focus = find_loading_function(view, rows, late, focus, excess_R, time_R)
    if focus is None:
        return
    if cell in ("collections", "memory", "operators", "launches"):
        focus = msgspec.structs.replace(focus, functions=tuple(rows))
    elif cell == "python" and focus.is_specific:
        rows = focus.functions
    yield msgspec.structs.replace(late, cell=cell, rows=tuple(rows), focus=focus)


def _in_frames(view: View, rows: list[int]) -> Iterator[Block]:
    """Yield blocks of Python under each frame: of those that hold nearly the same excess the deepest; at most six."""
    groups: dict[tuple[Reference, bool], list[_Found]] = defaultdict(list)
    limit = view.settings.expected_python if view.fleet.has_accelerator else None
    for cell in dict.fromkeys([tuple(rows), *rows_by_frame(view.fleet.keys, rows)]):
        for late in find_outliers(view, cell, limit=limit):
            amount = float(late.removed_us.sum())
            groups[late.reference, late.agreement is None].append((amount, late, cell))
    every = sorted((one for found in groups.values() for one in found), key=lambda one: -one[0])
    for found in groups.values():
        for _, late, cell in islice(_deepest([one for one in found if not _is_apart(one, every)]), 6):
            yield from _block(view, "python", cell, late)


def _deepest(found: list[_Found]) -> Iterator[_Found]:
    """Yield the largest excess of each function, the deepest of those that hold nearly the same on the same workers."""
    left, everybody = sorted(found, key=lambda one: -one[0]), {-1}.union(*(one[1].workers for one in found))
    while left:
        amount, most, around = left[0]
        same = [one for one in left if one[0] >= HOLDS * amount and one[1].workers == most.workers]
        deepest = min(same, key=lambda one: len(one[2]))
        yield deepest
        used, accused = {*around, *deepest[2]}, {*most.workers} or everybody  # nobody's stands for everybody's
        left = [one for one in left if used.isdisjoint(one[2]) or accused.isdisjoint(one[1].workers or everybody)]


def _is_apart(whole: _Found, found: Sequence[_Found]) -> bool:
    """Return True if blocks under a frame, each of other workers, hold its excess: each worker has its own trouble."""
    held, left = 0.0, {*whole[1].workers}
    for amount, late, cell in found:
        if left >= {*late.workers} < {*whole[1].workers} and {*cell} < {*whole[2]}:
            held, left = held + amount, left - {*late.workers}
    return held >= HOLDS * whole[0]


def _now_and_then(view: View, rows: list[int]) -> list[Block]:
    """Return functions that come every so many iterations, the slowest iterations included."""
    whole = view.whole
    if whole.iteration_us.shape[1] <= FEW_ITERATIONS:
        return []
    cells = [list(cell) for cell, frame in rows_by_frame(view.fleet.keys, rows).items() if is_own_frame(frame)]
    found = [block for cell in cells if (block := _occurring(view, cell)) is not None]
    return [block for _, block, _ in _deepest([(one.gain or 0.0, one, one.rows) for one in found])]


def _occurring(view: View, rows: list[int]) -> Block | None:
    """Return the block of rows that take long in some iterations only; None if they do not, or cost too little."""
    whole, least = view.whole, view.settings.min_gain
    if whole.critical_us[rows].sum(axis=0).max() < least * whole.mean_iteration_us:
        return None
    time_WI = whole.series(rows)
    long_I = time_WI.max(axis=0)
    hit_I = long_I >= max(_OCCURRENCE * long_I.max(), 1e-9)
    runs = int(np.count_nonzero(hit_I & ~np.append(False, hit_I[:-1])))
    each, usual = float(long_I[hit_I].mean()), float(np.median(whole.iteration_us))
    is_chance = runs < 2 or (runs < 3 and each < usual) or each < _FEWEST_SAMPLES * _sample_us(whole, rows)
    if hit_I.mean() > HALF or each < _LEAST_EACH * usual or is_chance:
        return None
    often_W = (time_WI[:, hit_I] >= HALF * long_I[hit_I]).mean(axis=1)
    is_rotating = often_W.max() < HALF and hit_I.sum() > 2
    late_W = is_rotating | (often_W >= HALF) | (time_WI.sum(axis=1) >= HALF * time_WI.sum(axis=1).max())
    members = np.flatnonzero(late_W)
    is_of_some = members.size < view.workers
    activity = activity_of(view.fleet.keys[max(rows, key=lambda row: view.fleet.critical_us[row].sum())].stack)
    past = view.suspects.baseline
    if not is_of_some and past is None and activity not in ("save", "log"):
        return None  # without a past, what all do now and then is how the job is built, unless it saves or logs
    agreement = _waited_for(view, time_WI, hit_I, members) if is_of_some else None
    before_WJ = np.nan_to_num(view.before(rows))[members] if past is not None else np.zeros((1, 1))
    before, longest = float(before_WJ.mean()), float(before_WJ.max(axis=0).mean())
    gain = (float(time_WI[members].max(axis=0).mean()) - longest) / max(whole.mean_iteration_us, 1e-9)
    if gain < least or (agreement is not None and agreement < LEAST_AGREEMENT):
        return None
    is_known = past is None or past.iteration_us.shape[1] >= hit_I.size / runs or activity in ("save", "log")
    accounts = view.context.window.purpose in SLOWER and gain * whole.mean_iteration_us >= MOST * view.slowdown_us
    if not is_known and not accounts:
        return None  # the baseline window may have been too short to show it
    focus = find_focus(view.fleet.keys, rows, *[view.fleet.critical_us[rows].sum(axis=1)] * 2) or NOTHING
    return Block(
        cell="python",
        rows=tuple(rows),
        focus=focus,
        workers=() if is_rotating else tuple(members.tolist()),
        scope="rotating" if is_rotating else "some" if is_of_some else "all",
        reference="baseline" if before else "expectation",
        removed_us=np.where(np.isin(np.arange(view.workers), members)[:, None], view.fleet.series(rows), 0.0),
        mean_us=float(time_WI[members].mean()),
        reference_us=before,
        strength=min(SURE * runs**0.5, 20.0),
        agreement=agreement,
        facts=Facts(activity=activity, every=hit_I.size / runs, each_us=each),
        gain=min(gain, 1.0),
    )


def _sample_us(fleet: Fleet, rows: list[int]) -> float:
    """Return the time that one stack sample stands for in some rows, by their errors; 0 if they were not sampled."""
    error2_W = (fleet.error_us[rows] ** 2).sum(axis=0) * fleet.iteration_us.shape[1]
    mean_W = fleet.critical_us[rows].sum(axis=0)
    return float(np.divide(error2_W, mean_W, out=np.zeros_like(mean_W), where=mean_W > 0).max())


def _waited_for(view: View, time_WI: Floats, hit_I: NDArray[np.bool_], members: NDArray[np.intp]) -> float:
    """Return the share of some workers' occurrences that the others wait for, there or in the next iteration."""
    near_I = hit_I | np.append(False, hit_I[:-1])
    wait_W = view.whole.wait_us[:, near_I].sum(axis=1)
    others = float(np.delete(wait_W, members).mean())
    own_W = time_WI[members][:, near_I].sum(axis=1)
    return float(np.clip((others - wait_W[members]) / np.maximum(own_W, 1e-9), 0.0, 1.0).min())


def _collections_in_turn(view: View, rows: list[int]) -> Iterator[Block]:
    """Yield Python's garbage collections that stop one worker after another, or all in the same iterations."""
    if view.is_trace or view.iterations < _FEWEST[view.fleet.has_accelerator] or not rows:
        return
    time_WI = view.fleet.series(rows)
    before_W = np.nan_to_num(view.before(rows).mean(axis=1))
    lost_I = time_WI.max(axis=0) - before_W.max(initial=0.0)
    share_W = time_WI.sum(axis=1) / max(float(time_WI.sum()), 1e-9)
    strength = float(lost_I.mean() / max(float(mean_error(lost_I[None])[0]), 1e-9))
    is_of_one = share_W.max() >= LARGE_PART and view.workers > 1
    if lost_I.mean() < COLLECTIONS_GAIN * view.iteration_us or is_of_one or strength < 2.0:
        return
    paused_WI = time_WI > _PAUSE_US
    is_of_all = paused_WI.any() and paused_WI[:, paused_WI.any(axis=0)].mean() >= _TOGETHER
    yield Block(
        cell="collections",
        rows=tuple(rows),
        focus=whole_rows(view, rows),
        workers=tuple(range(view.workers)) if is_of_all else (),
        scope="all" if is_of_all else "rotating",
        reference="baseline" if view.suspects.baseline is not None else "expectation",
        removed_us=time_above(time_WI, before_W, np.ones(view.workers, np.bool_)),
        mean_us=float(time_WI.mean()),
        reference_us=float(before_W.mean()),
        strength=strength,
    )


def _in_turn(view: View, cells: _Cells) -> Iterator[Block]:
    """Yield the cell that makes another worker the last one in each iteration, if that has grown."""
    fleet, past = view.fleet, view.suspects.baseline
    if view.is_trace or view.iterations < _FEWEST[view.fleet.has_accelerator] or view.workers < 2:
        return
    above_WI, lead_I = _read_turns(fleet)
    least_us = (_LEAD_ON_DEVICE if fleet.has_accelerator else _LEAD) * float(np.median(fleet.busy_us))
    at = np.flatnonzero(lead_I >= least_us)
    has_grown = fleet.has_accelerator and past is None  # devices do not wander by luck, as workers on cores do
    if past is not None and past.iteration_us.shape[1] > 1:
        has_grown = float(lead_I.mean() - _read_turns(past)[1].mean()) >= least_us / 2
    if at.size < OFTEN * view.iterations or not has_grown:
        return
    late_I = above_WI.max(axis=0) - np.median(above_WI, axis=0)
    last, late_us = above_WI.argmax(axis=0)[at], float(late_I[at].mean())
    most = int(np.bincount(last).max())
    if is_often(most / at.size, view.workers) and not most == 1 < at.size:
        return  # one worker is the last one in clearly more of these iterations than by chance

    def of_last_and_others(rows: Sequence[int]) -> tuple[float, float]:
        """Return the mean time in some rows of the last worker, and of the others."""
        time_WA = fleet.series(rows)[:, at]
        own_A = time_WA[last, np.arange(at.size)]
        return float(own_A.mean()), float((time_WA.sum(axis=0) - own_A).mean()) / (view.workers - 1)

    held = {cell: np.subtract(*of_last_and_others(cells[cell])) for cell in ("python", "operators")}
    cell: Cell = "python" if held["python"] >= held["operators"] else "operators"
    if held[cell] < HALF * late_us:
        return
    rows = cells[cell]
    own_R = np.asarray([of_last_and_others([row])[0] for row in rows])
    focus = find_focus(fleet.keys, rows, np.maximum(own_R - fleet.critical_us[rows].mean(axis=1), 0.0), own_R)
    if focus is None:
        return
    facts = Facts()
    if cell == "operators":  # whether the last worker waits for a core, or has more to compute
        shares = [queued_share(one) if one is not None else np.zeros(1) for one in (fleet, past)]
        now, then = (float(np.nansum(share_W) / max(np.isfinite(share_W).sum(), 1)) for share_W in shares)
        lost = late_us * at.size / max(float(fleet.busy_us.max(axis=0).sum()), 1e-9)
        queued = float(np.clip((now - then) / max(lost, 1e-9), 0.0, 1.0))
        fixed = {row for row in rows if fleet.keys[row].phase == "optimizer"}
        parts = ([row for row in rows if row not in fixed], sorted(fixed))
        grows, still = (own / max(usual, 1e-9) if usual else 1.0 for own, usual in map(of_last_and_others, parts))
        facts = Facts(queued=queued, has_more_data=queued < HALF and still - 1 <= HALF * (grows - 1))
    removed_WI = np.maximum(above_WI - np.maximum(above_WI.min(axis=0), 0.0), 0.0)
    yield Block(
        cell=cell,
        rows=focus.functions,
        focus=focus,
        workers=(),
        scope="rotating",
        reference="peers",
        removed_us=np.minimum(removed_WI, fleet.busy_us),
        mean_us=late_us * at.size / view.iterations,
        reference_us=0.0,
        strength=float(late_I.mean() / max(float(mean_error(late_I[None])[0]), 1e-9)),
        facts=facts,
    )


def _read_turns(fleet: Fleet) -> tuple[Floats, Floats]:
    """Return own time without what every worker always takes, and by how much the last one of an iteration leads.

    Returns:
        Each worker's own time above its median, float64 [W, I]; and the distance of the one furthest above it to those
        that are not late with it, float64 [I].
    """
    above_WI = fleet.busy_us - np.median(fleet.busy_us, axis=1, keepdims=True)
    ranked_WI = np.sort(above_WI, axis=0)[::-1]
    # of many workers some are late together by chance: the last is compared with the one after the first sixteenth
    next_one = min(max(1, len(above_WI) // 16), len(above_WI) - 1)
    return above_WI, ranked_WI[0] - ranked_WI[next_one]


def _waiting_of_all(view: View, rows: list[int]) -> Iterator[Block]:
    """Yield collectives in which all wait longer than in the baseline window: more of them, or slower ones."""
    past = view.suspects.baseline
    if past is None or not rows or not view.is_slow or view.workers < 2:
        return
    name = whole_rows(view, rows).name
    calls, before = _calls(view.fleet, name), _calls(past, name)
    own_us = float(
        np.nanmax(view.fleet.busy_us.mean(axis=1) - view.suspects.then(lambda one: one.busy_us.mean(axis=1)))
    )
    is_own = own_us > _LITTLE_OWN * (view.iteration_us - past.mean_iteration_us)
    if calls >= MANY_MORE_CALLS * max(before, 1.0) and not is_own:
        now_I, then_us = view.fleet.wait_us.mean(axis=0), float(past.wait_us.mean())
    elif view.context.missing:
        return  # they may wait for workers that did not report: `conclusion` tells
    else:  # what even the last to arrive spends there
        waited_WI = view.suspects.arrivals.waited_us
        now_I = np.maximum(view.fleet.wait_us - waited_WI, 0.0).min(axis=0)
        then_us = float(past.wait_us.min(axis=0).mean())
    block = longer_collectives(view, rows, now_I, then_us)
    if block.excess_us >= max(LEAST_DIFFERENCE * view.iteration_us, HALF * then_us) and block.strength >= SURE:
        yield msgspec.structs.replace(block, facts=Facts(calls=calls, calls_before=max(before, 1e-9)))


def _calls(fleet: Fleet, name: str) -> float:
    rows = [row for row, key in enumerate(fleet.keys) if key.kind == "collective" and key.name == name]
    return float(np.median(fleet.count[rows].sum(axis=0))) if rows else 0.0


def _held(view: View, known: Sequence[Block]) -> Iterator[Block]:
    """Yield workers whose processes were stopped or throttled for long, and for whom the others wait.

    Args:
        view: The window.
        known: Blocks of operators stand for a worker's loss where they account for most of it.
    """
    held_W = held_share(view.fleet)
    late_W = held_W >= _LONG_HELD
    if view.is_trace or not late_W.any() or late_W.mean() >= MOST:
        return
    late_W &= held_W - float(np.median(held_W[~late_W])) >= _LONG_HELD
    lost_W = held_W * view.fleet.busy_us.mean(axis=1)
    waits_W = np.median(view.wait_us[held_W < _LONG_HELD]) - view.wait_us
    agreement_W = np.clip(waits_W / np.maximum(lost_W, 1e-9), 0.0, 1.0)
    late_W &= agreement_W >= LEAST_AGREEMENT
    for block in known:
        if block.cell == "operators" and block.workers:
            members = list(block.workers)
            late_W[members] &= block.excess_us < MOST * lost_W[members]
    members = np.flatnonzero(late_W).tolist()
    if not members:
        return
    mean_us = float(view.fleet.busy_us[members].mean())
    yield Block(
        cell="process",
        workers=tuple(members),
        scope="some",
        reference="expectation",
        removed_us=np.where(late_W[:, None], held_W[:, None] * view.fleet.busy_us, 0.0),
        mean_us=mean_us,
        reference_us=mean_us * (1 - float(held_W[members].mean())),
        strength=3 * SURE,
        agreement=float(agreement_W[members].min()),
    )
