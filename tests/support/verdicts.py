"""Verdicts and causes by hand, with no more than a test says of them."""

from __future__ import annotations

from typing import Any

from eroica.model.verdict import Coverage, Finding, FindingFunction, IterationTimes, Verdict


def plain(word: str = "healthy", summary: str = "", *findings: Finding, **more: Any) -> Verdict:
    """A verdict of a job of four workers, all of which reported."""
    given = {
        "eroica_version": "0", "job": "j", "verdict": word, "summary": summary, "window": None, "findings": findings,
        "iteration": IterationTimes(), "coverage": Coverage(workers_expected=4, workers_reported=4),
    }  # fmt: skip
    return Verdict(**{**given, **more})


def cause(name: str, *workers: int, function: str = "f", kind: Any = "python", **more: Any) -> Finding:
    """The first cause of a verdict, on some workers."""
    given = {"order": 1, "role": "cause", "scope": "some", "confidence": 0.9}
    return Finding(cause=name, workers=workers, function=FindingFunction(name=function, kind=kind), **{**given, **more})
