"""`eroica live`: the link to a running job's live page."""

from __future__ import annotations

import os
import webbrowser
from pathlib import Path

import click

from eroica.cli.jobs import choose_run, job_status
from eroica.errors import UnavailableError
from eroica.wire.address import page_link, read_address
from eroica.wire.network import endpoint_of, is_loopback


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
        webbrowser.open(page_link(address))
