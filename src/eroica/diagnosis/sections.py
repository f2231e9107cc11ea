"""Parts of a verdict beside its findings: waits, the causes considered, and what an iteration is made of.

Array suffixes: W workers, E edges. Times are microseconds until they are written down.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from eroica.diagnosis.block import Block
from eroica.diagnosis.frames import MOST, is_own_frame, split_frame
from eroica.diagnosis.outliers import LEAST_AGREEMENT
from eroica.diagnosis.selection import Cause, Weighed
from eroica.diagnosis.view import View
from eroica.diagnosis.words import FEW
from eroica.localize import Suspects
from eroica.localize.excess import SURE
from eroica.localize.ledger import DirectWaits
from eroica.localize.rule import flag_functions
from eroica.model.pattern import ASIDE, LAUNCHING, FunctionKey, WorkerPattern
from eroica.model.shares import percent
from eroica.model.verdict import NAMED, Breakdown, BreakdownItem, FindingFunction, Hypothesis, WaitEdge, Waits
from eroica.summarize.collectives import collective_kind

Floats = NDArray[np.float64]
#: Workers that are named in each list.
MOST_NAMED = 64
#: Pairs of workers that are listed.
MOST_EDGES = 200


def read_waits(suspects: Suspects) -> Waits | None:
    """Read the waiting per iteration; None where nobody was seen to wait for anybody."""
    arrivals, ranks = suspects.arrivals, suspects.fleet.ranks
    iterations = arrivals.waited_us.shape[1]
    total_us = float(arrivals.waited_us.sum())
    if not arrivals.executions or not iterations or total_us <= 0:
        return None
    return Waits(
        total_ms=_ms(total_us / iterations),
        withheld_ms=_ms(arrivals.withheld_us / iterations),
        waited_ms=_largest(arrivals.waited_us.mean(axis=1), ranks),
        blamed_ms=_largest(arrivals.blamed_us.mean(axis=1), ranks),
        edges=_edges(arrivals.direct, ranks, iterations),
        workers=len(ranks),
    )


def _ms(value_us: float) -> float:
    return round(value_us / 1e3, 4)


def _largest(value_W: Floats, ranks: Sequence[int]) -> dict[int, float]:
    """Return the milliseconds of the workers with most, in falling order."""
    order = np.argsort(-value_W, kind="stable")[:MOST_NAMED]
    named = {ranks[worker]: _ms(float(value_W[worker])) for worker in order.tolist()}
    return {rank: value for rank, value in named.items() if value > 0}


def _edges(direct: DirectWaits, ranks: Sequence[int], iterations: int) -> tuple[WaitEdge, ...]:
    """List the largest edges in falling order."""
    listed = (
        WaitEdge(
            waiter=ranks[int(direct.waiter[edge])],
            on=ranks[int(direct.on[edge])],
            per_iteration_ms=_ms(float(direct.wait_us[edge]) / iterations),
        )
        for edge in np.argsort(-direct.wait_us, kind="stable")[:MOST_EDGES].tolist()
    )
    return tuple(edge for edge in listed if edge.per_iteration_ms > 0)


# --- the causes that were considered ---


_REFERENCES = {
    "peers": "compared with its peers",
    "baseline": "compared with the job's own {}",
    "expectation": "compared with what is expected only",
}


def list_hypotheses(view: View, causes: Sequence[Cause], weighed: Sequence[Weighed]) -> tuple[Hypothesis, ...]:
    """Return what was considered, at most twelve: the causes named, then others by falling gain."""
    others = sorted(weighed, key=lambda one: -one.cause.gain)
    found: dict[object, Hypothesis] = {}
    for cause, decision in [*((cause, NAMED) for cause in causes), *((one.cause, one.decision) for one in others)]:
        identity = cause.cause, cause.block.scope, cause.block.workers, cause.block.focus.label
        if identity not in found and len(found) < 12:
            found[identity] = _hypothesis(view, cause, decision)
    return tuple(found.values())


def _hypothesis(view: View, cause: Cause, decision: str) -> Hypothesis:
    """Return a cause with the signs that every one needs: a sure excess, a reference, others that wait, a function."""
    block, met, missing, unknown = cause.block, list[str](), list[str](), list[str]()
    sure = f"{min(block.strength, 999):.1f} standard errors above that over {view.iterations} iterations"
    (met if block.strength >= SURE else missing).append(sure)
    (unknown if block.reference == "expectation" else met).append(_REFERENCES[block.reference].format(view.past_window))
    if block.agreement is not None:
        seen = f"the others wait for {percent(block.agreement)} of it"
        (met if block.agreement >= LEAST_AGREEMENT else missing).append(seen)
    held = f"the function holds {percent(block.focus.share)} of it" if block.focus.functions else ""
    (met if held and block.focus.share >= MOST else missing).append(held or "no function accounts for it")
    met += filter(None, [_flagged(view, block)])
    unknown += ["which kind of cause it is"] if cause.cause == "unknown" else []
    return Hypothesis(
        cause=cause.cause,
        function=block.focus.label,
        workers=tuple(view.fleet.ranks[worker] for worker in block.workers),
        scope=block.scope,
        gain=round(cause.gain, 4),
        decision=decision,
        met=tuple(met),
        missing=tuple(missing),
        unknown=tuple(unknown),
    )


def _flagged(view: View, block: Block) -> str:
    """Describe the candidate's row that the rule flags most clearly; "" if it flags none on most of the accused."""
    accused = {view.fleet.ranks[worker] for worker in block.workers}
    found = [
        row
        for row in flag_functions(view.suspects, (*block.rows, *block.focus.functions), view.settings)
        if not accused or len(accused.intersection(row.workers)) >= len(accused) / 2
    ]
    row = max(found, key=lambda row: (row.beta * row.distance, row.key), default=None)
    if row is None:
        return ""
    where = f"{row.key.name}, on the critical path for {percent(row.beta)} of the window"
    told = {"expectation": "{} more than its kind should be", "peers": "its pattern differs from {} of its peers'"}
    return f"equation 11 flags {where}: {told[row.why].format(percent(row.distance))}"


# --- what an iteration is made of ---


#: Parts of an iteration, in the order in which they are told.
PARTS = ("input", "forward", "backward", "optimizer", "communication", "waiting for peers", "idle device", "other")
#: Names of calls of collectives, the longer ones first; Python waits in them beside the span that is recorded.
_CALLS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "barrier", "gather", "scatter")


def break_down(view: View) -> Breakdown | None:
    """Return the parts of an iteration and its largest functions; None for a recording, and without iterations."""
    iteration_W = np.asarray([_iteration_us(one.duration_s, one) for one in view.fleet.patterns])
    if view.is_trace or not view.iterations or iteration_W.min() <= 0:
        return None
    shares_W = _parts(view, iteration_W)
    items = sorted(_items(view, iteration_W), key=lambda one: -one.most_gain)
    return Breakdown(
        iteration_ms=round(float(iteration_W.mean()) / 1e3, 3),
        shares={part: round(float(share_W.mean()), 4) for part, share_W in shares_W.items()},
        items=tuple(one for one in items[:FEW] if one.most_gain >= 0.02),
    )


def _parts(view: View, iteration_W: Floats) -> dict[str, Floats]:
    """Return the share of each part on each worker; what no function is known for is "other". float64 [W] each."""
    fleet, spent = view.fleet, defaultdict[str, Floats](lambda: np.zeros(view.workers))
    for row, key in enumerate(fleet.keys):
        part = "communication" if _collective(key) else "idle device" if key.name == LAUNCHING else str(key.phase)
        if key.thread not in ASIDE:
            spent[part] = spent[part] + fleet.critical_us[row] / iteration_W
    waited_W = view.suspects.arrivals.waited_us.mean(axis=1) / iteration_W
    spent["waiting for peers"] = np.minimum(waited_W, spent["communication"])
    spent["communication"] = spent["communication"] - spent["waiting for peers"]
    if fleet.has_accelerator:
        idle_us = [_iteration_us(pattern.idle_s, pattern) for pattern in fleet.patterns]
        spent["idle device"] = spent["idle device"] + np.asarray(idle_us) / iteration_W
    named = {part: spent[part] for part in PARTS if spent[part].any()}
    named["other"] = np.maximum(1 - sum((share_W for part, share_W in named.items() if part != "other"), 0.0), 0.0)
    return named


def _iteration_us(seconds: float, pattern: WorkerPattern) -> float:
    return 1e6 * seconds / max(pattern.last_iteration - pattern.first_iteration, 1)


def _collective(key: FunctionKey) -> str:
    """Return the kind of collective that a row is, or waits in as Python of torch's; "" for others."""
    if key.kind == "collective":
        return collective_kind(key.name) or key.name
    leaf = split_frame(key.stack[-1]) if key.kind == "python" and key.stack else None
    return next((call for call in _CALLS if leaf and leaf.file.startswith("torch/") and call in leaf.name), "")


def _items(view: View, iteration_W: Floats) -> Iterator[BreakdownItem]:
    """Yield functions, each with a bound on its gain: its share on the worker that spends most time in it.

    Without a collective its wait moves elsewhere, so its bound is the share on the worker that spends least.
    """
    fleet, groups = view.fleet, defaultdict[tuple[str, str, str], list[int]](list)
    for row, key in enumerate(fleet.keys):
        if key.thread not in ASIDE and fleet.critical_us[row].any():
            own = next((frame for frame in reversed(key.stack) if is_own_frame(frame)), key.name)
            call = _collective(key)
            groups[("collective", call, "") if call else (key.kind, own, "" if key.stack else key.phase)].append(row)
    for (kind, name, _), rows in groups.items():
        time_W = fleet.critical_us[rows].sum(axis=0)
        has_W = time_W >= time_W.max() / 2
        share_W = (time_W / iteration_W)[time_W > 0]
        rows.sort(key=lambda row: (bool(fleet.keys[row].stack), float(fleet.critical_us[row].sum())), reverse=True)
        first = fleet.keys[rows[0]]
        called = [frame for frame in first.stack if is_own_frame(frame)] if kind == "collective" else []
        yield BreakdownItem(
            function=FindingFunction(
                name=split_frame(name).name,
                kind="collective" if kind == "collective" else "other" if first.kind == "gc" else first.kind,
                stack=first.stack,
            ),
            workers=tuple(rank for rank, has in zip(fleet.ranks, has_W, strict=True) if has),
            phase=first.phase,
            caller=called[-1] if called else "",
            per_iteration_ms=round(float(time_W[has_W].mean()) / 1e3, 3),
            most_gain=round(min(float(share_W.min() if kind == "collective" else share_W.max()), 1.0), 4),
        )
