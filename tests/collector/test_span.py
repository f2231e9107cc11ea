"""How long a window becomes, from what its probe met."""

from __future__ import annotations

import pytest

from eroica.collector import opening
from eroica.wire.messages import OrderResult


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param((30_000, 0.12), (3_000, 0.04), 13_125, id="a validation at every third step, then a usual step"),
        pytest.param((30_000, 0.12), (30_000, 0.12), 30_000, id="twice the long one"),
        pytest.param((30_000, 0.12), (31_000, 0.13), 31_000, id="a longer one"),
        pytest.param((30_000, 0.12), (9_000, 0.075), 9_000, id="the second was longer than the mean, too"),
        pytest.param((6_000, 1.0), (6_000, 0.05), 6_000, id="long without more events"),
    ],
)
def test_two_probes_tell_how_many_events_the_mean_iteration_makes(
    first: tuple[int, float], second: tuple[int, float], expected: int
) -> None:
    probes = [
        OrderResult(window_id=1, status="done", kind="probe", events=events, duration_s=duration_s)
        for events, duration_s in (first, second)
    ]
    assert opening.events_between(*probes, iteration_s=0.07) == pytest.approx(expected, abs=1)


def test_a_large_job_reports_more_seldom_and_gets_its_orders_earlier() -> None:
    assert opening.report_pause_s(8, is_busy=True) == pytest.approx(0.008)  # less than agents wait anyway
    assert opening.report_pause_s(8, is_busy=False) == pytest.approx(0.032)
    assert opening.report_pause_s(400, is_busy=False) == 0.5
    for is_busy in (False, True):
        assert opening.report_pause_s(2000, is_busy) == 2.0
        assert opening.report_pause_s(12_500, is_busy) == 4.0
    assert opening.lead(0.1, 8) * 0.1 <= 1.1
    assert opening.lead(0.1, 12_500) * 0.1 >= 5.0
