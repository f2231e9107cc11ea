"""`eroica diff`: two runs function by function, with an exit status for CI."""

from __future__ import annotations

from pathlib import Path

import click

from eroica.archive.load import SavedRun, looks_saved
from eroica.cli.output import check_target, make_console, on_terminal, write_result
from eroica.cli.settings import settings_from
from eroica.compare import Run, compare
from eroica.errors import UsageError
from eroica.offline.saved import choose_window, open_place, split_window, usable_patterns
from eroica.report.text import render_comparison
from eroica.settings import Settings

_INTERRUPTED = 130


@click.command()
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option("--window-a", help="Window of A: its number, or baseline.")
@click.option("--window-b", help="Window of B: its number, or baseline.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Write the comparison here; - prints it alone."
)
@click.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="A setting; `eroica settings` lists them.")
def diff(
    before: str,
    after: str,
    window_a: str | None,
    window_b: str | None,
    json_file: Path | None,
    pairs: tuple[str, ...],
) -> None:
    """Say which functions on which workers got slower from A to B.

    A and B are run directories (RUN@3 is its window 3, RUN@baseline its healthy window), windows, directories of
    patterns, or trace files and folders.

    Exit status: 0 no regression, 3 a regression, 4 too little to tell, 1 it failed, 2 wrong usage.
    """
    settings, _ = settings_from(pairs)
    check_target(json_file)
    try:
        comparison = compare(_load(before, window_a, settings), _load(after, window_b, settings), settings)
    except KeyboardInterrupt:
        click.echo("eroica: interrupted", err=True)
        raise SystemExit(_INTERRUPTED) from None
    write_result(json_file, comparison.to_json())
    if str(json_file) != "-":
        with on_terminal():
            render_comparison(comparison, make_console())
    raise SystemExit(comparison.exit_code)


def _load(text: str, window: str | None, settings: Settings) -> Run:
    path, which = split_window(text)
    if window is not None:
        if which:
            raise UsageError(f"{text} names a window already; leave out --window-a and --window-b")
        if not (window.isdecimal() or window == "baseline"):
            raise UsageError(f"window {window!r}: expected a number or baseline")
        which = window
    if looks_saved(path):
        return _load_saved(text if window is None else f"{text}@{window}", path, which)
    if which:
        raise UsageError(f"{path} is no run directory, so it has no window {which}")
    return _load_traces(text, path, settings)


def _load_saved(name: str, path: Path, which: str) -> Run:
    saved = open_place(path)
    window = choose_window(saved, which)
    _, patterns, damaged = usable_patterns(window)
    job = saved.job if isinstance(saved, SavedRun) else window.verdict.job if window.verdict is not None else ""
    if isinstance(saved, SavedRun) and not which:
        name = f"{name}@{window.window_id}"
    return Run(name=name, patterns=patterns, job=job, notes=damaged)


def _load_traces(name: str, path: Path, settings: Settings) -> Run:
    """The largest recording below a path; of several the latest.

    Raises:
        InputError: No trace can be used.
    """
    from eroica.offline.examine import read_spans, reading_bar
    from eroica.offline.soundness import damage_note

    with reading_bar() as bar:
        spans, losses = read_spans([path], settings, bar=bar)
    span = max(enumerate(spans), key=lambda item: (len(item[1].summaries), item[0]))[1]
    notes = [*span.notes, *losses]
    if len(spans) > 1:
        which = " ".join(filter(None, (span.job, span.label)))
        notes.append(f"{len(spans)} recordings; compared is {which}. Name files or folders for another")
    patterns = [summary.pattern for summary in span.summaries if summary.pattern is not None]
    damage = next((damage_note(one) for one in span.summaries if one.held.damage), "")
    return Run(name=name, patterns=patterns, job=span.job, notes=tuple(notes), damage=damage)
