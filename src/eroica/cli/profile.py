"""`eroica profile`: open a window on a running job now."""

from __future__ import annotations

import time
from pathlib import Path

import click
import msgspec

from eroica.cli.jobs import call, choose_run, job_status
from eroica.errors import UnavailableError
from eroica.model.verdict import Verdict
from eroica.wire.codec import decode_message
from eroica.wire.messages import ProfileAnswer, ProfileRequest


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
