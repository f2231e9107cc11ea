"""All that one report is drawn from, and what several pictures ask of it.

Shapes: W workers (in order of global rank), F functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eroica.archive.load import Saved, SavedRun, SavedWindow, open_saved, read_blockage, read_patterns
from eroica.errors import InputError
from eroica.model.history import IterationHistory
from eroica.model.look import Blockage
from eroica.model.pattern import WorkerPattern
from eroica.model.timeline import Timeline
from eroica.model.verdict import Finding, Verdict
from eroica.model.window import Window
from eroica.views.rows import Rows, gather_rows
from eroica.wire.codec import decode_record


@dataclass(frozen=True, kw_only=True)
class Material:
    """One verdict and what it was read from.

    Attributes:
        verdict: What the report says.
        window: What was asked for, None where that was not kept.
        patterns: One per worker, in order of global rank; empty for blockages, for verdicts without their files, and
            for jobs in which nothing ever looked wrong. May be thousands.
        history: The job's iteration times, None without.
        blockage: What was seen of a job that stood still, None without.
        name: Of the run directory; empty without one.
        window_id: Which window of the run, 0 where it has no number.
        notes: What could not be read.
    """

    verdict: Verdict
    window: Window | None = None
    patterns: Sequence[WorkerPattern] = ()
    history: IterationHistory | None = None
    blockage: Blockage | None = None
    name: str = ""
    window_id: int = 0
    notes: tuple[str, ...] = ()
    _timelines: dict[int, Timeline | None] = field(default_factory=dict, repr=False, compare=False)

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
        """Global rank -> host, of those that a pattern or a look came from."""
        hosts = {pattern.worker.global_rank: pattern.worker.host for pattern in self.patterns}
        for host in self.blockage.looks if self.blockage is not None else ():
            hosts.update({look.worker.global_rank: look.worker.host for look in host.first})
        return hosts

    @cached_property
    def rows(self) -> Rows:
        """(β, μ, σ) of all workers by function."""
        return gather_rows(self.patterns)

    @cached_property
    def causes(self) -> tuple[Finding, ...]:
        """Findings that are causes, the first one first."""
        return tuple(finding for finding in self.verdict.findings if finding.role == "cause")

    @cached_property
    def symptoms(self) -> tuple[Finding, ...]:
        """Findings that are symptoms."""
        return tuple(finding for finding in self.verdict.findings if finding.role == "symptom")

    @cached_property
    def culprits(self) -> tuple[int, ...]:
        """Workers that causes name, the first cause's first; none for causes that are everybody's or move around."""
        named = [rank for cause in self.causes if cause.scope == "some" for rank in cause.workers]
        return tuple(dict.fromkeys(named))

    def worker_name(self, rank: int) -> str:
        """How a worker is called in pictures: "worker 12 on node-3"; the host is not clean yet."""
        host = self.hosts.get(rank, "")
        return f"worker {rank} on {host}" if host else f"worker {rank}"

    def functions_of(self, finding: Finding) -> NDArray[np.intp]:
        """Columns of `rows` that a finding is about, the heaviest first; empty where it names no function.

        A finding states β of what it measured. That need not be the function it names: what a loader's process does is
        never critical itself, the wait for its batch is. So of the named function, the wait for input, its kind of work
        and each single function, the first is taken that shows the stated β on the named workers.
        """
        named = self.rows.matching(finding.function.name, finding.function.stack)
        stated = finding.pattern.beta if finding.pattern is not None else None
        places = [self.places[rank] for rank in finding.workers if rank in self.places]
        if stated is None or not places or self._shows(named, places, stated):
            return named
        keys = self.rows.keys
        others = [
            np.array(
                [at for at, key in enumerate(keys) if key.phase == "input" and key.thread == "training"], dtype=np.intp
            ),
            np.array([at for at, key in enumerate(keys) if key.kind == finding.function.kind], dtype=np.intp),
            *(np.array([at], dtype=np.intp) for at in range(len(keys))),
        ]
        return next((columns for columns in others if self._shows(columns, places, stated)), named)

    def _shows(self, columns: NDArray[np.intp], places: Sequence[int], beta: float) -> bool:
        """Whether functions have this β on these workers, as nearly as it was rounded and averaged."""
        found = float(self.rows.joined(columns)[0][list(places)].mean()) if len(columns) else 0.0
        return abs(found - beta) <= max(0.02 * beta, 0.0005)

    def timeline(self, rank: int) -> Timeline | None:
        """One iteration of a worker; None if it has none or its bytes are damaged."""
        if rank not in self._timelines:
            self._timelines[rank] = self._read_timeline(rank)
        return self._timelines[rank]

    def _read_timeline(self, rank: int) -> Timeline | None:
        place = self.places.get(rank)
        if place is None or not self.patterns[place].timeline:
            return None
        try:
            return decode_record(self.patterns[place].timeline, Timeline)
        except InputError:
            return None

    def culprit_and_peer(self) -> tuple[int, int | None] | None:
        """The worker to look at closely, and one like most others to hold beside it.

        The first culprit that has a pattern; where nobody is named, the slowest in the first finding's function, else
        the one whose window took longest. The peer is no culprit, runs what the culprit runs, and lies in the middle.

        Returns:
            Two global ranks, the second None for a single worker; None without patterns.
        """
        if not self.patterns:
            return None
        column = self._first_column()
        culprit = next((rank for rank in self.culprits if rank in self.places), None)
        if culprit is None:
            culprit = int(self.ranks[int(np.argmax(self._weights(column)))])
        return culprit, self.peer_of(culprit, column)

    def peer_of(self, rank: int, column: int | None = None) -> int | None:
        """A worker in the middle of those that are no culprits and run the same functions as `rank`.

        Args:
            rank: Of the worker that a peer is sought for.
            column: Function by whose β the middle is told; None: by the length of the window.
        """
        others = [place for other, place in self.places.items() if other != rank and other not in self.culprits]
        others = others or [place for other, place in self.places.items() if other != rank]
        if not others:
            return None
        likeness = self.rows.likeness(self.places[rank])[others]
        alike = np.array(others)[likeness >= likeness.max() - 0.1]
        weights = self._weights(column)[alike]
        return int(self.ranks[alike[np.argsort(weights, kind="stable")[len(alike) // 2]]])

    def _first_column(self) -> int | None:
        columns = next((found for cause in self.causes if len(found := self.functions_of(cause))), None)
        return None if columns is None else int(columns[0])

    def _weights(self, column: int | None) -> NDArray[np.float64]:
        if column is None:
            return np.array([pattern.duration_s for pattern in self.patterns])
        return self.rows.beta_WF[:, column].astype(np.float64)


def gather(directory: Path, window_id: int | None = None) -> Material:
    """What a run directory, one of its windows, or a verdict in a file holds.

    Args:
        directory: As `eroica.archive.load` understands it.
        window_id: Of a run, this window instead of its final verdict.

    Raises:
        InputError: There is no verdict in it, or it is nothing of ours.
        UsageError: The run has no such window.
    """
    return gather_saved(open_saved(directory), window_id)


def gather_saved(saved: Saved, window_id: int | None = None, verdict: Verdict | None = None) -> Material:
    """The same of what is open already.

    Args:
        saved: A run, a window or a verdict.
        window_id: Of a run, this window instead of its final verdict.
        verdict: Instead of the one that was saved: made anew from the same patterns.

    Raises:
        InputError: There is no verdict in it.
        UsageError: The run has no such window.
    """
    if isinstance(saved, Verdict):
        return Material(verdict=verdict or saved)
    if isinstance(saved, SavedWindow):
        return of_window(saved, _run_around(saved), verdict)
    if window_id is not None:
        return of_window(saved.window(window_id), saved, verdict)
    return of_run(saved, verdict)


def of_run(run: SavedRun, verdict: Verdict | None = None) -> Material:
    """A run's final verdict with the window that it came from; without one, the last window that was judged.

    Raises:
        InputError: There is no verdict in it.
    """
    judged = [window for window in run.windows if window.verdict is not None and window.purpose != "baseline"]
    origin = run.origin() or (judged[-1] if judged and run.verdict is None else None)
    verdict = verdict or run.verdict
    if origin is not None:
        return of_window(origin, run, verdict)
    if verdict is None:
        why = f": {run.notes[0]}" if run.notes else ""
        raise InputError(f"{run.directory} holds no verdict{why}")
    name = run.directory.resolve().name
    return Material(verdict=verdict, history=run.history, name=name, notes=run.notes)


def of_window(window: SavedWindow, run: SavedRun | None = None, verdict: Verdict | None = None) -> Material:
    """One window.

    Args:
        window: Its patterns or its blockage are read now.
        run: Around it; its history is read.
        verdict: Instead of the window's own.

    Raises:
        InputError: There is no verdict on it.
    """
    verdict = verdict or window.verdict
    if verdict is None:
        raise InputError(f"{window.directory} holds no verdict yet")
    asked, patterns, notes = _patterns(window)
    return Material(
        verdict=verdict,
        window=asked,
        patterns=patterns,
        history=run.history if run is not None else None,
        blockage=_blockage(window),
        name=(run.directory if run is not None else window.directory).resolve().name,
        window_id=window.window_id,
        notes=(*window.notes, *notes),
    )


def _patterns(window: SavedWindow) -> tuple[Window | None, tuple[WorkerPattern, ...], tuple[str, ...]]:
    if not window.pattern_files:
        return window.window, (), ()
    try:
        return read_patterns(window)
    except InputError as error:
        return window.window, (), (str(error),)


def _blockage(window: SavedWindow) -> Blockage | None:
    try:
        return read_blockage(window) if window.has_blockage else None
    except InputError:
        return None


def _run_around(window: SavedWindow) -> SavedRun | None:
    """The run directory of a window that was named by its own path."""
    parent = window.directory.resolve().parent
    if parent.name != "windows":
        return None
    try:
        around = open_saved(parent.parent)
    except InputError:
        return None
    return around if isinstance(around, SavedRun) else None
