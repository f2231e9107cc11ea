"""Orders from Eroica's verdicts: which worker's host to leave.

It reads public JSON of schema version 1: a verdict, or an order of Eroica's extra c4d (`EROICA_ON_VERDICT`).
"""

from __future__ import annotations

import json
from typing import Any

from trainmover.errors import UsageError

PROGRAM_CAUSES = {
    "python-on-critical-path",
    "garbage-collection",
    "blocking-checkpoint",
    "blocking-logging",
    "host-device-sync",
    "load-imbalance",
    "stage-imbalance",
    "fragmented-collectives",
    "slow-collective-everywhere",
    "desynchronized-collective",
    "blocked-in-user-code",
}


def from_verdict(text: str, min_confidence: float) -> tuple[int, str]:
    """Return the worker whose host is to be left, and why: of a verdict, or of what Eroica gives to a command.

    Args:
        text: JSON.
        min_confidence: A cause that is less certain moves nothing.

    Raises:
        UsageError: It is neither, or it names no single worker that another machine would help.
    """
    try:
        told: dict[str, Any] = json.loads(text)
        known = told["schema_version"] == 1
        first = _ordered(told) if "action" in told else _cause(told)
        cause, workers = str(first["cause"]), list(first["workers"])
        confidence = float(first.get("confidence") or 0.0)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"this is not a verdict of Eroica (`eroica run --json FILE` writes one): {error}") from error
    if not known:
        raise UsageError(f"a verdict of schema version {told['schema_version']}; version 1 is understood")
    if first.get("scope") != "some" or len(workers) != 1:
        raise UsageError(f"{cause} is not the fault of one worker ({first.get('scope')}), so nothing is moved")
    if cause in PROGRAM_CAUSES:
        raise UsageError(f"{cause} comes from the program: on another machine it would be the same")
    if confidence < min_confidence:
        raise UsageError(
            f"{cause} on worker {workers[0]} with confidence {confidence:.2f}, below {min_confidence:.2f}; "
            "--min-confidence sets how sure it has to be"
        )
    return int(workers[0]), cause


def _cause(verdict: dict[str, Any]) -> dict[str, Any]:
    """Return the first cause among a verdict's findings."""
    causes = [one for one in verdict["findings"] if one.get("role") == "cause"]
    if not causes and verdict["schema_version"] == 1:
        raise UsageError(f"the verdict is {verdict.get('verdict')} and names no cause, so nothing is moved")
    return {"workers": [], **causes[0]} if causes else {"cause": "", "workers": []}


def _ordered(order: dict[str, Any]) -> dict[str, Any]:
    """Return the content of an order; Eroica sends none that concerns all workers."""
    if order["action"] not in ("isolate-worker", "isolate-host"):
        raise UsageError(f"the order is {order['action']}, which no move of a worker would do")
    return {**order, "scope": "some"}
