"""Threads beside the training one: how busy they were, and how long threads waited for a disk."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from eroica.hardware.store import Samples, Series
from eroica.hardware.writer import Channel
from eroica.model.window import Capture, ClockPair
from eroica.model.worker import Worker
from eroica.summarize.clock import WallClock
from eroica.summarize.sampled import OtherThread, ThreadSamples
from eroica.summarize.utilization import Use, awake_moments, disk_facts, measure_threads

MS = 1_000_000
CLOCKS = (ClockPair(realtime_ns=0, monotonic_ns=0),)


def series(name: str, device: str, values: list[float], unit: str = "fraction") -> Series:
    """One value for every 10 ms from 0 on."""
    times = np.arange(1, len(values) + 1, dtype=np.int64) * 10 * MS
    channel = Channel(name, device, unit, 1.0, resolution_ns=10 * MS)
    return Series(channel=channel, start_ns=0, t_ns=times, value=np.array(values, dtype=np.float64))


def captured() -> Capture:
    return Capture(
        worker=Worker(global_rank=0, world_size=1, host="h", pid=40, device="cpu"),
        window_id=1,
        first_iteration=0,
        last_iteration=2,
        boundaries_ns=(0, 20 * MS, 40 * MS),
        clocks=CLOCKS,
        training_thread_id=40,
        training_thread_ident=1,
    )


def child(functions: list[int], pid: int = 50) -> OtherThread:
    """A loader child with one sample in the middle of every 10 ms."""
    moments = (np.arange(len(functions), dtype=np.int64) * 10 + 5) * MS
    kinds = np.zeros(len(functions), np.int8)
    return OtherThread(pid, pid, True, ThreadSamples(moments, np.array(functions, dtype=np.int32), kinds))


def test_a_function_of_a_loader_child_has_the_processor_use_of_its_moments() -> None:
    uses = [Use(), Use(), Use()]
    samples = Samples(series=(series("cpu", "50/50", [0.0, 0.1, 1.0, 0.9]),))
    measure_threads([child([1, 1, 2, 2])], samples, WallClock(CLOCKS), 100.0, uses)
    assert uses[0] == Use()
    assert [use.mean for use in uses[1:]] == pytest.approx([0.05, 0.95])
    assert (uses[1].resource, uses[1].samples) == ("cpu", 2)


def test_the_wait_for_a_disk_is_a_share_of_the_window_and_loader_children_add_up() -> None:
    waits, sleeps = float(ord("D")), float(ord("S"))
    samples = Samples(
        series=(
            series("state", "40/40", [waits, sleeps, sleeps, sleeps], "code"),
            series("state", "50/50", [waits, waits, sleeps, sleeps], "code"),
            series("state", "51/51", [waits, waits, waits, waits], "code"),
        )
    )
    capture = captured()
    threads = [child([1]), child([1], pid=51)]
    assert disk_facts(capture, samples, threads) == pytest.approx({"disk_wait": 0.25, "loader_disk_wait": 1.5})
    assert disk_facts(capture, None, threads) == {}


@pytest.mark.parametrize(
    ("states", "awake"),
    [
        (b"SSSS", []),
        (b"RRSS", [1, 2]),
        (b"SRSS", []),
        (b"SRDN", [2, 3, 4]),
        (b"NSNN", [3, 4]),
        (b"TTSS", []),
        (b"RRSH", [1, 2]),
        (b"RRHH", []),
        (b"R", []),
        (b"", []),
    ],
)
def test_who_runs_naps_or_waits_for_a_disk_waits_for_no_other_thread(states: bytes, awake: list[int]) -> None:
    """One such sample alone may be a thread that is just being woken; where sleep is hidden, nothing is told."""
    samples = Samples(series=(series("state", "40/40", [float(code) for code in states], "code"),))
    assert moments(samples) == [number * 10 * MS for number in awake]


def moments(samples: Samples | None, rate_hz: float = 100.0, until: int = 40) -> list[int]:
    """Of a window from 10 ms on, milliseconds."""
    window = msgspec.structs.replace(captured(), boundaries_ns=(10 * MS, 20 * MS, until * MS))
    return awake_moments(window, samples, rate_hz).tolist()
