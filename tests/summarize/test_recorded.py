"""What a recorded trace says about its worker, and what the host's own events explain."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_window import TRAINING, Events, is_conserved, row_named

from eroica.errors import InputError
from eroica.model.series import decode_series
from eroica.model.worker import ProcessGroup
from eroica.settings import Settings
from eroica.summarize.host import clean_note
from eroica.summarize.recorded import find_groups, summarize_recording
from eroica.trace.table import Category, CollectiveArguments, TraceHeader
from eroica.wire.codec import encode_record

ENGINE = 150
US = 1000
TWO = TraceHeader(rank=1, world_size=2, backend="nccl")


def summary(events, header=TWO, hint=-1):
    table = events.table()
    return summarize_recording(type(table)(**(vars(table) | {"header": header})), "rank1.json", hint, Settings())


def step(events, at, loader=30, backward=(50, 80)):
    """100 microseconds: loader, forward, backward on the engine's thread, optimizer; kernels run from 55 to 95."""

    def add(name, start, end, category=Category.OPERATOR, thread=TRAINING):
        events.add(name, (at + start) * US, (at + end) * US, category, thread)

    add(f"ProfilerStep#{at // 100}", 0, 100, Category.ANNOTATION)
    add("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, loader, Category.ANNOTATION)
    add("aten::stack", 10, 14)
    add("aten::mm", loader + 2, loader + 12)
    add("cudaLaunchKernel", loader + 5, loader + 9, Category.RUNTIME)
    add("autograd::engine::evaluate_function: X", *backward, thread=ENGINE)
    add("cudaLaunchKernel", backward[0] + 5, backward[0] + 10, Category.RUNTIME, ENGINE)
    add("Optimizer.step#SGD.step", 90, 98, Category.ANNOTATION)
    add("gemm", 55, 95, Category.KERNEL, 7)


def three_steps(**facts):
    events = Events()
    for number in range(3):
        step(events, number * 100, **facts)
    return events


def test_gaps_of_the_device_are_explained_by_what_the_host_did():
    pattern = summary(three_steps()).pattern
    assert is_conserved(pattern)
    assert pattern.idle_s == 0
    row = row_named(pattern, "_SingleProcessDataLoaderIter.__next__", kind="python", phase="input")
    assert (row.critical_s, row.count) == (pytest.approx(3 * 26e-6), 3)
    assert row_named(pattern, "aten::stack", kind="other", phase="input").critical_s == pytest.approx(12e-6)
    assert row_named(pattern, "cudaLaunchKernel", phase="forward").critical_s == pytest.approx(12e-6)
    assert row_named(pattern, "autograd::engine::evaluate_function: X", thread="autograd").beta == pytest.approx(0.05)
    assert row_named(pattern, "gemm", kind="compute").beta == pytest.approx(0.4)
    assert row_named(pattern, "Optimizer.step#SGD.step", phase="optimizer").critical_s == pytest.approx(9e-6)
    steps = [row for row in pattern.functions if row.key.name == "ProfilerStep"]
    assert sum(row.critical_s for row in steps) == pytest.approx(3 * (2 + 8 + 2) * 1e-6)


def test_without_an_accelerator_only_the_own_time_of_notes_is_left_to_explain():
    events = Events()
    for at in (0, 100):
        events.note(f"ProfilerStep#{at // 100}", at * US, at * US + 100 * US)
        events.note("enumerate(DataLoader)#X.__next__", at * US, (at + 30) * US)
        events.add("aten::mm", (at + 40) * US, (at + 100) * US)
    pattern = summary(events).pattern
    assert row_named(pattern, "aten::mm", kind="compute").beta == pytest.approx(0.6)
    assert row_named(pattern, "X.__next__", kind="python").beta == pytest.approx(0.3)
    assert row_named(pattern, "ProfilerStep", kind="other").beta == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("name", "clean"),
    [
        ("ProfilerStep#5", "ProfilerStep"),
        ("batch 17", "batch N"),
        ("step_12/micro_3", "step_N/micro_N"),
        ("## all2all_data:fp8 ##", "## all2all_data:fp8 ##"),
        ("Optimizer.step#SGD.step", "Optimizer.step#SGD.step"),
    ],
)
def test_what_counts_up_goes_from_the_names_of_notes(name, clean):
    assert clean_note(name) == clean


def test_garbage_collections_that_the_trace_shows_are_told_apart():
    events = three_steps()
    events.add("<built-in function collect>", 40 * US, 50 * US, Category.PYTHON)
    row = row_named(summary(events).pattern, "garbage collection", kind="gc")
    assert (row.critical_s, row.count) == (pytest.approx(10e-6), 1)


def test_a_trace_of_nothing_that_lasts_is_refused_in_words():
    with pytest.raises(InputError, match=r"rank1\.json holds no events"):
        summary(Events().add("Trace", 0, 900, Category.OTHER).add("aten::mm", 5, 5))


# --- collectives ---


def reduced(arguments=None, streams=(9, 9, 9)):
    """Three steps with two all-reduces each."""
    events = three_steps()
    for number in range(3):
        for place in range(2):
            at = (number * 100 + 60 + 15 * place) * US
            given = arguments(number * 2 + place) if arguments else None
            name = "ncclDevKernel_AllReduce(x)"
            events.add(name, at, at + 10 * US, Category.KERNEL, streams[number], given)
            events.note("nccl:all_reduce", at - 5 * US, at - 4 * US)
    return events


def records(events, header=TWO):
    return summary(events, header).pattern.collectives


def test_unnamed_groups_are_one_of_everybody_and_said_so():
    found = summary(reduced()).pattern
    assert found.process_groups == (ProcessGroup(name="0", description="default_pg", ranks=(0, 1), backend="nccl"),)
    assert any("names no process groups" in note for note in found.notes)
    (record,) = found.collectives
    assert (record.group, record.paired_by, record.executions) == ("0", "order", 6)


def test_ends_of_collectives_count_from_the_windows_start():
    (record,) = records(reduced())
    assert decode_series(record.end_us, np.float64).tolist() == [70, 85, 170, 185, 270, 285]


def test_of_several_streams_without_names_only_the_busiest_one_is_everybodys():
    found = {record.group: record for record in records(reduced(streams=(9, 9, 11)))}
    assert (found["0"].executions, found["0"].paired_by) == (4, "order")
    assert (found[""].executions, found[""].paired_by) == (2, "none")


def test_groups_are_those_of_the_header_that_have_this_worker():
    mine = ProcessGroup(name="3", description="tp", ranks=(1, 5))
    header = TraceHeader(rank=1, world_size=8, groups=(mine, ProcessGroup(name="4", ranks=(2, 6))))
    found = summary(reduced(lambda _: CollectiveArguments(name="allreduce", group="3")), header).pattern
    assert found.process_groups == (mine,)


def test_groups_that_only_kernels_name_have_the_ranks_that_they_say():
    def said(**facts):
        table = reduced(lambda _: CollectiveArguments(name="allreduce", group="7", **facts)).table()
        return find_groups(type(table)(**(vars(table) | {"header": TWO})), 1)[0]

    assert said(ranks=(1, 0)) == (ProcessGroup(name="7", ranks=(1, 0), backend="nccl"),)
    assert said(group_size=2)[0].ranks == (0, 1)
    assert said()[0].ranks == ()


@pytest.mark.parametrize(
    ("numbers", "pairing"),
    [((4, 5, 6, 7, 8, 9), "sequence"), ((4, 4, 4, 4, 4, 4), "order"), ((4, 5, 6, 0, 1, 2), "order")],
)
def test_numbers_pair_collectives_only_if_they_rise(numbers, pairing):
    (record,) = records(
        reduced(lambda place: CollectiveArguments(name="allreduce", group="0", sequence=numbers[place]))
    )
    assert record.paired_by == pairing
    expected = list(numbers) if pairing == "sequence" else list(range(6))
    assert decode_series(record.sequence, np.int64).tolist() == expected


def test_a_gpu_job_traced_without_its_kernels_is_said_so():
    events = Events().note("ProfilerStep#1", 0, 100 * US).add("aten::mm", 0, 50 * US).note("nccl:all_reduce", 60, 70)
    found = summary(events).pattern
    assert found.collectives == ()
    assert any("no kernels of it" in note for note in found.notes)


# --- any table of events ---

NAMES = (
    "aten::mm",
    "AddmmBackward",
    "autograd::engine::evaluate_function: X",
    "ProfilerStep#3",
    "ProfilerStep#4",
    "ProfilerStep#5",
    "ProfilerStep#99999999999999999999",
    "Optimizer.step#SGD.step",
    "Optimizer.zero_grad#SGD.zero_grad",
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    "enumerate(DataLoader)#",
    "gloo:all_reduce",
    "nccl:all_reduce",
    "ncclDevKernel_AllReduce_Sum_f32(x)",
    "c10d::allreduce_",
    "cudaLaunchKernel",
    "cudaMalloc",
    "Memcpy HtoD",
    "train.py(12): main",
    "torch/autograd/graph.py(966): _engine_run_backward",
    "<built-in method run_backward of torch._C._EngineBase object at 0x7f>",
    "nn.Module: Linear_0",
    "Python GC",
    "",
    "\x00 (",
    "x" * 300,
)
ROWS = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.sampled_from(Category),
        st.sampled_from((7, 100, 100, 100, 200, -1)),
        st.integers(0, 120),
        st.one_of(st.just(0), st.integers(0, 60)),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(ROWS, st.sampled_from((TraceHeader(), TraceHeader(rank=1, world_size=2, process_id=100))))
def test_any_table_becomes_a_pattern_that_adds_up_or_is_refused(rows, header):
    """Nothing of the window is lost or invented."""
    events = Events()
    for number, (name, category, thread, start, length) in enumerate(rows):
        said = CollectiveArguments("allreduce", group="0" if number % 3 else "", sequence=number % 4, peer=-1)
        given_too = said if category == Category.KERNEL and "nccl" in name else None
        events.add(name, 10**15 + start, 10**15 + start + length, category, thread, given_too)
    try:
        found = summary(events, header)
    except InputError:
        assert not any(category != Category.OTHER and length for _, category, _, _, length in rows)
        return
    pattern = found.pattern
    assert is_conserved(pattern)
    assert pattern.duration_s == pytest.approx((found.end_ns - found.start_ns) / 1e9)
    assert all(0 <= row.critical_s <= pattern.duration_s + 1e-12 for row in pattern.functions)
    assert len({row.key for row in pattern.functions}) == len(pattern.functions)
    encode_record(pattern)
