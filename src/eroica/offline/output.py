"""Write what was examined as a run directory, or as a page."""

from __future__ import annotations

import os
import shutil
from os import PathLike
from pathlib import Path

import msgspec

from eroica.archive.load import looks_saved
from eroica.archive.store import SOURCES_FILE, Store, write_json
from eroica.model.verdict import Verdict
from eroica.offline.examine import examine
from eroica.offline.jobs import Examination
from eroica.settings import load_settings
from eroica.views.material import Material, gather
from eroica.views.page import build_report
from eroica.wire.codec import encode_record


def keep(examination: Examination, run: Path) -> None:
    """Write a run directory: one window a recording, the first one's verdict as the final one.

    It appears whole or not at all: it is made beside its place and renamed.

    Args:
        examination: What to keep.
        run: A new or an empty directory.

    Raises:
        OSError: It cannot be written.
    """
    run = run.resolve()
    run.parent.mkdir(parents=True, exist_ok=True)
    draft = run.with_name(f".{run.name[:200]}.{os.getpid()}")
    try:
        _write(examination, Store(draft))
        draft.replace(run)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _write(examination: Examination, store: Store) -> None:
    for number, part in enumerate(examination.parts, start=1):
        verdict = examination.verdict if number == 1 else part.verdict
        store.save_window(msgspec.structs.replace(part.window, window_id=number))
        for pattern in part.patterns:
            numbered = msgspec.structs.replace(pattern, window_id=number)
            store.save_pattern(numbered, encode_record(numbered))
        if part.sources:
            paths: dict[str, object] = {
                str(rank): os.fsencode(path).decode(errors="replace") for rank, path in part.sources.items()
            }
            write_json(store.window_directory(number) / SOURCES_FILE, paths)
        if part.blockage is not None:
            store.save_blockage(msgspec.structs.replace(part.blockage, look_id=number))
        store.save_verdict(number, verdict)
    store.save_final(examination.verdict)


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
