"""Verdicts that rest on a baseline window which is not trusted: the job may not have been healthy in it.

Such a verdict says which window it was compared with, and why that one is doubted, but never that the job was healthy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from eroica.model.verdict import Verdict
from eroica.model.window import REFUSED

#: Begins the note that such a window is compared with all the same; what follows is why it is not trusted.
DOUBTED = "The job may not have been healthy in the baseline window: "
_UNKNOWN = "The job may not have been healthy in the baseline window."
_ALL_THE_SAME = (
    "The baseline window is compared with all the same, for nothing is found without it: only what came after it is "
    "seen."
)


def notes_on_doubted(notes: Iterable[str]) -> tuple[str, ...]:
    """The notes, but for the one that the baseline window is not used: it is."""
    return tuple(_notes_on_doubted(tuple(notes)))


def _notes_on_doubted(notes: tuple[str, ...]) -> Iterator[str]:
    why = next((note.removeprefix(REFUSED) for note in notes if note.startswith(REFUSED)), "")
    yield from (note for note in notes if not note.startswith(REFUSED))
    yield f"{DOUBTED}{why}" if why else _UNKNOWN
    yield _ALL_THE_SAME


def why_doubted(verdict: Verdict | None) -> tuple[str, ...]:
    """The note that a baseline window is not used, as it was before a verdict was compared with it or not.

    Args:
        verdict: The first one on a window.

    Returns:
        One note, or none where the window was trusted or nobody noted why it was not.
    """
    notes = verdict.coverage.notes if verdict is not None else ()
    for note in notes:
        for start in (REFUSED, DOUBTED):
            if note.startswith(start):
                return (REFUSED + note.removeprefix(start),)
    return ()
