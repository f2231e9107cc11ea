"""What was examined as a page."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from eroica.archive.load import looks_saved
from eroica.model.verdict import Verdict
from eroica.offline.examine import Examination, examine
from eroica.settings import load_settings
from eroica.views.material import Material, gather
from eroica.views.page import build_report


def page_of(examination: Examination) -> bytes:
    """The first recording with all its pictures; the others stand in its notes."""
    part = examination.parts[0]
    material = Material(verdict=examination.verdict, window=part.window, patterns=part.patterns, blockage=part.blockage)
    return build_report(material)


def report_html(source: Verdict | str | PathLike[str]) -> str:
    """The report as one HTML page that needs nothing but itself; for notebooks and other tools.

    Args:
        source: A run directory or one of its windows, a file from `--json`, traces or dumps (diagnosed first), or a
            verdict, which alone has no pictures.

    Raises:
        EroicaError: Nothing can be made of it.
    """
    if isinstance(source, Verdict):
        return build_report(Material(verdict=source)).decode()
    path = Path(source)
    if path.exists() and looks_saved(path):
        return build_report(gather(path)).decode()
    return page_of(examine([path], load_settings())).decode()
