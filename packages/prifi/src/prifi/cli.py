"""The `prifi` command."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import click

from prifi.errors import PrifiError


class _Main(click.Group):
    """Errors of this package end a command with one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PrifiError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Main)
@click.version_option(package_name="prifi")
@click.option("--verbose", is_flag=True, help="Log links and epochs, too. No log holds keys, pads or targets.")
def main(verbose: bool) -> None:
    """Anonymity on a local network. Research software: do not trust your safety to it."""
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # its messages may hold data


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--clients", default=10, show_default=True, type=click.IntRange(3, 5000))
@click.option("--trustees", default=3, show_default=True, type=click.IntRange(1, 50))
@click.option("--relay", default="127.0.0.1:7000", show_default=True, help="Address at which members find the relay.")
@click.option("--udp", is_flag=True, help="Links by UDP with resending instead of TCP.")
@click.option("--allow", multiple=True, help="Private network that the exit may reach, as 192.168.1.0/24; repeatable.")
@click.option("--cell-bytes", default=1000, show_default=True)
@click.option("--down-bytes", default=1000, show_default=True)
@click.option("--insecure-no-disruption-protection", "no_blame", is_flag=True, help="Nobody can name a disruptor.")
@click.option("--insecure-no-equivocation-protection", "no_bound", is_flag=True, help="The relay can unmask clients.")
def keys(folder: Path, clients: int, trustees: int, relay: str, **options: Any) -> None:
    """Make a network in FOLDER: prifi.toml for all members, and one key file each."""
    from prifi.config import write_network

    parameters = {"cell_bytes": options["cell_bytes"], "down_bytes": options["down_bytes"]}
    if options["no_bound"] or options["no_blame"]:
        parameters["protection"] = "none" if options["no_bound"] else "equivocation"
    path = write_network(folder, clients, trustees, relay, options["udp"], options["allow"], **parameters)
    click.echo(f"{path}, and {1 + trustees + clients} key files; give each member its own and the config")


def _role_options(command: Any) -> Any:
    for option in (
        click.option("--config", default="prifi.toml", show_default=True, type=click.Path(path_type=Path)),
        click.option("--key", required=True, type=click.Path(path_type=Path), help="Key file of this member."),
        click.option("--status", help="Serve the status page at HOST:PORT, loopback for preference."),
        click.option("--delay-ms", default=0.0, help="Injected one-way delay, for experiments."),
        click.option("--loss", default=0.0, help="Injected loss, 0 to 1, for experiments."),
        click.option("--insecure-misbehave", "misbehave", default="", hidden=True),
    ):
        command = option(command)
    return command


def _run(role: str, options: dict[str, Any], **more: Any) -> None:
    from prifi.adversaries import MISBEHAVIOURS
    from prifi.config import parse_address
    from prifi.errors import BadConfig
    from prifi.node import Options, run

    if options["misbehave"] and options["misbehave"] not in MISBEHAVIOURS:
        raise BadConfig(f"misbehaviours are {', '.join(MISBEHAVIOURS)}")
    if not (0 <= options["loss"] < 1 and 0 <= options["delay_ms"] <= 60_000):
        raise BadConfig("--loss is 0 to 1, --delay-ms is 0 to 60,000")
    run(
        role,
        Options(
            options["config"],
            options["key"],
            status=parse_address(options["status"]) if options["status"] else None,
            delay_s=options["delay_ms"] / 1000,
            loss=options["loss"],
            misbehave=options["misbehave"],
            **more,
        ),
    )


@main.command()
@_role_options
@click.option("--listen", "listen_at", help="Address to listen on, if it is not the one of the config.")
def relay(listen_at: str | None, **options: Any) -> None:
    """Run the relay: the router of the local network."""
    from prifi.config import parse_address

    _run("relay", options, listen=parse_address(listen_at) if listen_at else None)


@main.command()
@_role_options
def trustee(**options: Any) -> None:
    """Run a trustee: a helper that sends ciphertexts ahead."""
    _run("trustee", options)


@main.command()
@_role_options
@click.option("--socks", default="127.0.0.1:1080", show_default=True, help="Where programs find the SOCKS5 proxy.")
def client(socks: str, **options: Any) -> None:
    """Run a client; programs use its SOCKS5 port with names resolved at the far end (socks5h)."""
    from prifi.config import parse_address

    _run("client", options, socks=parse_address(socks))


@main.command()
def vectors() -> None:
    """Print the test vectors of every cryptographic step as JSON."""
    from prifi.vectors import vectors as make

    click.echo(json.dumps(make(), indent=1))


@main.command()
@click.argument("name", type=click.Choice(["flip", "equivocate", "drop", "listen", "forge-shuffle", "replay"]))
@click.option("--trials", default=20, show_default=True, type=click.IntRange(1))
@click.option("--clients", default=5, show_default=True, type=click.IntRange(3, 200))
@click.option("--trustees", default=3, show_default=True, type=click.IntRange(1, 20))
@click.option("--insecure-off", is_flag=True, help="Switch the protection off that the attack is against.")
def attack(name: str, trials: int, clients: int, trustees: int, insecure_off: bool) -> None:
    """Run an attack and print its outcome as JSON; `listen` needs root, tcpdump and scikit-learn."""
    from prifi.attack import run

    click.echo(json.dumps(run(name, not insecure_off, trials, clients=clients, trustees=trustees), indent=1))


@main.command()
@click.argument("clients", type=click.IntRange(3, 200))
@click.argument("trustees", type=click.IntRange(1, 20))
@click.option("--udp", is_flag=True, help="Links by UDP.")
@click.option("--delay-ms", default=5.0, show_default=True, help="Injected one-way delay.")
@click.option("--loss", default=0.0, show_default=True, help="Injected loss, 0 to 1.")
@click.option("--loopback", is_flag=True, help="No namespaces, so no root.")
@click.option("--web", type=click.Path(path_type=Path, exists=True), default=Path(), help="Folder of the web server.")
@click.option("--run", "command", help="Shell command to run in client-0's namespace; then the lab ends.")
def lab(clients: int, trustees: int, web: Path, command: str | None, loopback: bool, **plan: Any) -> None:
    """Start a relay, TRUSTEES and CLIENTS as processes in namespaces, and a web server; until Ctrl-C."""
    import signal
    import subprocess
    import time

    from prifi.lab import Lab, Plan, can_make_namespaces

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    spaces = can_make_namespaces() and not loopback
    with Lab(Plan(clients, trustees, namespaces=spaces, **plan), web) as running:
        took = running.wait()
        click.echo(
            f"{clients} clients are one anonymity set after {took:.1f} s; {'namespaces' if spaces else 'loopback'}"
        )
        curl = ["curl", "--socks5-hostname", f"127.0.0.1:{running.ports(0)[0]}", running.url]
        click.echo(f"try: {' '.join(running.inside('client-0', curl))}")
        try:
            if command:
                raise SystemExit(subprocess.call(running.inside("client-0", ["sh", "-c", command])))
            while running.processes["relay"].poll() is None:
                time.sleep(0.2)
        except KeyboardInterrupt:
            click.echo("stopped")


@main.command()
def demo() -> None:
    """Run 20 clients, three curls at once, then an eavesdropper, an equivocating relay and a disruptor."""
    from prifi.demo import main as run

    run()
