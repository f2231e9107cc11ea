"""Remove what an earlier job of the same name left in a run directory. Standard library only.

`eroica run` does this before it starts the command, with as little memory as the job's limits leave.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

#: In the directory of a window that was read from trace files.
SOURCES_FILE = "sources.json"
#: In the directory of a window that was ordered by a collector.
UNDERWAY_FILE = "underway.json"
#: A verdict as a page, beside its record.
PAGE_FILE = "index.html"
#: All patterns of a window in one file: `eroica.archive.bundle`.
BUNDLE_FILE = "all.patterns"


def forget(run: Path) -> None:
    """Remove what the collector keeps of the job before, and nothing else.

    Raises:
        OSError: Something cannot be removed.
    """
    for name in ("verdict.json", "status.json", "history.json", PAGE_FILE):
        (run / name).unlink(missing_ok=True)
    windows = run / "windows"
    if windows.is_symlink() or not windows.is_dir():
        return
    names = ("window.json", UNDERWAY_FILE, "verdict.json", "blockage.json", SOURCES_FILE, PAGE_FILE)
    for directory in windows.iterdir():
        if not directory.name.isdecimal() or not directory.is_dir() or directory.is_symlink():
            continue
        patterns = directory / "patterns"
        kept = [] if patterns.is_symlink() else [*patterns.glob("*.pattern"), patterns / BUNDLE_FILE]
        for path in (*(directory / name for name in names), *kept):
            path.unlink(missing_ok=True)
        for emptied in (patterns, directory):
            with contextlib.suppress(OSError):  # somebody put something in there, or it is not there
                emptied.rmdir()
