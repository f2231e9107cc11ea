"""Patterns with damaged series are left out of a comparison, and nobody else is."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from eroica.localize.fleet import leave_out_damaged
from eroica.model.series import encode_series
from support import FleetPlan, synthesize

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
