"""Choose the causes among blocks: one account, in which each cause books the time that it explains.

Blocks are taken by what they gain. One counts only with what those taken before have left, so no way to find blocks
needs to know of the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.block import Block
from eroica.diagnosis.frames import HALF, LARGE_PART
from eroica.diagnosis.helpers import find_helpers, find_lock_holders
from eroica.diagnosis.labels import NO_FAULT, PLANNED, UNKNOWN, label_of
from eroica.diagnosis.neighbors import find_process
from eroica.diagnosis.operators import held_share
from eroica.diagnosis.outliers import FEW_ITERATIONS
from eroica.diagnosis.recordings import is_believed
from eroica.diagnosis.search import COLLECTIONS_GAIN, HOLDS, LEAST_DIFFERENCE, find_blocks
from eroica.diagnosis.setup import find_setting
from eroica.diagnosis.view import View
from eroica.localize.simulate import Removal, most_held, share_gains, simulated_gain
from eroica.model.shares import percent
from eroica.model.window import SLOWER

Floats = NDArray[np.float64]
#: A recording's iterations are too few to tell a gain of this from noise.
LEAST_DOUBTED = 0.06
#: In a job that nobody finds slow functions differ by so much of the iteration between windows.
LEAST_CHANGE = 0.08
#: A block on some workers is surer than one on all in the same rows: least agreement and strength for that.
_SURE_AGREEMENT, _STRONGER = 0.7, 1.5
#: Causes that a process beside the job may have brought about.
_BY_NEIGHBORS = frozenset({"cpu-contention", "compute-slow", "host-bound", UNKNOWN})
#: In so few iterations, what has this share of the standard errors asked for otherwise is worth a doubt.
_LENIENT = 1 / 3


class Cause(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A block that counts.

    Attributes:
        block: The block.
        cause: Its slug in the catalog.
        gain: Share of the iteration that its removal saves, 0-1.
        probability: That it is real and named rightly, 0-1 (`gate`).
    """

    block: Block
    cause: str
    gain: float
    probability: float = 1.0

    @property
    def weight(self) -> float:
        """The gain; half of it for what takes longer everywhere."""
        return self.gain * (HALF if self.block.is_general else 1.0)


class Weighed(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A cause that was considered and not named.

    Attributes:
        cause: The cause.
        decision: Why it is not named, a clause.
        is_doubted: Only because a recording holds too few iterations.
    """

    cause: Cause
    decision: str
    is_doubted: bool = False


def find_causes(view: View) -> tuple[list[Cause], list[Weighed]]:
    """Return the causes in order of falling weight, and what was considered besides."""
    blocks = _settled(view, [*find_helpers(view), *find_lock_holders(view), *find_blocks(view)])
    named = [one for block in blocks if (one := _named(view, block)) is not None]
    ranked = _weighed(view, _joined(named))
    causes, weighed = _account(view, [one for one in ranked if is_believed(view, one.block)])
    few = f"{view.iterations} iterations are too few to be sure of it"
    doubted = [one for one in ranked if not is_believed(view, one.block)]
    if not causes and view.iterations <= FEW_ITERATIONS and view.strictness == 1:
        lenient, _ = find_causes(View(view.suspects, view.context, view.settings, _LENIENT))
        large = sorted((one for one in lenient if one.gain >= LEAST_DOUBTED), key=lambda one: -one.weight)
        doubted = [*large, *doubted]
    weighed += [Weighed(cause=one, decision=few, is_doubted=True) for one in doubted]
    settled = settle_gains(view, causes)
    return sorted(settled, key=lambda one: one.cause == PLANNED), weighed  # faults come first


def _settled(view: View, blocks: Sequence[Block]) -> list[Block]:
    """Drop blocks whose time a deeper cell or a surer block holds, and guesses where enough is measured."""
    gains = {
        id(one): one.gain if one.gain is not None else simulated_gain(view.fleet, one.removed_us) for one in blocks
    }

    def is_beaten(block: Block) -> bool:
        for other in blocks:
            share = gains[id(other)] / max(gains[id(block)], 1e-9)
            same = other.workers == block.workers and other.scope == block.scope and block.cell == "operators"
            if same and set(other.rows) < set(block.rows) and share >= HOLDS:
                return True  # a deeper cell, while the name of all operators says less
            if block.scope == "all" and block.reference != "peers" and other.scope == "some":
                is_sure = (other.agreement or 0.0) >= _SURE_AGREEMENT and other.strength >= _STRONGER * block.strength
                is_sure &= share >= LARGE_PART and not set(other.rows).isdisjoint(block.rows)
                if is_sure or (other.cell == "process" and share >= HALF):
                    return True
        return False

    return [block for block in blocks if not is_beaten(block)]


def _named(view: View, block: Block) -> Cause | None:
    """Return a block with its cause, its culprit found; None if it is no fault."""
    block = _by_caller(block)
    cause = label_of(block, view.is_slow or view.fleet.has_accelerator)
    if cause == NO_FAULT:
        return None
    if block.culprit is None and block.scope != "rotating":
        culprit = find_process(view, block) if cause in _BY_NEIGHBORS else None
        culprit = culprit or find_setting(view, block, cause)
        if culprit is not None:
            block = msgspec.structs.replace(block, culprit=culprit)
            cause = label_of(block, view.is_slow or view.fleet.has_accelerator)
    return Cause(block=block, cause=cause, gain=0.0)


def _by_caller(block: Block) -> Block:
    """Name the user's function that calls the operators, or the launches, of a block.

    A block whose operators only run more often becomes one of Python, if the function hardly called them before.
    """
    caller = block.facts.caller
    if caller is None or block.cell not in ("operators", "launches"):
        return block
    focus = msgspec.structs.replace(caller.focus, functions=block.rows)
    if block.cell == "launches":
        return msgspec.structs.replace(block, focus=focus)
    is_uneven = block.scope == "some" and not block.facts.has_more_data
    more_work = (UNKNOWN, "load-imbalance") if is_uneven else (UNKNOWN,)
    if label_of(block, True) not in more_work or caller.usual_us > caller.own_us / 3:
        return block
    return msgspec.structs.replace(block, cell="python", focus=focus)


def _joined(named: Sequence[Cause]) -> list[Cause]:
    """Join causes that name the same function on the same workers: its own frames, and the operators that it calls."""
    kept: dict[object, Cause] = {}
    for one in sorted(named, key=lambda one: -one.block.excess_us):
        block = one.block
        same = (one.cause, block.focus.label, block.workers, block.scope, block.reference, block.gain is None)
        first = kept.get(same)
        if first is None or block.gain is not None or not set(block.rows).isdisjoint(first.block.rows):
            kept[same if first is None else one] = one
            continue
        both = msgspec.structs.replace(
            first.block,
            rows=(*first.block.rows, *block.rows),
            removed_us=first.block.removed_us + block.removed_us,
            mean_us=first.block.mean_us + block.mean_us,
            reference_us=first.block.reference_us + block.reference_us,
        )
        kept[same] = msgspec.structs.replace(first, block=both)
    return list(kept.values())


def _weighed(view: View, named: Sequence[Cause]) -> list[Cause]:
    """Return the causes with their gains, each with and beside the others, in order of falling weight."""
    inside = [one for one in named if one.block.gain is None]
    removed = [Removal(one.block.removed_us, _held(view, one.block)) for one in inside]
    gains = share_gains(view.fleet, removed)
    found = [msgspec.structs.replace(one, gain=gain) for one, gain in zip(inside, gains, strict=True)]
    found += [msgspec.structs.replace(one, gain=one.block.gain) for one in named if one.block.gain is not None]
    return sorted(found, key=lambda one: -one.weight)


def _held(view: View, block: Block) -> Floats | None:
    """Return the share of the time in which stopped processes hold up transfers; None for other blocks. float64 [W]."""
    if block.cell != "process" or view.fleet.has_accelerator:
        return None
    return np.where(np.isin(np.arange(view.workers), block.workers), held_share(view.fleet), 0.0)


def _account(view: View, ranked: Sequence[Cause]) -> tuple[list[Cause], list[Weighed]]:
    """Take causes by weight, each with what those before have left."""
    taken: list[Cause] = []
    refused: list[Weighed] = []
    booked_WI, held_W, gained = np.zeros_like(view.fleet.iteration_us), None, 0.0
    for one in ranked:
        block, why = one.block, ""
        least = least_gain(view, block)
        same = next((other for other in taken if is_same_time(block, other)), None)
        if one.gain < least:
            why = f"it gains less than the {percent(least)} from which it counts"
        elif same is not None:
            why = f"{_name(same)} tells the same time"
        elif block.gain is None:
            together = booked_WI + block.removed_us
            most_W = most_held([held_W, _held(view, block)])
            adds = simulated_gain(view.fleet, together, most_W) - gained
            if taken and adds < (view.settings.beta_gate if view.fleet.has_accelerator else view.settings.min_gain):
                why = f"beside {_name(taken[0])} it gains nothing more"
            else:
                booked_WI, held_W, gained = together, most_W, gained + adds
        if why:
            refused.append(Weighed(cause=one, decision=why))
        else:
            taken.append(one)
    return taken, refused


def least_gain(view: View, block: Block) -> float:
    """Return the gain from which a block counts. It is higher for a CPU job that nobody finds slow."""
    if view.fleet.has_accelerator and block.cell == "python" and block.reference == "expectation":
        return view.settings.beta_gate  # the paper's 1 %
    least = max(view.settings.min_gain, COLLECTIONS_GAIN if block.cell == "collections" else 0.0)
    if view.is_slow or view.is_trace or view.fleet.has_accelerator:
        return least
    of_peers = LEAST_DIFFERENCE if block.cell == "python" else 0.0
    return max(least, {"baseline": LEAST_CHANGE, "peers": of_peers, "expectation": 0.0}[block.reference])


def is_same_time(block: Block, other: Cause) -> bool:
    """Return True if a cause tells the time of a block, too, or explains it.

    It does if it shares rows on workers that overlap. A lack of cores, a slow processor, a held process, or a
    thread with the interpreter lock makes everything of its workers slower; links stand beside each other.
    """
    one = other.block
    if block.workers and one.workers and set(block.workers).isdisjoint(one.workers):
        return False
    if block.culprit is not None and one.culprit is not None and block.culprit.kind == one.culprit.kind == "link":
        return set(block.workers) == set(one.workers)
    kind = one.culprit.kind if one.culprit is not None else ""
    explains = one.cell == "process" or kind in ("helpers", "thread") or other.cause == "cpu-contention"
    explains |= other.cause == "compute-slow" and block.cell in ("python", "launches", "memory", "collections")
    within = not block.workers or not one.workers or set(block.workers) <= set(one.workers)
    return (explains and within) or not set(block.rows).isdisjoint(one.rows)


def _name(cause: Cause) -> str:
    return f"{cause.cause} ({cause.block.focus.label})"


def growth_of(view: View) -> tuple[float, float]:
    """Return the growth of the iteration as a share of itself, where somebody finds the job slow; else 0.

    Returns:
        Inside windows, from the baseline to this one; and as the job itself saw it, outside of windows.
    """
    before = view.baseline_us
    if view.is_trace or not view.is_slow or not before or view.iteration_us <= 0:
        return 0.0, 0.0
    inside = max(1 - before / view.iteration_us, 0.0)
    current_s = view.context.window.current_iteration_s
    told = view.slowdown_us / (current_s * 1e6) if current_s and view.shows_slowdown else inside
    return inside, told


def settle_gains(view: View, causes: Sequence[Cause]) -> list[Cause]:
    """Set the first cause's gain to the growth that no other cause accounts for, if it accounts for half of it.

    The replay knows nothing of what hangs on a cause: stages that wait in turn, threads that find their cores cold.
    """
    inside, growth = growth_of(view)
    if not causes or inside <= 0:
        return list(causes)
    first, block = causes[0], causes[0].block
    seen = max(first.gain, min(block.excess_us / max(view.iteration_us, 1e-9), inside))
    rest = [msgspec.structs.replace(one, gain=min(one.gain, inside)) for one in causes[1:]]
    share = growth - sum(one.gain for one in rest)
    is_known = block.gain is not None and view.context.window.purpose not in SLOWER
    if is_known or first.gain >= share or seen < HALF * max(inside, growth / 2):
        return [first, *rest]
    return [msgspec.structs.replace(first, gain=share), *rest]


def explained_us(view: View, causes: Sequence[Cause]) -> float:
    """Return what all causes together account for: their gains, or the added time of those of all workers."""
    return sum(max(one.gain * view.iteration_us, _added_us(one)) for one in causes)


def _added_us(cause: Cause) -> float:
    block = cause.block
    if block.reference == "expectation":
        return block.mean_us
    return max(block.excess_us, 0.0) if block.agreement is None else 0.0
