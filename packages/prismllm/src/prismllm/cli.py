"""`prismllm`: capture, predict, show, export, measure, emulate."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from prismllm import __doc__ as _ABOUT
from prismllm.capture import CaptureOptions
from prismllm.emulation import emulate
from prismllm.errors import InputError, PrismError
from prismllm.rank_classes import capture_job
from prismllm.rehearsal import Rehearsal, first_of, read_changes
from prismllm.views.chakra import write_chakra
from prismllm.views.flight import write_dumps
from prismllm.views.kineto import write_traces
from prismllm.views.path import critical_path, shares
from prismllm.views.timeline import bars, draw_svg


class _Command(click.Group):
    """Errors that a user can put right are one sentence."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run, or say what is wrong and exit with 2 for wrong input, 1 else."""
        try:
            return super().invoke(ctx)
        except PrismError as error:
            click.echo(f"prismllm: {error}", err=True)
            sys.exit(2 if isinstance(error, InputError) else 1)


@click.group(cls=_Command, help=_ABOUT.partition("\n")[0])
def main() -> None:
    """All commands."""


def _from_capture(command: Callable[..., None]) -> Callable[..., None]:
    """The arguments of every command that reads a capture."""
    for option in (
        click.option("--what-if", "changes", multiple=True, metavar="CHANGE",
                     help='e.g. "slow rank=713 by=1.5 from=2"; may be given several times'),
        click.option("--costs", type=click.Path(path_type=Path), help="costs of communication (prismllm measure)"),
        click.argument("capture", type=click.Path(path_type=Path)),
    ):  # fmt: skip
        command = option(command)
    return command


@main.command("capture")
@click.option("--world", type=int, required=True, help="ranks of the job")
@click.option("--out", type=click.Path(path_type=Path), default=Path("capture"), show_default=True)
@click.option("--slice", "slice_size", type=int, default=8, show_default=True, help="ranks that run at the same time")
@click.option("--all", "every_rank", is_flag=True, help="run every rank instead of some of each class")
@click.option("--warmup", type=int, default=2, show_default=True, help="iterations before those that repeat")
@click.option("--timed", type=int, default=5, show_default=True, help="iterations that are timed")
@click.option("--ranks-per-host", type=int, default=8, show_default=True)
@click.option("--timeout", type=float, default=120.0, show_default=True, help="seconds that a slice may take")
@click.option(
    "--cores", type=int, default=0, help="ranks that are timed at the same time; as many as a host has by default"
)
@click.option("--check-seconds", "check_s", type=float, default=30.0, show_default=True,
              help="time every rank if that takes at most so long; else three of each class")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="of the choice of ranks that are timed")
@click.argument("script", nargs=-1, required=True)
def _capture(  # noqa: PLR0913, PLR0917 - one for each option
    world: int, out: Path, slice_size: int, every_rank: bool, warmup: int, timed: int, ranks_per_host: int,
             timeout: float, cores: int, check_s: float, seed: int,
             script: tuple[str, ...]) -> None:  # fmt: skip
    """Run some ranks of SCRIPT (train.py ARGUMENTS) and write down what they do."""
    begun = time.monotonic()
    options = CaptureOptions(script, world, out, slice_size, warmup, timed, ranks_per_host, timeout, cores, check_s,
                             seed)  # fmt: skip
    job = capture_job(options, every_rank=every_rank, say=lambda text: click.echo(f"  {text}", err=True))
    ran = sum(len(rank_class.ran) for rank_class in job.classes)
    click.echo(
        f"{world:,} ranks are {len(job.classes)} classes, by running {ran} of them; {time.monotonic() - begun:.0f} s"
    )
    rehearsal = Rehearsal(job)
    nodes, edges = rehearsal.graph.nodes_and_edges()
    click.echo(f"graph: {nodes:,} nodes, {edges:,} edges; every call has all its members, every message both sides")
    click.echo(f"risk: {rehearsal.risk}")


@main.command()
@_from_capture
@click.option(
    "--beside",
    "others",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="CAPTURE",
    help="another capture to compare with: another schedule, another layout; may be given several times",
)
@click.option("--json", "out", type=click.Path(path_type=Path), help="write all of it")
def predict(
    capture: Path, costs: Path | None, changes: tuple[str, ...], others: tuple[Path, ...], out: Path | None
) -> None:
    """Predict how long an iteration takes, under each change and in other captures."""
    rehearsal = Rehearsal.open(capture, costs)
    plain = rehearsal.predict()
    predicted = {"as captured": plain} | {change: rehearsal.predict(change) for change in changes}
    for what, prediction in predicted.items():
        click.echo(f"{what}: {prediction}")
    beside = {str(path): Rehearsal.open(path, costs) for path in others}
    for path, other in beside.items():
        predicted[path] = other.predict()
        click.echo(f"{path}: {predicted[path]}; {predicted[path].seconds / plain.seconds - 1:+.1%} of the time, "
                   f"most memory of a rank {other.most_bytes / rehearsal.most_bytes - 1:+.1%}")  # fmt: skip
    spread = max(rank_class.spread for rank_class in rehearsal.job.classes)
    click.echo(f"ranks of one class were timed within {100 * spread:.1f} %; communication: {rehearsal.costs.where}")
    click.echo(f"risk: {plain.risk}")
    if out is not None:
        memory = {"as captured": rehearsal.most_bytes} | {path: other.most_bytes for path, other in beside.items()}
        out.write_bytes(msgspec.json.encode({
            "world": rehearsal.job.world, "predictions": predicted, "most_bytes": memory, "spread": spread,
            "communication": rehearsal.costs.where,
        }))  # fmt: skip


@main.command()
@_from_capture
@click.option("--ranks", default="0-7", show_default=True, help="which to draw: 0,5,8-15")
@click.option("--svg", type=click.Path(path_type=Path), help="write the timeline as a picture")
def show(capture: Path, costs: Path | None, changes: tuple[str, ...], ranks: str, svg: Path | None) -> None:
    """Timeline, critical path, pipeline bubbles and exposed communication of an iteration."""
    rehearsal = Rehearsal.open(capture, costs)
    graph, prediction = rehearsal.graph, rehearsal.predict(*changes)
    click.echo(str(prediction))
    first = first_of(read_changes(changes))
    iteration = rehearsal.run(changes, iterations=first + (1 if prediction.blocked else 3))[-1]
    path = [] if prediction.blocked else critical_path(graph, iteration)
    if path:
        parts = shares(graph, iteration)
        click.echo(f"mean of all ranks: own work {1e3 * parts.own_s.mean():.1f} ms, exposed collectives "
                   f"{1e3 * parts.exposed_s.mean():.1f} ms, bubbles {1e3 * parts.bubble_s.mean():.1f} ms")  # fmt: skip
        click.echo("critical path, longest pieces:")
        for piece in sorted(path, key=lambda one: -one.seconds)[:8]:
            click.echo(f"  {1e3 * piece.seconds:8.2f} ms  rank {piece.rank}  {piece.what}  {piece.site}")
    found = bars(graph, iteration, read_ranks(ranks, rehearsal.job.world))
    if svg is not None:
        svg.write_text(draw_svg(found, path, f"{rehearsal.job.world:,} ranks: {prediction}"))


def read_ranks(text: str, world: int) -> list[int]:
    """Ranks from "0,5,8-15"; those beyond the world are left out.

    Raises:
        InputError: The text is none of ranks.
    """
    ranks: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            ranks += range(int(first), int(last or first) + 1)
    except ValueError:
        raise InputError(f"{text!r} is no list of ranks; write 0,5,8-15") from None
    return [rank for rank in dict.fromkeys(ranks) if 0 <= rank < world]


@main.command()
@_from_capture
@click.option("--to", "target", type=click.Path(path_type=Path), required=True, help="directory")
@click.option("--as", "form", type=click.Choice(["kineto", "flight-recorder", "chakra"]), required=True)
@click.option("--ranks", help="which: 0,5,8-15; all by default")
@click.option("--iterations", type=int, default=6, show_default=True, help="of profiler traces")
@click.option("--seed", type=int, default=1, show_default=True, help="of the variations, drawn from what was measured")
def export(capture: Path, costs: Path | None, changes: tuple[str, ...], target: Path, form: str, ranks: str | None,
           iterations: int, seed: int) -> None:  # fmt: skip
    """Write profiler traces, Flight Recorder dumps of a hang, or Chakra traces, one file for each rank."""
    rehearsal = Rehearsal.open(capture, costs)
    wanted = None if ranks is None else read_ranks(ranks, rehearsal.job.world)
    first = first_of(read_changes(changes))
    if form == "chakra":
        count = write_chakra(rehearsal.graph, target, ranks=wanted)
    elif form == "flight-recorder":
        iteration = rehearsal.run(changes, iterations=first + 1)[-1]
        count = write_dumps(rehearsal.graph, iteration, target, wanted)
    else:
        if rehearsal.predict(*changes).blocked:
            raise InputError("an iteration that never ends has no profiler trace; export it --as flight-recorder")
        kept = rehearsal.run(changes, iterations=first + 1 + iterations, noise=seed, keep=iterations)
        count = write_traces(rehearsal.graph, kept, target, wanted)
    click.echo(f"{count:,} files in {target}")


@main.command("emulate")
@_from_capture
@click.option("--ranks", required=True, help="which run for real: 0,5,8-15")
@click.option("--iterations", type=int, default=5, show_default=True)
@click.option(
    "--strict/--relaxed",
    default=True,
    show_default=True,
    help="control flow that reads a value nobody computed is an error, or goes unnoticed",
)
def emulate_command(
    capture: Path, costs: Path | None, changes: tuple[str, ...], ranks: str, iterations: int, strict: bool
) -> None:
    """Run some ranks for real in the time of the whole job; all others are played."""
    rehearsal = Rehearsal.open(capture, costs)
    result = emulate(rehearsal, capture, read_ranks(ranks, rehearsal.job.world), changes, iterations=iterations,
                     is_strict=strict)  # fmt: skip
    for number, seconds in enumerate(result.seconds):
        click.echo(f"iteration {number}: {1e3 * seconds:,.1f} ms")
    for rank, record in result.records.items():
        click.echo(f"rank {rank}: at most {record.peak_bytes:,} bytes in use")
    for rank, call in result.stuck.items():
        click.echo(f"rank {rank} stands in {call}")
    click.echo("results of calls in an iteration: " + ", ".join(f"{n} {source}" for source, n in
                                                                result.sources().items()))  # fmt: skip


@main.command("measure")
@click.option("--ranks", default="2,4", show_default=True, help="members of the groups that are measured")
@click.option("--out", type=click.Path(path_type=Path), default=Path("costs.json"), show_default=True)
@click.option("--world", type=int, default=0, help="processes that call at the same time, in several groups")
def measure_command(ranks: str, out: Path, world: int) -> None:
    """Measure what gloo's calls cost on this machine, for --costs."""
    from prismllm.measure import measure

    for row in measure(read_ranks(ranks, 1024), out, world=world).table:
        click.echo(f"{row.op:>14} {row.ranks:3} ranks {row.nbytes:>10,} bytes {1e3 * row.seconds:8.3f} ms")
