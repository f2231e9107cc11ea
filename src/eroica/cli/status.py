"""`eroica status`: the jobs that are being watched on this host."""

from __future__ import annotations

from pathlib import Path

import click

from eroica.cli.jobs import job_status, running_jobs
from eroica.cli.output import say
from eroica.errors import UnavailableError
from eroica.model.words import line
from eroica.report.phrases import without_word
from eroica.views.live_page import facts
from eroica.wire.address import page_link, read_address
from eroica.wire.messages import JobStatus, WindowLine, WorkerStatus

_SHOWN = 40
_STANDSTILLS = {
    "passed": "done; it went on by itself",
    "restarted": "done; the job was started again",
    "looking": "looking at all workers",
    "examining": "comparing the looks",
}


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
    odd_ones_first = sorted(job.workers, key=lambda worker: (not _is_odd(worker), worker.worker.global_rank))
    lines += [_worker(worker) for worker in odd_ones_first[:_SHOWN]]
    if len(job.workers) > _SHOWN:
        lines.append(f"  and {len(job.workers) - _SHOWN} more workers")
    lines += [_window(window) for window in job.windows]
    lines += [f"  note: {note}" for note in job.notes]
    return "\n".join(map(line, lines))


def _is_odd(worker: WorkerStatus) -> bool:
    return worker.silent or worker.ended or worker.state in ("failed", "gone")


def _worker(worker: WorkerStatus) -> str:
    who = worker.worker
    return f"  worker {who.global_rank:<6} {who.host} pid {who.pid}: {', '.join(facts(worker))}"


def _window(window: WindowLine) -> str:
    span = f"iterations {window.first_iteration}-{window.last_iteration}"
    phase = window.phase
    if window.purpose == "blocked":
        span, phase = f"iteration {window.first_iteration}", _STANDSTILLS.get(phase, phase)
    words = f"{window.verdict}: {without_word(window.verdict, window.summary)}".removeprefix(": ")
    return f"  window {window.window_id} ({window.purpose}, {span}): {phase}. {words}".rstrip()
