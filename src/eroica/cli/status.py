"""`eroica status`: the jobs that are being watched on this host."""

from __future__ import annotations

from pathlib import Path

import click

from eroica.cli.jobs import job_status, running_jobs
from eroica.errors import UnavailableError
from eroica.wire.messages import JobStatus


@click.command()
@click.option("--out", type=click.Path(path_type=Path), help="Only the job of this run directory.")
def status(out: Path | None) -> None:
    """Show every watched job of this host: phase, workers, iterations, windows and what went wrong."""
    runs = {"": out} if out is not None else running_jobs()
    if not runs:
        click.echo("no job is being watched on this host")
    for run in runs.values():
        try:
            click.echo(_text(job_status(run), run))
        except UnavailableError as error:
            click.echo(str(error), err=True)


def _text(job: JobStatus, run: Path) -> str:
    lines = [f"{job.job}: {job.message}", f"  run directory  {run}"]
    if job.mean_ms is not None:
        best = f", best {job.best_ms:.1f} ms" if job.best_ms is not None else ""
        lines.append(f"  iteration      {job.iteration}, {job.mean_ms:.1f} ms{best}")
    for worker in job.workers:
        about = f"{worker.worker.host} pid {worker.worker.pid}"
        mean = f"{1e3 * worker.current_s:.1f} ms" if worker.current_s is not None else "-"
        ended = ", ended" if worker.ended else ""
        note = f"  {worker.result.note}" if worker.result.note else ""
        lines.append(f"  worker {worker.worker.global_rank:<6} {about}: {worker.state}{ended}, {mean}{note}")
    for window in job.windows:
        span = f"iterations {window.first_iteration}-{window.last_iteration}"
        words = f"{window.verdict}: {window.summary}" if window.verdict else window.summary
        lines.append(f"  window {window.window_id} ({window.purpose}, {span}): {window.phase}. {words}".rstrip())
    lines += [f"  note: {note}" for note in job.notes]
    return "\n".join(lines)
