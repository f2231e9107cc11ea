from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_window import PID, TRAINING, capture

from eroica.hardware.store import Samples, Series
from eroica.hardware.writer import Channel
from eroica.model.pattern import FunctionKey
from eroica.model.window import ClockPair
from eroica.model.worker import Worker
from eroica.summarize.clock import WallClock
from eroica.summarize.sampled import OtherThread, ThreadSamples
from eroica.summarize.sweep import Layer
from eroica.summarize.utilization import (
    Use,
    awake_moments,
    critical_duration,
    disk_facts,
    find_resources,
    measure_threads,
    measure_use,
    of_device,
)

MS = 1_000_000
CLOCK = WallClock([ClockPair(realtime_ns=10**15, monotonic_ns=0)])
PYTHON = FunctionKey(kind="python", name="step")
OPERATOR = FunctionKey(kind="compute", name="aten::mm")


def series(values, name="cpu", device=f"{PID}/{TRAINING}", unit="fraction", step_ns=5 * MS):
    channel = Channel(name, device, unit, 1.0, 200.0, step_ns)
    times = (np.arange(len(values)) + 1) * step_ns
    return Series(channel=channel, start_ns=0, t_ns=times.astype(np.int64), value=np.array(values, dtype=np.float64))


def segments(*rows):
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    wall = 10**15 + table[:, :2] * MS
    return Layer(wall[:, 0], wall[:, 1], table[:, 2].astype(np.int32), np.arange(len(table), dtype=np.int32))


def use_of(keys, layer, *channels):
    resources = find_resources(capture((0, 10)), Samples(series=channels))
    return measure_use(keys, layer, resources, CLOCK)


def test_short_executions_weigh_the_channel_by_time():
    (use,) = use_of([OPERATOR], segments((0, 2, 0), (5, 6, 0)), series([0.5, 0.8, 0.1]))
    assert use.resource == "cpu"
    assert use.mean == pytest.approx((2 * 0.5 + 1 * 0.8) / 3)
    assert use.deviation == 0.0


def test_only_the_critical_duration_of_a_long_execution_counts():
    (use,) = use_of([PYTHON], segments((0, 100, 0)), series([0.0] * 14 + [0.6, 0.8] * 3))
    assert use.mean == pytest.approx(0.7)
    assert use.deviation == pytest.approx(0.1)
    assert use.samples == 6


def test_without_a_channel_nothing_is_claimed():
    (use,) = use_of([PYTHON], segments((0, 50, 0)))
    assert (use.resource, use.samples) == ("", 0)
    assert find_resources(capture((0, 10)), None) == {}


def test_collectives_are_bounded_by_the_busiest_interface_with_a_stated_capacity():
    collective = FunctionKey(kind="collective", name="gloo:all_reduce", thread="collective")
    channels = [
        series([0.9] * 4, "net", "lo/tx", "B/s"),
        series([0.1] * 4, "net", "eth0/tx"),
        series([0.4] * 4, "net", "eth1/tx"),
        series([0.7] * 4, "net", "eth1/rx"),
    ]
    (use,) = use_of([collective], segments((0, 2, 0)), *channels)
    assert (use.resource, use.mean) == ("nic", pytest.approx(0.4))


@pytest.mark.parametrize(
    ("device", "uuid", "expected"),
    [
        ("cuda:0", "bbb", "gpu1/bbb"),  # CUDA_VISIBLE_DEVICES=1: the process counts from 0
        ("cuda:1", "", "gpu1/bbb"),
        ("cuda:1", "0000:1b:00.0", "gpu1/bbb"),
        ("cuda:0", "ccc", None),  # a slice of a device, or one that the driver did not show us
        ("cpu", "", None),
    ],
)
def test_a_workers_device_is_found_by_its_uuid_and_else_by_its_index(device, uuid, expected):
    candidates = [series([1.0, 1.0], "gpu_sm_clock", name) for name in ("gpu0/aaa", "gpu1/bbb")]
    found = of_device(candidates, Worker(global_rank=0, device=device, device_uuid=uuid))
    assert (found and found.channel.device) == expected


def test_a_collective_is_bounded_by_its_own_gpus_pcie_link_before_an_interface_that_a_host_shares():
    channels = (
        series([0.4, 0.4], name="rdma", device="mlx5_0/tx"),
        series([0.1, 0.1], name="gpu_pcie_tx", device="gpu0"),
        series([0.2, 0.2], name="gpu_pcie_tx", device="gpu1"),
    )
    window = capture((0, 10))
    on_gpu = msgspec.structs.replace(window, worker=Worker(global_rank=1, device="cuda:1"))
    found = find_resources(on_gpu, Samples(series=channels))["collective"]
    assert (found.name, found.series.channel.device) == ("pcie", "gpu1")
    assert find_resources(window, Samples(series=channels))["collective"].name == "nic"


values = st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.25, 0.5, 1.0]), max_size=14)


def longest_gap(part):
    longest = run = 0
    for value in part:
        run = run + 1 if value == 0 else 0
        longest = max(longest, run)
    return longest


def slow_twin(utilization):
    """Algorithm 1 by trying every interval: the shortest longest gap, without zeros at the ends, as long as it can."""
    total = sum(utilization)
    if total == 0:
        return None
    best = None
    for first in range(len(utilization)):
        for last in range(first + 1, len(utilization) + 1):
            part = utilization[first:last]
            if part[0] == 0 or part[-1] == 0 or sum(part) < 0.8 * total * (1 - 1e-12):
                continue
            key = (longest_gap(part), -(last - first))
            if best is None or key < best[0]:
                best = (key, (first, last))
    return best[1]


@given(values)
def test_the_interval_is_that_of_the_slow_twin(utilization):
    assert critical_duration(np.array(utilization)) == slow_twin(utilization)


def test_waiting_before_the_others_arrive_is_left_out():
    early = [0.1] + [0.0] * 50 + [0.9] * 20
    assert critical_duration(np.array(early)) == (51, 71)


def test_short_gaps_stay_inside():
    assert critical_duration(np.array([0.5, 0.0, 0.5, 0.0, 0.5])) == (0, 5)


WINDOW = capture((0, 20 * MS, 40 * MS))
OWN = f"{PID}/{TRAINING}"


def every_10_ms(values, name, device=OWN, unit="fraction"):
    return series(values, name, device, unit, 10 * MS)


def child(functions: list[int], pid: int = 50) -> OtherThread:
    """A loader child with one sample in the middle of every 10 ms."""
    moments = (np.arange(len(functions), dtype=np.int64) * 10 + 5) * MS
    kinds = np.zeros(len(functions), np.int8)
    return OtherThread(pid, pid, True, ThreadSamples(moments, np.array(functions, dtype=np.int32), kinds))


def test_a_function_of_a_loader_child_has_the_processor_use_of_its_moments() -> None:
    uses = [Use(), Use(), Use()]
    samples = Samples(series=(every_10_ms([0.0, 0.1, 1.0, 0.9], "cpu", "50/50"),))
    measure_threads([child([1, 1, 2, 2])], samples, WallClock([ClockPair(realtime_ns=0, monotonic_ns=0)]), 100.0, uses)
    assert uses[0] == Use()
    assert [use.mean for use in uses[1:]] == pytest.approx([0.05, 0.95])
    assert (uses[1].resource, uses[1].samples) == ("cpu", 2)


def test_the_wait_for_a_disk_is_a_share_of_the_window_and_loader_children_add_up() -> None:
    waits, sleeps = float(ord("D")), float(ord("S"))
    samples = Samples(
        series=(
            every_10_ms([waits, sleeps, sleeps, sleeps], "state", OWN, "code"),
            every_10_ms([waits, waits, sleeps, sleeps], "state", "50/50", "code"),
            every_10_ms([waits, waits, waits, waits], "state", "51/51", "code"),
        )
    )
    threads = [child([1]), child([1], pid=51)]
    assert disk_facts(WINDOW, samples, threads) == pytest.approx({"disk_wait": 0.25, "loader_disk_wait": 1.5})
    assert disk_facts(WINDOW, None, threads) == {}


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
    samples = Samples(series=(every_10_ms([float(code) for code in states], "state", OWN, "code"),))
    window = msgspec.structs.replace(WINDOW, boundaries_ns=(10 * MS, 20 * MS, 40 * MS))
    assert awake_moments(window, samples, 100.0).tolist() == [number * 10 * MS for number in awake]
