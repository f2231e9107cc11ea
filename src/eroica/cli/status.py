"""`eroica status`: the jobs that are being watched on this host."""

from __future__ import annotations

import os
import time
import webbrowser
from html import escape
from pathlib import Path

import click
import msgspec

from eroica.cli.jobs import call, choose_run, job_status, running_jobs
from eroica.cli.output import say
from eroica.errors import UnavailableError
from eroica.model.verdict import Verdict
from eroica.model.words import line
from eroica.report.phrases import PHASES, without_word
from eroica.views.live_page import facts
from eroica.wire.address import LINK_FILE, endpoint_of, is_loopback, page_link, read_address
from eroica.wire.codec import decode_message
from eroica.wire.messages import JobStatus, ProfileAnswer, ProfileRequest, WindowLine, WorkerStatus
from eroica.wire.places import write_private

_SHOWN = 40


@click.command()
@click.option("--out", type=click.Path(path_type=Path), help="Only the job of this run directory.")
def status(out: Path | None) -> None:
    """Show every watched job of this host: phase, workers, iterations, windows and what went wrong."""
    runs = {"": out} if out is not None else running_jobs()
    if not runs:
        click.echo("no job is being watched on this host")
    for run in runs.values():
        try:
            say(_text(job_status(run), run))
        except UnavailableError as error:
            click.echo(str(error), err=True)


def _text(job: JobStatus, run: Path) -> str:
    lines = [f"{job.job}: {job.message}", f"  run directory  {run}"]
    address = read_address(run)
    if address is not None:
        lines.append(f"  live page      {page_link(address)}")
    if job.mean_ms is not None:
        best = f", best {job.best_ms:.1f} ms" if job.best_ms is not None else ""
        lines.append(f"  iteration      {job.iteration}, {job.mean_ms:.1f} ms{best}")
    by_rank = sorted(job.workers, key=lambda one: one.worker.global_rank)
    odd_ones_first = sorted(by_rank, key=lambda one: not (one.silent or one.ended or one.state in ("failed", "gone")))
    lines += [_worker(worker) for worker in odd_ones_first[:_SHOWN]]
    if len(job.workers) > _SHOWN:
        lines.append(f"  and {len(job.workers) - _SHOWN} more workers")
    lines += [_window(window) for window in job.windows]
    lines += [f"  note: {note}" for note in job.notes]
    return "\n".join(map(line, lines))


def _worker(worker: WorkerStatus) -> str:
    who = worker.worker
    return f"  worker {who.global_rank:<6} {who.host} pid {who.pid}: {', '.join(facts(worker))}"


def _window(window: WindowLine) -> str:
    span = f"iterations {window.first_iteration}-{window.last_iteration}"
    if window.purpose == "blocked":
        span = f"iteration {window.first_iteration}"
    phase = PHASES.get(window.phase, window.phase)
    words = f"{window.verdict}: {without_word(window.verdict, window.summary)}".removeprefix(": ")
    return f"  window {window.window_id} ({window.purpose}, {span}): {phase}. {words}".rstrip()


# --- the live page ---


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


# --- a window now ---


@click.command()
@click.option("--job", help="Name of the job, if several are being watched.")
@click.option("--out", type=click.Path(path_type=Path), help="The job's run directory, instead of --job.")
@click.option(
    "--iterations",
    type=click.IntRange(min=2),
    help="Its length in iterations; at most max_window_iterations, or a second.",
)
@click.option("--seconds", type=click.FloatRange(min=0.1), help="Length of the window in seconds.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the window's verdict here.")
@click.option("--no-wait", is_flag=True, help="Do not wait for the verdict.")
def profile(
    job: str | None,
    out: Path | None,
    iterations: int | None,
    seconds: float | None,
    json_file: Path | None,
    no_wait: bool,
) -> None:
    """Capture one window on all workers of a running job and say what limits it.

    Exit status: 0 healthy, 3 a cause was found, 4 undetermined, 1 the window failed, 2 wrong usage.
    """
    run = choose_run(job, out)
    request = ProfileRequest(iterations=iterations or 0, seconds=seconds or 0.0)
    answer = decode_message(call(run, "POST", "/v1/profile", msgspec.msgpack.encode(request)), ProfileAnswer)
    if not answer.window_id:
        raise UnavailableError(f"no window was opened: {answer.refused}")
    if no_wait:
        click.echo(f"window {answer.window_id} is opening; its verdict will lie in {run / 'windows'}")
        return
    verdict = _await_verdict(run, answer.window_id)
    if json_file is not None:
        json_file.write_bytes(verdict.to_json())
    from eroica.cli.output import make_console
    from eroica.report.text import render_verdict

    render_verdict(verdict, make_console())
    raise SystemExit(verdict.exit_code)


def _await_verdict(run: Path, window_id: int) -> Verdict:
    """Show what happens until the window's verdict is there.

    Raises:
        UnavailableError: The window was given up, or the collector went away.
    """
    from rich.console import Console
    from rich.text import Text

    from eroica.model.words import sentence

    path = run / "windows" / str(window_id) / "verdict.json"
    with Console(stderr=True).status(f"window {window_id}") as spinner:
        while not path.exists():
            status = job_status(run)
            line = next((line for line in status.windows if line.window_id == window_id), None)
            if line is not None and line.phase in ("given up", "failed"):
                raise UnavailableError(f"window {window_id} was {line.phase}: {line.summary}")
            if line is not None and line.phase == "done":
                time.sleep(1.0)
                if not path.exists():
                    raise UnavailableError(f"window {window_id} is done, but its verdict was not saved: {status.notes}")
            spinner.update(Text(sentence(status.message)))
            time.sleep(0.3)
    return Verdict.from_json(path.read_bytes())
