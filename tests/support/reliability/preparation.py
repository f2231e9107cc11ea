"""What a run is started with so that something is missing, full or in the way."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import eroica


def _nothing() -> None:
    return


class Preparation(NamedTuple):
    """What a run is started with, and how to take it back."""

    variables: Mapping[str, str] = {}
    launcher: tuple[str, ...] = ()
    python: str = sys.executable
    undo: Callable[[], object] = _nothing


def unprepared(directory: Path) -> Preparation:
    """A run as always."""
    return Preparation()


def small_disk(directory: Path) -> Preparation:
    """A file system of 8 MB for everything that Eroica keeps."""
    place = _mount(directory / "disk", "8m")
    variables = {"EROICA_RUN_DIR": str(place / "report"), "EROICA_SCRATCH_DIR": str(place / "scratch")}
    return Preparation(variables, undo=lambda: _unmount(place))


def full_memory(directory: Path) -> Preparation:
    """No room for a beat file."""
    place = _mount(directory / "disk", "64k")
    (place / f"eroica-{os.getuid()}" / "trial@here").mkdir(parents=True, mode=0o700)
    (place / f"eroica-{os.getuid()}").chmod(0o700)
    fill(place / "data")
    return Preparation({"EROICA_RUNTIME_DIR": str(place)}, undo=lambda: _unmount(place))


def _mount(place: Path, size: str) -> Path:
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=True)
    return place


def _unmount(place: Path) -> None:
    subprocess.run(["umount", "-l", str(place)], check=False)


def fill(path: Path) -> None:
    """Until nothing fits any more."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def scratch_in_the_way(directory: Path) -> Preparation:
    """A file where the scratch directory should be."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "scratch").write_text("in the way")
    return Preparation()


def without_py_spy(directory: Path) -> Preparation:
    """Another environment with the same packages, but without their programs."""
    place = directory / "environment"
    venv.create(place, symlinks=True)
    (library,) = place.glob("lib/python*/site-packages")
    package = Path(eroica.__file__).parents[1]
    paths = [path for path in (str(package), *sys.path) if "site-packages" in path or path == str(package)]
    (library / "ours.pth").write_text("\n".join(dict.fromkeys(paths)) + "\n")
    kept = [part for part in os.environ.get("PATH", "").split(os.pathsep) if not (Path(part) / "py-spy").exists()]
    return Preparation({"PATH": os.pathsep.join(kept)}, python=str(place / "bin" / "python"))
