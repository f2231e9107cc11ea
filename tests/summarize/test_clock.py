import random

import numpy as np
import pytest
from synthetic_window import TRAINING, Events

from eroica.errors import InputError
from eroica.model.window import ClockPair
from eroica.summarize.clock import WallClock, find_shift

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


MS = 1_000_000


def job(seed, count=60, late_ms=0.0, jitter_ms=1.0):
    """Iterations of about 60 ms and samples every 10 ms whose times are `late_ms` too small."""
    pick = random.Random(seed)
    events, spans, now = Events(), [], 0.0
    for _ in range(count):
        for phase, note, length in [
            ("input", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 12),
            ("forward", "DistributedDataParallel.forward", 15),
            ("backward", "", 25),
            ("optimizer", "Optimizer.step#AdamW.step", 8),
        ]:
            end = now + length * pick.uniform(0.6, 1.6)
            spans.append((now, end, phase))
            if note:
                events.note(note, round(now * MS), round(end * MS))
            now = end
    times, phases = [], []
    moment = 5.0
    while moment < now:
        phases.append(next(phase for start, end, phase in spans if start <= moment < end))
        times.append(round((moment - late_ms + pick.uniform(-jitter_ms, jitter_ms)) * MS))
        moment += 10.0
    return np.array(times, dtype=np.int64), phases, events.table()


@pytest.mark.parametrize("late_ms", [-4.0, 1.5, 13.5, 18.0, 60.0])
def test_the_samplers_delay_is_found_within_two_milliseconds(late_ms):
    time, phases, table = job(1, late_ms=late_ms)
    assert find_shift(time, phases, table, TRAINING) / MS == pytest.approx(late_ms, abs=2.0)


def test_without_annotations_nothing_is_shifted():
    time, phases, _ = job(2, late_ms=15)
    assert find_shift(time, phases, Events().add("aten::mm", 0, 10).table(), TRAINING) == 0


def test_samples_on_time_stay_where_they_are():
    time, phases, table = job(5)
    assert find_shift(time, phases, table, TRAINING) / MS == pytest.approx(0, abs=2.0)
