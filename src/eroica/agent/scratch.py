"""The scratch directory of one job on this host: raw traces, window by window, of which nothing is left at the end.

With `keep_traces` finished windows stay, as far as half of `scratch_bytes` goes; the other half is for the next one.
The launcher asks for it at the end of a job that may have little memory left: numpy is not to be loaded with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Collection
from pathlib import Path

from eroica.settings import Settings
from eroica.wire.places import SAVING_PREFIX, belongs_to_us, private_directory, runtime_root, write_private
from eroica.worker.launch import agent_is_missing

#: Of a saved trace, with the stacks sampled beside it; 344 measured on a small transformer.
_BYTES_PER_EVENT = 500
#: Marks a directory whose windows were kept on purpose.
_KEPT = "kept"
#: What nobody has changed for so long, and no agent watches over, a killed one left.
_STALE_S = 86_400.0


class Scratch:
    """Disk space of one job's windows on this host.

    Args:
        directory: The job's scratch directory.
        settings: `keep_traces`, `scratch_bytes`.
    """

    def __init__(self, directory: Path, settings: Settings) -> None:
        self._directory = directory
        self._settings = settings
        self._kept_bytes = _size(directory) if settings.keep_traces else 0

    def prepare(self) -> None:
        """Make the directory, and remove those of ended jobs whose agents were killed.

        Raises:
            OSError: It cannot be made, or is not ours alone.
        """
        private_directory(self._directory)
        if self._settings.keep_traces:
            write_private(self._directory / _KEPT, b"")
        siblings = self._directory.parent
        for other in siblings.iterdir() if siblings.name == f"eroica-{os.getuid()}" else ():
            if other != self._directory and belongs_to_us(other) and _is_stale(other) and not _is_watched(other.name):
                shutil.rmtree(other, ignore_errors=True)

    def window(self, window_id: int) -> Path:
        """Directory of a window's files; not made yet."""
        return self._directory / f"window-{window_id}"

    def event_budget(self, workers: int) -> int:
        """Trace events per worker that the next window may hold; 0 where free space is unknown.

        Half of the free disk at most, and what is left of `scratch_bytes`, for all workers of the host together.
        """
        try:
            free = shutil.disk_usage(self._directory).free
        except OSError:
            return 0
        most = min(self._settings.scratch_bytes - self._kept_bytes, free // 2)
        return max(1, most // (max(1, workers) * _BYTES_PER_EVENT))

    def release(self, window_id: int) -> str:
        """A window is over: remove it, unless it shall be kept and there is room; returns a note, empty without one."""
        place = self.window(window_id)
        if self._settings.keep_traces:
            size = _size(place)
            if self._kept_bytes + size <= self._settings.scratch_bytes // 2:
                self._kept_bytes += size
                return ""
        shutil.rmtree(place, ignore_errors=True)
        if not self._settings.keep_traces:
            return ""
        return f"raw traces of window {window_id} were not kept: they and earlier ones exceed half of scratch_bytes"

    def sweep(self, followed: Collection[int]) -> None:
        """Remove windows that are not followed: given up, or of an agent before this one.

        Args:
            followed: Ids of the others.
        """
        for place in self._directory.glob(f"{SAVING_PREFIX}*"):
            if not Path("/proc", place.name.removeprefix(SAVING_PREFIX)).exists():  # its worker was killed over it
                shutil.rmtree(place, ignore_errors=True)
        if self._settings.keep_traces:
            return
        names = {self.window(window_id).name for window_id in followed}
        for place in self._directory.glob("window-*"):
            if place.name not in names:
                shutil.rmtree(place, ignore_errors=True)

    def remove(self) -> None:
        """The job is over: remove everything that shall not be kept."""
        if not self._settings.keep_traces:
            shutil.rmtree(self._directory, ignore_errors=True)


def _size(place: Path) -> int:
    """Bytes of all files below."""
    total = 0
    for file in place.rglob("*"):
        with contextlib.suppress(OSError):
            total += file.lstat().st_size if file.is_file() else 0
    return total


def _is_watched(job: str) -> bool:
    """Return whether an agent of this host serves a job, by the job's directory; False if that cannot be asked."""
    try:
        return not agent_is_missing(runtime_root(os.environ) / job)
    except OSError:  # the job's runtime directory is gone, as it is once it ended
        return False


def _is_stale(place: Path) -> bool:
    """Return whether nothing has changed there for a day, and no setting keeps it."""
    try:
        changed = max(each.lstat().st_mtime for each in (place, *place.iterdir()))
    except OSError:
        return False
    return time.time() - changed > _STALE_S and not (place / _KEPT).exists()
