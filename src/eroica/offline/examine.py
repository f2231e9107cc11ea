"""Everything that lies under some paths -> one verdict for each recording in it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import msgspec

from eroica.errors import EroicaError, InputError, UsageError
from eroica.model.pattern import WorkerPattern
from eroica.model.trace import Again, TraceSummary
from eroica.model.verdict import Verdict
from eroica.model.window import Window
from eroica.model.words import line
from eroica.offline.behavior import find_communication
from eroica.offline.comparable import choose
from eroica.offline.discover import Discovery, Source, discover
from eroica.offline.jobs import Recording, Span, group
from eroica.offline.long_iterations import with_long_iterations
from eroica.offline.part import Part
from eroica.offline.reading import Progress, Silent, read_all
from eroica.offline.saved import parts_of_saved
from eroica.offline.soundness import damage_note, found_note, how_found, left_out_note, temper
from eroica.offline.standstills import parts_of_dumps
from eroica.pipeline import analyze
from eroica.settings import Settings

_MOST_OTHERS = 12
_MOST_LOSSES = 8
_RANKS = "{0}: the global rank is neither in the trace nor in the name; say where it stands in the path with a \
regular expression of one group, --rank-regex 'gpu(\\d+)' (in Python: rank_regex=...)"


@dataclass(frozen=True)
class Examination:
    """What lies under the paths.

    Attributes:
        parts: All recordings, the one with the greatest cause first; at least one.
        losses: What could not be used, a sentence each.
        notes: What else was noticed on the way.
    """

    parts: tuple[Part, ...]
    losses: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The verdict on the first; what else was found stands last in its notes, a line each."""
        others = self.parts[1:]
        lines = [f"also here: {part.title}: {_one_line(part.verdict)}" for part in others[:_MOST_OTHERS]]
        if len(others) > _MOST_OTHERS:
            lines.append(f"also here: {len(others) - _MOST_OTHERS} more recordings")
        return self._first_with(lines)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts on all; what could not be used stands in the notes of the first."""
        return self._first_with(()), *(part.verdict for part in self.parts[1:])

    def _first_with(self, lines: Sequence[str]) -> Verdict:
        verdict = self.parts[0].verdict
        notes = (*map(line, self.losses), *verdict.coverage.notes, *map(line, (*self.notes, *lines)))
        coverage = msgspec.structs.replace(verdict.coverage, notes=notes)
        return msgspec.structs.replace(verdict, coverage=coverage)


def _one_line(verdict: Verdict) -> str:
    summary = verdict.summary.rstrip(".")
    return summary if verdict.verdict in summary.lower() else f"{verdict.verdict}: {summary}"


def examine(
    paths: Sequence[str | PathLike[str]],
    settings: Settings,
    rule: re.Pattern[str] | None = None,
    progress: Progress | None = None,
) -> Examination:
    """Find, read, compare, diagnose.

    Args:
        paths: Files, folders, patterns.
        settings: All tunables.
        rule: Where the global rank stands in a path; the traces' own word comes first.
        progress: Is told how far reading is.

    Raises:
        UsageError: There is nothing there, or nobody knows the ranks.
        InputError: Nothing of it can be used.
    """
    found = discover(paths, rule, (progress or Silent()).look)
    problems: list[EroicaError] = []
    parts = _of_traces(found, settings, progress, problems)
    parts += parts_of_dumps(found.dumps, settings, problems)
    for path in found.saved:
        parts += parts_of_saved(path, settings, problems)
    if not parts:
        raise _combined(problems)
    parts.sort(key=_importance, reverse=True)
    return Examination(tuple(parts), _losses(problems), found.notes)


def read_spans(
    paths: Sequence[str | PathLike[str]],
    settings: Settings,
    rule: re.Pattern[str] | None = None,
    progress: Progress | None = None,
) -> tuple[tuple[Span, ...], tuple[str, ...]]:
    """The recordings among the trace files under some paths, without a diagnosis, and what could not be used.

    Raises:
        UsageError: There is nothing there, or nobody knows the ranks.
        InputError: Nothing of it can be used.
    """
    problems: list[EroicaError] = []
    found = discover(paths, rule, (progress or Silent()).look)
    spans = _spans(found, settings, progress, problems)
    if spans:
        return spans, _losses(problems)
    if problems:
        raise _combined(problems)
    if found.dumps:
        raise InputError(f"no profiler trace in {paths[0]}: Flight Recorder dumps say nothing about speed")
    raise UsageError(f"no profiler trace in {paths[0]}")


def _importance(part: Part) -> tuple[float, ...]:
    """Standstills first, then the greatest cause; without any, the recording that says most."""
    verdict = part.verdict
    causes = [finding for finding in verdict.findings if finding.role == "cause"]
    gain = max((finding.gain or 0.0 for finding in causes), default=0.0)
    words = {"blocked": 2.0, "slow": 1.0, "healthy": 0.0, "undetermined": 0.0}
    told, length = verdict.coverage.workers_reported, sum(pattern.duration_s for pattern in part.patterns)
    return words[verdict.verdict], gain, told, float(verdict.verdict == "healthy"), length


def _losses(problems: Sequence[EroicaError]) -> tuple[str, ...]:
    words = [f"left out: {problem}" for problem in problems[:_MOST_LOSSES]]
    more = [f"left out: {len(problems) - _MOST_LOSSES} more"] if len(problems) > _MOST_LOSSES else []
    return *words, *more


def _combined(problems: Sequence[EroicaError]) -> EroicaError:
    """One error for all: the first three in words."""
    if not problems:
        return InputError("nothing here can be used")
    if len(problems) == 1:
        return problems[0]
    words = "; ".join(str(problem) for problem in problems[:3])
    more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
    kind = UsageError if isinstance(problems[0], UsageError) else InputError
    return kind(f"nothing here can be used: {words}{more}")


# ---------------------------------------------------------------------- traces


def _of_traces(
    found: Discovery, settings: Settings, progress: Progress | None, problems: list[EroicaError]
) -> list[Part]:
    return [_part(span, found.traces, settings) for span in _spans(found, settings, progress, problems)]


def _spans(
    found: Discovery, settings: Settings, progress: Progress | None, problems: list[EroicaError]
) -> tuple[Span, ...]:
    summaries = read_all(found.traces, settings, progress)
    problems += [InputError(summary.error) for summary in summaries if summary.pattern is None]
    recordings = [Recording(one.place, summary) for one, summary in zip(found.traces, summaries, strict=True)]
    grouping = group(recordings)
    problems += [UsageError(_RANKS.format(files)) for files in grouping.unranked]
    problems += _contradictions(found.traces, summaries)
    return tuple(_compared(span, found.traces, settings) for span in grouping.spans)


def _compared(span: Span, sources: Sequence[Source], settings: Settings) -> Span:
    """The workers that can be compared, on the iterations that all of them hold whole; those are read again."""
    choice = choose(span.summaries)
    world = max((*(one.world_size for one in span.summaries), *(one.rank + 1 for one in span.summaries)))
    kept, notes = choice.kept, choice.notes
    if choice.only:
        kept = _read_again(kept, {rank: Again(only=only) for rank, only in choice.only.items()}, sources, settings)
    found = find_communication(kept)
    read_as = {one.rank: Again(only=choice.only.get(one.rank), communication=found) for one in kept}
    if found:
        kept = _read_again(kept, read_as, sources, settings)
        notes = (*notes, found_note(found))
    kept = tuple(_with_loss(one, choice.lost.get(one.rank, "")) for one in kept)
    left = [left_out_note(rank, why) for rank, why in sorted(choice.left_out.items())]
    damaged = [damage_note(one) for one in kept if one.held.damage]
    notes = (*damaged, *left, *notes, *span.notes)
    return replace(span, summaries=kept, read_as=read_as, notes=notes, left_out=choice.left_out, world_size=world)


def _with_loss(one: TraceSummary, lost: str) -> TraceSummary:
    """With kernels that were lost among what is damaged."""
    if not lost:
        return one
    return msgspec.structs.replace(one, held=msgspec.structs.replace(one.held, damage=(*one.held.damage, lost)))


def _read_again(
    kept: Sequence[TraceSummary], wanted: Mapping[int, Again], sources: Sequence[Source], settings: Settings
) -> tuple[TraceSummary, ...]:
    """The summaries with those read anew that are wanted so; one that fails now stays as it was."""
    by_path = {(str(source.path), source.process): source for source in sources}
    again = [one for one in kept if one.rank in wanted]
    read = read_all(
        [by_path[one.path, one.process] for one in again], settings, again=[wanted[one.rank] for one in again]
    )
    second = {
        before.rank: msgspec.structs.replace(
            after,
            rank=before.rank,
            pattern=_of_rank(after.pattern, before.rank),
            rest=_of_rank(after.rest, before.rank) if after.rest is not None else None,
        )
        for before, after in zip(again, read, strict=True)
        if after.pattern is not None
    }
    return tuple(second.get(one.rank, one) for one in kept)


def _of_rank(pattern: WorkerPattern, rank: int) -> WorkerPattern:
    return msgspec.structs.replace(pattern, worker=msgspec.structs.replace(pattern.worker, global_rank=rank))


def _contradictions(sources: Sequence[Source], summaries: Sequence[TraceSummary]) -> list[EroicaError]:
    """Names that state another rank than the trace."""
    pairs = zip(sources, summaries, strict=True)
    wrong = [(a.path.name, a.rank, b.rank) for a, b in pairs if b.pattern is not None and 0 <= a.rank != b.rank]
    if not wrong:
        return []
    name, named, said = wrong[0]
    more = f" (and {len(wrong) - 1} more like it)" if len(wrong) > 1 else ""
    return [InputError(f"the name of {name}, which says worker {named}: the trace says worker {said}{more}")]


def _part(span: Span, files: Sequence[Source], settings: Settings) -> Part:
    patterns = _patterns(span.summaries)
    window = window_of(span)
    expected = max(span.world_size, *(summary.world_size for summary in span.summaries)) or None

    def judge(now: Sequence[WorkerPattern], before: Sequence[WorkerPattern] = ()) -> Verdict:
        return analyze(
            span.job,
            window,
            now,
            before,
            expected_workers=expected,
            notes=span.notes,
            settings=settings,
            left_out=tuple(span.left_out),
        )

    def read_apart(numbers: Sequence[int]) -> tuple[tuple[WorkerPattern, ...], tuple[WorkerPattern, ...]]:
        wanted = {rank: msgspec.structs.replace(again, numbers=tuple(numbers)) for rank, again in span.read_as.items()}
        read = _read_again(span.summaries, wanted, files, settings)
        return _patterns(read), tuple(one.rest for one in read if one.rest is not None)

    verdict = with_long_iterations(judge(patterns), patterns, read_apart, judge, settings.min_gain)
    verdict = temper(verdict, span)
    sources = {summary.rank: str(Path(summary.path).absolute()) for summary in span.summaries}
    return Part(span.job, span.label, window, verdict, patterns, sources=sources)


def _patterns(summaries: Sequence[TraceSummary]) -> tuple[WorkerPattern, ...]:
    return tuple(summary.pattern for summary in summaries if summary.pattern is not None)


def window_of(span: Span) -> Window:
    """What a span recorded, as a window."""
    patterns = _patterns(span.summaries)
    count = len(patterns) + len(span.left_out)
    files = "1 trace file" if count == 1 else f"{count} trace files"
    return Window(
        window_id=1,
        kind="trace",
        purpose="trace",
        reason=f"asked to diagnose {files}" + (f", {span.label}" if span.label else "") + f"; {how_found(span)}",
        first_iteration=min(pattern.first_iteration for pattern in patterns),
        last_iteration=max(pattern.last_iteration for pattern in patterns),
    )
