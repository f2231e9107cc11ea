"""List a job's windows for people: their ids, a line for each, verdicts and notes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from eroica.collector.intake import clean_text
from eroica.collector.resume import History
from eroica.model.verdict import Verdict
from eroica.model.window import Window
from eroica.report.phrases import in_short
from eroica.wire.messages import WindowLine

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
        self._windows: dict[int, Window] = {}
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
        if verdict is not None:
            self.verdicts[window.window_id] = verdict
            summary = summary or verdict.summary
        if phase == "done":
            self.unseen = ""
        self._windows[window.window_id] = window
        self._lines[window.window_id] = WindowLine(
            window_id=window.window_id,
            purpose=window.purpose,
            phase=phase,
            first_iteration=window.first_iteration,
            last_iteration=window.last_iteration,
            verdict="" if verdict is None else verdict.verdict,
            summary=summary,
            cause="" if verdict is None or verdict.cause is None else in_short(verdict.cause),
        )
        self.listen(News(window, phase, verdict))

    def move(self, window_id: int, phase: str) -> None:
        """A window that has its verdict comes into another phase."""
        self.show(self._windows[window_id], phase, self.verdicts[window_id])

    def judged(self, *phases: str, purpose: str = "") -> frozenset[int]:
        """Windows that have a verdict and are in one of these phases; only those of a purpose, if one is given."""
        lines = (self._lines[one] for one in self.verdicts if one in self._windows)
        found = (line for line in lines if line.phase in phases and purpose in ("", line.purpose))
        return frozenset(line.window_id for line in found)

    def last_iteration(self, window_id: int) -> int:
        """The last iteration of a window that was shown."""
        return self._windows[window_id].last_iteration

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
        self._windows.update({window.window_id: window for window in history.windows})
        self.verdicts.update(history.verdicts)
        self.last_id = history.last_id + 1  # one may have been asked for that left no trace
        for note in history.notes:
            self.note(note)
