"""Verdicts that rest on a baseline window which is not trusted: the job may not have been healthy in it.

Such a verdict says which window it was compared with, and why that one is doubted, but never that the job was healthy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from eroica.model.verdict import Finding, Hypothesis, Verdict
from eroica.model.window import REFUSED

#: Begins the note that such a window is compared with all the same; what follows is why it is not trusted.
DOUBTED = "The job may not have been healthy in the baseline window: "
_UNKNOWN = "The job may not have been healthy in the baseline window."
_ALL_THE_SAME = (
    "The baseline window is compared with all the same, for nothing is found without it: only what came after it is "
    "seen."
)
#: What rules say of a baseline window, and what is said of one that is not trusted.
_WORDS = (
    ("healthy baseline window", "baseline window"),
    ("healthy window", "baseline window"),
    ("when the job was healthy", "in the baseline window"),
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


def tell_doubted(verdict: Verdict) -> Verdict:
    """The verdict, with "in the baseline window" where rules said that the job was healthy then."""
    return msgspec.structs.replace(
        verdict,
        summary=_told(verdict.summary),
        coverage=msgspec.structs.replace(verdict.coverage, notes=_all_told(verdict.coverage.notes)),
        findings=tuple(_finding(one) for one in verdict.findings),
        considered=tuple(_hypothesis(one) for one in verdict.considered),
    )


def _finding(one: Finding) -> Finding:
    return msgspec.structs.replace(one, evidence=_all_told(one.evidence), next_step=_told(one.next_step))


def _hypothesis(one: Hypothesis) -> Hypothesis:
    return msgspec.structs.replace(
        one,
        decision=_told(one.decision),
        met=_all_told(one.met),
        missing=_all_told(one.missing),
        unknown=_all_told(one.unknown),
    )


def _told(text: str) -> str:
    for said, instead in _WORDS:
        text = text.replace(said, instead)
    return text


def _all_told(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(_told(text) for text in texts)
