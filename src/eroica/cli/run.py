"""`eroica run -- COMMAND`: the job as it is, watched. Status, signals and output pass through unchanged."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import click

from eroica.cli.launch import FORWARDED, Impatient, Launch
from eroica.cli.nodes import Claim, Part, enclosing, part_of, tasks_share
from eroica.cli.settings import settings_from
from eroica.errors import UsageError
from eroica.settings import Settings, pinned_config
from eroica.start import IGNORED, given_environment, ignored_before, run_unwatched
from eroica.wire.places import Places, places, without_others_links

_LEAST_BYTES = 1_000_000_000
_OF_ONE_JOB = ("EROICA_JOB", "EROICA_RUN_DIR", "EROICA_COLLECTOR", "EROICA_TOKEN")


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--job", help="Name of the job; default: the Slurm step's, else one of its own.")
@click.option("--out", type=click.Path(path_type=Path), help="Run directory; default eroica-report/<job>.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the job's final verdict here.")
@click.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="A setting; `eroica settings` lists them.")
@click.option("--expected-iteration-s", type=float, help="Iterations longer than this are slow from the start.")
@click.option("--fleet", metavar="URL", help="Report to this `eroica serve`, with EROICA_FLEET_TOKEN.")
@click.option("--keep-traces", is_flag=True, help="Keep the raw traces of windows.")
@click.option("--quiet", is_flag=True, help="Print no verdict at the end.")
@click.option("--no-footer", is_flag=True, help="No live line at the bottom of the terminal.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(  # noqa: PLR0913 - one for each option
    *,
    job: str | None,
    out: Path | None,
    json_file: Path | None,
    pairs: tuple[str, ...],
    expected_iteration_s: float | None,
    fleet: str | None,
    keep_traces: bool,
    quiet: bool,
    no_footer: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND (torchrun, python, srun, any launcher) and watch it; no change to the training code.

    The exit status is the command's own. Verdicts go to standard error after it has ended, and into the run directory.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # from here on there is something to tidy up
    given_environment()
    ignored = ignored_before(os.environ.get(IGNORED, ""))
    extra = [f"expected_iteration_s={expected_iteration_s}"] if expected_iteration_s is not None else []
    extra += [f"fleet={fleet}"] if fleet is not None else []
    extra += ["keep_traces=true"] if keep_traces else []
    claim = launch = None
    try:
        try:
            settings, environment, part = _prepared(command, job, out, json_file, (*pairs, *extra))
        except Exception as error:  # noqa: BLE001 - whatever is broken about us, the command is run
            others = {name: value for name, value in os.environ.items() if name not in _OF_ONE_JOB}
            environment = _environment(others, job, None, {})
            settings, part = Settings(), _unwatched(str(error) or type(error).__name__)
        claim = Claim(places(environment))
        part = _claimed(claim, part)
        footer = settings.footer and not no_footer
        launch = Launch({**environment, **part.variables}, settings, part, footer, mask, ignored)
        status = launch.command(command)
    except Exception as error:  # no memory, no process, or one of our modules cannot be imported
        if claim is not None:
            claim.release()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if launch is None or not launch.started:
            told = launch is not None and launch.problems
            run_unwatched(["run", "--", *command], "" if told else f"{type(error).__name__}: {error}")
        raise
    try:
        verdict = launch.finish()
        if (launch.concludes or part.refused) and (verdict or has_room()):
            _write_json(json_file, verdict or launch.no_verdict())
        if launch.started and not quiet and part.speaks and has_room():
            _print_verdict(verdict, launch.where, settings)
            if launch.home:
                click.echo(f"Eroica: the verdict is written on {launch.home}, where worker 0 is.", err=True)
    except (Impatient, Exception, SystemExit) as error:  # noqa: BLE001 - a closed pipe, a broken record: the status counts
        with contextlib.suppress(OSError, AttributeError):
            click.echo(f"eroica: no final verdict: {' '.join(str(error).split())[:300]}", err=True)
    finally:
        claim.release()
        leave(status)


def _prepared(
    command: tuple[str, ...], job: str | None, out: Path | None, json_file: Path | None, pairs: tuple[str, ...]
) -> tuple[Settings, dict[str, str], Part]:
    """What shall hold for this job: settings, the environment of its processes, and our part in it.

    Raises:
        UsageError: A setting cannot be used, or `--out` not.
        OSError: `--out` leads through another user's link.
    """
    settings, variables = settings_from(pairs)
    ours: Mapping[str, str] = os.environ
    if not enclosing(os.environ):
        part = part_of(os.environ, command)
    elif not (job or out or json_file):
        part = Part(agent=False, collector=False, speaks=False)
    else:  # a job of its own inside another: nothing of that one's is ours
        ours = {name: value for name, value in os.environ.items() if name not in _OF_ONE_JOB}
        part = part_of(ours, command)
    return settings, _environment(ours, job, out, {**variables, **part.variables}), part


def _unwatched(problem: str) -> Part:
    """The part of one that only runs the command, and says why."""
    unwatched = {"EROICA_DISABLE": "1"}
    problem = f"the job runs unwatched: {problem}"
    return Part(agent=False, collector=False, speaks=False, variables=unwatched, problem=problem, refused=True)


def _claimed(claim: Claim, part: Part) -> Part:
    """`part`; where the job's name or its run directory is another's, one that only runs the command and says why."""
    try:
        taken = claim.take() if part.collector else ""
    except OSError:  # `Launch` finds out, too, and says it
        taken = ""
    return _unwatched(f"{taken}; give each job its own --job and --out, or leave both out") if taken else part


def leave(status: int) -> None:
    """End as the command did: with its status, or by its signal."""
    if status >= 0:
        sys.exit(status)
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core, if any, is the command's
    number = -status  # maybe a real-time signal, which has no name
    with contextlib.suppress(OSError):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    sys.exit(128 - status)


def _environment(
    ours: Mapping[str, str], job: str | None, out: Path | None, variables: Mapping[str, str]
) -> dict[str, str]:
    environment = {**ours, **pinned_config(ours), **variables}
    if job:
        environment["EROICA_JOB"] = job
    elif "EROICA_JOB" not in environment and not tasks_share(environment):
        own = time.strftime("%Y%m%d-%H%M%S-") + str(os.getpid())  # no other job has it, not even of the same allocation
        environment["EROICA_JOB"] = "-".join(filter(None, (environment.get("SLURM_JOB_ID"), own)))
    if out is not None:
        place = without_others_links(out)
        with contextlib.suppress(OSError):  # where we may not look; the job runs unwatched and says so
            if place.exists() and not place.is_dir():
                raise UsageError(f"--out {out} is a file; name a directory")
        environment["EROICA_RUN_DIR"] = str(place)
    where = places(environment)
    environment.update(
        EROICA_JOB=where.job,
        EROICA_RUN_DIR=str(where.run),
        EROICA_LAUNCHED=f"{os.getpid()}@{where.host}",
    )
    return environment


def _write_json(path: Path | None, verdict: bytes | None) -> None:
    if path is None or verdict is None:
        return
    try:
        without_others_links(path).write_bytes(verdict)
    except OSError as error:
        click.echo(f"eroica: --json {path}: {error.strerror}; the verdict stands in the run directory", err=True)


def has_room() -> bool:
    """The limits of the process leave room for what tells a verdict: NumPy ends a process that has none."""
    import resource

    limits = (resource.getrlimit(one)[0] for one in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return all(limit == resource.RLIM_INFINITY or limit >= _LEAST_BYTES for limit in limits)


def _print_verdict(verdict: bytes | None, where: Places, settings: Settings) -> None:
    if verdict is None:
        return
    from eroica.cli.output import make_console, say_page
    from eroica.model.verdict import Verdict
    from eroica.report.text import render_verdict

    console = make_console(stderr=True)
    render_verdict(Verdict.from_json(verdict), console)
    say_page(console, where.run, settings)
