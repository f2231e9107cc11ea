"""`eroica report`: a saved verdict as views again, without the job and without its traces."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from eroica.archive.load import SavedRun, SavedWindow, count_patterns, read_patterns, run_around
from eroica.cli.output import check_target, make_console, on_terminal, write_result
from eroica.cli.settings import settings_from
from eroica.collector.recurrence import with_recurrence
from eroica.errors import InputError, UsageError
from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Verdict
from eroica.model.words import clean, sentence
from eroica.offline.saved import examine_again, open_place
from eroica.report.phrases import in_short
from eroica.report.prompt import SourceTree, build_prompt
from eroica.report.text import build_report, build_why, draw, note_lines, rule
from eroica.settings import Settings
from eroica.views.lanes import Drawn, draw_kept, read_sources
from eroica.views.material import gather_saved
from eroica.views.perfetto import choose_workers, write_perfetto

_MOST_WINDOWS = 40
#: More patterns than that are not read for the few lines on set-up in --prompt (about a second).
_MOST_PATTERNS = 2_000


@click.command()
@click.argument("place", metavar="DIR|VERDICT.JSON", type=click.Path(path_type=Path))
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the verdict here; - prints it alone.")
@click.option("--window", "number", type=click.IntRange(min=0), help="Only this window of a run.")
@click.option("--all", "everything", is_flag=True, help="The verdict of every window, then the final one.")
@click.option("--again", is_flag=True, help="Diagnose the saved patterns again, by the present rules and settings.")
@click.option("--why", is_flag=True, help="Also what else was considered, and what speaks for and against each.")
@click.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="A setting, for --again.")
@click.option(
    "--prompt",
    "prompt_file",
    type=click.Path(path_type=Path),
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    help="Instead, a compact text for an AI assistant, into FILE or printed; write it after DIR.",
)
@click.option(
    "--source",
    "sources",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Where --prompt looks for the named functions' source; default: this directory. Repeatable.",
)
@click.option("--html", "html_file", type=click.Path(path_type=Path), metavar="FILE", help="Write it as a page.")
@click.option(
    "--perfetto",
    "trace_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a trace of chosen workers for ui.perfetto.dev (.json or .json.gz).",
)
@click.option(
    "--worker",
    "ranks",
    multiple=True,
    type=click.IntRange(min=0),
    metavar="RANK",
    help="Who is in it; default: the culprits, each with a peer. Repeatable.",
)
@click.option("--no-code", is_flag=True, help="No source lines in --prompt.")
def report(  # noqa: PLR0913 - one for each option
    *,
    place: Path,
    json_file: Path | None,
    number: int | None,
    everything: bool,
    again: bool,
    why: bool,
    pairs: tuple[str, ...],
    prompt_file: Path | None,
    sources: tuple[Path, ...],
    html_file: Path | None,
    trace_file: Path | None,
    ranks: tuple[int, ...],
    no_code: bool,
) -> None:
    """Show the verdict of a run directory, of one window, of a directory of patterns, or of a file from --json.

    With --prompt, as a text to give to an AI assistant: verdict, numbers, evidence, and the source lines of the named
    functions, as far as they lie under --source. It holds no data, and what looks like a key or password is masked.

    Exit status: 0 healthy, 3 a cause was found, 4 undetermined, 1 it could not be read, 2 wrong usage.
    """
    settings, _ = settings_from(pairs)
    check_target(json_file)
    check_target(prompt_file, "--prompt")
    check_target(html_file, "--html")
    check_target(trace_file, "--perfetto")
    if ranks and trace_file is None:
        raise UsageError("--worker chooses workers for --perfetto; give that a file")
    if str(trace_file) == "-":
        raise UsageError("--perfetto needs a file: a trace is not to be read on a terminal")
    printed = [str(file) for file in (json_file, prompt_file, html_file)].count("-")
    if printed > 1:
        raise UsageError("only one of --json, --prompt and --html can print; give the others a file")
    console = make_console(quiet=prompt_file is not None or printed > 0)
    saved = open_place(place)
    shown: list[RenderableType] = []
    if isinstance(saved, SavedRun) and number is None:
        verdict = _show_run(saved, shown, everything, again, settings)
    else:
        if everything:
            raise UsageError(f"--all: {place if number is None else f'window {number}'} is not a whole run")
        verdict = _one(saved, number, again, settings)
        shown += build_report(verdict)
        shown += note_lines(saved.notes if isinstance(saved, SavedWindow) else ())
    if why:
        shown += build_why(verdict)
    results = [("--json", json_file, verdict.to_json())]
    lines: tuple[str, ...] = ()
    if html_file is not None:
        from eroica.views.page import build_report as build_page

        results.append(("--html", html_file, build_page(gather_saved(saved, number, verdict))))
        lines = () if str(html_file) == "-" else (f"Report: {html_file.absolute().as_uri()}",)
    if prompt_file is not None:
        tree = None if no_code else SourceTree(sources or (Path(),))
        results.append(("--prompt", prompt_file, _prompt(saved, number, verdict, tree)))
    if trace_file is not None:
        lines += write_chosen(trace_file, saved, number, ranks, settings)
    for option, file, data in sorted(results, key=lambda one: str(one[1]) == "-"):
        write_result(file, data, option)
    with on_terminal():
        draw(shown, console)
        for line in lines:  # a link stays whole
            console.print(Text(sentence(line), style="dim"), soft_wrap=True)
    raise SystemExit(verdict.exit_code)


def _prompt(
    saved: SavedRun | SavedWindow | Verdict, number: int | None, verdict: Verdict, sources: SourceTree | None
) -> bytes:
    """The text for an assistant; the patterns of its window, if they are few, are read for set-up that differs."""
    from eroica.model.causes import CATALOG

    window = saved if isinstance(saved, SavedWindow) else None
    if isinstance(saved, SavedRun):
        window = saved.origin() if number is None else saved.window(number)
    patterns: tuple[WorkerPattern, ...] = ()
    if window is not None and 0 < count_patterns(window) <= _MOST_PATTERNS:
        with contextlib.suppress(InputError):
            patterns = read_patterns(window)[1]
    meanings = {cause: entry.meaning for cause, entry in CATALOG.items()}
    return build_prompt(verdict, meanings, patterns, sources).encode("utf-8", "replace")


def _one(saved: SavedRun | SavedWindow | Verdict, number: int | None, again: bool, settings: Settings) -> Verdict:
    """The verdict of a single window or file.

    Raises:
        UsageError: What was asked for does not fit what is there.
    """
    if isinstance(saved, SavedRun):
        assert number is not None
        return _of_window(saved, saved.window(number), again, settings)
    if number is not None:
        raise UsageError(f"--window {number}: only a run directory has several windows")
    if isinstance(saved, SavedWindow):
        return _of_window(run_around(saved), saved, again, settings)
    if again:
        raise UsageError("--again needs patterns; a verdict alone holds none, give its run directory")
    return saved


def _of_window(run: SavedRun | None, window: SavedWindow, again: bool, settings: Settings) -> Verdict:
    if window.verdict is not None and not again:
        return window.verdict
    verdict = examine_again(run, window, settings).verdict
    others = {one.window_id: one.verdict for one in run.windows if one.verdict is not None} if run is not None else {}
    earlier = {window_id: one for window_id, one in others.items() if window_id < window.window_id}
    return with_recurrence(window.window_id, verdict, earlier)


def _show_run(run: SavedRun, shown: list[RenderableType], everything: bool, again: bool, settings: Settings) -> Verdict:
    """The verdict of a run; what is to be drawn of it is added to `shown`.

    Raises:
        InputError: It holds nothing that could be shown.
    """
    judged = [w for w in run.windows if w.purpose != "baseline" and (w.verdict or w.pattern_files or w.has_blockage)]
    notes = [*run.notes, *(f"window {window.window_id}: {note}" for window in run.windows for note in window.notes)]
    for window in judged if everything else ():
        shown.append(rule(f"window {window.window_id}"))
        try:
            shown += build_report(_of_window(run, window, again, settings))
        except InputError as error:
            shown += note_lines([str(error)])
    shown += [rule("the job")] if everything else []
    origin = run.origin() or (judged[-1] if judged else None)
    verdict = run.verdict
    if origin is not None and (again or verdict is None):
        if verdict is None:
            notes.append(f"there is no final verdict yet; this is window {origin.window_id}'s")
        verdict = _of_window(run, origin, again, settings)
    if verdict is None:
        why = f": {notes[0]}" if notes else ""
        raise InputError(f"{run.directory} holds no verdict and nothing to make one of{why}")
    shown += build_report(verdict)
    if run.windows:
        shown += [Text("\nWindows", style="dim"), _windows(run)]
    shown += note_lines(notes)
    return verdict


def _windows(run: SavedRun) -> Table:
    """One line a window."""
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(style="dim", no_wrap=True, justify="right")
    for _ in ("purpose", "iterations", "verdict"):
        table.add_column(style="dim", no_wrap=True)
    table.add_column(style="dim", ratio=1, overflow="fold")
    for window in run.windows[-_MOST_WINDOWS:]:
        verdict = window.verdict
        cause = verdict.cause if verdict is not None else None
        word = verdict.verdict if verdict is not None else ""
        said = f"{in_short(cause)}: {clean(cause.function.name, 60)}" if cause is not None else ""
        if verdict is None and window.purpose != "baseline":
            said = "no verdict"
        table.add_row(*map(Text, (str(window.window_id), window.purpose or "?", _span(window), word, said)))
    if len(run.windows) > _MOST_WINDOWS:
        table.add_row("", Text(f"and {len(run.windows) - _MOST_WINDOWS} earlier"))
    return table


def _span(window: SavedWindow) -> str:
    """Its iterations as the verdict says them: the last one is the one before the window's end."""
    asked = window.window
    seen = window.verdict.window if window.verdict is not None else None
    first, end = None, None
    if asked is not None and asked.kind != "blocked" and asked.last_iteration > asked.first_iteration:
        first, end = asked.first_iteration, asked.last_iteration
    elif seen is not None:
        first, end = seen.first_iteration, None if seen.kind == "blocked" else seen.last_iteration
    if first is None:
        return ""
    if end is None:
        return f"at {first}"
    return f"{first}–{end - 1}" if end - 1 > first else f"{first}"


# --- a trace of chosen workers ---


def write_chosen(
    path: Path, saved: SavedRun | SavedWindow | Verdict, number: int | None, ranks: Sequence[int], settings: Settings
) -> tuple[str, ...]:
    """Write the trace; returns what to tell about it.

    Raises:
        UsageError: There are no patterns at this place, or not of these workers.
        InputError: Nothing can be drawn, or the file cannot be written.
    """
    if isinstance(saved, Verdict):
        raise UsageError("a verdict alone holds no traces; give --perfetto its run directory")
    material = gather_saved(saved, number)
    window = saved if isinstance(saved, SavedWindow) else saved.origin() if number is None else saved.window(number)
    chosen = choose_workers(material, ranks)
    job, sources = material.verdict.job, read_sources(window.directory) if window is not None else {}

    def whole(pattern: WorkerPattern) -> Drawn | None:
        return draw_kept(pattern, job, os.environ, sources, settings)

    try:
        notes = write_perfetto(path, material, chosen, whole)
    except OSError as error:
        raise InputError(f"--perfetto {path} cannot be written: {error.strerror or error}") from error
    return f"{path}: open it in https://ui.perfetto.dev or chrome://tracing", *notes
