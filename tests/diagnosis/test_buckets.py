"""Gradients that travel in one piece are a setting; in pieces that take as long, communication is what is slow."""

from __future__ import annotations

import pytest

from eroica.model.verdict import Finding
from eroica.pipeline import analyze
from support import cases, synthesize_window


def found(buckets: int, seed: int) -> Finding:
    patterns = cases.copied_model(8, buckets, seed)
    verdict = analyze("job", synthesize_window(patterns), patterns)
    assert verdict.cause is not None, verdict.summary
    return verdict.cause


@pytest.mark.parametrize("seed", range(3))
def test_one_piece_is_a_setting(seed: int) -> None:
    cause = found(1, seed)
    assert (cause.cause, cause.scope) == ("misconfiguration", "all")
    assert "320 million elements in one all_reduce" in cause.evidence[0]
    assert "bucket_cap_mb" in cause.next_step and cause.confidence < 0.7


@pytest.mark.parametrize("seed", range(3))
def test_as_much_in_pieces_is_slow_communication(seed: int) -> None:
    cause = found(16, seed)
    assert (cause.cause, cause.scope) == ("slow-collective-everywhere", "all")
    assert not any("one piece" in sentence for sentence in cause.evidence)


@pytest.mark.parametrize("seed", range(3))
def test_a_piece_that_has_always_been_one_does_not_explain_a_network_that_got_slower(seed: int) -> None:
    before, now = cases.copied_model(8, 1, seed), cases.copied_model(8, 1, seed, reduce_s=0.9)
    cause = analyze("job", synthesize_window(now, "slow", before), now, before).cause
    assert cause is not None and cause.cause == "slow-collective-everywhere"
    assert any("in one all_reduce" in sentence for sentence in cause.evidence)
