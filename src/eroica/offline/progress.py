"""How far reading is, on a terminal."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn
from rich.status import Status
from rich.table import Column

from eroica.model.words import byte_size
from eroica.offline.discover import Source

_WAIT_S = 0.5
_LOOK_S = 2.0
_LOOK_AGAIN_S = 0.25


class Bar:
    """Files, bytes, rate and time left in one line of standard error; nothing where that is no terminal.

    The line goes when reading ends. It comes only if reading takes longer than half a second. Looking through folders
    is told after two seconds; where standard error is no terminal once, in a line that stays.
    """

    def __init__(self, wanted: bool = True, console: Console | None = None) -> None:
        """Nothing is drawn yet.

        Args:
            wanted: False: draw nothing anyway.
            console: Where to draw; default standard error.
        """
        self._console = console or Console(stderr=True)
        self._may_tell = wanted
        self._looked_at: float | None = None
        self._look_from: float | None = None
        self._status: Status | None = None
        self._wanted = wanted and self._console.is_terminal and not self._console.is_dumb_terminal
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._files = self._done = self._size = self._read = 0
        self._began = 0.0

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def look(self, entries: int, files: int) -> None:
        """So many entries of folders were looked at, and so many traces and dumps found among them."""
        now = time.monotonic()
        self._look_from = now if self._look_from is None else self._look_from
        last = self._looked_at
        if not self._may_tell or now - self._look_from < _LOOK_S or (last is not None and now - last < _LOOK_AGAIN_S):
            return
        self._looked_at = now
        words = f"looking through folders: {entries:,} entries, {files:,} traces and dumps so far"
        if not self._wanted:
            self._may_tell = False
            self._console.file.write(f"eroica: {words}\n")
            self._console.file.flush()
        elif self._status is None:
            self._status = self._console.status(words)
            self._status.start()
        else:
            self._status.update(words)

    def begin(self, files: int, size: int) -> None:
        """So many files with so many bytes in all are to be read."""
        self._stop()
        self._files, self._size, self._done, self._read = files, size, 0, 0
        self._began = time.monotonic()

    def advance(self, size: int) -> None:
        """So many bytes more have been read."""
        self._read += size
        self._show()

    def done(self, source: Source) -> None:
        """A file has been read, or given up."""
        self._done += 1
        self._show()
        if self._done == self._files:
            self._stop()

    def _show(self) -> None:
        if not self._wanted:
            return
        if self._progress is None and time.monotonic() - self._began >= _WAIT_S:
            self._start()
        if self._progress is not None:
            read = min(self._read, self._size)
            self._progress.update(self._task, completed=read, files=self._words(), rate=self._rate())

    def _start(self) -> None:
        self._progress = Progress(
            TextColumn("reading {task.fields[files]}"),
            BarColumn(bar_width=None),
            DownloadColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[rate]}"),
            console=self._console,
            transient=True,
        )
        self._task = self._progress.add_task("", total=self._size, completed=self._read, files=self._words(), rate="")
        self._progress.start()

    def _words(self) -> str:
        return f"{self._done} of {self._files} files" if self._files > 1 else "1 file"

    def _rate(self) -> str:
        """Bytes per second so far, and how long the rest takes at this rate."""
        rate = self._read / max(time.monotonic() - self._began, 1e-3)
        if not self._read:
            return ""
        left = round((self._size - self._read) / rate)
        minutes = f"{left // 60} min {left % 60:02d} s" if left >= 60 else f"{left} s"
        return f"{byte_size(round(rate))}/s, {minutes} left"

    def _stop(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
