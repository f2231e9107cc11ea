"""The chain itself: patterns of one window to its verdict, by pure functions in order."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import msgspec

from eroica import __version__
from eroica.diagnosis import WindowContext, diagnose
from eroica.diagnosis.cells import reading_of
from eroica.engine import Engine, choose_engine
from eroica.errors import InputError, UsageError
from eroica.localize import localize
from eroica.localize.fleet import leave_out_damaged
from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Cost, Coverage, IterationTimes, Verdict, VerdictWindow
from eroica.model.window import Window
from eroica.settings import Settings
from eroica.wire.codec import encode_record

#: More workers than any job has: a trace that says so is wrong.
_MOST_WORKERS = 1_000_000
#: Encoding a pattern only to count its bytes takes a millisecond.
_MOST_ENCODED = 256
_ALL_THE_SAME = (
    "Nothing is found without the baseline window, in which the job may not have been healthy: it is compared with all "
    "the same, and only what came after it is seen."
)


def analyze(  # noqa: PLR0913 - all that a verdict rests on
    job: str,
    window: Window,
    patterns: Sequence[WorkerPattern],
    baseline: Sequence[WorkerPattern] = (),
    expected_workers: int | None = None,
    notes: Sequence[str] = (),
    settings: Settings = Settings(),  # noqa: B008 (frozen)
    left_out: Sequence[int] = (),
    *,
    doubted: Sequence[WorkerPattern] = (),
) -> Verdict:
    """Localize and diagnose one window.

    Args:
        job: Name of the job.
        window: What was asked for.
        patterns: What the workers handed over; more than one of a rank: the last counts. May be empty.
        baseline: The same of the job's baseline window, if there is one.
        expected_workers: Workers of the job; by default the largest world size that a pattern states.
        notes: What the reader should know beside the workers' own notes.
        settings: All tunables.
        left_out: Workers that handed over what cannot be compared; the notes say why.
        doubted: Patterns of a baseline window of which it is not sure that the job was healthy in it. Compared with
            where there is no `baseline` and nothing is found without, and only for a cause.

    Returns:
        The verdict; "undetermined" where the patterns say too little. Equal input gives an equal verdict on any
        engine, but for `cost`.

    Raises:
        UsageError: In recorded traces: the setting `roles` names ranks that they do not have. Or the setting `engine`
            names none.
    """
    start = perf_counter()
    engine = choose_engine(settings.engine, len(patterns))
    latest = list({pattern.worker.global_rank: pattern for pattern in patterns}.values())
    expected, doubts = count_workers(latest, expected_workers, window)
    compared = [pattern for pattern in latest if pattern.has_trace]
    context = WindowContext(
        job=job,
        window=window,
        expected_workers=expected,
        missing=_missing(compared, expected),
        left_out=tuple(left_out),
        notes=(*notes, *doubts),
        cost=total_cost(latest),
    )

    def judge(past: Sequence[WorkerPattern], about: WindowContext) -> Verdict:
        try:
            return _judge(compared, past, about, settings, engine)
        except (InputError, UsageError) as error:
            if isinstance(error, UsageError) and window.kind == "trace":
                raise  # whoever reads files sits in front of them; a running job has asked long ago
            return _undetermined(about, str(error))

    verdict = judge(baseline, context)
    second = None
    if doubted and not baseline and verdict.verdict == "undetermined" and verdict.cause is None:
        again = msgspec.structs.replace(context, notes=(*context.notes, _ALL_THE_SAME), is_past_doubted=True)
        second = judge(doubted, again)
    if second is not None and second.cause is not None:
        verdict = _noted(second, 0, doubted[0].window_id)
    elif window.kind != "trace":
        verdict = _noted(verdict, baseline[0].window_id if baseline else 0)
    seconds = round(perf_counter() - start, 4)
    cost = msgspec.structs.replace(verdict.cost, localize_s=seconds, engine=engine.name, engine_why=engine.why)
    return msgspec.structs.replace(verdict, cost=cost)


def _noted(verdict: Verdict, trusted: int, doubted: int = 0) -> Verdict:
    """Return the verdict with the number of the baseline window that it was compared with."""
    if verdict.window is None:
        return verdict
    told = msgspec.structs.replace(verdict.window, compared_with=trusted, doubted=doubted)
    return msgspec.structs.replace(verdict, window=told)


def _judge(
    patterns: Sequence[WorkerPattern],
    baseline: Sequence[WorkerPattern],
    context: WindowContext,
    settings: Settings,
    engine: Engine,
) -> Verdict:
    """Judge a window; if damaged patterns prevent that, judge the others.

    Looking through all series of all workers first would cost more than the verdict.
    """
    try:
        return diagnose(localize(patterns, baseline, settings, reading_of), context, settings)
    except (InputError, ValueError, IndexError):  # what series that do not fit together end in
        kept, damaged = leave_out_damaged(patterns, engine)
        past, _ = leave_out_damaged(baseline, engine)
        if len(kept) == len(patterns) and len(past) == len(baseline):
            raise
    missing = _missing(kept, context.expected_workers)
    context = msgspec.structs.replace(context, missing=missing, notes=(*context.notes, *damaged))
    return diagnose(localize(kept, past, settings, reading_of), context, settings)


def _missing(patterns: Sequence[WorkerPattern], expected: int) -> tuple[int, ...]:
    """Return the ranks without a pattern."""
    reported = {pattern.worker.global_rank for pattern in patterns}
    return tuple(rank for rank in range(expected) if rank not in reported)


def count_workers(patterns: Sequence[WorkerPattern], stated: int | None, window: Window) -> tuple[int, tuple[str, ...]]:
    """Return the number of workers of the job, and a note if a stated number is not believed.

    A recorded trace may state any number, or none: its rank then says how many there are at least.
    """
    worlds = [pattern.worker.world_size for pattern in patterns]
    if window.kind == "trace":
        worlds.append(stated or 0)
        worlds += [pattern.worker.global_rank + 1 for pattern in patterns]
    believed = [world for world in worlds if world <= _MOST_WORKERS]
    doubts = (f"A trace names {max(worlds)} workers, which is not believed.",) if len(believed) < len(worlds) else ()
    named = 0 if window.kind == "trace" else stated or 0
    return max(named, len(patterns), *believed, 0), doubts


def total_cost(patterns: Sequence[WorkerPattern]) -> Cost:
    """Return the cost of capturing and summarizing: times of the slowest worker, bytes of all."""
    return Cost(
        window_stall_s=round(max((pattern.stall_s for pattern in patterns), default=0.0), 4),
        summarize_s=round(max((pattern.summarize_s for pattern in patterns), default=0.0), 4),
        raw_bytes=sum(pattern.raw_bytes for pattern in patterns),
        pattern_bytes=_pattern_bytes(patterns),
    )


def _pattern_bytes(patterns: Sequence[WorkerPattern]) -> int:
    """Return the size of all patterns on the wire; of more than `_MOST_ENCODED`, from a sample."""
    asked = patterns[:: max(-(-len(patterns) // _MOST_ENCODED), 1)]
    size = sum(len(encode_record(pattern)) for pattern in asked)
    return round(size * len(patterns) / len(asked)) if asked else 0


def _undetermined(context: WindowContext, why: str) -> Verdict:
    """Return the verdict on a window that cannot be judged."""
    window = context.window
    if "no iteration in common" in why:
        why += "; record the same steps on all ranks" if window.kind == "trace" else "; take a longer window"
    stated = window.baseline_iteration_s, window.current_iteration_s
    baseline_ms, current_ms = (None if value is None else value * 1e3 for value in stated)
    return Verdict(
        eroica_version=__version__,
        job=context.job,
        verdict="undetermined",
        summary=f"Too little to tell: {why}.",
        window=VerdictWindow(
            kind=window.kind,
            first_iteration=window.first_iteration,
            last_iteration=window.last_iteration,
            reason=window.reason,
        ),
        iteration=IterationTimes(baseline_ms=baseline_ms, current_ms=current_ms),
        coverage=Coverage(
            workers_expected=context.expected_workers,
            workers_reported=context.expected_workers - len(context.missing),
            missing=context.missing,
            notes=context.notes,
        ),
        cost=context.cost,
    )
