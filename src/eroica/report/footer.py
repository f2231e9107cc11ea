"""The line under a running job: its state, pace, windows and last verdict, as far as they fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Literal, NamedTuple

import msgspec
from rich.cells import cell_len, set_cell_size

from eroica.model.words import clean, milliseconds
from eroica.wire.messages import WindowLine

Style = Literal["title", "plain", "dim", "good", "bad", "warn", "link"]
_VERDICTS: dict[str, Style] = {"slow": "bad", "blocked": "bad", "healthy": "good", "undetermined": "warn"}
#: Age of the status from which the line says so, seconds; the collector writes it twice a second.
_STALE_S = 10.0
#: Least cells of a verdict.
_LEAST_OF_A_VERDICT = 16
_BETWEEN = " · "
#: Rank of the whole verdict, which takes the cells that are left.
_ELASTIC = 9
_PHASES = {"probe": "measuring", "patterns": "summarizing", "analysis": "comparing", "looking": "looking at stacks"}
_STANDING = ("blocked", "silent", "undetermined", "slow")


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The facts on a worker that the line counts."""

    state: str = ""
    iteration: int = 0
    ended: bool = False
    silent: bool = False


class Glance(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of `status.json` that the line needs; the others are not decoded."""

    phase: str = ""
    iteration: int = 0
    mean_ms: float | None = None
    best_ms: float | None = None
    workers: tuple[Seen, ...] = ()
    windows: tuple[WindowLine, ...] = ()


class Piece(NamedTuple):
    """A piece of the line in one style."""

    text: str
    style: Style


class _Part(NamedTuple):
    """One fact; its forms, shortest first, each with a rank: lower ranks get their cells first."""

    style: Style
    forms: tuple[tuple[int, str], ...]


def footer(glance: Glance, columns: int, link: str = "", silence_s: float = 0.0) -> list[Piece]:
    """Return the pieces of the line, together at most `columns` cells.

    Args:
        glance: The job now.
        columns: Cells of the terminal.
        link: Short form of the live page's address; empty without one.
        silence_s: Age of `glance`.
    """
    parts = list(_parts(glance, silence_s))
    chosen = _choose(parts, columns - len(" eroica ") - 1, link)
    pieces = [Piece(" eroica ", "title"), Piece(" ", "plain")]
    for at, (part, text) in enumerate(chosen):
        pieces += [Piece(_BETWEEN, "dim")] if at else []
        pieces.append(Piece(text, part.style))
    room = columns - sum(cell_len(piece.text) for piece in pieces)
    if link and room >= cell_len(link) + 3:
        pieces += [Piece(" " * (room - cell_len(link)), "plain"), Piece(link, "link")]
    return pieces


def _parts(glance: Glance, silence_s: float) -> Iterator[_Part]:
    state, style = _state(glance, silence_s)
    yield _Part(style, ((0, state),))
    if glance.iteration:
        yield _Part("plain", ((5, f"it. {glance.iteration}"), (7, f"iteration {glance.iteration}")))
    if glance.mean_ms is not None:
        yield _Part("plain", ((1, milliseconds(glance.mean_ms)), (4, _pace(glance.mean_ms, glance.best_ms))))
    living = sum(not worker.ended for worker in glance.workers)
    yield _Part("plain", ((6, f"{living} worker{'s' if living != 1 else ''}"),))
    trouble = _trouble(glance.workers)
    if trouble:
        yield _Part("bad", ((2, trouble),))
    judged = [window for window in glance.windows if window.verdict and window.purpose != "baseline"]
    if judged:
        yield _verdict(judged[-1])


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


def _state(glance: Glance, silence_s: float) -> tuple[str, Style]:
    if silence_s >= _STALE_S:
        return f"no news for {age(silence_s)}", "warn"
    window = glance.windows[-1] if glance.windows else None
    if glance.phase in _STANDING:
        return {"blocked": "BLOCKED", "slow": "SLOW"}.get(glance.phase, "STANDS STILL"), "bad"
    if window is not None and glance.phase == "window":
        return f"window {window.window_id}: {_progress(window, glance.workers)}", "plain"
    if window is not None and glance.phase in _PHASES:
        return f"window {window.window_id}: {_PHASES[glance.phase]}", "plain"
    return {"ended": "concluding"}.get(glance.phase, clean(glance.phase, 20)), "plain"


def _progress(window: WindowLine, workers: Sequence[Seen]) -> str:
    """Return the progress of the last worker in the window."""
    span = window.last_iteration - window.first_iteration
    at = min((worker.iteration for worker in workers if not worker.ended), default=0) - window.first_iteration
    if span <= 0 or at < 0:
        return "about to begin"
    return f"{min(100, 100 * at // span)} %"


def _trouble(workers: Sequence[Seen]) -> str:
    silent = sum(worker.silent and not worker.ended for worker in workers)
    gone = sum(worker.state == "gone" for worker in workers)
    failed = sum(worker.state == "failed" and not worker.ended for worker in workers)
    words = ((silent, "silent"), (gone, "gone"), (failed, "unwatched"))
    return ", ".join(f"{number} {word}" for number, word in words if number)


def _verdict(window: WindowLine) -> _Part:
    head, colon, rest = window.summary.partition(": ")
    words = window.cause or (rest if colon and head.lower() == window.verdict else window.summary)
    whole = f"{clean(window.verdict, 20)}: {clean(words, 400)}".rstrip(": ")
    return _Part(_VERDICTS.get(window.verdict, "plain"), ((3, shorten(whole, _LEAST_OF_A_VERDICT)), (_ELASTIC, whole)))


def _choose(parts: Sequence[_Part], columns: int, link: str) -> list[tuple[_Part, str]]:
    """Return the parts that fit, by rank; the verdict gets the rest."""
    gap = len(_BETWEEN)
    left = columns + gap
    for_link = cell_len(link) + gap if link else 0
    said: dict[_Part, str] = {}
    for rank, text, fact in sorted(
        ((rank, text, part) for part in parts for rank, text in part.forms), key=itemgetter(0)
    ):
        has = cell_len(said[fact]) if fact in said else -gap
        form = text
        if rank == _ELASTIC:
            form = shorten(text, has + left - (for_link if left >= for_link else 0)) if fact in said else ""
        more = cell_len(form) - has
        if form and more <= left:
            said[fact] = form
            left -= more
    return [(part, said[part]) for part in parts if part in said]


def shorten(text: str, cells: int) -> str:
    """Return `text` in at most so many cells, with "…" where it was cut."""
    if cell_len(text) <= cells:
        return text
    return f"{set_cell_size(text, max(0, cells - 1)).rstrip()}…"[: max(cells, 0)]
