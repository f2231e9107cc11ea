"""Where results go: files named by `--json FILE` and the like, and the console."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from eroica.archive.forget import PAGE_FILE
from eroica.errors import InputError, UsageError
from eroica.settings import Settings

if TYPE_CHECKING:
    from rich.console import Console

#: Wider than any sentence of a verdict, so that none is broken where a program reads.
_PIPED_WIDTH = 1_000
_NARROWEST = 24
#: The collector has waited for the page already; one that takes longer is finished after we are gone.
_PAGE_S, _POLL_S = 3.0, 0.05


def check_target(file: Path | None, option: str = "--json", *, new_directory: bool = False) -> None:
    """Fail before the work, not after it.

    Args:
        file: Where a file or a new directory is to be; "-" is standard output.
        option: The option that names it.
        new_directory: A directory is wanted, which must be empty if it is there.

    Raises:
        UsageError: It cannot be written there.
    """
    if file is None or str(file) == "-":
        return
    what = "new directory" if new_directory else "file"
    try:
        mode = _kind(file)
        if mode and stat.S_ISDIR(mode) != new_directory:
            raise UsageError(f"{option} {file} is a {'file' if new_directory else 'directory'}; name a {what}")
        if mode and new_directory and any(file.iterdir()):
            raise UsageError(f"{option} {file} is not empty; name a {what}")
        if not mode and not new_directory and not stat.S_ISDIR(_kind(file.absolute().parent)):
            raise UsageError(f"{option} {file}: there is no directory {file.parent}")
    except (OSError, ValueError) as error:
        raise UsageError(f"{option} {file} cannot be written: {_why(error)}; name a {what} elsewhere") from None


def write_result(file: Path | None, data: bytes, option: str = "--json") -> None:
    """Write it; "-" is standard output. A file appears whole or not at all; what was there before stays if that fails.

    Raises:
        InputError: It cannot be written.
    """
    if file is None:
        return
    if str(file) == "-":
        with on_terminal(option):
            click.echo(data.decode("utf-8", "replace"), nl=False)
        return
    try:
        _write(file, data)
    except (OSError, ValueError) as error:
        raise InputError(f"{option} {file} cannot be written: {_why(error)}") from error


def _write(file: Path, data: bytes) -> None:
    """Beside it and renamed; straight into what is no regular file, or where nothing can be made beside it."""
    mode = _kind(file)
    target = file.resolve() if file.is_symlink() else file
    draft = target.with_name(f".{target.name[:200]}.{os.getpid()}")
    if not mode or stat.S_ISREG(mode):
        try:
            with draft.open("xb") as opened:
                opened.write(data)
            if mode:
                draft.chmod(stat.S_IMODE(mode))
            draft.replace(target)
            return
        except OSError as error:
            draft.unlink(missing_ok=True)
            if not (mode and isinstance(error, PermissionError)):
                raise
    file.write_bytes(data)


def _kind(path: Path) -> int:
    """Mode of what lies there, 0 for nothing.

    Raises:
        OSError: That cannot be seen.
    """
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _why(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


@contextmanager
def on_terminal(what: str = "") -> Iterator[None]:
    """Print inside of this, after all files are written: a reader that has gone is no error.

    Args:
        what: The option that asks for it, for the message.

    Raises:
        InputError: Standard output cannot be written for another reason: a full disk, `/dev/full`.
    """
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        forget_output()
        if error.errno != errno.EPIPE:
            where = f"{what} -: standard output" if what else "standard output"
            raise InputError(f"{where} cannot be written: {_why(error)}") from None


def forget_output(stream: TextIO | None = None) -> None:
    """What is still buffered goes nowhere, so that Python's end does not fail on it again.

    Args:
        stream: Standard error or, by default, standard output.
    """
    with suppress(OSError, ValueError, AttributeError):  # a test's own stream has no descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, (stream or sys.stdout).fileno())
        os.close(nowhere)


def say_error(text: str) -> None:
    """One line on standard error, as far as anybody can read it there."""
    try:
        click.echo(text, err=True)
    except OSError:  # a full disk, a closed pipe
        forget_output(sys.stderr)


def say(text: str) -> None:
    """Print lines: wrapped between words, with their indent, as wide as a terminal; elsewhere as they are."""
    if sys.stdout is None or not sys.stdout.isatty():
        click.echo(text)
        return
    width = max(_NARROWEST, shutil.get_terminal_size().columns)
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        wrapped = textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        click.echo("\n".join(wrapped))


def make_console(*, quiet: bool = False, stderr: bool = False) -> Console:
    """A console as wide as the terminal; in a file or pipe as wide as it takes, unless `COLUMNS` says otherwise."""
    from rich.console import Console

    class Ours(Console):
        """Who prints decides what a reader means that has gone; rich would end the program with status 1."""

        def on_broken_pipe(self) -> None:
            raise  # noqa: PLE0704 - called while a BrokenPipeError is handled

    console = Ours(quiet=quiet, stderr=stderr)
    if console.is_dumb_terminal:  # it says nothing of its size, but the kernel may
        columns, rows = shutil.get_terminal_size()
        return Ours(quiet=quiet, stderr=stderr, width=columns, height=rows)
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Ours(quiet=quiet, stderr=stderr, width=_PIPED_WIDTH)


def say_page(console: Console, run: Path, settings: Settings) -> None:
    """Name the page as a link that terminals open; where there is none, the run directory."""
    page = find_page(run) if settings.pages else None
    where = page.absolute().as_uri() if page is not None else str(run)
    console.print(f"Report: {where}", style="dim", markup=False, highlight=False, soft_wrap=True)


def find_page(run: Path, patience_s: float = _PAGE_S) -> Path | None:
    """Wait for the page of a run's final verdict; None if it is not drawn within `patience_s` seconds."""
    page, verdict, end = run / PAGE_FILE, run / "verdict.json", time.monotonic() + patience_s
    while time.monotonic() < end:
        try:
            if page.stat().st_mtime_ns >= verdict.stat().st_mtime_ns:
                return page
        except FileNotFoundError:
            if not verdict.exists():
                return None
        except OSError:
            return None
        time.sleep(_POLL_S)
    return None
