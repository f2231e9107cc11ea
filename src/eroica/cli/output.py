"""`--json FILE` of `diagnose`, `report` and `diff`."""

from __future__ import annotations

from pathlib import Path

import click

from eroica.errors import InputError, UsageError


def check_target(json_file: Path | None) -> None:
    """Fail before the work, not after it.

    Raises:
        UsageError: The file cannot be written there.
    """
    if json_file is None or str(json_file) == "-":
        return
    if json_file.is_dir():
        raise UsageError(f"--json {json_file} is a directory; name a file")
    if not json_file.absolute().parent.is_dir():
        raise UsageError(f"--json {json_file}: there is no directory {json_file.parent}")


def write_result(json_file: Path | None, data: bytes) -> None:
    """Write it; "-" is standard output.

    Raises:
        InputError: It cannot be written.
    """
    if json_file is None:
        return
    if str(json_file) == "-":
        click.echo(data.decode(), nl=False)
        return
    try:
        json_file.write_bytes(data)
    except OSError as error:
        raise InputError(f"--json {json_file} cannot be written: {error.strerror or error}") from error
