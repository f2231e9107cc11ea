"""The top of the page: the word with its sign, how long iterations take, gain and confidence as small pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone

from markupsafe import Markup

from eroica.model.shares import percent
from eroica.model.verdict import Verdict, VerdictWord
from eroica.report.phrases import is_recorded, stands_still, window_facts
from eroica.report.words import change, clean, milliseconds, sentence
from eroica.views.material import Material
from eroica.views.svg import line, path, rect, sign

#: Width of the small bars in their own coordinates; they are stretched to the page's.
_BAR = 400.0
#: Outline and inner sign of each word, in a square of 24.
_SIGNS: dict[VerdictWord, tuple[str, str]] = {
    "slow": ("M12 1.5 23.4 22.2H.6z", "M12 9v6.2M12 18.6v.1"),
    "blocked": ("M7.3.9h9.4l6.4 6.4v9.4l-6.4 6.4H7.3L.9 16.7V7.3z", "M6.6 12h10.8"),
    "healthy": ("M12 .8a11.2 11.2 0 1 1 0 22.4a11.2 11.2 0 1 1 0-22.4z", "M6.8 12.4l3.6 3.7 6.9-7.6"),
    "undetermined": (
        "M12 .6 23.4 12 12 23.4.6 12z",
        "M9.2 9.6a2.9 2.9 0 1 1 4.3 2.5c-1 .6-1.5 1.1-1.5 2.1M12 17.3v.1",
    ),
}


@dataclass(frozen=True, kw_only=True)
class PaceBar:
    """One line of the picture of iteration times: a label, a bar, a number, and what the number is made of."""

    label: str
    bar: Markup
    value: str
    note: str = ""


def word_sign(word: VerdictWord) -> Markup:
    """A shape for each word besides its color: triangle, stop sign, disc with a tick, diamond with "?"."""
    outline, inner = _SIGNS[word]
    return sign(24, 24, path(outline, cls="mark"), path(inner, cls="sign"))


def pace_bars(verdict: Verdict) -> list[PaceBar]:
    """Iterations now, without the first cause (its gain, as the verdict states it), and before; none if unknown."""
    now, before = verdict.iteration.current_ms, verdict.iteration.baseline_ms
    if now is None:
        return []
    longest = max(now, before or 0.0)
    color = "bar-culprit" if verdict.verdict == "slow" else "bar"
    rows = [PaceBar(label="now", bar=_bar(now, longest, color), value=milliseconds(now))]
    cause = verdict.cause
    if cause is not None and cause.gain:
        left = now * (1 - cause.gain)
        rows.append(
            PaceBar(
                label="without the first cause" if _has_more(verdict) else "without the cause",
                bar=_bar(left, longest, "bar", saved=now),
                value=milliseconds(left),
                note=f"{percent(cause.gain)} shorter",
            )
        )
    if before:
        note = f"now {change(before, now)}" if now > before else ""
        rows.append(PaceBar(label="before", bar=_bar(before, longest, "bar"), value=milliseconds(before), note=note))
    rest = verdict.iteration.rest_ms
    if rest:
        note = "longer than before, and no cause explains it"
        bar = _bar(min(rest, longest), longest, "bar")
        rows.append(PaceBar(label="unexplained", bar=bar, value=milliseconds(rest), note=note))
    return rows


def _has_more(verdict: Verdict) -> bool:
    return sum(finding.role == "cause" for finding in verdict.findings) > 1


def _bar(value: float, longest: float, cls: str, saved: float = 0.0) -> Markup:
    """A bar, followed by an outlined one up to `saved`."""
    width = _BAR * value / longest if longest else 0.0
    until = _BAR * saved / longest if longest else 0.0
    gone = rect(width, 4, until - width - 0.5, 11, cls="saved") if until > width else None
    bar = rect(0, 3, width, 13, cls=cls)
    return sign(_BAR, 19, bar, gone, stretch=True)


def meter(share: float) -> Markup:
    """A share of a whole: a track, as much of it filled, and a tick each quarter."""
    filled = _BAR * min(max(share, 0.0), 1.0)
    quarters = [line(_BAR * at, 2, _BAR * at, 17, cls="tick") for at in (0.25, 0.5, 0.75)]
    bars = (rect(0, 3, _BAR, 13, cls="track"), rect(0, 3, filled, 13, cls="bar"), *quarters)
    return sign(_BAR, 19, *bars, stretch=True)


def key_facts(material: Material) -> Iterator[tuple[str, str, bool]]:
    """What the verdict is about: label, text, and whether it needs a line of its own."""
    verdict = material.verdict
    yield "Job", clean(verdict.job, 80) or "without a name", False
    yield (
        ("Recorded" if is_recorded(verdict) else "Standstill" if stands_still(verdict) else "Window"),
        _window(material),
        False,
    )
    when = happened(material)
    if when:
        yield "When", when, False
    yield "Workers", _workers(material), False
    if verdict.window is not None and verdict.window.reason:
        yield "Looked because", sentence(verdict.window.reason), True


def _window(material: Material) -> str:
    facts = window_facts(material.verdict)
    number = f"window {material.window_id}: " if material.window_id else ""
    return number + ", ".join(facts)


def _workers(material: Material) -> str:
    coverage = material.verdict.coverage
    hosts = len(set(material.hosts.values()) - {""})
    on = f" on {hosts:,} host{'s' if hosts > 1 else ''}" if hosts else ""
    if coverage.workers_reported >= coverage.workers_expected:
        return f"{coverage.workers_reported:,}{on}, all heard"
    return f"{coverage.workers_reported:,} of {coverage.workers_expected:,} heard{on}"


def happened(material: Material) -> str:
    """When the verdict's window was open, as the history tells it: "2026-11-22 03:12 UTC"; "" where it does not."""
    history = material.history
    if history is None or not material.window_id:
        return ""
    kinds = ("window", "blocked", "verdict")
    marks = [mark for mark in history.marks if mark.window_id == material.window_id and mark.kind in kinds]
    if not marks:
        return ""
    try:
        when = datetime.fromtimestamp(history.began + marks[0].at_s, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        return ""
    return f"{when:%Y-%m-%d %H:%M} UTC"
