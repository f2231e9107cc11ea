"""`eroica sample`: watch processes from outside and write what they and the host do into a directory."""

from __future__ import annotations

from pathlib import Path

import click

from eroica.hardware.cpu import Target, parse_target
from eroica.hardware.sampler import HZ, sample_until_stopped


def _targets(_context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]) -> tuple[Target, ...]:
    return tuple(parse_target(text) for text in value)


@click.command()
@click.option(
    "--pid",
    "targets",
    multiple=True,
    required=True,
    callback=_targets,
    metavar="PID[:TID]",
    help="A worker, and its training thread if that is not the main thread; may be repeated.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Directory for the samples."
)
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Longest time; default until stopped.")
@click.option(
    "--hz",
    type=click.IntRange(1, 10_000),
    default=HZ,
    show_default=True,
    help="Samples per second of training threads.",
)
def sample(targets: tuple[Target, ...], out: Path, seconds: float | None, hz: int) -> None:
    """Sample thread states, CPU, network and GPU channels of running workers.

    Runs until interrupted, the workers are gone, or --seconds have passed. Needs no rights: channels that may not be
    read are left out, and the store says why. Where a container hides its neighbors, run it in a privileged one that
    shares the directory.
    """
    sample_until_stopped(targets, out, hz, seconds)
