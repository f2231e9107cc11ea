"""Read the growing files of NCCL's Inspector for a host's workers: how long each collective's kernel took.

Whoever wants it loads the plugin (`NCCL_PROFILER_PLUGIN`, `NCCL_INSPECTOR_ENABLE=1`, and a dump interval); nothing here
does. A worker's own environment says where its files are. What was written before the first look is left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from eroica.errors import InputError
from eroica.model.communication import KernelTime
from eroica.trace.inspector import read_inspector

#: Of one file in one record, and kernels of one worker in it: those beyond are left out.
_MOST_BYTES, _MOST_KERNELS = 256 * 1024, 128
_MOST_FILES = 16
_LOOK_EVERY = 20


def inspector_folder(pid: int, proc: Path = Path("/proc")) -> Path | None:
    """Where a process writes; None where its environment does not load the plugin for JSON, or cannot be read."""
    try:
        words = (proc / str(pid) / "environ").read_bytes().split(b"\0")
        here = (proc / str(pid) / "cwd").readlink()
    except OSError:
        return None
    variables = dict(word.decode(errors="replace").partition("=")[::2] for word in words)
    if variables.get("NCCL_INSPECTOR_ENABLE") != "1" or variables.get("NCCL_INSPECTOR_PROM_DUMP") == "1":
        return None
    name = variables.get("NCCL_INSPECTOR_DUMP_DIR") or f"nccl-inspector-{variables.get('SLURM_JOBID', 'unknown-jobid')}"
    return here / name


@dataclass
class _Tail:
    """A file and how far it was read."""

    at: int

    def read(self, path: Path) -> str:
        """Return what was added since, up to the last line end; the newest part where that is too much."""
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            before, self.at = self.at, max(min(self.at, end), end - _MOST_BYTES)
            file.seek(self.at)
            data = file.read(_MOST_BYTES)
        first = data.find(b"\n") + 1 if self.at > before else 0  # what was left out ends within a line
        whole = data.rfind(b"\n") + 1
        self.at += whole
        return data[first:whole].decode("utf-8", "replace")


class InspectorFiles:
    """All files of a host's workers.

    Args:
        folder_of: Where a process writes.
    """

    def __init__(self, folder_of: Callable[[int], Path | None] = inspector_folder) -> None:
        self._folder_of = folder_of
        self._folders: dict[int, Path | None] = {}
        self._tails: dict[Path, _Tail] = {}
        self._takes = 0

    def take(self, workers: Mapping[int, int]) -> tuple[KernelTime, ...]:
        """Kernels that ended since the last call.

        Args:
            workers: Process id -> global rank.
        """
        found: list[KernelTime] = []
        looks, self._takes = self._takes % _LOOK_EVERY == 0, self._takes + 1
        for pid, worker in workers.items():
            if pid not in self._folders:
                self._folders[pid] = self._folder_of(pid)
            folder = self._folders[pid]
            if folder is not None:
                found += self._of_worker(folder, pid, worker, looks)[-_MOST_KERNELS:]
        return tuple(found)

    def _of_worker(self, folder: Path, pid: int, worker: int, looks: bool) -> list[KernelTime]:
        if looks:
            self._find(folder, pid)
        found: list[KernelTime] = []
        for path in [path for path in self._tails if path.parent == folder and _is_of(path, pid)]:
            try:
                text = self._tails[path].read(path)
                operations = read_inspector(text)[0] if text else []
            except (OSError, InputError):
                continue
            found += [
                KernelTime(
                    worker=worker,
                    communicator=one.communicator,
                    name=one.name,
                    sequence=one.sequence,
                    exec_s=one.exec_s,
                )
                for one in operations
                if one.pid == pid
            ]
        return found

    def _find(self, folder: Path, pid: int) -> None:
        """New files of a process; they are read from their present end on."""
        for path in _listed(folder):
            if _is_of(path, pid) and path not in self._tails and len(self._tails) < _MOST_FILES * len(self._folders):
                try:
                    self._tails[path] = _Tail(path.stat(follow_symlinks=False).st_size)
                except OSError:
                    continue


def _listed(folder: Path) -> Iterable[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return ()


def _is_of(path: Path, pid: int) -> bool:
    """The process id stands in the file's name, and in each record besides."""
    return re.search(rf"(?<!\d){pid}(?!\d)", path.name) is not None
