"""Source lines of a verdict's functions as fenced, numbered, masked excerpts that nothing in them can break out of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from eroica.model.verdict import Finding
from eroica.report.masking import mask_code, quoted
from eroica.report.source import SourceLines, SourceTree
from eroica.report.words import line

_MOST_FUNCTION_LINES = 60
_MOST_CALLERS = 3
_MOST_CALLER_LINES = 20
_LONGEST_CODE_LINE = 160


def excerpts(causes: Sequence[Finding], sources: SourceTree) -> tuple[list[str], list[str]]:
    """Source of the functions that causes name, and of those who call them: lines of Markdown each."""
    named: dict[tuple[str, int], tuple[SourceLines, str]] = {}
    callers: dict[tuple[str, int], tuple[SourceLines, str]] = {}
    for cause in causes:
        found = [(frame, sources.find(frame)) for frame in named_first(cause)]
        own = [(text, frame) for frame, text in found if text is not None]
        for place, (text, _) in enumerate(own[: 1 + _MOST_CALLERS]):
            called = own[place - 1][0].name.rpartition(".")[2] if place else ""
            (callers if place else named).setdefault((text.place, text.first_line), (text, called))
    own_lines = ["## Source"]
    for text, _ in named.values():
        own_lines += _block(text, _MOST_FUNCTION_LINES, "")
    if not named:
        own_lines += ["(No source of the functions above was found under the given directories.)", ""]
    others = [found for key, found in callers.items() if key not in named]
    caller_lines = ["## Source of their callers"] if others else []
    for text, called in others:
        caller_lines += _block(text, _MOST_CALLER_LINES, called)
    return own_lines, caller_lines


def named_first(finding: Finding) -> Iterator[str]:
    """Frames from the named function outwards; the whole stack if none has its name."""
    frames = list(reversed(finding.function.stack))
    at = next((at for at, frame in enumerate(frames) if frame.startswith(f"{finding.function.name} (")), 0)
    yield from frames[at:]


def _block(text: SourceLines, most: int, called: str) -> Iterator[str]:
    """Numbered lines in a fence that nothing in them can close."""
    shown = [_cut(one.rstrip()) for one in mask_code(line(one.expandtabs(4)) for one in text.lines)]
    first = 0
    if len(shown) > most:
        calls = (at for at, one in enumerate(shown) if at and called and re.search(rf"\b{re.escape(called)}\b", one))
        first = max(0, next(calls, 0) - most // 2)
    end = min(first + most, len(shown))
    fence = "`" * max(3, 1 + max((len(run) for one in shown for run in re.findall("`+", one)), default=0))
    part = "" if end - first == len(shown) else f", {end - first} of {len(shown)} lines"
    yield f"{quoted(text.name)} in {quoted(text.place)}{' (a caller)' if called else ''}{part}:"
    yield f"{fence}python"
    yield from (f"{text.first_line + at:5d} | {shown[at]}" for at in range(first, end))
    yield fence
    yield ""


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_CODE_LINE else f"{text[: _LONGEST_CODE_LINE - 1]}…"
