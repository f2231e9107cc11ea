"""The line under a running job: its state, pace, windows and last verdict, as far as they fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from rich.cells import cell_len, set_cell_size

from eroica.model.words import clean, milliseconds, plural
from eroica.report.phrases import PHASES, without_word
from eroica.wire.messages import JobStatus, WindowLine, WorkerStatus

Style = Literal["title", "plain", "dim", "good", "bad", "warn", "link"]
_VERDICTS: dict[str, Style] = {"slow": "bad", "blocked": "bad", "healthy": "good", "undetermined": "warn"}
#: Age of the status from which the line says so, seconds; the collector writes it twice a second.
STALE_S = 10.0
#: Least cells of a verdict.
_LEAST_OF_A_VERDICT = 16
_BETWEEN = " · "
_STANDING = ("blocked", "silent", "undetermined", "slow")


class Piece(NamedTuple):
    """A piece of the line in one style."""

    text: str
    style: Style


def footer(status: JobStatus, columns: int, link: str = "", silence_s: float = 0.0) -> list[Piece]:
    """Return the pieces of the line, together at most `columns` cells.

    Args:
        status: The job now.
        columns: Cells of the terminal.
        link: Short form of the live page's address; empty without one.
        silence_s: Age of `status`.
    """
    room = columns - len(" eroica  ")
    for narrow in range(-1 if link else 0, _NARROWEST + 1):
        facts = [fact for fact in _facts(status, silence_s, narrow) if fact.text]
        verdict = _verdict(status.windows)
        used = sum(cell_len(fact.text) + len(_BETWEEN) for fact in facts)
        left = room - used - (cell_len(link) + len(_BETWEEN) if narrow < 0 else 0)
        if left >= (min(cell_len(verdict.text), _LEAST_OF_A_VERDICT) if narrow < _NARROWEST else -len(_BETWEEN)):
            break
    over = -len(_BETWEEN) - left
    for at in range(len(facts) - 1, -1, -1):  # too wide in its narrowest form
        if over > 0:
            text, has = facts[at].text, cell_len(facts[at].text)
            facts[at] = Piece(shorten(text, has - over), facts[at].style)
            over -= has - cell_len(facts[at].text)
    if verdict.text and left > 1:
        facts.append(Piece(shorten(verdict.text, left), verdict.style))
    pieces = [Piece(" eroica ", "title"), Piece(" ", "plain")]
    for at, fact in enumerate(facts):
        pieces += [Piece(_BETWEEN, "dim"), fact] if at else [fact]
    gap = columns - sum(cell_len(piece.text) for piece in pieces) - cell_len(link)
    if narrow < 0:
        pieces += [Piece(" " * gap, "plain"), Piece(link, "link")]
    return pieces


#: How narrow the line can get: then only state, time and trouble are left.
_NARROWEST = 4


def _facts(status: JobStatus, silence_s: float, narrow: int) -> Iterator[Piece]:
    """Yield what stands before the verdict; the narrower, the less: 0 is all, in long words."""
    yield _state(status, silence_s)
    if status.iteration and narrow < 3:
        yield Piece(f"{'iteration' if narrow < 1 else 'it.'} {status.iteration}", "plain")
    if status.mean_ms is not None:
        yield Piece(_pace(status.mean_ms, status.best_ms if narrow < _NARROWEST else None), "plain")
    if narrow < 2:
        yield Piece(plural(sum(not worker.ended for worker in status.workers), "worker"), "plain")
    yield Piece(_trouble(status.workers), "bad")


def age(value_s: float) -> str:
    """Return an age: "12 s", "5 min"."""
    return f"{value_s:.0f} s" if value_s < 120 else f"{value_s / 60:.0f} min"


def _pace(mean_ms: float, best_ms: float | None) -> str:
    """Return the times now and at best, with the unit once if it is the same."""
    now = milliseconds(mean_ms)
    if best_ms is None:
        return now
    best, unit = milliseconds(best_ms).split()
    return f"{now}, best {best}" if now.endswith(f" {unit}") else f"{now}, best {best} {unit}"


def _state(status: JobStatus, silence_s: float) -> Piece:
    if silence_s >= STALE_S:
        return Piece(f"no news for {age(silence_s)}", "warn")
    window = status.windows[-1] if status.windows else None
    if status.phase in _STANDING:
        return Piece({"blocked": "BLOCKED", "slow": "SLOW"}.get(status.phase, "STANDS STILL"), "bad")
    if window is not None and status.phase == "window":
        return Piece(f"window {window.window_id}: {_progress(window, status.workers)}", "plain")
    if window is not None and status.phase in PHASES:
        return Piece(f"window {window.window_id}: {PHASES[status.phase]}", "plain")
    return Piece({"ended": "concluding"}.get(status.phase, clean(status.phase, 20)), "plain")


def _progress(window: WindowLine, workers: Sequence[WorkerStatus]) -> str:
    """Return the progress of the last worker in the window."""
    span = window.last_iteration - window.first_iteration
    at = min((worker.iteration for worker in workers if not worker.ended), default=0) - window.first_iteration
    if span <= 0 or at < 0:
        return "about to begin"
    return f"{min(100, 100 * at // span)} %"


def _trouble(workers: Sequence[WorkerStatus]) -> str:
    silent = sum(worker.silent and not worker.ended for worker in workers)
    gone = sum(worker.state == "gone" for worker in workers)
    failed = sum(worker.state == "failed" and not worker.ended for worker in workers)
    words = ((silent, "silent"), (gone, "gone"), (failed, "unwatched"))
    return ", ".join(f"{number} {word}" for number, word in words if number)


def _verdict(windows: Sequence[WindowLine]) -> Piece:
    """Return the last verdict; empty before there is one."""
    judged = [window for window in windows if window.verdict and window.purpose != "baseline"]
    if not judged:
        return Piece("", "plain")
    word, last = judged[-1].verdict, judged[-1]
    text = f"{clean(word, 20)}: {clean(last.cause or without_word(word, last.summary), 400)}".rstrip(": ")
    return Piece(text, _VERDICTS.get(word, "plain"))


def shorten(text: str, cells: int) -> str:
    """Return `text` in at most so many cells, with "…" where it was cut."""
    if cell_len(text) <= cells:
        return text
    return f"{set_cell_size(text, max(0, cells - 1)).rstrip()}…"[: max(cells, 0)]
