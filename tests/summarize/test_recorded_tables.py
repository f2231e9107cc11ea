"""Any table of events becomes a pattern or is refused in words; nothing of the window is lost or invented."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_window import is_conserved

from eroica.errors import InputError
from eroica.settings import Settings
from eroica.summarize.recorded import summarize_recording
from eroica.trace.table import Category, CollectiveArguments, EventTable, TraceHeader
from eroica.wire.codec import encode_record

SETTINGS = Settings()
UNKNOWN = TraceHeader()
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


@st.composite
def tables(draw):
    size = draw(st.integers(0, 40))
    moment = st.integers(0, 120)
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(0, len(NAMES) - 1),
                st.integers(0, 6),
                st.sampled_from((7, 100, 100, 100, 200, -1)),
                moment,
                st.one_of(st.just(0), st.integers(0, 60)),
            ),
            min_size=size,
            max_size=size,
        )
    )
    return table(rows, draw(st.sampled_from((UNKNOWN, TraceHeader(rank=1, world_size=2, process_id=100)))))


def table(rows, header=UNKNOWN, names=NAMES):
    rows = sorted(rows, key=lambda row: (row[3], -row[4]))
    column = np.array(rows, dtype=np.int64).reshape(-1, 5)
    kernels = [number for number, row in enumerate(rows) if row[1] == Category.KERNEL and "nccl" in names[row[0]]]
    return EventTable(
        strings=tuple(names),
        name=column[:, 0].astype(np.int32),
        category=column[:, 1].astype(np.int8),
        thread=column[:, 2],
        start_ns=column[:, 3] + 10**15,
        end_ns=column[:, 3] + column[:, 4] + 10**15,
        collectives={
            row: CollectiveArguments(name="allreduce", group="0" if row % 3 else "", sequence=row % 4, peer=-1)
            for row in kernels
        },
        header=header,
    )


def summary(events):
    return summarize_recording(events, "rank0.json", -1, SETTINGS)


def holds_together(found):
    pattern = found.pattern
    assert is_conserved(pattern)
    assert pattern.duration_s == pytest.approx((found.end_ns - found.start_ns) / 1e9)
    assert all(0 <= row.critical_s <= pattern.duration_s + 1e-12 for row in pattern.functions)
    keys = [row.key for row in pattern.functions]
    assert len(set(keys)) == len(keys)
    encode_record(pattern)


@settings(max_examples=300)
@given(tables())
def test_any_table_becomes_a_pattern_that_adds_up_or_is_refused(events):
    try:
        found = summary(events)
    except InputError:
        used = (events.category != Category.OTHER) & (events.start_ns < events.end_ns)
        assert not used.any()
    else:
        holds_together(found)
