"""`eroica report`: a saved verdict as views again, without the job and without its traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eroica.archive.load import SavedRun, SavedWindow, count_patterns, read_patterns, run_around
from eroica.cli.options import settings_from
from eroica.cli.output import check_target, make_console, on_terminal, write_result
from eroica.cli.saved import diagnose_again, open_place
from eroica.collector.recurrence import with_recurrence
from eroica.errors import InputError, UsageError
from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Verdict
from eroica.model.words import clean, sentence
from eroica.report.phrases import in_short
from eroica.report.prompt import build_prompt
from eroica.report.source import SourceTree
from eroica.report.text import build_why, draw, draw_rule, render_verdict
from eroica.settings import Settings

#: Something to be drawn once all files are written.
Drawing = Callable[[Console], None]
_MOST_WINDOWS = 40
_MOST_NOTES = 6
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
    if ranks or trace_file is not None:
        from eroica.cli.perfetto import check_trace_target

        check_trace_target(trace_file, ranks)
    printed = [str(file) for file in (json_file, prompt_file, html_file)].count("-")
    if printed > 1:
        raise UsageError("only one of --json, --prompt and --html can print; give the others a file")
    console = make_console(quiet=prompt_file is not None or printed > 0)
    saved = open_place(place)
    shown: list[Drawing] = []
    if isinstance(saved, SavedRun) and number is None:
        verdict = _show_run(saved, shown, everything, again, settings)
    else:
        if everything:
            raise UsageError(f"--all: {place if number is None else f'window {number}'} is not a whole run")
        verdict = _one(saved, number, again, settings)
        shown.append(partial(render_verdict, verdict))
        shown += _notes_shown(saved.notes if isinstance(saved, SavedWindow) else ())
    if why:
        shown.append(partial(draw, build_why(verdict)))
    results = [("--json", json_file, verdict.to_json())]
    lines: tuple[str, ...] = ()
    if html_file is not None:
        from eroica.views.material import gather_saved
        from eroica.views.page import build_report

        results.append(("--html", html_file, build_report(gather_saved(saved, number, verdict))))
        lines = () if str(html_file) == "-" else (f"Report: {html_file.absolute().as_uri()}",)
    if prompt_file is not None:
        tree = None if no_code else SourceTree(sources or (Path(),))
        results.append(("--prompt", prompt_file, _prompt(saved, number, verdict, tree)))
    if trace_file is not None:
        from eroica.cli.perfetto import write_chosen

        lines += write_chosen(trace_file, saved, number, ranks, settings)
    for option, file, data in sorted(results, key=lambda one: str(one[1]) == "-"):
        write_result(file, data, option)
    with on_terminal():
        for drawing in shown:
            drawing(console)
        for line in lines:
            console.print(Text(sentence(line), style="dim"))
    raise SystemExit(verdict.exit_code)


def _prompt(
    saved: SavedRun | SavedWindow | Verdict, number: int | None, verdict: Verdict, sources: SourceTree | None
) -> bytes:
    """The text for an assistant; the patterns of its window are read for what is set up differently."""
    from eroica.model.causes import CATALOG

    meanings = {cause: entry.meaning for cause, entry in CATALOG.items()}
    window = saved if isinstance(saved, SavedWindow) else None
    if isinstance(saved, SavedRun):
        window = saved.origin() if number is None else saved.window(number)
    return build_prompt(verdict, meanings, _few_patterns(window), sources).encode("utf-8", "replace")


def _few_patterns(window: SavedWindow | None) -> tuple[WorkerPattern, ...]:
    """The patterns of a window, none where they are too many to be read for a line or two."""
    if window is None or not 0 < count_patterns(window) <= _MOST_PATTERNS:
        return ()
    try:
        return read_patterns(window)[1]
    except InputError:
        return ()


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
    verdict = diagnose_again(run, window, settings)
    others = {one.window_id: one.verdict for one in run.windows if one.verdict is not None} if run is not None else {}
    earlier = {window_id: one for window_id, one in others.items() if window_id < window.window_id}
    return with_recurrence(window.window_id, verdict, earlier)


def _show_run(run: SavedRun, shown: list[Drawing], everything: bool, again: bool, settings: Settings) -> Verdict:
    """The verdict of a run; what is to be drawn of it is added to `shown`.

    Raises:
        InputError: It holds nothing that could be shown.
    """
    judged = [w for w in run.windows if w.purpose != "baseline" and (w.verdict or w.pattern_files or w.has_blockage)]
    notes = [*run.notes, *(f"window {window.window_id}: {note}" for window in run.windows for note in window.notes)]
    if everything:
        for window in judged:
            shown.append(partial(draw_rule, f"window {window.window_id}"))
            shown += _window_shown(run, window, again, settings)
        shown.append(partial(draw_rule, "the job"))
    origin = run.origin() or (judged[-1] if judged else None)
    verdict = run.verdict
    if origin is not None and (again or verdict is None):
        if verdict is None:
            notes.append(f"there is no final verdict yet; this is window {origin.window_id}'s")
        verdict = _of_window(run, origin, again, settings)
    if verdict is None:
        why = f": {notes[0]}" if notes else ""
        raise InputError(f"{run.directory} holds no verdict and nothing to make one of{why}")
    shown.append(partial(render_verdict, verdict))
    if run.windows:
        shown.append(partial(draw, [Text("\nWindows", style="dim"), _windows(run)]))
    shown += _notes_shown(notes)
    return verdict


def _window_shown(run: SavedRun, window: SavedWindow, again: bool, settings: Settings) -> list[Drawing]:
    try:
        return [partial(render_verdict, _of_window(run, window, again, settings))]
    except InputError as error:
        return _notes_shown([str(error)])


def _windows(run: SavedRun) -> Table:
    """One line a window."""
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(style="dim", no_wrap=True, justify="right")
    for _ in ("purpose", "iterations", "verdict"):
        table.add_column(style="dim", no_wrap=True)
    table.add_column(style="dim", ratio=1, overflow="fold")
    for window in run.windows[-_MOST_WINDOWS:]:
        table.add_row(*map(Text, _line(window)))
    if len(run.windows) > _MOST_WINDOWS:
        table.add_row("", Text(f"and {len(run.windows) - _MOST_WINDOWS} earlier"))
    return table


def _line(window: SavedWindow) -> Iterator[str]:
    yield str(window.window_id)
    yield window.purpose or "?"
    yield _span(window)
    verdict = window.verdict
    if verdict is None:
        yield ""
        yield "" if window.purpose == "baseline" else "no verdict"
        return
    yield verdict.verdict
    cause = verdict.cause
    if cause is None:
        yield ""
        return
    yield f"{in_short(cause)}: {clean(cause.function.name, 60)}"


def _span(window: SavedWindow) -> str:
    asked = window.window
    if asked is not None and asked.kind != "blocked" and asked.last_iteration > asked.first_iteration:
        return _iterations(asked.first_iteration, asked.last_iteration)
    seen = window.verdict.window if window.verdict is not None else None
    if seen is None or seen.first_iteration is None:
        return ""
    if seen.kind == "blocked" or seen.last_iteration is None:
        return f"at {seen.first_iteration}"
    return _iterations(seen.first_iteration, seen.last_iteration)


def _iterations(first: int, end: int) -> str:
    """As the verdict says them: the last one is the one before the window's end."""
    return f"{first}–{end - 1}" if end - 1 > first else f"{first}"


def _notes_shown(notes: Sequence[str]) -> list[Drawing]:
    lines = [f"Note: {sentence(note)}" for note in notes[:_MOST_NOTES]]
    if len(notes) > _MOST_NOTES:
        lines.append(f"and {len(notes) - _MOST_NOTES} more notes")
    return [partial(_print_dim, line) for line in lines]


def _print_dim(line: str, console: Console) -> None:
    console.print(Text(line, style="dim"))
