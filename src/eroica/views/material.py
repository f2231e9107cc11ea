"""The records behind one report, and the figures that several pictures need.

Shapes: W workers (in order of global rank), F functions, R rows of all workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.archive.load import Saved, SavedRun, open_saved, read_blockage, read_patterns, run_around
from eroica.errors import InputError
from eroica.localize.folding import number_keys
from eroica.model.history import IterationHistory
from eroica.model.look import Blockage
from eroica.model.pattern import FunctionKey, WorkerPattern
from eroica.model.rows import NUMBERS, RowTable
from eroica.model.verdict import Finding, Verdict
from eroica.model.window import Window

#: Maximum number of functions with a column. More would take gigabytes at ten thousand workers.
MOST_FUNCTIONS = 400


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Times of all workers by function, the function with the most critical time first.

    Attributes:
        keys: One per function. Collectives of groups with the same purpose ("mesh_dp") are one function.
        runs_WF: Whether the worker runs the function. bool [W, F].
        critical_ms_WF: Milliseconds per iteration on the critical path; 0 where it does not. float32 [W, F].
        total_ms_WF: The same over all executions. float32 [W, F].
    """

    keys: tuple[FunctionKey, ...]
    runs_WF: NDArray[np.bool_]
    critical_ms_WF: NDArray[np.float32]
    total_ms_WF: NDArray[np.float32]

    def matching(self, name: str, stack: Sequence[str]) -> NDArray[np.intp]:
        """Return the columns under a finding's frame, else those of its name. intp, heaviest first."""
        root = _root(name, tuple(stack))
        found = [at for at, key in enumerate(self.keys) if root and key.stack[: len(root)] == root]
        return np.array(found or [at for at, key in enumerate(self.keys) if key.name == name], dtype=np.intp)

    def likeness(self, worker: int) -> NDArray[np.float64]:
        """Return the share of functions that each worker has in common with one of them, 0-1. float64 [W]."""
        own = self.runs_WF[worker]
        either = (self.runs_WF | own).sum(axis=1)
        both = (self.runs_WF & own).sum(axis=1)
        shares: NDArray[np.float64] = np.divide(both, either, out=np.ones(len(either)), where=either > 0)
        return shares


def _root(name: str, stack: tuple[str, ...]) -> tuple[str, ...]:
    """Return a stack from its outermost to the named frame: (a, b, c) and "b" -> (a, b)."""
    for at in range(len(stack), 0, -1):
        frame = stack[at - 1]
        if frame == name or frame.startswith(f"{name} ("):
            return stack[:at]
    return ()


def gather_rows(patterns: Sequence[WorkerPattern]) -> Rows:
    """Arrange the rows of all workers by function."""
    tables = [RowTable.of(pattern.functions) for pattern in patterns]
    given, number_R = number_keys(tables)
    labels = {  # groups that do the same for different workers are one
        group.name: f"{len(group.ranks)} workers" if group.description in ("", "undefined") else group.description
        for pattern in patterns
        for group in pattern.process_groups
    }
    named = [msgspec.structs.replace(key, group=labels.get(key.group, key.group)) for key in given]
    keys = {key: at for at, key in enumerate(dict.fromkeys(named))}
    functions_R = np.array([keys[key] for key in named], dtype=np.intp)[number_R]
    workers_R = np.repeat(np.arange(len(patterns)), list(map(len, tables)))
    lengths_W = np.array([max(one.last_iteration - one.first_iteration, 1) for one in patterns])
    shown = [NUMBERS.index(name) for name in ("critical_s", "total_s")]
    numbers_NR = np.concatenate([np.empty((2, 0)), *(table.numbers[shown] for table in tables)], axis=1)
    numbers_NR *= 1e3 / lengths_W[workers_R]
    order_F = np.argsort(-np.bincount(functions_R, weights=numbers_NR[0], minlength=len(keys)), kind="stable")
    kept_F = order_F[:MOST_FUNCTIONS]
    column_F = np.full(len(keys), -1, dtype=np.intp)
    column_F[kept_F] = np.arange(len(kept_F))
    columns_R = column_F[functions_R]
    chosen_R = columns_R >= 0
    shape = len(patterns), len(kept_F)
    cells_R = workers_R[chosen_R] * shape[1] + columns_R[chosen_R]

    def summed(values_R: NDArray[np.float64] | None = None) -> NDArray[np.float32]:
        return np.bincount(cells_R, values_R, minlength=shape[0] * shape[1]).astype(np.float32).reshape(shape)

    critical_ms_WF, total_ms_WF = (summed(values) for values in numbers_NR[:, chosen_R])
    distinct = tuple(keys)
    return Rows(
        keys=tuple(distinct[at] for at in kept_F),
        runs_WF=summed() > 0,
        critical_ms_WF=critical_ms_WF,
        total_ms_WF=total_ms_WF,
    )


@dataclass(frozen=True, kw_only=True)
class Material:
    """A verdict and the records it was read from.

    Attributes:
        verdict: What the report says.
        window: The request for the window, None where it was not kept.
        patterns: One per worker, in order of global rank. Empty for blockages, for verdicts without their files, and
            for jobs without a window. May be thousands.
        history: The job's iteration times.
        blockage: Looks at a job that stood still.
        name: Name of the run directory; empty without one.
        window_id: Number of the window in the run, 0 if it has none.
        notes: Files that could not be read.
    """

    verdict: Verdict
    window: Window | None = None
    patterns: Sequence[WorkerPattern] = ()
    history: IterationHistory | None = None
    blockage: Blockage | None = None
    name: str = ""
    window_id: int = 0
    notes: tuple[str, ...] = ()

    @cached_property
    def ranks(self) -> NDArray[np.int64]:
        """Global rank of each pattern. int64 [W], rising."""
        return np.array([pattern.worker.global_rank for pattern in self.patterns], dtype=np.int64)

    @cached_property
    def places(self) -> dict[int, int]:
        """Global rank -> place among `patterns`."""
        return {rank: place for place, rank in enumerate(self.ranks.tolist())}

    @cached_property
    def hosts(self) -> dict[int, str]:
        """Global rank -> host."""
        hosts = {pattern.worker.global_rank: pattern.worker.host for pattern in self.patterns}
        for host in self.blockage.looks if self.blockage is not None else ():
            hosts.update({look.worker.global_rank: look.worker.host for look in host.first})
        return hosts

    @cached_property
    def rows(self) -> Rows:
        """Times of all workers by function."""
        return gather_rows(self.patterns)

    @cached_property
    def causes(self) -> tuple[Finding, ...]:
        """Findings that are causes, the first one first."""
        return tuple(finding for finding in self.verdict.findings if finding.role == "cause")

    @cached_property
    def culprits(self) -> tuple[int, ...]:
        """Workers that causes name, the first cause's workers first."""
        named = [rank for cause in self.causes if cause.scope == "some" for rank in cause.workers]
        return tuple(dict.fromkeys(named))

    def worker_name(self, rank: int) -> str:
        """Return a worker's name for pictures: "worker 12 on node-3"; the host is not clean yet."""
        host = self.hosts.get(rank, "")
        return f"worker {rank} on {host}" if host else f"worker {rank}"

    def functions_of(self, finding: Finding) -> NDArray[np.intp]:
        """Return the columns of `rows` that show a finding, the heaviest first: its function, else the wait for input.

        A loader's process is never on the critical path; the wait for its batch is.
        """
        named = self.rows.matching(finding.function.name, finding.function.stack)
        places = [self.places[rank] for rank in finding.workers if rank in self.places]
        if not places or self.rows.critical_ms_WF[places][:, named].any():
            return named
        waits = [at for at, key in enumerate(self.rows.keys) if key.phase == "input" and key.thread == "training"]
        return np.array(waits, dtype=np.intp) if waits and len(named) else named

    def suspect(self) -> int | None:
        """Return the worker to look at closely, by global rank; None without patterns.

        It is the first culprit with a pattern; else the slowest in the first cause's function; else the one with the
        longest window.
        """
        named = next((rank for rank in self.culprits if rank in self.places), None)
        if named is not None or not self.patterns:
            return named
        columns = [int(column) for cause in self.causes for column in self.functions_of(cause)[:1]]
        lengths_W = np.array([pattern.duration_s for pattern in self.patterns])
        return int(self.ranks[np.argmax(self.rows.critical_ms_WF[:, columns[0]] if columns else lengths_W)])

    def peer_of(self, rank: int) -> int | None:
        """Return the worker with the median window among those that run the same functions and are no culprits."""
        others = [place for other, place in self.places.items() if other != rank and other not in self.culprits]
        others = others or [place for other, place in self.places.items() if other != rank]
        if not others:
            return None
        likeness = self.rows.likeness(self.places[rank])[others]
        alike = np.array(others)[likeness >= likeness.max() - 0.1].tolist()
        return int(self.ranks[sorted(alike, key=lambda place: self.patterns[place].duration_s)[len(alike) // 2]])


def gather(directory: Path, window_id: int | None = None) -> Material:
    """Read a run directory, one of its windows, or a verdict in a file.

    Args:
        directory: Path that `eroica.archive.load` understands.
        window_id: Window of a run to show instead of its final verdict.

    Raises:
        InputError: It holds no verdict, or Eroica did not write it.
        UsageError: The run has no such window.
    """
    return gather_saved(open_saved(directory), window_id)


def gather_saved(saved: Saved, window_id: int | None = None, verdict: Verdict | None = None) -> Material:
    """Read the material of a run, window or verdict that is open already.

    Args:
        saved: A run, a window or a verdict.
        window_id: Window of a run to show instead of its final verdict, or its last one.
        verdict: Verdict to show instead of the saved one.

    Raises:
        InputError: There is no verdict in it.
        UsageError: The run has no such window.
    """
    if isinstance(saved, Verdict):
        return Material(verdict=verdict or saved)
    run, window = (saved, None) if isinstance(saved, SavedRun) else (run_around(saved), saved)
    if isinstance(saved, SavedRun):
        judged = [one for one in saved.windows if one.verdict is not None and one.purpose != "baseline"]
        last = judged[-1] if judged and saved.verdict is None else None
        window = saved.window(window_id) if window_id is not None else saved.origin() or last
        verdict = verdict or (saved.verdict if window_id is None else None)
    notes = list(window.notes if window is not None else saved.notes)
    verdict = verdict or (window.verdict if window is not None else None)
    if verdict is None:
        raise InputError(f"{saved.directory} holds no verdict{f': {notes[0]}' if notes else ''}")
    asked, patterns, blockage = window.window if window is not None else None, tuple[WorkerPattern, ...](), None
    if window is not None:
        try:
            asked, patterns, left_out = read_patterns(window) if window.pattern_files else (asked, (), ())
            notes += left_out
            blockage = read_blockage(window) if window.has_blockage else None
        except InputError as error:
            notes.append(str(error))
    return Material(
        verdict=verdict,
        window=asked,
        patterns=patterns,
        history=run.history if run is not None else None,
        blockage=blockage,
        name=(run or saved).directory.resolve().name,
        window_id=window.window_id if window is not None else 0,
        notes=tuple(notes),
    )
