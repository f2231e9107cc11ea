"""Find the trace files, dumps and run directories under the paths that a user gives.

The search is bounded in the number of entries. A file that is reached twice counts once. A file that is no trace
is passed over in a folder, and left to the reader, which says what is wrong, where the user named it.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Literal

from eroica.archive.load import holds_windows
from eroica.errors import InputError, UsageError
from eroica.model.words import clean
from eroica.trace.flight import is_dump
from eroica.trace.names import read_name
from eroica.trace.nsight import MAGIC, is_database, is_nsight, processes_of
from eroica.trace.source import what_by_keys, what_else

Kind = Literal["trace", "dump", "other"]
MOST_ENTRIES = 200_000
_SHOWN = 3
_HEAD_BYTES = 65_536
_TRACE_NAME = re.compile(r"\.pt\.trace(\.json)?(\.gz)?$", re.IGNORECASE)
_TRACE_KEYS = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"', b'"displayTimeUnit"')
#: A list whose first event, not its args, has a phase.
_EVENT_LIST = re.compile(rb"^\[\s*\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*?\"ph\"\s*:")
#: Any pickle, also one that begins by importing a name.
_PICKLE = re.compile(rb"\x80|[ci][\w.]+\n[\w.]+\n")
_DUMP_NAME = re.compile(r"dump|nccl_trace", re.IGNORECASE)
_ANY_KEY = re.compile(rb'"([A-Za-z_-]{2,40})"\s*:')
_CANDIDATE = re.compile(r"(\.json|\.trace|\.gz|\.pkl|\.pickle|\.sqlite|^[^.]+)$|dump|nccl_trace", re.IGNORECASE)


@dataclass(frozen=True)
class Source:
    """One trace file or dump.

    Attributes:
        path: As the user would write it.
        size: Bytes on disk.
        rank: Global rank that its name states, -1 without one.
        place: Directory that it shares with the other ranks of the recording (`eroica.trace.names`).
        process: Which of several processes in the file, -1 if it holds one.
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
        traces: Profiler traces.
        dumps: Flight Recorder dumps.
        saved: Run directories and pattern directories of Eroica.
        notes: What was passed over.
    """

    traces: tuple[Source, ...] = ()
    dumps: tuple[Source, ...] = ()
    saved: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


def discover(paths: Sequence[str | PathLike[str]], rule: re.Pattern[str] | None = None) -> Discovery:
    """Find everything that can be diagnosed.

    Args:
        paths: Files, folders, or patterns with `*`, `?`, `[…]` and `**`.
        rule: Where the global rank stands in a path, instead of the usual names.

    Raises:
        UsageError: A path does not exist, or nothing at all was found.
        InputError: A named file or folder cannot be read.
    """
    if not paths:
        raise UsageError("nothing to diagnose: name a trace file, a folder of them, or a pattern in quotes")
    search = _Search(rule)
    for path in paths:
        search.add(path)
    found = search.found()
    if found.traces or found.dumps or found.saved:
        return found
    where = ", ".join(str(path) for path in paths[:_SHOWN]) + (", …" if len(paths) > _SHOWN else "")
    seen = f" ({search.entries} entries looked at)" if search.entries else ""
    why = "".join(f"; {note}" for note in [*search.foreign[:_SHOWN], *search.notes[:2]])
    raise UsageError(f"no profiler trace, Flight Recorder dump or run directory in {where}{seen}{why}")


@dataclass
class _Search:
    """What has been found so far."""

    rule: re.Pattern[str] | None
    entries: int = 0
    passed_over: list[Path] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _files: dict[Kind, list[Source]] = field(default_factory=lambda: {"trace": [], "dump": []})
    _saved: list[Path] = field(default_factory=list)
    _met: set[tuple[int, int]] = field(default_factory=set)
    _full: bool = False

    def add(self, given: str | PathLike[str]) -> None:
        """Look at a path that the user named."""
        named, is_pattern = _expand(given)
        for path in named:
            if self._full:
                break
            if stat.S_ISDIR(self._mode(path)):
                self._folder(path)
            elif is_pattern:
                self._inside(path)
            elif path.suffix in (".pattern", ".patterns"):
                self._saved.append(path)
            else:
                kind = look_at(path)[0]
                self._take(path, "trace" if kind == "other" else kind)

    def found(self) -> Discovery:
        """Return everything, in order of path."""
        notes = list(self.notes)
        if self.passed_over:
            named = ", ".join(clean(path.name, 80) for path in self.passed_over[:_SHOWN])
            count = len(self.passed_over)
            files = "1 file was" if count == 1 else f"{count} files were"
            notes.append(f"{files} passed over: no profiler traces or dumps ({named}{_and_more(count)})")
        notes += self.foreign[:_SHOWN]
        if len(self.foreign) > _SHOWN:
            notes.append(f"{len(self.foreign) - _SHOWN} more files of other tools were passed over")
        if self.unreadable:
            named = "; ".join(self.unreadable[:_SHOWN])
            notes.append(f"could not be read: {named}{_and_more(len(self.unreadable))}")
        traces, dumps = (tuple(sorted(self._files[kind], key=lambda one: one.path)) for kind in ("trace", "dump"))
        return Discovery(traces, dumps, tuple(sorted(self._saved)), tuple(notes))

    def _inside(self, path: Path) -> None:
        """Look at a file in a folder, which may be anything."""
        if _CANDIDATE.search(path.name) is None:
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
        name = read_name(path.absolute(), self.rule)
        processes: tuple[int, ...] = ()
        with contextlib.suppress(OSError, InputError):  # its reader says what is wrong
            processes = processes_of(path) if kind == "trace" and is_database(path) else ()
        if len(processes) > 1:
            self.notes.append(
                f"{clean(path.name, 80)} holds {len(processes)} processes without ranks: they count as workers 0 to "
                f"{len(processes) - 1}, in the order of their devices"
            )
            size = facts.st_size // len(processes)
            self._files[kind] += [Source(path, size, at, name.place, one) for at, one in enumerate(processes)]
        else:
            self._files[kind].append(Source(path, facts.st_size, name.rank, name.place, *processes))

    def _folder(self, top: Path) -> None:
        pending, start = [top], top.resolve()
        while pending and not self._full:
            directory = pending.pop()
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
            below = self._entries(directory, entries)  # a link to what lies above the search asks for more than that
            pending += [one for one in below if not (one.is_symlink() and start.is_relative_to(one.resolve()))]

    def _entries(self, directory: Path, entries: Iterable[os.DirEntry[str]]) -> Iterator[Path]:
        """Take the files of a directory; yield the directories in it."""
        for entry in entries:
            self.entries += 1
            if self.entries > MOST_ENTRIES:
                self.notes.append(f"only the first {MOST_ENTRIES} entries were looked at; name a narrower path")
                self._full = True
                return
            if entry.name.startswith("."):
                continue
            path = directory / entry.name
            mode = self._mode(path)
            if stat.S_ISREG(mode):
                self._inside(path)
            elif stat.S_ISDIR(mode):
                yield path

    def _mode(self, path: Path) -> int:
        """Return what lies there, behind links; 0 where they lead nowhere."""
        try:
            return path.stat().st_mode
        except PermissionError as error:
            self.unreadable.append(f"{path}: {error.strerror}")
        except OSError:
            self.passed_over.append(path)
        return 0

    def _is_new(self, facts: os.stat_result) -> bool:
        key = (facts.st_dev, facts.st_ino)
        is_new = key not in self._met
        self._met.add(key)
        return is_new


def _expand(given: str | PathLike[str]) -> tuple[list[Path], bool]:
    """Return the paths meant, and whether the user gave a pattern.

    Raises:
        UsageError: Nothing has this name.
        InputError: The path cannot be looked at.
    """
    try:
        path = Path(given).expanduser()
        if path.exists():
            return [path], False
    except RuntimeError as error:
        raise UsageError(f"{given}: {error}") from None
    except OSError as error:
        raise InputError(f"{given} cannot be read: {error.strerror or error}") from error
    fixed = next((at for at, part in enumerate(path.parts) if glob.has_magic(part)), len(path.parts))
    if fixed == len(path.parts):
        raise UsageError(f"there is no file or folder {path}")
    top, pattern = Path(*path.parts[:fixed]), str(Path(*path.parts[fixed:]))
    found = sorted(set(top.glob(pattern)))
    if "/." not in f"/{pattern}":  # hidden ones only if they are asked for
        found = [one for one in found if not any(part.startswith(".") for part in one.parts[fixed:])]
    if not found:
        raise UsageError(f"nothing matches {str(path)!r}")
    return found, True


def _may_be_saved(name: str) -> bool:
    return name in ("windows", "patterns", "window.json", "blockage.json") or name.endswith((".pattern", ".patterns"))


def _and_more(count: int) -> str:
    return f" and {count - _SHOWN} more" if count > _SHOWN else ""


# ---------------------------------------------------------------------- content


def look_at(path: Path) -> tuple[Kind, str]:
    """Return what a file is by its first bytes; of another tool's file, a clause that says so.

    A file called `.pt.trace.json` is a trace whatever it holds: the reader names what is wrong with it.

    Raises:
        InputError: It cannot be read, or is no regular file.
    """
    head = _read_head(path)
    if head.startswith(MAGIC):
        return ("trace", "") if is_nsight(path) else ("other", "is an SQLite database, but no export of Nsight Systems")
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if (text[:1] == b"{" and any(key in text for key in _TRACE_KEYS)) or _EVENT_LIST.match(text):
        return "trace", ""
    if is_dump(head) or (_PICKLE.match(head) and _DUMP_NAME.search(path.name)):
        return "dump", ""
    if _TRACE_NAME.search(path.name):
        return "trace", ""
    return "other", what_else(head, path.name) or what_by_keys([key.decode() for key in _ANY_KEY.findall(text)])


def _read_head(path: Path) -> bytes:
    """Return the first bytes of a file, unpacked; a pipe or device is not waited for."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"{path} is no regular file")
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    if head[:2] != b"\x1f\x8b":
        return head
    try:
        return zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(head, _HEAD_BYTES)
    except zlib.error:
        return b""
