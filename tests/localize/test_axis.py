from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.localize.axis import fit_axis
from eroica.model.pattern import WorkerPattern
from eroica.model.worker import ProcessGroup
from support.recordings import meet, recorded_collective, recorded_worker


def fleet(starts_us: np.ndarray, drifts: np.ndarray, jitter_us: float = 3.0, count: int = 40) -> list[WorkerPattern]:
    """Workers whose windows start at different moments and whose clocks run apart."""
    noise = np.random.default_rng(3)
    end, duration = meet(np.arange(count) * 50_000.0 + noise.uniform(0, 5000, (len(starts_us), count)) + 20_000)
    exits = end + noise.uniform(0, jitter_us, end.shape)
    return [
        recorded_worker(
            rank,
            [recorded_collective((exits[rank] - start) / (1 + drift), duration[rank])],
            world=len(starts_us),
        )
        for rank, (start, drift) in enumerate(zip(starts_us, drifts, strict=True))
    ]


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=6),
    st.floats(-5e-5, 5e-5),
)
def test_windows_are_placed_although_clocks_are_off_and_drift(starts: list[float], drift: float) -> None:
    starts_us = np.array(starts)
    drifts = np.linspace(0, drift, len(starts))
    axis = fit_axis(fleet(starts_us, drifts))
    assert not axis.unplaced
    for rank in range(len(starts)):
        for real_us in (0.0, 1e6):
            since_ns = (real_us + 2e6 - starts_us[rank]) / (1 + drifts[rank]) * 1e3
            shown = axis.places[rank].offset_ns + (1 + axis.places[rank].drift) * since_ns
            assert shown == pytest.approx((real_us + 2e6 - starts_us[0]) * 1e3, abs=3 * axis.uncertainty_ns + 20_000)
    assert axis.uncertainty_ns < 30_000


def test_groups_that_share_a_member_are_chained_and_strangers_stay_unplaced() -> None:
    left, right = (ProcessGroup(name=name, ranks=ranks) for name, ranks in (("a", (0, 1)), ("b", (1, 2))))
    end, duration = meet(np.arange(12) * 1000.0 + np.zeros((2, 1)))
    offsets = [0.0, 400.0, 900.0]
    records = {
        0: [recorded_collective(end[0], duration[0], group="a")],
        1: [
            recorded_collective(end[0] - offsets[1], duration[0], group="a"),
            recorded_collective(end[0] + 333 - offsets[1], duration[0], group="b"),
        ],
        2: [recorded_collective(end[0] + 333 - offsets[2], duration[0], group="b")],
        3: [],
    }
    patterns = [recorded_worker(rank, own, groups=(left, right)) for rank, own in records.items()]
    axis = fit_axis(patterns)
    assert {rank: place.offset_ns for rank, place in axis.places.items()} == pytest.approx({0: 0, 1: 4e5, 2: 9e5})
    assert "no collective" in axis.unplaced[3]
