"""What a verdict of Eroica orders, and what it does not."""

import json
from typing import Any

import pytest

from trainmover.cli import from_verdict
from trainmover.errors import UsageError


def verdict(**changes: Any) -> str:
    finding = {
        "order": 1, "role": "cause", "cause": "cpu-contention", "workers": [2], "scope": "some", "hosts": ["node-2"],
        "confidence": 0.93,
    }  # fmt: skip
    return json.dumps({"schema_version": 1, "verdict": "slow", "findings": [{**finding, **changes}]})


def test_a_cause_on_one_worker_names_it() -> None:
    assert from_verdict(verdict(), 0.8) == (2, "cpu-contention")


def given(**changes: Any) -> str:
    """What `EROICA_ON_VERDICT` of eroica-c4d gives to a command."""
    order = {
        "job": "j", "order": 1, "action": "isolate-worker", "workers": [2], "hosts": ["node-2"], "restart": False,
        "confidence": 0.97, "cause": "slow-compute", "found_by": "window", "window": 3, "summary": "", "at": "",
        "schema_version": 1,
    }  # fmt: skip
    return json.dumps({**order, **changes})


def test_what_eroica_gives_to_a_command_is_an_order_too() -> None:
    assert from_verdict(given(), 0.8) == (2, "slow-compute")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "not a verdict"),
        (json.dumps({"schema_version": 1, "verdict": "healthy", "findings": []}), "names no cause"),
        (verdict(scope="all", workers=[0, 1]), "not the fault of one worker"),
        (verdict(cause="garbage-collection"), "comes from the program"),
        (verdict(confidence=0.4), "--min-confidence"),
        (given(action="avoid-path", workers=[]), "avoid-path, which no move"),
        (given(workers=[1, 2]), "not the fault of one worker"),
        (given(cause="load-imbalance"), "comes from the program"),
        (verdict().replace('"schema_version": 1', '"schema_version": 2'), "version 1 is understood"),
    ],
)
def test_a_verdict_that_another_machine_would_not_help_moves_nothing_and_says_why(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        from_verdict(text, 0.8)
