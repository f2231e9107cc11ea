from __future__ import annotations

import msgspec
import numpy as np

from eroica.localize.fleet import build_fleet
from eroica.model.series import encode_series
from eroica.settings import Settings
from support import FleetPlan, synthesize


def test_workers_stand_in_order_of_rank_and_the_last_pattern_of_a_rank_counts() -> None:
    patterns = synthesize(FleetPlan(iterations=5))
    again = msgspec.structs.replace(patterns[1], window_id=9)
    fleet = build_fleet([patterns[3], patterns[1], patterns[0], again], Settings())
    assert fleet.ranks == (0, 1, 3)
    assert fleet.patterns[1].window_id == 9


def test_only_iterations_that_everybody_captured_count() -> None:
    patterns = synthesize(FleetPlan(workers=2, iterations=8))
    late = msgspec.structs.replace(
        patterns[1], first_iteration=patterns[1].first_iteration + 3, last_iteration=patterns[1].last_iteration + 3
    )
    fleet = build_fleet([patterns[0], late], Settings())
    assert fleet.columns[0].tolist() == [3, 4, 5, 6, 7]
    assert fleet.columns[1].tolist() == [0, 1, 2, 3, 4]


def test_the_slowest_few_iterations_are_left_out_of_long_windows_only() -> None:
    def slowed(count: int) -> list[int]:
        own = np.full(count, 50_000, dtype=np.float32)
        own[2] = 900_000
        patterns = [
            msgspec.structs.replace(p, iteration_us=encode_series(own))
            for p in synthesize(FleetPlan(workers=2, iterations=count))
        ]
        return build_fleet(patterns, Settings(one_off_fraction=0.04)).columns[0].tolist()

    assert slowed(8) == list(range(8))
    assert slowed(30) == [0, 1, *range(3, 30)]
