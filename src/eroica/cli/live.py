"""`eroica live`: the link to a running job's live page."""

from __future__ import annotations

import os
import webbrowser
from html import escape
from pathlib import Path

import click

from eroica.cli.jobs import choose_run, job_status
from eroica.errors import UnavailableError
from eroica.wire.address import LINK_FILE, page_link, read_address
from eroica.wire.network import endpoint_of, is_loopback
from eroica.wire.places import write_private


@click.command()
@click.option("--job", help="Name of the job, if several are being watched.")
@click.option("--out", type=click.Path(path_type=Path), help="The job's run directory, instead of --job.")
@click.option("--open", "opens", is_flag=True, help="Open it in a browser of this host, too.")
def live(job: str | None, out: Path | None, opens: bool) -> None:
    """Print the link to a running job's live page: iteration times, windows and verdicts as they come.

    Whoever has the link can see the job and open windows on it; it is good until the job ends.
    """
    run = choose_run(job, out)
    job_status(run)  # or say why there is no page
    address = read_address(run)
    if address is None:
        raise UnavailableError(f"no collector is running for {run}; its job has ended or has not begun")
    click.echo(page_link(address))
    where = endpoint_of(address.url)
    if is_loopback(where.host) and os.environ.get("SSH_CONNECTION"):
        tunnel = f"ssh -N -L {where.port}:{where.host}:{where.port} <this host>"
        click.echo(f"from your own machine, first:  {tunnel}", err=True)
    if opens:
        webbrowser.open(_lead(run, page_link(address)))


def _lead(run: Path, link: str) -> str:
    """The URL of a private file that leads to the link: who lists this host's processes sees what browsers are given.

    Raises:
        UnavailableError: It cannot be written.
    """
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
        f'<meta http-equiv="refresh" content="0; url={escape(link)}"><title>Eroica</title>'
        f'<p><a href="{escape(link)}">The live page</a></p></html>\n'
    )
    try:
        write_private(run / LINK_FILE, page.encode())
    except OSError as error:
        raise UnavailableError(f"the browser cannot be shown the link: {error}") from error
    return (run / LINK_FILE).absolute().as_uri()
