"""Whatever a user points at: a run directory, one of its windows, a heap of patterns, a verdict in a file.

Damage costs only what is damaged: an unreadable pattern or window among good ones becomes a note. Files are read within
bounds, and patterns that no worker can have measured are refused.
"""

from __future__ import annotations

import contextlib
import math
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from eroica.archive.bundle import Bundle
from eroica.engine import HERE, Engine
from eroica.errors import InputError, UsageError
from eroica.model.history import IterationHistory
from eroica.model.look import Blockage
from eroica.model.pattern import WorkerPattern
from eroica.model.rows import COUNTS, RowTable
from eroica.model.verdict import SCHEMA_VERSION, Verdict
from eroica.model.window import Window
from eroica.wire.codec import UNDECODABLE, decode_record

MOST_JSON_BYTES = 64_000_000
MOST_PATTERN_BYTES = 4_000_000
_MOST_WORKERS = 200_000
_MOST_ITERATIONS = 2**48
_MOST_FUNCTIONS = 20_000
_MOST_SECONDS = 1e9
_MOST_EXECUTIONS = 10**15


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Bytes of a regular file; a pipe or device is not waited for.

    Raises:
        OSError: It is not there or cannot be read.
        InputError: It is no regular file, or longer than `most_bytes`.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path} is no regular file")
    if found.st_size > most_bytes:
        raise InputError(f"{path} has {found.st_size} bytes; more than {most_bytes} are no file of ours")
    return path.read_bytes()


def check_pattern(pattern: WorkerPattern) -> WorkerPattern:
    """The pattern, if its numbers are possible.

    Raises:
        InputError: A rank, a number of iterations or a duration is not.
    """
    worker = pattern.worker
    if not (0 <= worker.global_rank < _MOST_WORKERS and 0 <= worker.world_size <= _MOST_WORKERS):
        raise InputError(f"worker {worker.global_rank} of {worker.world_size} is impossible")
    if not 0 <= pattern.first_iteration <= pattern.last_iteration <= _MOST_ITERATIONS:
        raise InputError(f"iterations {pattern.first_iteration} to {pattern.last_iteration} are impossible")
    if len(pattern.functions) > _MOST_FUNCTIONS:
        raise InputError(f"{len(pattern.functions)} functions are too many")
    measured = [pattern.duration_s, pattern.idle_s, pattern.dropped_critical_s, pattern.stall_s, pattern.summarize_s]
    rest = msgspec.structs.replace(pattern, functions=(), process_groups=())  # these have whole numbers only
    rows, counts = RowTable.of(pattern.functions), [0.0]
    if len(rows):
        times = rows.numbers[: -len(COUNTS)]
        measured += [float(times.min()), float(times.max())]
        counts = [float(rows.column("count").min()), float(rows.column("count").max())]
    if not (
        all(0 <= value <= _MOST_SECONDS for value in measured)  # not a number is not
        and all(0 <= count <= _MOST_EXECUTIONS for count in counts)
        and _is_finite(msgspec.to_builtins(rest, builtin_types=(bytes,)))
    ):
        raise InputError("a number in it is negative, absurdly large or none at all")
    return pattern


def _is_finite(tree: Any) -> bool:
    """No NaN and no infinity in plain containers."""
    waiting = [tree]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)
        elif isinstance(item, float) and not math.isfinite(item):
            return False
    return True


Record = TypeVar("Record")
_MOST_WINDOWS = 10_000
_MOST_PATTERNS = 200_000
#: Patterns that are decoded in one step.
_TOGETHER = 256
#: Endings of files with one worker's pattern, and with many.
_ONE, _MANY = ".pattern", ".patterns"
#: Runs that an error lists.
_MOST_RUNS = 8


@dataclass(frozen=True, kw_only=True)
class SavedWindow:
    """One window on disk; patterns are read when asked for.

    Attributes:
        directory: Where its files lie.
        window_id: Its number, 0 where it has none.
        window: What was asked for, None where that was not kept.
        verdict: What was made of it, None without.
        pattern_files: One per worker, or one with many (`eroica.archive.bundle`).
        has_blockage: What was seen of a job that stood still was kept.
        notes: What could not be read.
    """

    directory: Path
    window_id: int = 0
    window: Window | None = None
    verdict: Verdict | None = None
    pattern_files: tuple[Path, ...] = ()
    has_blockage: bool = False
    notes: tuple[str, ...] = ()

    @property
    def purpose(self) -> str:
        """Why it was opened, "" where that was not kept."""
        return self.window.purpose if self.window is not None else ""


@dataclass(frozen=True, kw_only=True)
class SavedRun:
    """A run directory.

    Attributes:
        directory: Where.
        verdict: The job's final verdict, None without.
        windows: In order of their numbers.
        notes: What could not be read.
        history: Iteration times from the job's start on, None without.
    """

    directory: Path
    verdict: Verdict | None = None
    windows: tuple[SavedWindow, ...] = ()
    notes: tuple[str, ...] = ()
    history: IterationHistory | None = None

    @property
    def job(self) -> str:
        """Name of the job as a verdict states it, else the directory's."""
        verdicts = (self.verdict, *(window.verdict for window in self.windows))
        return next((verdict.job for verdict in verdicts if verdict is not None), self.directory.resolve().name)

    def window(self, window_id: int) -> SavedWindow:
        """The window of this number.

        Raises:
            UsageError: There is none.
        """
        for window in self.windows:
            if window.window_id == window_id:
                return window
        there = ", ".join(str(window.window_id) for window in self.windows[:20]) or "none"
        raise UsageError(f"{self.directory} has no window {window_id}; there are: {there}")

    def origin(self) -> SavedWindow | None:
        """The window that the final verdict came from, None if that is not to be seen."""
        final = self.verdict
        if final is None or final.window is None:
            return None
        same = [w for w in self.windows if w.verdict is not None and w.verdict.window == final.window]
        begins = final.window.first_iteration, "baseline"  # its own verdict is not kept
        same = same or [w for w in self.windows if w.window and (w.window.first_iteration, w.purpose) == begins]
        return next((w for w in reversed(same) if w.verdict == final), same[-1] if same else None)


Saved = SavedRun | SavedWindow | Verdict


def open_saved(path: Path) -> Saved:
    """What lies at `path`.

    Raises:
        InputError: Nothing of ours, or unreadable.
    """
    if path.is_dir():
        return _open_directory(path)
    if path.suffix in (_ONE, _MANY):
        return SavedWindow(directory=path.parent, pattern_files=(path,))
    return read_verdict(path)


def run_around(window: SavedWindow) -> SavedRun | None:
    """The run directory of a window that was named by its own path; None where there is none."""
    parent = window.directory.resolve().parent
    return open_run(parent.parent) if parent.name == "windows" and parent.is_dir() else None


def looks_saved(path: Path) -> bool:
    """Whether `path` is a place that `open_saved` understands (no trace file or folder of traces)."""
    if path.is_dir():
        return _is_run(path) or _is_window(path)
    if path.suffix in (_ONE, _MANY):
        return True
    with contextlib.suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                return b'"eroica_version"' in file.read(4096)
    return False


def read_verdict(path: Path) -> Verdict:
    """A verdict in a file of its own (`--json FILE`).

    Raises:
        InputError: It is none, is damaged, or comes from a later Eroica.
    """
    verdict = _read(path, _decode_verdict)
    if verdict is None:
        raise InputError(f"there is no file {path}")
    return verdict


def _decode_verdict(text: bytes) -> Verdict:
    verdict = Verdict.from_json(text)
    if verdict.schema_version > SCHEMA_VERSION:
        raise InputError(f"its schema {verdict.schema_version} is later than this Eroica's {SCHEMA_VERSION}")
    return verdict


def _open_directory(path: Path) -> Saved:
    if _is_run(path):
        return open_run(path)
    if _is_window(path):
        return open_window(path)
    found = sorted((one.stat().st_mtime, one.name) for one in path.iterdir() if one.is_dir() and _is_run(one))
    runs = [name for _, name in found]
    if runs:
        newest = ", ".join(reversed(runs[-_MOST_RUNS:]))
        others = f" and {len(runs) - _MOST_RUNS} earlier ones" if len(runs) > _MOST_RUNS else ""
        raise InputError(f"{path} holds the runs {newest}{others}; name one of them, like {path / runs[-1]}")
    raise InputError(f"{path} holds no run, no window and no pattern of Eroica")


def holds_windows(path: Path) -> bool:
    """Whether a directory is a run with windows, one of them, or a heap of patterns, so that it can be diagnosed again.

    A mere `verdict.json`, or a directory that happens to be called `windows` or `patterns`, makes it none of these.
    """
    return _has_windows(path) or _is_window(path)


def _has_windows(path: Path) -> bool:
    return any(_is_window(one) or _is_there(one / "verdict.json") for one in window_directories(path, []))


def _is_run(path: Path) -> bool:
    is_named = _is_there(path / "windows") or _is_there(path / "verdict.json")
    return _has_windows(path) or (is_named and not _is_window(path))


def _is_window(path: Path) -> bool:
    is_named = any(_is_there(path / name) for name in ("window.json", "blockage.json"))
    return is_named or any(map(_pattern_files, (path / "patterns", path)))


def _pattern_files(path: Path) -> tuple[Path, ...]:
    return tuple(sorted(one for one in path.glob(f"*{_ONE}*") if one.suffix in (_ONE, _MANY)))


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except OSError:
        return False
    return True


def open_run(path: Path) -> SavedRun:
    """A run directory; what is damaged in it becomes notes."""
    notes: list[str] = []
    windows = tuple(map(open_window, window_directories(path, notes)))
    verdict = read_noted(path / "verdict.json", _decode_verdict, notes)
    history = read_noted(path / "history.json", decode_history, notes)
    return SavedRun(directory=path, verdict=verdict, windows=windows, notes=tuple(notes), history=history)


def decode_history(text: bytes) -> IterationHistory:
    """A job's iteration times as the collector keeps them.

    Raises:
        msgspec.DecodeError: The text is something else.
        InputError: Its columns do not fit together, or have no possible value for each stretch.
    """
    history = msgspec.json.decode(text, type=IterationHistory)
    columns = (history.at_s, history.iteration, history.mean_ms, history.slowest_ms, history.slowest_worker)
    if len({len(column) for column in columns}) > 1:
        raise InputError("its columns are not equally long")
    if any(later < earlier for earlier, later in pairwise(history.at_s)):
        raise InputError("its stretches are not in order of time")
    if not all(0 <= value < math.inf for column in columns for value in column):
        raise InputError("a number in it is negative or none at all")
    return history


def window_directories(run: Path, notes: list[str]) -> list[Path]:
    """Directories of a run's windows, in order of their numbers; why they cannot be read is added to `notes`."""
    try:
        named = [path for path in (run / "windows").iterdir() if path.name.isdecimal() and len(path.name) < 10]
        found = [path for path in named if path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        notes.append(f"the windows cannot be read: {error.strerror}")
        return []
    return sorted(found, key=lambda path: int(path.name))[:_MOST_WINDOWS]


def open_window(directory: Path) -> SavedWindow:
    """One window, whose patterns are not read yet; what is damaged in it becomes its notes."""
    notes: list[str] = []
    window = read_noted(directory / "window.json", lambda text: msgspec.json.decode(text, type=Window), notes)
    verdict = read_noted(directory / "verdict.json", _decode_verdict, notes)
    inside = directory / "patterns"
    name = directory.resolve().name
    number = int(name) if name.isdecimal() and len(name) < 10 else 0
    return SavedWindow(
        directory=directory,
        window_id=window.window_id if window is not None else number,
        window=window,
        verdict=verdict,
        pattern_files=_pattern_files(inside if inside.is_dir() else directory),
        has_blockage=(directory / "blockage.json").exists(),
        notes=tuple(notes),
    )


def read_patterns(
    saved: SavedWindow, engine: Engine = HERE
) -> tuple[Window, tuple[WorkerPattern, ...], tuple[str, ...]]:
    """The patterns of a window.

    Args:
        saved: The window.
        engine: Where files are decoded; they are read here.

    Returns:
        The window (where it was not kept, one that fits the patterns), the usable patterns in order of global rank, and
        one note for what was left out.

    Raises:
        InputError: There is no usable pattern.
    """
    patterns: dict[int, WorkerPattern] = {}
    refused: list[str] = []
    contents = islice(read_contents(saved.pattern_files), _MOST_PATTERNS)
    batches = iter(lambda: list(islice(contents, _TOGETHER)), [])
    for name, read in chain.from_iterable(engine.map(decode_some, batches)):
        if isinstance(read, str):
            refused.append(f"{name}{read}")
            continue
        if read.worker.global_rank in patterns:
            refused.append(f"{name} is a second pattern of worker {read.worker.global_rank}")
        patterns.setdefault(read.worker.global_rank, read)
    if not patterns:
        why = f": {refused[0]}" if refused else ""
        raise InputError(f"no usable pattern in {saved.directory}{why}")
    ordered = tuple(patterns[rank] for rank in sorted(patterns))
    return saved.window or _fitting(ordered), ordered, _summed_up(refused)


def read_contents(paths: Sequence[Path]) -> Iterator[tuple[str, bytes | str]]:
    """All patterns in some files, not decoded; of a worker that has a file by itself only that one.

    Returns:
        Name of a file, or a worker, and what it holds; what follows the name in a sentence, where that cannot be read.
    """
    alone = {path.name for path in paths}
    for path in paths:
        if path.suffix != _MANY:
            yield path.name, _tried(partial(read_regular, path, MOST_PATTERN_BYTES))
            continue
        bundle = _tried(partial(Bundle, path))
        if isinstance(bundle, str):
            yield path.name, bundle
            continue
        with bundle:
            for rank in bundle.ranks:
                if f"{rank}{_ONE}" not in alone:
                    yield f"worker {rank}", _tried(partial(bundle.read, rank))


def _tried(read: Callable[[], Record]) -> Record | str:
    """Return what was read; else the reason as the end of a sentence that begins with a file's name."""
    try:
        return read()
    except OSError as error:
        return f" cannot be read: {error.strerror}"
    except InputError as error:
        return f": {error}"


def count_patterns(saved: SavedWindow) -> int:
    """How many patterns a window's files hold."""
    number = 0
    for path in saved.pattern_files:
        if path.suffix != _MANY:
            number += 1
            continue
        with contextlib.suppress(OSError, InputError), Bundle(path) as bundle:
            number += len(bundle.ranks)
    return number


def decode_some(some: Sequence[tuple[str, bytes | str]]) -> list[tuple[str, WorkerPattern | str]]:
    """Some patterns from what files hold, each with its name; why, where it is none or could not be read."""
    return [
        (name, content if isinstance(content, str) else _tried(partial(_checked, content))) for name, content in some
    ]


def _checked(content: bytes) -> WorkerPattern:
    return check_pattern(decode_record(content, WorkerPattern))


def _summed_up(refused: Sequence[str], shown: int = 3) -> tuple[str, ...]:
    if not refused:
        return ()
    more = f"; and {len(refused) - shown} more" if len(refused) > shown else ""
    files = "1 pattern was" if len(refused) == 1 else f"{len(refused)} patterns were"
    return (f"{files} left out: {'; '.join(refused[:shown])}{more}",)


def _fitting(patterns: Sequence[WorkerPattern]) -> Window:
    return Window(
        window_id=patterns[0].window_id,
        purpose="manual",
        reason="",
        first_iteration=min(pattern.first_iteration for pattern in patterns),
        last_iteration=max(pattern.last_iteration for pattern in patterns),
    )


def read_blockage(saved: SavedWindow) -> Blockage:
    """What was seen of a job that stood still.

    Raises:
        InputError: There is none, or it is damaged.
    """
    found = _read(saved.directory / "blockage.json", lambda text: msgspec.json.decode(text, type=Blockage))
    if found is None:
        raise InputError(f"{saved.directory} holds no blockage")
    return found


def read_noted(path: Path, decode: Callable[[bytes], Record], notes: list[str]) -> Record | None:
    """A record, None where there is none; damage becomes a note."""
    try:
        return _read(path, decode)
    except InputError as error:
        notes.append(str(error))
        return None


def _read(path: Path, decode: Callable[[bytes], Record]) -> Record | None:
    """A record from a file, None if there is no such file.

    Raises:
        InputError: It cannot be read or is something else.
    """
    try:
        return decode(read_regular(path, MOST_JSON_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except InputError as error:
        raise InputError(f"{path} cannot be used: {error}") from error
    except UNDECODABLE as error:
        raise InputError(f"{path} is damaged or no file of Eroica: {error}") from error
