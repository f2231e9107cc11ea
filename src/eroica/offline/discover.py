"""Paths, folders and patterns as a user gives them -> trace files, dumps and run directories, each once.

Folders are searched to a bounded depth and number of entries; a directory or file that is met again through a link
counts once, hidden ones do not count. What is no trace is passed over in a folder, and left to the reader where it was
named: it says what is wrong.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from eroica.archive.load import holds_windows
from eroica.errors import InputError, UsageError
from eroica.model.words import clean
from eroica.offline.content import Kind, kind_of, look_at, may_be_ours, processes_in
from eroica.offline.names import ascend_name, read_name
from eroica.offline.patterns import leads_back, matches
from eroica.trace.foreign import what_else

MOST_DEPTH = 12
MOST_ENTRIES = 200_000
MOST_FILES = 20_000
_SHOWN = 3
_DEEPER = f"folders deeper than {MOST_DEPTH} levels were not looked into"


@dataclass(frozen=True)
class Source:
    """One trace file or dump.

    Attributes:
        path: As the user would write it.
        size: Bytes on disk.
        rank: Global rank that its name states, -1 if it does not.
        place: What it shares with the other ranks of the same recording; see `eroica.offline.names`.
        process: Which of the processes in it, -1 where it holds one.
    """

    path: Path
    size: int
    rank: int
    place: str
    process: int = -1


@dataclass(frozen=True)
class Discovery:
    """What was found.

    Attributes:
        traces: Kineto traces.
        dumps: Flight Recorder dumps.
        saved: Run directories and pattern directories of Eroica.
        notes: What was passed over.
    """

    traces: tuple[Source, ...] = ()
    dumps: tuple[Source, ...] = ()
    saved: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


def discover(
    paths: Sequence[str | PathLike[str]],
    rule: re.Pattern[str] | None = None,
    watch: Callable[[int, int], None] = lambda entries, files: None,
) -> Discovery:
    """Find everything that can be diagnosed.

    Args:
        paths: Files, folders, or patterns with `*`, `?`, `[…]` and `**`.
        rule: Where the global rank stands in a path, instead of the usual names.
        watch: Is told again and again how many entries were looked at, and how many files found among them.

    Raises:
        UsageError: A path does not exist, or nothing at all was found.
        InputError: A file or folder that was named cannot be read.
    """
    if not paths:
        raise UsageError("nothing to diagnose: name a trace file, a folder of them, or a pattern in quotes")
    search = _Search(rule, watch)
    for path in paths:
        search.add(path)
    found = search.found()
    if not (found.traces or found.dumps or found.saved):
        raise UsageError(_nothing(paths, search))
    return found


def _nothing(paths: Sequence[str | PathLike[str]], search: _Search) -> str:
    where = ", ".join(str(path) for path in paths[:3]) + (", …" if len(paths) > 3 else "")
    seen = f" ({search.entries} entries looked at)" if search.entries else ""
    why = "".join(f"; {note}" for note in [*search.foreign[:_SHOWN], *search.notes[:2]])
    return f"no profiler trace, Flight Recorder dump or run directory in {where}{seen}{why}"


@dataclass
class _Search:
    """What has been found so far."""

    rule: re.Pattern[str] | None
    watch: Callable[[int, int], None]
    entries: int = 0
    passed_over: list[Path] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _files: dict[Kind, list[Source]] = field(default_factory=lambda: {"trace": [], "dump": [], "other": []})
    _saved: list[Path] = field(default_factory=list)
    _met: set[tuple[int, int]] = field(default_factory=set)
    _full: bool = False

    def add(self, given: str | PathLike[str]) -> None:
        """Look at what the user named."""
        named, inside = self._expand(given)
        for path in named:
            if stat.S_ISDIR(self._mode(path)):
                self._folder(path)
            elif inside:
                self._inside(path)
            else:
                self._named(path)

    def found(self) -> Discovery:
        """Everything, in order of path."""
        notes = list(self.notes)
        if self.passed_over:
            notes.append(_passed_over(self.passed_over))
        notes += self.foreign[:_SHOWN]
        if len(self.foreign) > _SHOWN:
            notes.append(f"{len(self.foreign) - _SHOWN} more files of other tools were passed over")
        if self.unreadable:
            more = f" and {len(self.unreadable) - _SHOWN} more" if len(self.unreadable) > _SHOWN else ""
            notes.append(f"could not be read: {'; '.join(self.unreadable[:_SHOWN])}{more}")
        ordered = {kind: tuple(sorted(files, key=lambda one: one.path)) for kind, files in self._files.items()}
        return Discovery(ordered["trace"], ordered["dump"], tuple(sorted(self._saved)), tuple(notes))

    def _expand(self, given: str | PathLike[str]) -> tuple[list[Path], bool]:
        """The paths meant, and whether they came from a pattern.

        Raises:
            UsageError: There is nothing of that name.
            InputError: Whether there is cannot be seen.
        """
        try:
            path = Path(given).expanduser()
        except RuntimeError as error:
            raise UsageError(f"{given}: {error}") from None
        try:
            if path.exists():
                return [path], False
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
        if path.is_symlink():
            target = path.readlink()
            where = "itself" if path.parent / target == path else f"{target}, which does not exist"
            raise UsageError(f"{path} is a link to {where}")
        if not glob.has_magic(str(path)):
            raise UsageError(f"there is no file or folder {path}")
        found = list(matches(path, MOST_DEPTH, self._count))
        if not found:
            raise UsageError("; ".join([f"nothing matches {str(path)!r}", *self.notes]))
        return sorted(found), True

    def _count(self, more: int) -> bool:
        """So many more entries were looked at; whether there may be another."""
        self.entries += more
        self.watch(self.entries, sum(map(len, self._files.values())))
        if self.entries > MOST_ENTRIES:
            self._stop(f"only the first {MOST_ENTRIES} entries were looked at; name a narrower path")
        return not self._full

    def _named(self, path: Path) -> None:
        """A file that the user named counts as a trace until its reader says what is wrong with it."""
        if path.suffix in (".pattern", ".patterns"):
            self._saved.append(path)
            return
        kind = kind_of(path)
        self._take(path, "trace" if kind == "other" else kind)

    def _inside(self, path: Path) -> None:
        """A file that lies somewhere in a folder may be anything."""
        if not may_be_ours(path.name):
            self._pass_over(path, what_else(b"", path.name))
            return
        try:
            kind, what = look_at(path)
        except InputError as error:
            self.unreadable.append(str(error))
            return
        if kind == "other":
            self._pass_over(path, what)
        else:
            self._take(path, kind)

    def _pass_over(self, path: Path, what: str) -> None:
        if what:
            self.foreign.append(f"{clean(path.name, 80)} {what}")
        else:
            self.passed_over.append(path)

    def _take(self, path: Path, kind: Kind) -> None:
        facts = path.stat()
        if not self._is_new(facts):
            return
        if sum(map(len, self._files.values())) >= MOST_FILES:
            self._stop(f"only the first {MOST_FILES} files count; name a narrower path")
            return
        name = read_name(path.absolute(), self.rule)
        if name.rank < 0 and self.rule is None:
            name = ascend_name(path.absolute()) or name
        processes = processes_in(path) if kind == "trace" else ()
        if len(processes) > 1:
            self.notes.append(
                f"{clean(path.name, 80)} holds {len(processes)} processes without ranks: they count as workers 0 to "
                f"{len(processes) - 1}, in the order of their devices"
            )
            size = facts.st_size // len(processes)
            found = [Source(path, size, at, name.place, process) for at, process in enumerate(processes)]
            self._files[kind] += found
            return
        self._files[kind].append(Source(path, facts.st_size, name.rank, name.place, *processes))

    def _folder(self, top: Path) -> None:
        pending: list[tuple[Path, int]] = [(top, 0)]
        while pending and not self._full:
            directory, depth = pending.pop()
            try:
                if not self._is_new(directory.stat()):
                    continue
                entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
            except OSError as error:
                if directory == top:
                    raise InputError(f"{directory} cannot be read: {error.strerror or error}") from error
                self.unreadable.append(f"{directory}: {error.strerror or error}")
                continue
            if any(_may_be_saved(entry.name) for entry in entries) and holds_windows(directory):
                self._saved.append(directory)
                continue
            below = self._entries(directory, entries, depth)
            pending += [(path, depth + 1) for path in below if not leads_back(path, top)]

    def _entries(self, directory: Path, entries: Iterable[os.DirEntry[str]], depth: int) -> Iterator[Path]:
        """Take the files of a directory; yields the directories in it."""
        for entry in entries:
            if not self._count(1):
                return
            path = directory / entry.name
            if entry.name.startswith("."):
                continue
            mode = self._mode(path)
            if stat.S_ISDIR(mode):
                if depth < MOST_DEPTH:
                    yield path
                elif _DEEPER not in self.notes:
                    self.notes.append(_DEEPER)
            elif stat.S_ISREG(mode):
                self._inside(path)

    def _mode(self, path: Path) -> int:
        """What lies there, behind links; 0 where they lead nowhere."""
        try:
            return path.stat().st_mode
        except PermissionError as error:
            self.unreadable.append(f"{path}: {error.strerror}")
        except OSError:
            self.passed_over.append(path)
        return 0

    def _is_new(self, facts: os.stat_result) -> bool:
        key = (facts.st_dev, facts.st_ino)
        if key in self._met:
            return False
        self._met.add(key)
        return True

    def _stop(self, why: str) -> None:
        if not self._full:
            self.notes.append(why)
        self._full = True


def _passed_over(paths: Sequence[Path]) -> str:
    """A note that names the first few."""
    named = ", ".join(clean(path.name, 80) for path in paths[:_SHOWN])
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    files = "1 file was" if len(paths) == 1 else f"{len(paths)} files were"
    return f"{files} passed over: no profiler traces or dumps ({named}{more})"


def _may_be_saved(name: str) -> bool:
    """Whether it is worth asking if the directory in which this lies is one of ours."""
    return name in ("windows", "patterns", "window.json", "blockage.json") or name.endswith((".pattern", ".patterns"))
