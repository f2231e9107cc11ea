"""List a job's windows for people: their ids, a line for each, verdicts and notes.

A collector that is started again reads from the run directory what earlier ones left (`read_history`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from eroica.archive.forget import UNDERWAY_FILE
from eroica.archive.load import SavedWindow, open_run, read_noted
from eroica.collector.arrivals import heads_in
from eroica.collector.intake import clean_text
from eroica.model.history import IterationHistory
from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Verdict
from eroica.model.window import UnderwayRecord, Window
from eroica.report.phrases import in_short
from eroica.wire.messages import JobStatus, WindowLine

_MAX_WINDOWS = 10_000
_MOST_UNREADABLE = 5
OVER = ("done", "given up", "failed", "lost", "passed", "restarted")


@dataclass(frozen=True)
class History:
    """Records that earlier collectors of this job left.

    Attributes:
        last_id: Highest window id that left a trace.
        lines: Of all windows; those that were not over are "lost", but for the one that is underway.
        windows: What was asked for, by id, where it was kept.
        verdicts: By window id.
        baseline: Heads of the patterns of the baseline window.
        pace: Iteration times until then, None where they were not kept.
        underway: The window that was being captured or analyzed.
        arrived: Heads of the patterns of that window that came in.
        final: Verdict of a collector that was told to end before the job's end was known.
        notes: What could not be read, and why this is a second collector.
    """

    last_id: int = 0
    lines: tuple[WindowLine, ...] = ()
    windows: tuple[Window, ...] = ()
    verdicts: tuple[tuple[int, Verdict], ...] = ()
    baseline: tuple[WorkerPattern, ...] = ()
    pace: IterationHistory | None = None
    underway: UnderwayRecord | None = None
    arrived: tuple[WorkerPattern, ...] = ()
    final: Verdict | None = None
    notes: tuple[str, ...] = ()


def read_history(run: Path, why: str) -> History:
    """Everything of use in a run directory; what cannot be read becomes a note.

    Args:
        run: The run directory.
        why: What became of the collector before.
    """
    saved, notes = open_run(run), [f"the collector was started again: {why}"]
    status = read_noted(run / "status.json", lambda text: msgspec.json.decode(text, type=JobStatus), notes)
    lines = {} if status is None else {line.window_id: line for line in status.windows[:_MAX_WINDOWS]}
    there = {one.window_id: one for one in saved.windows}
    notes += [*saved.notes, *(note for one in saved.windows for note in one.notes)]
    windows = {at: one.window for at, one in there.items() if one.window is not None}
    verdicts = {at: one.verdict for at, one in there.items() if one.verdict is not None}
    underway = _underway(there, lines, notes)
    for window_id in sorted({*lines, *windows} - ({underway.window.window_id} if underway is not None else set())):
        lines[window_id] = _line(lines.get(window_id), windows.get(window_id), verdicts.get(window_id))
    baselines = (there[at] for at in sorted(windows, reverse=True) if windows[at].purpose == "baseline")
    return History(
        last_id=max((*lines, *there), default=0),
        lines=tuple(lines.values()),
        windows=tuple(windows.values()),
        verdicts=tuple(verdicts.items()),
        baseline=next(filter(None, (_arrived(one, notes) for one in baselines)), ()),
        underway=underway,
        arrived=() if underway is None else _arrived(there[underway.window.window_id], notes),
        pace=saved.history,
        final=saved.verdict,
        notes=tuple(notes),
    )


def _underway(windows: dict[int, SavedWindow], lines: dict[int, WindowLine], notes: list[str]) -> UnderwayRecord | None:
    """The newest window that was ordered, if it is not over and was not gone on with before."""
    newest = max((at for at, one in windows.items() if (one.directory / UNDERWAY_FILE).exists()), default=0)
    is_over = newest in lines and lines[newest].phase in OVER
    if not newest or is_over or (windows[newest].directory / "verdict.json").exists():
        return None
    path = windows[newest].directory / UNDERWAY_FILE
    found = read_noted(path, lambda text: msgspec.json.decode(text, type=UnderwayRecord), notes)
    return found if found is not None and found.window.window_id == newest and not found.resumed else None


def _arrived(window: SavedWindow, notes: list[str]) -> tuple[WorkerPattern, ...]:
    heads, unreadable = heads_in(window.pattern_files)
    notes.extend(unreadable[:_MOST_UNREADABLE])
    return heads


def _line(line: WindowLine | None, window: Window | None, verdict: Verdict | None) -> WindowLine:
    """Line of a window as it stands now: over, or lost with its collector."""
    if line is None:
        assert window is not None
        line = _line_of(window, "")
    if verdict is not None:
        return msgspec.structs.replace(line, phase=line.phase if line.phase in OVER else "done", **_said(verdict))
    if line.phase in OVER:
        return line
    return msgspec.structs.replace(line, phase="lost", summary="the collector ended inside it")


def _line_of(window: Window, phase: str, **said: str) -> WindowLine:
    return WindowLine(
        window_id=window.window_id,
        purpose=window.purpose,
        phase=phase,
        first_iteration=window.first_iteration,
        last_iteration=window.last_iteration,
        **said,
    )


def _said(verdict: Verdict) -> dict[str, str]:
    cause = "" if verdict.cause is None else in_short(verdict.cause)
    return {"verdict": verdict.verdict, "summary": verdict.summary, "cause": cause}


#: Notes of agents that are kept; ours have as much room again.
_MOST_NOTES = 100
#: Phases in which a window has ended without a verdict.
_IN_VAIN = ("given up", "failed")


class News(NamedTuple):
    """A window came into another phase; the verdict, if it has one."""

    window: Window
    phase: str
    verdict: Verdict | None


class Ledger:
    """The windows of one job in words.

    Attributes:
        verdicts: By window id.
        windows: Those that were shown, by id.
        notes: What people should know, each once.
        last_id: Of the newest window.
        listen: Told of each window that came into another phase.
        unseen: Reason why no window was captured since the last one that was; "" if there is none.
    """

    def __init__(self) -> None:
        self.verdicts: dict[int, Verdict] = {}
        self.notes: list[str] = []
        self.last_id = 0
        self.listen: Callable[[News], object] = lambda news: None
        self.unseen = ""
        self._lines: dict[int, WindowLine] = {}
        self.windows: dict[int, Window] = {}
        self._told = 0

    @property
    def lines(self) -> tuple[WindowLine, ...]:
        """All windows, by id."""
        return tuple(self._lines[window_id] for window_id in sorted(self._lines))

    @property
    def missed(self) -> str:
        """Reason why the last window that was opened for a slowdown came to nothing; "" if none did."""
        vain = (line for line in reversed(self.lines) if line.purpose != "baseline" and line.phase in _IN_VAIN)
        return next((line.summary for line in vain if not line.verdict), "")

    def new_id(self) -> int:
        """The id of one more window; it is not visible yet."""
        self.last_id += 1
        return self.last_id

    def show(self, window: Window, phase: str, verdict: Verdict | None = None, summary: str = "") -> None:
        """A window in one line; its verdict, if it has one, counts from now on."""
        said = {"summary": summary} if verdict is None else _said(verdict)
        if verdict is not None:
            self.verdicts[window.window_id] = verdict
        if phase == "done":
            self.unseen = ""
        self.windows[window.window_id] = window
        self._lines[window.window_id] = _line_of(window, phase, **said)
        self.listen(News(window, phase, verdict))

    def move(self, window_id: int, phase: str) -> None:
        """A window that has its verdict comes into another phase."""
        self.show(self.windows[window_id], phase, self.verdicts[window_id])

    def judged(self, *phases: str, purpose: str = "") -> frozenset[int]:
        """Windows that have a verdict and are in one of these phases; only those of a purpose, if one is given."""
        lines = (self._lines[one] for one in self.verdicts if one in self.windows)
        found = (line for line in lines if line.phase in phases and purpose in ("", line.purpose))
        return frozenset(line.window_id for line in found)

    def note(self, text: str) -> bool:
        """Remember something that people should know; bounded. False if it was known or there is no room."""
        text = clean_text(text)
        if text in self.notes or len(self.notes) >= 2 * _MOST_NOTES:
            return False
        self.notes.append(text)
        return True

    def hear(self, host: str, notes: Iterable[str]) -> None:
        """Remember what an agent says, which does not crowd out what we have to say."""
        for note in notes:
            if self._told < _MOST_NOTES:
                self._told += self.note(f"{host}: {note}")

    def resume(self, history: History) -> None:
        """Go on where a collector of the same job ended."""
        self._lines.update({line.window_id: line for line in history.lines})
        self.windows.update({window.window_id: window for window in history.windows})
        self.verdicts.update(history.verdicts)
        self.last_id = history.last_id + 1  # one may have been asked for that left no trace
        for note in history.notes:
            self.note(note)
