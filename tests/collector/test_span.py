"""How long a window becomes, from what its probe met."""

from __future__ import annotations

import pytest

from eroica.collector import span
from eroica.wire.messages import OrderResult


@pytest.mark.parametrize(
    ("events", "probe_s", "expected"),
    [
        pytest.param(6_000, 0.05, 66_000, id="an update, between rollouts that make most of the events"),
        pytest.param(6_000, 0.5, 6_000, id="about the usual iteration"),
        pytest.param(250_000, 2.0, 250_000, id="the rollout itself"),
        pytest.param(6_000, 0.0, 6_000, id="a duration that nobody knows"),
    ],
)
def test_a_probe_that_met_a_short_iteration_counts_for_the_usual_one(
    events: int, probe_s: float, expected: int
) -> None:
    probe = OrderResult(window_id=1, status="done", kind="probe", events=events, duration_s=probe_s)
    assert span.events_of(probe, 0.55) == pytest.approx(expected, abs=1)
