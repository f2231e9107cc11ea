"""The runs that an assistant may ask about: those watched on this host, and those under directories the user names.

A question names a run, never a path: what is not on the shelf is not opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eroica.archive.load import SavedRun, SavedWindow, open_run
from eroica.cli.jobs import running_jobs
from eroica.errors import InputError, UsageError
from eroica.model.verdict import Verdict
from eroica.report.masking import told

_MOST_NAMED = 12
_MOST_RUNS = 2_000
_OF_A_RUN = ("verdict.json", "history.json", "windows")
_OF_A_WINDOW = ("window.json", "verdict.json", "blockage.json", "patterns")


@dataclass(frozen=True)
class Shelf:
    """Runs by name.

    Attributes:
        roots: Run directories, or directories of them such as `eroica-report`.
    """

    roots: Sequence[Path]

    def runs(self) -> Mapping[str, Path]:
        """Name -> run directory: watched ones first, then the latest."""
        found = [(told(name), path) for name, path in running_jobs().items()]
        lying = [path for root in self.roots for path in _runs_at(root)]
        latest = sorted(lying, key=lambda path: -path.stat().st_mtime if path.exists() else 0.0)
        found += [(told(path.name), path) for path in latest[:_MOST_RUNS]]
        shelf: dict[str, Path] = {}
        for name, path in found:
            if shelf.setdefault(name, path) != path:  # another directory has a run of this name, too
                shelf.setdefault(f"{told(path.parent.name)}/{name}", path)
        return shelf

    def choose(self, name: str) -> Path:
        """The run directory of this name; of "" the only one there is.

        Raises:
            UsageError: There is none, or several and none was named.
        """
        runs = self.runs()
        if name in runs:
            return runs[name]
        if not name and len(runs) == 1:
            return next(iter(runs.values()))
        listed = ", ".join(list(runs)[:_MOST_NAMED]) or "none; start `eroica mcp` with --runs DIRECTORY"
        more = f" and {len(runs) - _MOST_NAMED} more" if len(runs) > _MOST_NAMED else ""
        wanted = f"there is no run {told(name)!r}" if name else "name a run"
        raise UsageError(f"{wanted}; there are: {listed}{more}")

    def open(self, name: str) -> SavedRun:
        """What is kept of a run; see `choose`.

        Raises:
            UsageError: There is none, or several and none was named.
            InputError: Some of it is a link, which may lead to what the user has not named.
        """
        run = self.choose(name)
        _refuse_links(run / name for name in _OF_A_RUN)
        for window in _entries(run / "windows"):
            _refuse_links((window, *(window / name for name in _OF_A_WINDOW), *_entries(window / "patterns")))
        return open_run(run)


def judged(run: SavedRun, window_id: int) -> tuple[Verdict, SavedWindow | None]:
    """A verdict as it was written down, never made anew.

    Args:
        run: The run.
        window_id: Of which window; 0: the job's final one, or where there is none yet, the latest of a window.

    Returns:
        The verdict, and the window that it is of (None: the job's).

    Raises:
        UsageError: There is no such window.
        InputError: It has no verdict.
    """
    if window_id:
        window = run.window(window_id)
        if window.verdict is None:
            why = "baseline windows are only compared with" if window.purpose == "baseline" else "it may be open still"
            raise InputError(f"window {window_id} has no verdict: {why}")
        return window.verdict, window
    if run.verdict is not None:
        return run.verdict, None
    for window in reversed(run.windows):
        if window.verdict is not None:
            return window.verdict, window
    raise InputError(f"run {told(run.job)} has no verdict yet")


def _runs_at(root: Path) -> list[Path]:
    """`root` itself if it is a run, else the runs in it; links are not followed."""
    if _is_run(root):
        return [root.resolve()]
    try:
        with os.scandir(root) as entries:
            inside = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [path.resolve() for path in inside if _is_run(path)]


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _refuse_links(paths: Iterable[Path]) -> None:
    """See to it that what is read of a run lies where it seems to; the run itself may be named by a link.

    Raises:
        InputError: One of them is a link.
    """
    for path in paths:
        if path.is_symlink():
            raise InputError(f"{told(str(path))} is a link; a run's files lie in its own directory")


def _is_run(path: Path) -> bool:
    return (path / "verdict.json").is_file() or (path / "windows").is_dir()
