from __future__ import annotations

import msgspec
import numpy as np
import pytest

from eroica.localize.fleet import build_fleet, leave_out_damaged
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


# --- patterns with damaged series are left out, and nobody else is ---


ENDLESS = encode_series(np.asarray([1.0, np.inf], dtype=np.float32))
NEGATIVE = encode_series(np.asarray([-1.0], dtype=np.float32))


@pytest.mark.parametrize("data", [b"x", ENDLESS, NEGATIVE])
@pytest.mark.parametrize("place", ["pattern", "row", "record"])
def test_one_damaged_series_costs_its_worker_only(data: bytes, place: str) -> None:
    good = synthesize(FleetPlan(iterations=4))
    row = msgspec.structs.replace(good[2].functions[0], per_iteration_us=data)
    record = msgspec.structs.replace(good[2].collectives[0], duration_us=data)
    changes = {"pattern": {"iteration_us": data}, "row": {"functions": (row,)}, "record": {"collectives": (record,)}}
    bad = msgspec.structs.replace(good[2], **changes[place])
    kept, notes = leave_out_damaged([*good[:2], bad, good[3]])
    assert [pattern.worker.global_rank for pattern in kept] == [0, 1, 3] and "worker 2" in notes[0]


def test_columns_of_different_length_are_damage() -> None:
    good = synthesize(FleetPlan(iterations=4))
    record = msgspec.structs.replace(good[0].collectives[0], iteration=b"")
    assert len(leave_out_damaged([msgspec.structs.replace(good[0], collectives=(record,)), *good[1:]])[0]) == 3
