"""The `c4p` command."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import click

from c4p.errors import BadRequest, C4PError


class _Main(click.Group):
    """Errors of this package end a command with one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except C4PError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Main)
@click.version_option(package_name="c4p")
def main() -> None:
    """Plan the paths of a training's few long flows."""


@main.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=7440, show_default=True)
@click.option("--state", type=click.Path(path_type=Path), default=Path("c4p-planner.sqlite"), show_default=True)
@click.option("--lease", default=60.0, show_default=True, help="Seconds after which a silent job has ended.")
@click.option("--open", "is_open", is_flag=True, help="Without a token: everybody who reaches the port may move flows.")
def serve(host: str, port: int, state: Path, lease: float, is_open: bool) -> None:
    """Run the planner: one process for all jobs, its state in one file. The token is in C4P_PLANNER_TOKEN."""
    from c4p.server import TOKEN_VARIABLE, Server, bound, check_token
    from c4p.service import Planner, application

    token = check_token(os.environ.get(TOKEN_VARIABLE, ""), is_open)
    with bound(host, port) as listener:
        state.parent.mkdir(parents=True, exist_ok=True)
        planner = Planner(state, lease)
        click.echo(f"planner on http://{host}:{port}, {len(planner.jobs)} jobs, state in {state}")
        Server(application(planner), token).run(sockets=[listener])
        planner.close()


@main.command()
@click.argument("target")
@click.option("--source", default="", help="Own address; empty: the one that leads there.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def catalogue(target: str, source: str, as_json: bool) -> None:
    """Learn which source port takes which path to TARGET, a listening HOST:PORT."""
    import msgspec

    from c4p.catalogue import learn
    from c4p.routes import address_toward

    host, port = parse_target(target)
    entry = learn(source or address_toward(host), (host, port))
    if as_json:
        click.echo(msgspec.json.encode(entry).decode())
        return
    if entry.how == "none":
        click.echo(f"{entry.source} to {target}: one path, or none that could be told apart; any source port will do")
        return
    click.echo(f"{entry.source} to {target}, learned from {entry.how}")
    for path, ports in entry.paths.items():
        click.echo(f"  {' > '.join(path.split('|')) or 'unknown':50} {len(ports):3} ports: {_short(ports)}")
    for path, share in entry.excluded.items():
        click.echo(f"  {' > '.join(path.split('|')):50} left out: {share:.0%} of the connections fail")


@main.command()
@click.option("--seconds", default=3.0, show_default=True, help="Length of each run.")
@click.option("--draws", default=3, show_default=True, help="Random draws.")
def demo(seconds: float, draws: int) -> None:
    """Random against planned source ports on four paths, and a path that fails. Needs root."""
    from c4p.demo import run_demo

    run_demo(seconds, draws, click.echo)


def parse_target(text: str) -> tuple[str, int]:
    """Parse "HOST:PORT" into the host's address and the port.

    Raises:
        BadRequest: It is something else, or the host is unknown.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadRequest(f"{text!r}: expected HOST:PORT, where that host listens")
    try:
        return socket.gethostbyname(host), int(port)
    except OSError as error:
        raise BadRequest(f"{host!r} is not known: {error}") from error


def _short(ports: list[int]) -> str:
    shown = ", ".join(map(str, ports[:6]))
    return shown + (", ..." if len(ports) > 6 else "")


if __name__ == "__main__":
    main()
