"""What a verdict of Eroica orders, and what it does not."""

import json
from typing import Any

import pytest

from trainmover.errors import UsageError
from trainmover.orders import Order, from_verdict, host_of


def verdict(**changes: Any) -> str:
    finding = {
        "order": 1, "role": "cause", "cause": "cpu-contention", "workers": [2], "scope": "some", "hosts": ["node-2"],
        "confidence": 0.93,
    }  # fmt: skip
    return json.dumps({"schema_version": 1, "verdict": "slow", "findings": [{**finding, **changes}]})


def test_a_cause_on_one_worker_moves_the_host_that_holds_its_rank_now() -> None:
    order = from_verdict(verdict(), 0.8)
    assert order == Order(2, "node-2", "cpu-contention", 0.93)
    assert host_of(order, {"members": [{"rank": 2, "host": "spare-1"}]}) == "spare-1"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "not a verdict"),
        (json.dumps({"schema_version": 1, "verdict": "healthy", "findings": []}), "names no cause"),
        (verdict(scope="all", workers=[0, 1]), "not the fault of one worker"),
        (verdict(cause="garbage-collection"), "comes from the program"),
        (verdict(confidence=0.4), "--min-confidence"),
        (verdict().replace('"schema_version": 1', '"schema_version": 2'), "version 1 is understood"),
    ],
)
def test_a_verdict_that_another_machine_would_not_help_moves_nothing_and_says_why(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        from_verdict(text, 0.8)
