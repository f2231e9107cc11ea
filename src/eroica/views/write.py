"""The report as bytes and as a file."""

from __future__ import annotations

from pathlib import Path

from eroica.views.material import Material, gather
from eroica.views.page import build_page
from eroica.wire.files import write_whole


def build_report(material: Material) -> bytes:
    """The page as UTF-8: one file that opens offline, from a disk or from an e-mail."""
    return build_page(material).encode("utf-8", "replace")


def write_report(directory: Path, file: Path, window_id: int | None = None) -> None:
    """Draw what lies in a directory; the file appears whole or not at all.

    Args:
        directory: A run directory, one of its windows, or a verdict in a file.
        file: Where the page goes.
        window_id: Of a run, this window instead of its final verdict.

    Raises:
        InputError: There is no verdict in it, or it is nothing of ours.
        UsageError: The run has no such window.
        OSError: The file cannot be written.
    """
    write_whole(file, build_report(gather(directory, window_id)))
