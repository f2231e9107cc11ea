"""`eroica top`: a job that was started elsewhere, live in this terminal."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import msgspec
from rich.console import Console, Group
from rich.live import Live

from eroica.archive.load import decode_history
from eroica.cli.jobs import ask, running_jobs
from eroica.cli.output import make_console
from eroica.errors import EroicaError, InputError, UnavailableError, UsageError
from eroica.model.history import IterationHistory
from eroica.model.words import line
from eroica.report.top import View, build_screen
from eroica.wire.address import Address, endpoint_of, good_token, page_link, read_address
from eroica.wire.codec import decode_message
from eroica.wire.messages import JobStatus, ProfileAnswer, ProfileRequest
from eroica.wire.places import read_private

_UPDATE_S = 1.0
_ANSWER_S = 6.0
_MOST_BYTES = 64_000_000
_REPORTS = Path("eroica-report")
_PIPED_WIDTH = 100


@click.command()
@click.argument("job", required=False)
@click.option("--out", type=click.Path(path_type=Path), help="The job's run directory, instead of its name.")
@click.option("--once", is_flag=True, help="Print one screen and end; the default where this is no terminal.")
def top(job: str | None, out: Path | None, once: bool) -> None:
    """Show a running job: pace, windows with their verdicts, and the workers that matter first.

    JOB is a job's name or its run directory; it can be left out if there is only one. A job on another host is reached
    by EROICA_COLLECTOR and EROICA_TOKEN. Keys: q quits, w opens a window now.
    """
    source = _source(job, out)
    console = make_console()
    live = console.is_terminal and not console.is_dumb_terminal and sys.stdin.isatty() and not once
    if live:
        _show(source, console)
        return
    width = console.width if console.is_terminal or "COLUMNS" in os.environ else _PIPED_WIDTH
    for text in build_screen(source.view(), width):
        console.print(text, highlight=False, markup=False, soft_wrap=True)


class Source:
    """Where one job's state comes from: its run directory if it can be seen here, else its collector.

    Args:
        run: Run directory; None: only the collector.
        address: The collector, if it was named.
    """

    def __init__(self, run: Path | None, address: Address | None = None) -> None:
        self._run, self._address = run, address
        self._history: tuple[float, IterationHistory | None] = (0.0, None)

    def view(self) -> View:
        """The job now.

        Raises:
            UnavailableError: There is nothing to see.
        """
        age_s = 0.0
        try:
            if self._run is not None:
                path = self._run / "status.json"
                data, age_s = read_private(path, _MOST_BYTES), max(0.0, time.time() - path.stat().st_mtime)
            else:
                assert self._address is not None
                data = ask(self._address, self._address.url, "GET", "/v1/status")
            status = msgspec.json.decode(data, type=JobStatus)
        except (OSError, ValueError, RecursionError) as error:
            raise UnavailableError(f"there is no job to see in {self._run or 'EROICA_COLLECTOR'}: {error}") from error
        address = self._collector()
        return View(
            status=status,
            history=self._past(),
            link=page_link(address) if address is not None else "",
            silence_s=0.0 if status.phase == "ended" else age_s,
        )

    def open_window(self) -> str:
        """Ask for a window now; what became of it, for people."""
        address = self._collector()
        if address is None:
            return "no window: the job's collector is not reached from here"
        request = msgspec.msgpack.encode(ProfileRequest(reason="asked for in eroica top"))
        try:
            data = ask(address, address.url, "POST", "/v1/profile", request, timeout_s=3.0)
            answer = decode_message(data, ProfileAnswer)
        except EroicaError as error:
            return f"no window: {error}"
        return f"window {answer.window_id} is opening" if answer.window_id else f"no window: {answer.refused}"

    def _collector(self) -> Address | None:
        return self._address or (read_address(self._run) if self._run is not None else None)

    def _past(self) -> IterationHistory | None:
        """Iteration times from the run directory, read again when they have changed."""
        if self._run is not None:
            with contextlib.suppress(OSError, ValueError, RecursionError, InputError):
                path = self._run / "history.json"
                written = path.stat().st_mtime
                if written != self._history[0]:
                    self._history = written, decode_history(read_private(path, _MOST_BYTES))
        return self._history[1]


def _source(job: str | None, out: Path | None) -> Source:
    """The job that is meant.

    Raises:
        UsageError: None can be seen, or several and nobody says which.
    """
    if out is not None and job is not None:
        raise UsageError("name the job or --out, not both")
    if out is not None or (job is not None and Path(job).is_dir()):
        return Source(out or Path(str(job)))
    url, token = os.environ.get("EROICA_COLLECTOR", ""), os.environ.get("EROICA_TOKEN", "")
    if url and job is None:
        if not good_token(token):
            raise UsageError("EROICA_COLLECTOR needs the EROICA_TOKEN of that collector")
        return Source(None, Address(url=endpoint_of(url).url, token=token, pid=0))
    running = running_jobs()
    jobs = {**_kept_jobs(), **running}
    if job is not None and job not in jobs:
        raise UsageError(f"no job {job!r} here; there are: {', '.join(jobs) or 'none'}")
    meant = {job: jobs[job]} if job is not None else running or jobs
    if not meant:
        raise UsageError("no job is being watched on this host; start one with `eroica run -- COMMAND`")
    return Source(next(iter(meant.values())) if len(meant) == 1 else _chosen(meant))


def _kept_jobs() -> dict[str, Path]:
    """Run directories of this working directory, the newest first."""
    with contextlib.suppress(OSError):
        found = [path.parent for path in _REPORTS.glob("*/status.json")]
        return {run.name: run for run in sorted(found, key=lambda run: -run.stat().st_mtime)}
    return {}


def _chosen(jobs: Mapping[str, Path]) -> Path:
    names = list(jobs)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(f"several jobs: {', '.join(names)}; name one of them")
    for number, name in enumerate(names, 1):
        click.echo(line(f"{number:>3}  {name}  {jobs[name]}"))
    return jobs[names[click.prompt("Which one", type=click.IntRange(1, len(names)), default=1) - 1]]


def _show(source: Source, console: Console) -> None:
    """Draw the job on the terminal's second screen once a second, until somebody quits.

    Raises:
        UnavailableError: There never was anything to see.
    """

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    source.view()
    old = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with contextlib.suppress(KeyboardInterrupt):
            while _watch(source, console):
                os.kill(os.getpid(), signal.SIGTSTP)  # Ctrl-Z, once the terminal is the shell's again
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _watch(source: Source, console: Console) -> bool:
    """Until somebody quits (False) or wants the shell (True)."""
    seen, answer, until = source.view(), "", 0.0
    screen = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    with _single_keys(sys.stdin.fileno()) as woken, screen:
        while True:
            with contextlib.suppress(UnavailableError):  # the job's files are gone: what was seen last stays
                seen = source.view()
            shown = msgspec.structs.replace(seen, keys=True, answer=answer if time.monotonic() < until else "")
            screen.update(Group(*build_screen(shown, console.size.width, console.size.height)), refresh=True)
            ready, _, _ = select.select([sys.stdin, woken], [], [], _UPDATE_S)
            if woken in ready and signal.SIGTSTP in os.read(woken, 512):
                return True
            keys = os.read(sys.stdin.fileno(), 64) if sys.stdin in ready else b""
            if b"q" in keys or b"\x03" in keys or (sys.stdin in ready and not keys):
                return False
            if b"w" in keys:
                answer, until = source.open_window(), time.monotonic() + _ANSWER_S


@contextlib.contextmanager
def _single_keys(keyboard: int) -> Iterator[int]:
    """Keys without Enter and without echo; yields what is readable when the size changes or Ctrl-Z was pressed."""
    before = termios.tcgetattr(keyboard)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    numbers = (signal.SIGWINCH, signal.SIGTSTP)
    old = {number: signal.signal(number, lambda *_: None) for number in numbers}
    other = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        tty.setcbreak(keyboard)
        yield woken
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
        signal.set_wakeup_fd(other)
        for number, handler in old.items():
            signal.signal(number, handler)
        os.close(woken)
        os.close(wake)
