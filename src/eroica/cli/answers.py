"""Answers to an assistant's questions: parts of a record as plain containers, word for word, bounded and inert.

Nothing is worked out here: each number is the record's own, each text is the record's on one line, without what a
terminal or a Markdown reader would obey, and with what looks like a secret masked (`eroica.report.masking`). Where
something did not fit, `left_out` says how much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from eroica.archive.load import SavedRun, SavedWindow
from eroica.errors import UsageError
from eroica.model.comparison import Comparison
from eroica.model.verdict import Finding, Verdict
from eroica.model.words import line
from eroica.report.masking import mask_code, told
from eroica.report.prompt import named_first
from eroica.report.source import SourceTree

Answer = dict[str, Any]

_MOST_FINDINGS = 12
_MOST_CONSIDERED = 30
_MOST_CHANGES = 20
_MOST_WINDOWS = 100
_MOST_ITEMS = 40
_MOST_RANKS = 256
_MOST_LINES = 80
_MOST_CALLERS = 3
_LONGEST_CODE_LINE = 160
_OF_A_CAUSE = ("order", "cause", "workers", "scope", "hosts", "gain", "confidence", "next_step")


def inert(value: Any, within: str = "") -> Any:
    """Built-in containers with every text made harmless and every list cut: a stack keeps its innermost frames.

    Args:
        value: Built-in containers, or a record.
        within: Name of the field that holds it.
    """
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, str):
        return told(value)
    if isinstance(value, dict):
        return {told(str(key)): inert(one, str(key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        most = _MOST_RANKS if within in ("workers", "missing") else _MOST_ITEMS
        return [inert(one) for one in (value[-most:] if within == "stack" else value[:most])]
    return value


def _cut(name: str, items: Sequence[Any], most: int) -> Answer:
    """The first `most` under a name, and how many more there are."""
    return {name: [inert(one) for one in items[:most]]} | ({"left_out": len(items) - most} if len(items) > most else {})


def _head(verdict: Verdict, window: SavedWindow | None) -> Answer:
    of = {"of": "job"} if window is None else {"of": "window", "window_id": window.window_id}
    return {"job": told(verdict.job), **of, "verdict": verdict.verdict}


def verdict_answer(verdict: Verdict, window: SavedWindow | None, run: SavedRun) -> Answer:
    """The verdict in short, with one entry for each cause and each window of the run.

    Args:
        verdict: Of the job, or of one window.
        window: The window that it is of; None: the job's final one.
        run: Where both lie.
    """
    causes = [inert(finding) for finding in verdict.findings if finding.role == "cause"]
    short = [{name: cause[name] for name in _OF_A_CAUSE if name in cause} for cause in causes]
    for one, cause in zip(short, causes, strict=True):
        one["function"] = cause["function"]["name"]
    return {
        **_head(verdict, window),
        **{name: inert(getattr(verdict, name)) for name in ("summary", "window", "iteration", "coverage")},
        "causes": short[:_MOST_FINDINGS],
        "windows": _cut("latest_first", [_window(one) for one in run.windows[::-1]], _MOST_WINDOWS),
    }


def _window(window: SavedWindow) -> Answer:
    asked, verdict = window.window, window.verdict
    cause = verdict.cause if verdict is not None else None
    return {
        "window_id": window.window_id,
        "purpose": window.purpose,
        "first_iteration": asked.first_iteration if asked is not None else None,
        "last_iteration": asked.last_iteration if asked is not None else None,
        "verdict": verdict.verdict if verdict is not None else None,
        "cause": cause.cause if cause is not None else None,
        "function": cause.function.name if cause is not None else None,
        "workers": cause.workers if cause is not None else [],
    }


def evidence_answer(verdict: Verdict, window: SavedWindow | None, order: int) -> Answer:
    """Everything that the record holds of the findings (0: all, else one): stack, numbers against peers, evidence.

    Raises:
        UsageError: It has no finding of this number.
    """
    findings = [finding_of(verdict, order)] if order else verdict.findings
    head = _head(verdict, window)
    return {**head, **_cut("findings", findings, _MOST_FINDINGS), "notes": inert(verdict.coverage.notes)}


def finding_of(verdict: Verdict, order: int) -> Finding:
    """The finding of this number.

    Raises:
        UsageError: There is none.
    """
    for finding in verdict.findings:
        if finding.order == order:
            return finding
    there = ", ".join(str(finding.order) for finding in verdict.findings) or "none"
    raise UsageError(f"the verdict has no finding {order}; there are: {there}")


def why_answer(verdict: Verdict, window: SavedWindow | None) -> Answer:
    """What was considered, named or not, with the signs that speak for it, against it, or are not known."""
    considered = _cut("considered", verdict.considered, _MOST_CONSIDERED)
    return {**_head(verdict, window), "summary": told(verdict.summary), **considered}


def source_answer(verdict: Verdict, window: SavedWindow | None, order: int, sources: SourceTree | None) -> Answer:
    """Source lines of the function that a finding names and of up to three callers, secrets masked.

    Args:
        verdict: The verdict.
        window: The window that it is of; None: the job's.
        order: Number of the finding; 0: the first cause of which source is found.
        sources: Where source may be read; None: nowhere.

    Raises:
        UsageError: There is no such finding, or source is not to be read.
    """
    if sources is None:
        raise UsageError("source lines are switched off; start `eroica mcp` without --no-code")
    causes = [finding for finding in verdict.findings if finding.role == "cause"]
    wanted = [finding_of(verdict, order)] if order else causes
    if not wanted:
        raise UsageError("the verdict names no cause, so there is no function to show")
    quotes = ((finding, _quotes(finding, sources)) for finding in wanted)
    finding, found = next((one for one in quotes if one[1]), (wanted[0], []))
    named = {"finding": finding.order, "named": told(finding.function.name)}
    return {**_head(verdict, window), **named, "innermost_first": found}


def _quotes(finding: Finding, sources: SourceTree) -> list[Answer]:
    """The named function and its callers, as far as they lie in the sources."""
    found: dict[tuple[str, int], Answer] = {}
    for frame in named_first(finding):
        text = sources.find(frame)
        if text is None or (text.place, text.first_line) in found:  # a comprehension's code is its function's
            continue
        lines = mask_code(line(one.expandtabs(4)) for one in text.lines)
        found[text.place, text.first_line] = {
            "frame": told(frame),
            "function": told(text.name),
            "file": told(text.place),
            "first_line": text.first_line,
            "lines": [one[:_LONGEST_CODE_LINE] for one in lines[:_MOST_LINES]],
            **({"left_out": len(lines) - _MOST_LINES} if len(lines) > _MOST_LINES else {}),
        }
        if len(found) > _MOST_CALLERS:
            break
    return list(found.values())


def comparison_answer(comparison: Comparison) -> Answer:
    """The record of `eroica diff`, its largest changes first."""
    whole: Answer = inert(msgspec.structs.replace(comparison, changes=()))
    return whole | _cut("changes", comparison.changes, _MOST_CHANGES)
