"""Workers that ended before they had saved their trace: their iterations and their stacks are known, no function is.

Without a trace a wait in a collective looks like work, so nobody is accused: they count as reported, not as compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import msgspec

from eroica.diagnosis.frames import is_own_frame, split_frame
from eroica.diagnosis.words import format_ms, name_workers
from eroica.model.pattern import WorkerPattern
from eroica.model.shares import percent
from eroica.model.verdict import Verdict

#: Workers of one function that are told apart; a job does the same on all, or two things.
_MOST_PLACES = 2


def tell_untraced(verdict: Verdict, untraced: Sequence[WorkerPattern], baseline_s: float | None) -> Verdict:
    """The verdict on the others, with what is known of these; an undetermined one where there are no others.

    Args:
        verdict: On the workers that handed over a trace, possibly none.
        untraced: The others, at least one.
        baseline_s: Mean iteration when the job was healthy, seconds; None if unknown.
    """
    ranks = sorted(pattern.worker.global_rank for pattern in untraced)
    before = verdict.coverage
    who = f"{name_workers(ranks, capital=True)} ended before {'it' if len(ranks) == 1 else 'they'} had saved a trace"
    times = _times(untraced, baseline_s)
    coverage = msgspec.structs.replace(
        before,
        workers_reported=before.workers_reported + len(ranks),
        missing=tuple(rank for rank in before.missing if rank not in set(ranks)),
        notes=(*before.notes, f"{who}; {times}."),
    )
    verdict = msgspec.structs.replace(verdict, coverage=coverage)
    if before.workers_reported:
        return verdict
    return msgspec.structs.replace(
        verdict,
        summary="Too little to tell: the training ended before any worker had saved its trace. "
        f"{times[0].upper()}{times[1:]}{_places(untraced)}.",
        window=verdict.window
        and msgspec.structs.replace(
            verdict.window,
            first_iteration=min(pattern.first_iteration for pattern in untraced),
            last_iteration=max(pattern.last_iteration for pattern in untraced),
            duration_s=round(max(pattern.duration_s for pattern in untraced), 3),
        ),
        iteration=msgspec.structs.replace(verdict.iteration, current_ms=round(_iteration_us(untraced) / 1e3, 3)),
    )


def _iteration_us(patterns: Sequence[WorkerPattern]) -> float:
    """Mean iteration of the median worker, microseconds."""
    return 1e6 * median(one.duration_s / max(one.last_iteration - one.first_iteration, 1) for one in patterns)


def _times(patterns: Sequence[WorkerPattern], baseline_s: float | None) -> str:
    before = f", {format_ms(baseline_s * 1e6)} when the job was healthy" if baseline_s else ""
    return f"iterations took {format_ms(_iteration_us(patterns))}{before}"


def _places(patterns: Sequence[WorkerPattern]) -> str:
    """Where the workers' stacks stood longest, by the user's innermost function."""
    who: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for pattern in patterns:
        seconds: dict[str, float] = defaultdict(float)
        for row in pattern.functions:
            own = [frame for frame in row.key.stack if is_own_frame(frame)]
            if own and row.key.thread == "training":
                seconds[split_frame(own[-1]).label] += row.critical_s
        if seconds:
            place = max(seconds, key=lambda name: seconds[name])
            who[place].append((pattern.worker.global_rank, seconds[place] / pattern.duration_s))
    most = sorted(who, key=lambda place: -len(who[place]))[:_MOST_PLACES]
    told = [
        f"{percent(median(share for _, share in who[place]))} of the time in {place}"
        + ("" if len(who) == 1 else f" on {name_workers(sorted(rank for rank, _ in who[place]))}")
        for place in most
    ]
    return f"; by their stacks they spent {' and '.join(told)}" if told else ""
