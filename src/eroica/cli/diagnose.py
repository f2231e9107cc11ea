"""`eroica diagnose PATH…`: what is wrong in traces and dumps that lie on disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from eroica.cli.output import check_target, make_console, on_terminal, write_result
from eroica.cli.settings import settings_from
from eroica.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from eroica.offline.jobs import Examination, Part

_INTERRUPTED = 130
_MOST_OTHERS = 20


@click.command()
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the verdict here; - prints it alone.")
@click.option("--html", "html_file", type=click.Path(path_type=Path), help="Write the verdict as a page.")
@click.option("--out", type=click.Path(path_type=Path), help="Keep patterns and verdicts in this new directory.")
@click.option("--all", "everything", is_flag=True, help="Show the verdicts on all recordings in full.")
@click.option("--rank-regex", metavar="REGEX", help="Where in a path the global rank stands: one group around it.")
@click.option("--engine", metavar="WHERE", help="Where to analyze: auto, local, ray or ray://HOST:PORT.")
@click.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="A setting; `eroica settings` lists them.")
@click.option("--quiet", is_flag=True, help="No progress bar, no report; the exit status and --json say it.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
def diagnose(  # noqa: PLR0913 - one for each option
    *,
    paths: tuple[str, ...],
    json_file: Path | None,
    html_file: Path | None,
    out: Path | None,
    everything: bool,
    rank_regex: str | None,
    engine: str | None,
    pairs: tuple[str, ...],
    quiet: bool,
) -> None:
    """Say what is wrong in profiler traces, Flight Recorder dumps, or a run directory of Eroica.

    PATH is a trace (.json or .json.gz), a folder, a pattern in quotes ('runs/**/*.json.gz'), a dump (_dump_0) or a run
    directory. Nothing is written unless --json or --out asks for it; `eroica report` and `eroica diff` read what --out
    has kept.

    Exit status: 0 healthy, 3 a cause was found, 4 undetermined, 1 it failed, 2 wrong usage.
    """
    settings, _ = settings_from((*pairs, *([f"engine={engine}"] if engine is not None else ())))
    check_target(json_file)
    check_target(html_file, "--html")
    if str(json_file) == str(html_file) == "-":
        raise UsageError("--json - and --html - both print; give one of them a file")
    check_target(out, "--out", new_directory=True)
    try:
        from eroica.offline.examine import examine, reading_bar
        from eroica.trace.names import compile_rule

        rule = compile_rule(rank_regex) if rank_regex is not None else None
        with reading_bar(not quiet) as bar:
            examination = examine(paths, settings, rule, bar)
        if out is not None:
            _keep(examination, out)
        results = {"--json": (json_file, examination.verdict.to_json())} if json_file is not None else {}
        if html_file is not None:
            from eroica.offline.examine import page_of

            results["--html"] = (html_file, page_of(examination))
        for option, (file, data) in sorted(results.items(), key=lambda one: str(one[1][0]) == "-"):
            write_result(file, data, option)
        if not quiet and "-" not in (str(json_file), str(html_file)):
            with on_terminal():
                _show(examination, everything)
    except KeyboardInterrupt:
        click.echo("eroica: interrupted", err=True)
        raise SystemExit(_INTERRUPTED) from None
    raise SystemExit(examination.verdict.exit_code)


def _keep(examination: Examination, out: Path) -> None:
    from eroica.offline.examine import keep

    try:
        keep(examination, out)
    except OSError as error:
        raise InputError(f"--out {out} cannot be written: {error.strerror or error}") from error


def _show(examination: Examination, everything: bool) -> None:
    from eroica.model.words import clean
    from eroica.report.text import draw, render_verdict, rule

    console = make_console()
    if not everything or len(examination.parts) == 1:
        render_verdict(examination.verdicts[0], console)
        _show_others(examination.parts[1:], console)
        return
    for at, (part, verdict) in enumerate(zip(examination.parts, examination.verdicts, strict=True)):
        draw([*([""] if at else []), rule(clean(part.title))], console)
        render_verdict(verdict, console)


def _show_others(others: Sequence[Part], console: Console) -> None:
    """A line for each of the other recordings."""
    from rich.table import Table
    from rich.text import Text

    from eroica.model.words import clean, worker_list
    from eroica.report.text import draw

    if not others:
        return
    table = Table(title="Also here", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for heading in ("job", "recording", "verdict", "cause", "workers"):
        table.add_column(heading, header_style="dim", overflow="fold")
    for part in others[:_MOST_OTHERS]:
        cause = part.verdict.cause
        said = (cause.cause, worker_list(cause.workers).split(maxsplit=1)[-1]) if cause is not None else ("", "")
        table.add_row(*(Text(clean(word)) for word in (part.job, part.label, part.verdict.verdict, *said)))
    draw([Text(), table], console)
    more = f"{len(others) - _MOST_OTHERS} more recordings. " if len(others) > _MOST_OTHERS else ""
    draw([Text(f"{more}--all shows each verdict in full.", style="dim")], console)
