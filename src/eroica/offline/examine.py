"""Turn everything under some paths into one verdict for each recording in it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from eroica.archive.forget import SOURCES_FILE
from eroica.archive.load import looks_saved
from eroica.archive.store import Store, write_json
from eroica.errors import EroicaError, InputError, UsageError
from eroica.model.pattern import WorkerPattern
from eroica.model.trace import TraceSummary
from eroica.model.verdict import Verdict
from eroica.model.window import Window
from eroica.offline.discover import Discovery, Source, discover
from eroica.offline.jobs import Examination, Part, Span, group, of_rank
from eroica.offline.reading import read_all
from eroica.offline.saved import parts_of_saved
from eroica.offline.soundness import choose, damage_note, how_found, temper
from eroica.offline.standstills import parts_of_dumps
from eroica.pipeline import analyze
from eroica.settings import Settings, load_settings
from eroica.views.material import Material, gather
from eroica.views.page import build_report
from eroica.wire.codec import encode_record

_MOST_LOSSES = 8
_RANKS = "{0}: the global rank is neither in the trace nor in the name; say where it stands in the path with a \
regular expression of one group, --rank-regex 'gpu(\\d+)' (in Python: rank_regex=...)"


def reading_bar(wanted: bool = True) -> Progress:
    """Return a progress bar of reading on standard error; it is empty where that is no terminal or it is not wanted."""
    console = Console(stderr=True)
    columns = (BarColumn(bar_width=None), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    disable = not wanted or not console.is_terminal or console.is_dumb_terminal
    return Progress(TextColumn("reading"), *columns, console=console, transient=True, disable=disable)


def examine(
    paths: Sequence[str | PathLike[str]],
    settings: Settings,
    rule: re.Pattern[str] | None = None,
    bar: Progress | None = None,
) -> Examination:
    """Find, read, compare and diagnose everything under some paths.

    Args:
        paths: Files, folders, patterns.
        settings: All tunables.
        rule: Where the global rank stands in a path; the traces' own word comes first.
        bar: Shows how far reading is.

    Raises:
        UsageError: There is nothing there, or nobody knows the ranks.
        InputError: Nothing of it can be used.
    """
    found = discover(paths, rule)
    problems: list[EroicaError] = []
    parts = [_part(span, settings) for span in _spans(found, settings, bar, problems)]
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
    bar: Progress | None = None,
) -> tuple[tuple[Span, ...], tuple[str, ...]]:
    """Read the recordings under some paths without a diagnosis; also return what could not be used.

    Raises:
        UsageError: There is nothing there, or nobody knows the ranks.
        InputError: Nothing of it can be used.
    """
    problems: list[EroicaError] = []
    found = discover(paths)
    spans = _spans(found, settings, bar, problems)
    if spans:
        return spans, _losses(problems)
    if problems:
        raise _combined(problems)
    if found.dumps:
        raise InputError(f"no profiler trace in {paths[0]}: Flight Recorder dumps say nothing about speed")
    raise UsageError(f"no profiler trace in {paths[0]}")


def _importance(part: Part) -> tuple[float, ...]:
    """Return the sort key of a recording: standstills, then the gain of the cause, then how much it tells."""
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
    """Return one error for all problems; it quotes the first three."""
    if not problems:
        return InputError("nothing here can be used")
    if len(problems) == 1:
        return problems[0]
    words = "; ".join(str(problem) for problem in problems[:3])
    more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
    kind = UsageError if isinstance(problems[0], UsageError) else InputError
    return kind(f"nothing here can be used: {words}{more}")


# ---------------------------------------------------------------------- traces


def _spans(found: Discovery, settings: Settings, bar: Progress | None, problems: list[EroicaError]) -> tuple[Span, ...]:
    progress = bar or Progress(disable=True)
    task = progress.add_task("", total=sum(source.size for source in found.traces))
    summaries = read_all(found.traces, settings, lambda size: progress.advance(task, size))
    problems += [InputError(summary.error) for summary in summaries if summary.pattern is None]
    spans, unranked = group(zip((one.place for one in found.traces), summaries, strict=True))
    problems += [UsageError(_RANKS.format(files)) for files in unranked]
    return tuple(_compared(span, found.traces, settings) for span in spans)


def _compared(span: Span, sources: Sequence[Source], settings: Settings) -> Span:
    """Keep the workers that can be compared, on the iterations that all of them hold whole; those are read again."""
    choice = choose(span.summaries)
    world = max((*(one.world_size for one in span.summaries), *(one.rank + 1 for one in span.summaries)))
    kept = choice.kept
    if choice.only:  # a file that fails now stays as it was
        by_path = {(str(source.path), source.process): source for source in sources}
        again = [one for one in kept if one.rank in choice.only]
        files = [by_path[one.path, one.process] for one in again]
        read = zip(again, read_all(files, settings, only=[choice.only[one.rank] for one in again]), strict=True)
        second = {one.rank: of_rank(after, one.rank) for one, after in read if after.pattern is not None}
        kept = tuple(second.get(one.rank, one) for one in kept)
    kept = tuple(
        msgspec.structs.replace(one, held=msgspec.structs.replace(one.held, damage=(*one.held.damage, lost)))
        if (lost := choice.lost.get(one.rank))
        else one
        for one in kept
    )
    left = [
        f"worker {rank} is left out of the comparison: its recording {why}"
        for rank, why in sorted(choice.left_out.items())
    ]
    damaged = [damage_note(one) for one in kept if one.held.damage]
    notes = (*damaged, *left, *choice.notes, *span.notes)
    return replace(span, summaries=kept, notes=notes, left_out=choice.left_out, world_size=world)


def _part(span: Span, settings: Settings) -> Part:
    patterns = _patterns(span.summaries)
    window = window_of(span)
    expected = max(span.world_size, *(summary.world_size for summary in span.summaries)) or None
    left = tuple(span.left_out)
    verdict = analyze(
        span.job, window, patterns, expected_workers=expected, notes=span.notes, settings=settings, left_out=left
    )
    sources = {summary.rank: str(Path(summary.path).absolute()) for summary in span.summaries}
    return Part(span.job, span.label, window, temper(verdict, span), patterns, sources=sources)


def _patterns(summaries: Sequence[TraceSummary]) -> tuple[WorkerPattern, ...]:
    return tuple(summary.pattern for summary in summaries if summary.pattern is not None)


def window_of(span: Span) -> Window:
    """Describe what a span recorded as a window."""
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


# --- what is kept and shown of it ---


def keep(examination: Examination, run: Path) -> None:
    """Write a run directory: one window a recording, the first one's verdict as the final one.

    It appears whole or not at all: it is made beside its place and renamed.

    Args:
        examination: What to keep.
        run: A new or an empty directory.

    Raises:
        OSError: It cannot be written.
    """
    run = run.resolve()
    run.parent.mkdir(parents=True, exist_ok=True)
    draft = run.with_name(f".{run.name[:200]}.{os.getpid()}")
    try:
        _write(examination, Store(draft))
        draft.replace(run)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _write(examination: Examination, store: Store) -> None:
    for number, part in enumerate(examination.parts, start=1):
        verdict = examination.verdict if number == 1 else part.verdict
        store.save_window(msgspec.structs.replace(part.window, window_id=number))
        for pattern in part.patterns:
            numbered = msgspec.structs.replace(pattern, window_id=number)
            store.save_pattern(numbered, encode_record(numbered))
        if part.sources:
            paths: dict[str, object] = {
                str(rank): os.fsencode(path).decode(errors="replace") for rank, path in part.sources.items()
            }
            write_json(store.window_directory(number) / SOURCES_FILE, paths)
        if part.blockage is not None:
            store.save_blockage(msgspec.structs.replace(part.blockage, look_id=number))
        store.save_verdict(number, verdict)
    store.save_final(examination.verdict)


def page_of(examination: Examination) -> bytes:
    """Draw the first recording with all its pictures; its notes name the others."""
    part = examination.parts[0]
    material = Material(verdict=examination.verdict, window=part.window, patterns=part.patterns, blockage=part.blockage)
    return build_report(material)


def report_html(source: Verdict | str | PathLike[str]) -> str:
    """Return the report as one HTML page that loads nothing; for notebooks and other tools.

    Args:
        source: A run directory or one of its windows, a file from `--json`, traces or dumps (diagnosed first), or a
            verdict, which alone has no pictures.

    Raises:
        EroicaError: Nothing can be made of it.
    """
    if isinstance(source, Verdict):
        return build_report(Material(verdict=source)).decode()
    path = Path(source)
    if path.exists() and looks_saved(path):
        return build_report(gather(path)).decode()
    return page_of(examine([path], load_settings())).decode()
