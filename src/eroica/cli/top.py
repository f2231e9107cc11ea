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
from rich.text import Text

from eroica.archive.load import decode_history
from eroica.cli.jobs import ask, running_jobs
from eroica.cli.output import make_console
from eroica.errors import EroicaError, InputError, UnavailableError, UsageError
from eroica.model.history import IterationHistory
from eroica.model.words import line
from eroica.report.top import View, build_screen
from eroica.wire.address import Address, page_link, read_address
from eroica.wire.codec import decode_message
from eroica.wire.messages import JobStatus, ProfileAnswer, ProfileRequest
from eroica.wire.network import endpoint_of, good_token
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
    if not live:
        view = source.view()
        width = console.width if console.is_terminal or "COLUMNS" in os.environ else _PIPED_WIDTH
        for text in build_screen(view, width):
            console.print(text, highlight=False, markup=False, soft_wrap=True)
        return
    Screen(source, console).run()


# ---------------------------------------------------------------------- where the job is


class Source:
    """Where one job's state comes from: its run directory if it can be seen here, else its collector.

    Args:
        run: Run directory; None: only the collector.
        address: The collector, if it was named.
    """

    def __init__(self, run: Path | None, address: Address | None = None) -> None:
        self._run = run
        self._address = address
        self._history: tuple[float, IterationHistory | None] = (0.0, None)
        self._seen: list[tuple[float, int, float]] = []

    def view(self) -> View:
        """The job now.

        Raises:
            UnavailableError: There is nothing to see.
        """
        status, silence_s = self._status()
        address = self._collector()
        return View(
            status=status,
            history=self._past(status),
            link=page_link(address) if address is not None else "",
            silence_s=0.0 if status.phase == "ended" else silence_s,
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

    def _status(self) -> tuple[JobStatus, float]:
        """The status and its age, seconds."""
        try:
            if self._run is not None:
                path = self._run / "status.json"
                data, age_s = read_private(path, _MOST_BYTES), max(0.0, time.time() - path.stat().st_mtime)
                return msgspec.json.decode(data, type=JobStatus), age_s
            if self._address is not None:
                return msgspec.json.decode(
                    ask(self._address, self._address.url, "GET", "/v1/status"), type=JobStatus
                ), 0.0
        except (OSError, ValueError, RecursionError) as error:
            raise UnavailableError(f"there is no job to see in {self._run or 'EROICA_COLLECTOR'}: {error}") from error
        raise UnavailableError("there is no job to see")

    def _past(self, status: JobStatus) -> IterationHistory | None:
        """Iteration times from the run directory; else what we have seen ourselves."""
        if self._run is not None:
            with contextlib.suppress(OSError, ValueError, RecursionError, InputError):
                path = self._run / "history.json"
                written = path.stat().st_mtime
                if written != self._history[0]:
                    self._history = written, decode_history(read_private(path, _MOST_BYTES))
                return self._history[1]
        if status.mean_ms is not None:
            self._seen = [*self._seen[-2000:], (time.monotonic(), status.iteration, status.mean_ms)]
        if len(self._seen) < 2:
            return None
        began = self._seen[0][0]
        at_s, iterations, means = zip(*((at - began, number, mean) for at, number, mean in self._seen), strict=True)
        return IterationHistory(job=status.job, began=0.0, at_s=at_s, iteration=iterations, mean_ms=means)


def _source(job: str | None, out: Path | None) -> Source:
    """The job that is meant.

    Raises:
        UsageError: None can be seen, or several and nobody says which.
    """
    if out is not None and job is not None:
        raise UsageError("name the job or --out, not both")
    if out is not None or (job is not None and Path(job).is_dir()):
        return Source(out or Path(str(job)))
    named = _named_collector(os.environ)
    if named is not None and job is None:
        return Source(None, named)
    jobs = {**_kept_jobs(), **running_jobs()}
    if job is not None:
        if job not in jobs:
            raise UsageError(f"no job {job!r} here; there are: {', '.join(jobs) or 'none'}")
        return Source(jobs[job])
    running = running_jobs() or jobs
    if not running:
        raise UsageError("no job is being watched on this host; start one with `eroica run -- COMMAND`")
    return Source(next(iter(running.values())) if len(running) == 1 else _chosen(running))


def _named_collector(environ: Mapping[str, str]) -> Address | None:
    url, token = environ.get("EROICA_COLLECTOR", ""), environ.get("EROICA_TOKEN", "")
    if not url:
        return None
    if not good_token(token):
        raise UsageError("EROICA_COLLECTOR needs the EROICA_TOKEN of that collector")
    return Address(url=endpoint_of(url).url, token=token, pid=0)


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
    number = click.prompt("Which one", type=click.IntRange(1, len(names)), default=1)
    return jobs[names[number - 1]]


# ---------------------------------------------------------------------- the live screen


class Screen:
    """One job on the terminal's second screen, until somebody quits.

    Args:
        source: The job.
        console: The terminal.
    """

    def __init__(self, source: Source, console: Console) -> None:
        self._source = source
        self._console = console
        self._answer = ("", 0.0)
        self._last: View | None = None

    def run(self) -> None:
        """Draw once a second, and at once when a key or another size wants it.

        Raises:
            UnavailableError: There never was anything to see.
        """
        self._last = self._source.view()
        with _terminal_given_back_on_signals(), contextlib.suppress(KeyboardInterrupt):
            while self._watch():
                os.kill(os.getpid(), signal.SIGTSTP)  # Ctrl-Z, once the terminal is the shell's again

    def _watch(self) -> bool:
        """Until somebody quits (False) or wants the shell (True)."""
        with (
            _single_keys(sys.stdin.fileno()) as woken,
            Live(
                console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
            ) as live,
        ):
            while True:
                live.update(Group(*self._lines()), refresh=True)
                ready, _, _ = select.select([sys.stdin, woken], [], [], _UPDATE_S)
                if woken in ready and signal.SIGTSTP in os.read(woken, 512):
                    return True
                keys = os.read(sys.stdin.fileno(), 64) if sys.stdin in ready else b""
                if b"q" in keys or b"\x03" in keys or (sys.stdin in ready and not keys):
                    return False
                if b"w" in keys:
                    self._answer = (self._source.open_window(), time.monotonic())

    def _lines(self) -> Iterator[Text]:
        size = self._console.size
        with contextlib.suppress(UnavailableError):  # the job's files are gone: what was seen last stays
            self._last = self._source.view()
        answer = self._answer[0] if time.monotonic() - self._answer[1] < _ANSWER_S else ""
        assert self._last is not None
        view = msgspec.structs.replace(self._last, keys=True, answer=answer)
        yield from build_screen(view, size.width, size.height)


@contextlib.contextmanager
def _terminal_given_back_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the program on the usual way out."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    old = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


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
