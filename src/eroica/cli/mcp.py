"""`eroica mcp`: a server that an AI assistant asks about jobs, over standard input and output."""

from __future__ import annotations

from pathlib import Path

import click

from eroica.cli.settings import settings_from
from eroica.errors import UnavailableError


@click.command()
@click.option(
    "--runs",
    "roots",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A run directory or a directory of them; default: ./eroica-report. Repeatable.",
)
@click.option(
    "--source",
    "sources",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Where source of named functions may be read; default: this directory. Repeatable.",
)
@click.option("--no-code", is_flag=True, help="No source lines at all.")
@click.option("--allow-windows", is_flag=True, help="Also a tool that opens a window on a running job.")
@click.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="A setting, for comparisons.")
def mcp(
    roots: tuple[Path, ...], sources: tuple[Path, ...], no_code: bool, allow_windows: bool, pairs: tuple[str, ...]
) -> None:
    """Answer an AI assistant's questions about jobs: verdict, evidence, why, source, comparison. Read-only by default.

    Speaks the Model Context Protocol over standard input and output; an assistant's settings name this command. Jobs
    that are watched on this host can be asked about, and runs under --runs. Needs `pip install eroica[mcp]`.
    """
    settings, _ = settings_from(pairs)
    try:
        from eroica.cli.assistant import Shelf, Tools, build_server
    except ImportError as error:
        raise UnavailableError(f"the MCP SDK is missing ({error}); pip install 'eroica[mcp]'") from error

    shelf = Shelf(roots or (Path("eroica-report"),))
    allowed = None if no_code else sources or (Path(),)
    build_server(Tools(shelf, allowed, settings), allow_windows=allow_windows).run("stdio")
