"""The line under a running job: its state, pace, windows and last verdict, as far as they fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
_TITLE, _BETWEEN = " eroica  ", " · "
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
    verdict = _verdict(status.windows)
    states = Counter(map(worker_state, status.workers))
    trouble = (f"{states[state]} {state}" for state in ("silent", "gone", "unwatched") if states[state])
    facts = {
        "state": _state(status, silence_s),
        "iteration": Piece(f"iteration {status.iteration}" if status.iteration else "", "plain"),
        "pace": Piece(_pace(status.mean_ms, status.best_ms), "plain"),
        "workers": Piece(plural(sum(not worker.ended for worker in status.workers), "worker"), "plain"),
        "trouble": Piece(", ".join(trouble), "bad"),
    }
    for gone in ("", "link", "iteration", "workers"):  # what a narrow terminal does without
        facts.pop(gone, None)
        link = "" if gone == "link" else link
        room = columns - len(_TITLE) - (cell_len(link) + len(_BETWEEN) if link else 0)
        told = sum(cell_len(fact.text) + len(_BETWEEN) for fact in facts.values() if fact.text)
        if room - told >= min(cell_len(verdict.text), _LEAST_OF_A_VERDICT):
            break
    pieces = [Piece(" eroica ", "title"), Piece(" ", "plain")]
    for text, style in (*facts.values(), verdict):
        between = _BETWEEN if len(pieces) > 2 else ""
        shown = shorten(text, room - len(between))
        if shown:
            pieces += [Piece(between, "dim"), Piece(shown, style)]
            room -= len(between) + cell_len(shown)
    return [*pieces, Piece(" " * (room + len(_BETWEEN)), "plain"), Piece(link, "link")] if link else pieces


def age(value_s: float) -> str:
    """Return an age: "12 s", "5 min"."""
    return f"{value_s:.0f} s" if value_s < 120 else f"{value_s / 60:.0f} min"


def _pace(mean_ms: float | None, best_ms: float | None) -> str:
    """Return the times now and at best, with the unit once if it is the same."""
    if mean_ms is None:
        return ""
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


def worker_state(worker: WorkerStatus) -> str:
    """Return "gone" (ended badly), "ended" (in order), "silent", "unwatched" (Eroica gave up), or its own word."""
    if worker.ended:
        in_order = worker.ending is None or worker.ending.kind == "signed-off"
        return "ended" if in_order and worker.state != "gone" else "gone"
    return "silent" if worker.silent else "unwatched" if worker.state == "failed" else worker.state


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
