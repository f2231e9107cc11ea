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
        version, action = told["schema_version"], told.get("action", "isolate-worker")
        found = [{**told, "scope": "some"}] if "action" in told else told["findings"]
        causes = [
            (str(one["cause"]), list(one.get("workers", ())), float(one.get("confidence") or 0.0), one.get("scope"))
            for one in found
            if "action" in told or one.get("role") == "cause"
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"this is not a verdict of Eroica (`eroica run --json FILE` writes one): {error}") from error
    if version != 1:
        raise UsageError(f"a verdict of schema version {version}; version 1 is understood")
    if action not in ("isolate-worker", "isolate-host"):
        raise UsageError(f"the order is {action}, which no move of a worker would do")
    if not causes:
        raise UsageError(f"the verdict is {told.get('verdict')} and names no cause, so nothing is moved")
    cause, workers, confidence, scope = causes[0]
    if scope != "some" or len(workers) != 1:
        raise UsageError(f"{cause} is not the fault of one worker ({scope}), so nothing is moved")
    if cause in PROGRAM_CAUSES:
        raise UsageError(f"{cause} comes from the program: on another machine it would be the same")
    if confidence < min_confidence:
        raise UsageError(
            f"{cause} on worker {workers[0]} with confidence {confidence:.2f}, below {min_confidence:.2f}; "
            "--min-confidence sets how sure it has to be"
        )
    return int(workers[0]), cause
