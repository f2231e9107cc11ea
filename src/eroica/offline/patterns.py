"""Patterns of paths (`*`, `?`, `[…]`, `**`), expanded within bounds.

The standard library's `glob` follows every link that `**` meets, again and again. Here a directory is looked into once
for each part of the pattern, and a link that leads back up is not taken.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

_ANY_DEPTH = "**"


def matches(pattern: Path, most_depth: int, count: Callable[[int], bool]) -> Iterator[Path]:
    """Files and directories that a pattern means, hidden ones only where it names them.

    Args:
        pattern: As the user wrote it.
        most_depth: Levels of directories that a `**` may stand for.
        count: Is told how many more entries were looked at; says whether to go on.
    """
    anchor = Path(pattern.anchor)
    parts = pattern.parts[1:] if pattern.anchor else pattern.parts
    fixed = next((at for at, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    top = anchor.joinpath(*parts[:fixed])
    pending = deque([(top, fixed, 0)])
    met: set[tuple[int, int, int]] = set()
    while pending and count(0):
        base, at, depth = pending.popleft()
        while at < len(parts) and not glob.has_magic(parts[at]):
            base, at, depth = base / parts[at], at + 1, 0
        if at == len(parts):
            if _exists(base):
                yield base
            continue
        if not _is_new(base, at, met):
            continue
        for path, following in _step(base, parts, at, count):
            if path.is_symlink() and leads_back(path, top):
                continue
            if following == len(parts):
                yield path
            elif following > at or depth < most_depth:
                pending.append((path, following, depth + 1 if following == at else 0))


def leads_back(path: Path, top: Path) -> bool:
    """Whether this is a link to a directory in which it lies itself, or in which the search began."""
    if not path.is_symlink():
        return False
    try:
        target, home, start = path.resolve(), path.parent.resolve(), top.resolve()
    except (OSError, RuntimeError):  # a link to itself
        return True
    return any(target == place or target in place.parents for place in (home, start))


def _step(base: Path, parts: Sequence[str], at: int, count: Callable[[int], bool]) -> Iterator[tuple[Path, int]]:
    """What the next part of a pattern means in a directory, and the part that follows from there."""
    part, is_last = parts[at], at + 1 == len(parts)
    anything = part == _ANY_DEPTH
    if anything and not is_last:
        yield base, at + 1  # two stars may be nothing at all
    wanted = re.compile(fnmatch.translate("*" if anything else part))
    for entry in _entries(base):
        if not count(1):
            return
        if wanted.match(entry.name) is None or (entry.name.startswith(".") and not part.startswith(".")):
            continue
        path = base / entry.name
        if anything and _is_directory(entry):
            yield path, at
        elif is_last or (not anything and _is_directory(entry)):
            yield path, at + 1


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    """Links last. None where the directory cannot be read, or is none."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entries, key=lambda entry: (entry.is_symlink(), entry.name))
    except OSError:
        return []


def _is_new(directory: Path, at: int, met: set[tuple[int, int, int]]) -> bool:
    try:
        facts = directory.stat()
    except OSError:
        return False
    key = (facts.st_dev, facts.st_ino, at)
    new = key not in met
    met.add(key)
    return new


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _exists(path: Path) -> bool:
    try:
        path.lstat()
    except (OSError, ValueError):
        return False
    return True
