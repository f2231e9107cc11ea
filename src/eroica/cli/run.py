"""`eroica run -- COMMAND`: the job as it is, watched. Status, signals and output pass through unchanged."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from eroica.cli.options import settings_from
from eroica.errors import EroicaError, UsageError
from eroica.settings import Settings
from eroica.wire.places import Places, places, private_directory

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_SI_KERNEL = 0x80
_TERMINAL_SIGNALS = {signal.SIGINT, signal.SIGQUIT}
_FORWARDED = {
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGWINCH,
    signal.SIGCONT,
}


@click.command(context_settings={"ignore_unknown_options": False})
@click.option("--job", help="Name of the job; default: Slurm's or torchrun's, else one of its own.")
@click.option("--out", type=click.Path(path_type=Path), help="Run directory; default eroica-report/<job>.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the job's final verdict here.")
@click.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="A setting; `eroica settings` lists them.")
@click.option("--expected-iteration-s", type=float, help="Iterations longer than this are slow from the start.")
@click.option("--keep-traces", is_flag=True, help="Keep the raw traces of windows.")
@click.option("--quiet", is_flag=True, help="Print no verdict at the end.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    job: str | None,
    out: Path | None,
    json_file: Path | None,
    pairs: tuple[str, ...],
    expected_iteration_s: float | None,
    keep_traces: bool,
    quiet: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND (torchrun, python, srun, any launcher) and watch it; no change to the training code.

    The exit status is the command's own. Verdicts go to standard error after it has ended, and into the run directory.
    """
    extra = [f"expected_iteration_s={expected_iteration_s}"] if expected_iteration_s is not None else []
    extra += ["keep_traces=true"] if keep_traces else []
    settings, variables = settings_from((*pairs, *extra))
    launch = Launch(_environment(job, out, variables), settings)
    status = launch.command(command)
    try:
        verdict = launch.finish()
        _write_json(json_file, verdict or launch.no_verdict())
        if not quiet:
            _print_verdict(verdict, launch.where)
    except (_Impatient, OSError, ValueError, SystemExit) as error:  # a closed pipe, a broken record: the status counts
        with contextlib.suppress(OSError):
            click.echo(f"eroica: no final verdict: {error}", err=True)
    finally:
        leave(status)


class _Impatient(BaseException):
    """A signal came while we waited for the final verdict."""


def _stop_waiting(number: int, frame: object) -> None:
    raise _Impatient(f"{signal.Signals(number).name} came while waiting for it")


def leave(status: int) -> None:
    """End as the command did: with its status, or by its signal."""
    if status >= 0:
        sys.exit(status)
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core, if any, is the command's
    number = signal.Signals(-status)
    with contextlib.suppress(OSError):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    sys.exit(128 - status)


class Launch:
    """Collector, agent and command of one `eroica run`.

    Whatever fails on Eroica's side, the command runs all the same; `problems` says what failed.
    """

    def __init__(self, environment: dict[str, str], settings: Settings) -> None:
        self.where: Places = places(environment)
        self.problems: list[str] = []
        self._environment = environment
        self._settings = settings
        self._helpers: list[subprocess.Popen[bytes]] = []
        try:
            for directory in (self.where.run, self.where.run / "log", self.where.runtime):
                private_directory(directory)
            self._forget_last_time()
            self._helpers = [self._helper("collector"), self._helper("agent")]
        except OSError as error:
            self.problems.append(f"the job runs unwatched: {error}")

    def _forget_last_time(self) -> None:
        """Remove the verdict of an earlier job of the same name."""
        for name in ("verdict.json", "status.json", "collector.json"):
            (self.where.run / name).unlink(missing_ok=True)

    def _helper(self, name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", f"eroica.{name}"],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # the terminal's Ctrl-C is for the training
        )

    # ------------------------------------------------------------------ the command

    def command(self, arguments: Sequence[str]) -> int:
        """Run the command; returns its status as `subprocess` gives it (negative: the signal that ended it)."""
        from eroica.worker import bootstrap_directory

        environment = dict(self._environment)
        before = environment.get("PYTHONPATH")
        paths = [str(bootstrap_directory()), *([before] if before else [])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        watched = _FORWARDED | {signal.SIGCHLD}
        old = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
        try:
            process = subprocess.Popen(
                arguments,
                env=environment,
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, old) and None,  # noqa: PLW1509 - no threads here
            )
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, old)
            click.echo(f"eroica: cannot run {arguments[0]!r}: {error.strerror}", err=True)
            return _NOT_FOUND if error.errno == errno.ENOENT else _NOT_EXECUTABLE
        while process.poll() is None:
            self._pass_on(signal.sigwaitinfo(watched), process)
        for number in watched - {signal.SIGCHLD}:  # one that came while the command was ending was for the command
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _stop_waiting)
        return process.returncode

    @staticmethod
    def _pass_on(caught: signal.struct_siginfo, process: subprocess.Popen[bytes]) -> None:
        if caught.si_signo == signal.SIGCHLD:
            return
        from_terminal = caught.si_code == _SI_KERNEL and caught.si_signo in (*_TERMINAL_SIGNALS, signal.SIGWINCH)
        if not from_terminal:  # the terminal has told the command already
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(caught.si_signo)

    # ------------------------------------------------------------------ the end

    def finish(self) -> bytes | None:
        """Let the collector conclude; returns the final verdict's JSON, None if there is none."""
        final = self.where.run / "verdict.json"
        try:
            if not self._helpers:
                return None
            self._tell_collector()
            end = time.monotonic() + self._settings.window_deadline_s
            while not final.exists() and self._helpers[0].poll() is None and time.monotonic() < end:
                time.sleep(0.05)
            return final.read_bytes()
        except (OSError, EroicaError, _Impatient) as error:
            self.problems.append(f"no final verdict: {error}; see {self.where.run / 'log'}")
            return None
        finally:
            self._end_helpers()
            for problem in self.problems:
                click.echo(f"eroica: {problem}", err=True)

    def no_verdict(self) -> bytes:
        """What stands for a final verdict that never came."""
        from eroica.collector.history import lost_verdict

        return lost_verdict(self.where.job, self.problems).to_json()

    def _tell_collector(self) -> None:
        from eroica.cli.jobs import call
        from eroica.collector.store import read_address

        end = time.monotonic() + 10.0
        while read_address(self.where.run) is None and self._helpers[0].poll() is None and time.monotonic() < end:
            time.sleep(0.05)  # a command that ended before the collector was up
        time.sleep(2 * self._settings.report_s)  # the agent's last report
        call(self.where.run, "POST", "/v1/finish")

    def _end_helpers(self) -> None:
        """The agent has been told, or did not listen yet; the collector goes when the agent has gone."""
        for helper, patience_s in zip(reversed(self._helpers), (1.5, self._settings.farewell_s + 1.0), strict=False):
            with contextlib.suppress(subprocess.TimeoutExpired):
                helper.wait(patience_s)
                continue
            helper.terminate()
            try:
                helper.wait(3.0)
            except subprocess.TimeoutExpired:
                helper.kill()
                helper.wait()


def _environment(job: str | None, out: Path | None, variables: Mapping[str, str]) -> dict[str, str]:
    environment = {**os.environ, **variables, "EROICA_LAUNCHED": "1"}
    if job:
        environment["EROICA_JOB"] = job
    elif "EROICA_JOB" not in environment and "SLURM_JOB_ID" not in environment:
        environment["EROICA_JOB"] = time.strftime("%Y%m%d-%H%M%S-") + str(os.getpid())
    if out is not None:
        if out.exists() and not out.is_dir():
            raise UsageError(f"--out {out} is a file; name a directory")
        environment["EROICA_RUN_DIR"] = str(out.resolve())
    where = places(environment)
    environment.update(
        EROICA_JOB=where.job,
        EROICA_HOST=where.host,
        EROICA_RUN_DIR=str(where.run),
    )
    return environment


def _write_json(path: Path | None, verdict: bytes | None) -> None:
    if path is None or verdict is None:
        return
    try:
        path.write_bytes(verdict)
    except OSError as error:
        click.echo(f"eroica: --json {path}: {error.strerror}; the verdict stands in the run directory", err=True)


def _print_verdict(verdict: bytes | None, where: Places) -> None:
    if verdict is None:
        return
    from rich.console import Console

    from eroica.model.verdict import Verdict
    from eroica.report.text import render_verdict

    console = Console(stderr=True)
    render_verdict(Verdict.from_json(verdict), console)
    console.print(f"Report: {where.run}", style="dim", markup=False, highlight=False)
