import numpy as np
import pytest

from eroica.errors import InputError
from eroica.model.window import ClockPair
from eroica.summarize.clock import WallClock

WALL = 1_795_182_729_611_319_527


def test_between_the_pairs_the_drift_is_shared_out():
    pairs = [
        ClockPair(realtime_ns=WALL, monotonic_ns=1000),
        ClockPair(realtime_ns=WALL + 2_000_400, monotonic_ns=2_001_000),
    ]
    clock = WallClock(pairs)
    assert clock.from_monotonic([1000, 1_001_000, 2_001_000]).tolist() == [WALL, WALL + 1_000_200, WALL + 2_000_400]


def test_outside_the_pairs_the_nearest_offset_holds():
    clock = WallClock([ClockPair(realtime_ns=WALL, monotonic_ns=1000)])
    assert clock.from_monotonic([0, 5000]).tolist() == [WALL - 1000, WALL + 4000]


def test_the_way_back_meets_the_way_there():
    pairs = [
        ClockPair(realtime_ns=WALL, monotonic_ns=0),
        ClockPair(realtime_ns=WALL + 10**10 + 9000, monotonic_ns=10**10),
    ]
    clock = WallClock(pairs)
    times = np.arange(0, 10**10, 10**9)
    assert np.abs(clock.to_monotonic(clock.from_monotonic(times)) - times).max() <= 1


def test_without_pairs_nothing_can_be_told():
    with pytest.raises(InputError, match="clock"):
        WallClock([])
