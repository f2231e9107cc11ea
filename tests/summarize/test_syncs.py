"""Waits of the host for its device: what the device loses by them, and what it would have lost anyway."""

from __future__ import annotations

import numpy as np
import pytest

from eroica.model.series import decode_series
from eroica.summarize.activity import find_outline
from eroica.summarize.host import find_syncs
from eroica.summarize.sweep import Functions
from eroica.trace.schema import Category
from eroica.trace.table import EventTable

MS = 1_000_000
TRAINING = 7
Event = tuple[str, Category, int, float, float]


def table(*events: Event) -> EventTable:
    """Events (name, category, thread, start ms, end ms) in order of start."""
    ordered = sorted(events, key=lambda event: (event[3], -event[4]))
    strings = tuple(dict.fromkeys(event[0] for event in ordered))
    return EventTable(
        strings=strings,
        name=np.array([strings.index(event[0]) for event in ordered], dtype=np.int32),
        category=np.array([event[1] for event in ordered], dtype=np.int8),
        thread=np.array([event[2] for event in ordered], dtype=np.int64),
        start_ns=np.array([event[3] * MS for event in ordered], dtype=np.int64),
        end_ns=np.array([event[4] * MS for event in ordered], dtype=np.int64),
    )


def kernel(start: float, end: float) -> Event:
    return "gemm", Category.KERNEL, 20, start, end


def item(start: float, end: float, call: str = "cudaStreamSynchronize") -> tuple[Event, Event]:
    return (
        ("aten::item", Category.OPERATOR, TRAINING, start - 0.1, end + 0.1),
        (call, Category.RUNTIME, TRAINING, start, end),
    )


def found(*events: Event, edges: tuple[int, ...] = (0, 100)):  # type: ignore[no-untyped-def]
    events_ = table(*events)
    outline = find_outline(events_, TRAINING)
    return find_syncs(events_, outline, np.array(edges, dtype=np.int64) * MS, None, Functions())


@pytest.mark.parametrize(
    "call", ["cudaStreamSynchronize", "hipStreamSynchronize", "cudaDeviceSynchronize", "cudaMemcpy"]
)
def test_idle_time_after_a_wait_is_lost_by_it(call: str) -> None:
    (sync,) = found(kernel(0, 40), *item(10, 41, call), kernel(46, 90))
    assert (sync.name, sync.call, sync.count) == ("aten::item", call, 1)
    assert sync.waited_s == pytest.approx(0.030)
    assert sync.lost_s == pytest.approx(0.006)


def test_no_more_is_lost_than_the_host_has_waited() -> None:
    (sync,) = found(kernel(0, 40), *item(38, 41), kernel(80, 90))
    assert sync.lost_s == pytest.approx(0.002)


def test_a_device_that_had_nothing_to_do_loses_nothing() -> None:
    (sync,) = found(kernel(0, 40), *item(50, 51), kernel(60, 90))
    assert (sync.waited_s, sync.lost_s) == (0.0, 0.0)


def test_a_device_with_more_work_on_another_stream_loses_nothing() -> None:
    (sync,) = found(kernel(0, 40), kernel(30, 70), *item(10, 41), kernel(75, 90))
    assert sync.lost_s == 0.0


def test_losses_belong_to_the_iteration_of_the_call() -> None:
    events = [kernel(0, 40), *item(10, 41), kernel(45, 80), *item(60, 81), kernel(90, 100)]
    (sync,) = found(*events, edges=(0, 50, 100))
    assert decode_series(sync.per_iteration_us, np.float32) == pytest.approx([5000, 10_000], rel=1e-3)


def test_calls_of_other_threads_do_not_stop_the_training() -> None:
    other = ("cudaStreamSynchronize", Category.RUNTIME, 99, 10.0, 41.0)
    assert found(kernel(0, 40), other, kernel(46, 90)) == ()


def around(*names: str) -> tuple[Event, ...]:
    """Operators around the call of `item` at 10-41 ms, the outermost first."""
    return tuple((name, Category.OPERATOR, TRAINING, at / 10, 50 - at / 10) for at, name in enumerate(names))


@pytest.mark.parametrize(
    ("names", "asked_for"),
    [
        (("aten::item", "aten::_local_scalar_dense"), "aten::item"),
        (("CompiledFunction", "aten::item", "aten::_local_scalar_dense"), "aten::item"),
        (("aten::linear", "my::operator", "aten::nonzero"), "aten::nonzero"),
        (("aten::linear", "my::operator"), "my::operator"),
        (("ProfilerStep#3",), "cudaStreamSynchronize"),
        ((), "cudaStreamSynchronize"),
    ],
)
def test_a_wait_is_named_by_what_was_asked_for(names: tuple[str, ...], asked_for: str) -> None:
    call = ("cudaStreamSynchronize", Category.RUNTIME, TRAINING, 10.0, 41.0)
    (sync,) = found(kernel(0, 40), *around(*names), call, kernel(46, 90))
    assert (sync.name, sync.call) == (asked_for, "cudaStreamSynchronize")


def test_a_wait_of_the_backward_thread_is_named_by_that_threads_operators() -> None:
    backward = 8
    call = ("cudaStreamSynchronize", Category.RUNTIME, backward, 10.0, 41.0)
    (sync,) = found(
        ("autograd::engine::evaluate_function: MulBackward0", Category.OPERATOR, backward, 0.5, 45.0),
        ("aten::item", Category.OPERATOR, TRAINING, 3.0, 48.0),
        ("aten::nonzero", Category.OPERATOR, backward, 5.0, 42.0),
        call,
        kernel(0, 40),
        kernel(46, 90),
    )
    assert sync.name == "aten::nonzero"


def test_without_a_device_there_is_nothing_to_wait_for() -> None:
    assert found(*item(10, 41)) == ()
