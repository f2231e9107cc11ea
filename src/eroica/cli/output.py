"""Where results go: files named by `--json FILE` and the like, and the console."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eroica.errors import InputError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

#: Wider than any sentence of a verdict, so that none is broken where a program reads.
_PIPED_WIDTH = 1_000
_NARROWEST = 24


def check_target(file: Path | None, option: str = "--json") -> None:
    """Fail before the work, not after it.

    Raises:
        UsageError: The file cannot be written there.
    """
    if file is None or str(file) == "-":
        return
    if file.is_dir():
        raise UsageError(f"{option} {file} is a directory; name a file")
    if not file.absolute().parent.is_dir():
        raise UsageError(f"{option} {file}: there is no directory {file.parent}")


def write_result(file: Path | None, data: bytes, option: str = "--json") -> None:
    """Write it; "-" is standard output.

    Raises:
        InputError: It cannot be written.
    """
    if file is None:
        return
    if str(file) == "-":
        click.echo(data.decode(), nl=False)
        return
    try:
        file.write_bytes(data)
    except OSError as error:
        raise InputError(f"{option} {file} cannot be written: {error.strerror or error}") from error


def say(text: str) -> None:
    """Print lines: wrapped between words, with their indent, as wide as a terminal; elsewhere as they are."""
    if not sys.stdout.isatty():
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

    console = Console(quiet=quiet, stderr=stderr)
    if console.is_dumb_terminal:  # it says nothing of its size, but the kernel may
        columns, rows = shutil.get_terminal_size()
        return Console(quiet=quiet, stderr=stderr, width=columns, height=rows)
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Console(quiet=quiet, stderr=stderr, width=_PIPED_WIDTH)
