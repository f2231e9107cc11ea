"""`eroica serve`: the service that the jobs of a fleet report to."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import click
from eroica.errors import UsageError
from eroica.wire.address import Endpoint

_LISTEN = "127.0.0.1:8470"


@click.command(short_help="Run the service that the jobs of a fleet report to.")
@click.option("--listen", default=_LISTEN, show_default=True, metavar="HOST:PORT", help="Where jobs and people come.")
@click.option(
    "--data", type=click.Path(path_type=Path), default=Path("eroica-fleet"), show_default=True,
    help="Directory of the service: the operator's first token; by default database and patterns, too.",
)  # fmt: skip
@click.option(
    "--database", envvar="EROICA_FLEET_DATABASE", default="",
    help="URL; default SQLite in --data. With a password, better the variable EROICA_FLEET_DATABASE.",
)  # fmt: skip
@click.option("--patterns", default="", help="Directory or URL (s3://BUCKET/PREFIX) for patterns; default in --data.")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="PEM file: certificate and its chain.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="PEM file: its key.")
@click.option("--alerts-s", default=60.0, show_default=True, help="Pause between two looks for alerts, seconds.")
@click.option("--sweep-s", default=3600.0, show_default=True, help="Pause between two sweeps of what is due to go.")
@click.option("--plain-http", is_flag=True, help="No TLS, though others may listen: a proxy before us speaks it.")
def serve(  # noqa: PLR0913 - one for each option
    *,
    listen: str,
    data: Path,
    database: str,
    patterns: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    alerts_s: float,
    sweep_s: float,
    plain_http: bool,
) -> None:
    """Run the service that jobs of a fleet report to (EROICA_FLEET=URL), until Ctrl-C or SIGTERM.

    docs/fleet.md says how to set it up.
    """
    from eroica_fleet.service import Plan, serve

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for name in ("alembic", "botocore", "aiobotocore", "fsspec"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in ("uvicorn", "uvicorn.error", "asyncio"):  # else every stranger could make them complain
        logging.getLogger(name).setLevel(logging.ERROR)
    plan = Plan(_endpoint(listen), data, database, patterns, tls_cert, tls_key, plain_http, alerts_s, sweep_s)
    serve(plan, lambda url, is_first: _say(url, is_first, data))


def _endpoint(text: str) -> Endpoint:
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--listen {text!r}: expected HOST:PORT, as in {_LISTEN}")
    return Endpoint(host, int(port))


def _say(url: str, is_first: bool, data: Path) -> None:
    click.echo(f"Eroica's fleet at {url}")
    if is_first:
        click.echo(f"The operator's token, also for the page: {data / 'operator.token'}. A job reports with")
        click.echo(f"  EROICA_FLEET={url} EROICA_FLEET_TOKEN=$(cat {data / 'jobs.token'}) eroica run -- COMMAND")
    sys.stdout.flush()
