"""One entry of the corpus: a run of a job, its windows as patterns, and what was true of each.

An entry is a file of MessagePack under xz: maps all the way down, so that any reader of MessagePack can use it. Series
inside patterns (`per_iteration_us`, `iteration_us`, the columns of collectives) stay bytes: zlib over little-endian
numbers, as the docstrings of `eroica.model.pattern` state them.
"""

from __future__ import annotations

import dataclasses
import lzma
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from eroica.model.history import IterationHistory
from eroica.model.look import Blockage
from eroica.model.pattern import FunctionPattern, WorkerPattern
from eroica.model.verdict import Finding, Verdict
from eroica.model.window import Window

SCHEMA = 1
ENTRIES = Path(__file__).with_name("corpus")
SUFFIX = ".msgpack.xz"
Use = Literal["tuned on", "exam"]
Scope = Literal["some", "all", "rotating", "any", ""]


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """What was true in one window.

    Attributes:
        verdict: "slow", "blocked" or "healthy".
        causes: Slugs, any of which is right; empty for a healthy window, or where any cause with the right function is.
        words: Any of them in the finding's function, stack or cause is right, too; empty = only the slug.
        scope: "some" = exactly `workers`; "any" = whoever suffers most: no set of workers is the only right one.
        workers: Global ranks with the fault; empty where `scope` is not "some".
        hosts: Hosts whose name is as good as that of their workers.
        function: Function whose frame the finding should show; told apart, and no condition of being right.
        file: Source file whose frame the finding must show, empty where any will do.
        gain: Share of the window's mean iteration that is gone without the fault; None where that is not known.
    """

    verdict: str
    causes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    scope: Scope = ""
    workers: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    function: str = ""
    file: str = ""
    gain: float | None = None


HEALTHY = Truth(verdict="healthy")


class CorpusWindow(msgspec.Struct, frozen=True, kw_only=True):
    """One window of a run.

    Attributes:
        window: What was asked for (`eroica.model.window.Window`).
        truth: What was true then; None where the fault began inside: it is not judged, others are compared with it.
        compared_with: Number of the baseline window that it was compared with in the job; 0 = none.
        workers_expected: World size.
        patterns: One map a worker, the fields of `eroica.model.pattern.WorkerPattern`, without `timeline`.
        blockage: Of a standstill, what was seen instead (`eroica.model.look.Blockage`).
        notes: What the collector had to say.
    """

    window: Window
    truth: Truth | None
    compared_with: int = 0
    workers_expected: int | None = None
    patterns: tuple[dict[str, Any], ...] = ()
    blockage: Blockage | None = None
    notes: tuple[str, ...] = ()

    def worker_patterns(self) -> tuple[WorkerPattern, ...]:
        """The patterns as the program's records."""
        return tuple(map(_pattern, self.patterns))


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one job.

    Attributes:
        schema: Version of this form.
        name: Its own, as the file's.
        origin: Where the job comes from: "benchmark", or the public report or framework that it was made after.
        fault: Name of the fault's kind, "none" for a healthy job.
        layout: How the job is spread: "single process", "ddp", "fsdp", "fsdp2", "pipeline", "dp-pipeline",
            "own collectives" (the job calls them itself), or "unknown".
        launch: What starts it, with the framework if there is one; empty for the benchmark's jobs.
        workers: World size.
        settings: "default", or what was set.
        use: "exam" = nothing was tuned to it before it was judged first; "tuned on" = it may have been.
        since: Date from which it counts as tuned on, empty for exams.
        recorded: Date.
        revision: Of Eroica, when it was recorded.
        machine: Processor, cores, memory, kernel, versions.
        onset: First iteration with the fault, None for a healthy job.
        windows: In order of their numbers.
        history: Iteration times over the run, None where they were not kept.
        licence: Of this entry.
    """

    schema: int = SCHEMA
    name: str
    origin: str
    fault: str
    layout: str
    launch: str = ""
    workers: int
    settings: str
    use: Use
    since: str = ""
    recorded: str
    revision: str
    machine: dict[str, Any]
    onset: int | None = None
    windows: tuple[CorpusWindow, ...]
    history: IterationHistory | None = None
    licence: str = "Apache-2.0"


def pattern_map(pattern: WorkerPattern) -> dict[str, Any]:
    """A pattern as plain maps; its picture is left out, since nothing is concluded from it."""
    plain = msgspec.structs.replace(pattern, functions=tuple(pattern.functions), timeline=b"")
    return dict(msgspec.to_builtins(plain, builtin_types=(bytes,)))


def _pattern(fields: Mapping[str, Any]) -> WorkerPattern:
    rows = msgspec.convert(fields["functions"], tuple[FunctionPattern, ...])
    rest = {name: value for name, value in fields.items() if name != "functions"}
    empty = msgspec.convert({**rest, "functions": ()}, WorkerPattern)
    return msgspec.structs.replace(empty, functions=rows)


def write_entry(entry: Entry, directory: Path = ENTRIES) -> Path:
    """Write `entry` under its name; returns the file."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{entry.name}{SUFFIX}"
    path.write_bytes(lzma.compress(msgspec.msgpack.encode(entry), preset=9))
    return path


def read_entry(path: Path) -> Entry:
    """The entry in a file.

    Raises:
        ValueError: It is none, or one of another schema.
    """
    try:
        entry = msgspec.msgpack.decode(lzma.decompress(path.read_bytes()), type=Entry)
    except (lzma.LZMAError, msgspec.MsgspecError) as error:
        raise ValueError(f"{path} is no entry of the corpus: {error}") from error
    if entry.schema != SCHEMA:
        raise ValueError(f"{path} has schema {entry.schema}; this code reads {SCHEMA}")
    return entry


def entry_files(directory: Path = ENTRIES) -> Iterator[Path]:
    """All entries' files, by name."""
    return iter(sorted(directory.glob(f"*{SUFFIX}")))


@dataclass(frozen=True)
class Marks:
    """What is right of a verdict. `function` and the gain are told apart: no condition of being right."""

    verdict: bool
    cause: bool
    workers: bool
    file: bool
    function: bool

    @property
    def right(self) -> bool:
        """All that counts is."""
        return self.verdict and self.cause and self.workers and self.file


def marks(verdict: Verdict, truth: Truth) -> Marks:
    """Compare a verdict with the truth of its window; a healthy window is right without any cause.

    A planned change is no cause: the job is called healthy.

    Words may stand in the cause, the function, its stack or the sentence, as a reader would take them.
    """
    found = verdict.cause
    if not truth.causes and not truth.words:
        calm = found is None or verdict.verdict == "healthy"
        return Marks(calm, calm, calm, calm, calm)
    word = verdict.verdict == truth.verdict
    if found is None:
        return Marks(word, False, False, False, False)
    said = re.sub(r"[\w.]+\.py\b", "", verdict.summary)  # a job's file name is no word about its fault
    named = found.cause in truth.causes or any(
        map(_finder(found.cause, found.function.name, *found.function.stack, said), truth.words)
    )
    return Marks(word, named, _has_workers(found, truth), _shows(found, truth.file), _shows(found, truth.function))


def is_among_best(verdict: Verdict, truth: Truth, most: int = 2) -> bool:
    """Whether the truth is one of the likeliest hypotheses of a verdict that may name another cause, or none."""
    for one in verdict.considered[:most]:
        named = one.cause in truth.causes or any(map(_finder(one.cause, one.function), truth.words))
        workers = truth.scope == "any" or truth.hosts or truth.scope != "some" or one.workers == truth.workers
        if named and workers:
            return True
    return False


def _finder(*named: str) -> Any:
    """Says whether a word is in what is named; one of up to three letters must be a whole token."""
    text = " | ".join(named).lower()

    def is_in(word: str) -> bool:
        pattern = re.escape(word.lower())
        return re.search(rf"(?<![a-z0-9]){pattern}(?![a-z0-9])" if len(word) <= 3 else pattern, text) is not None

    return is_in


def _has_workers(found: Finding, truth: Truth) -> bool:
    if truth.scope == "any":
        return True
    if truth.hosts and tuple(found.hosts) == truth.hosts:
        return True
    return found.scope == truth.scope and (truth.scope != "some" or found.workers == truth.workers)


def _shows(found: Finding, word: str) -> bool:
    place = re.compile(rf"(?<!\w){re.escape(word)}" if word else "")
    return any(map(place.search, (found.function.name, *found.function.stack)))


def as_record(one: Marks) -> dict[str, bool]:
    """Marks as a map, with "right"."""
    return {**dataclasses.asdict(one), "right": one.right}
