import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from eroica.errors import InputError
from eroica.trace.kineto import read_trace
from eroica.trace.table import Category

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the folder ../shared/traces is not here")


def event(name, ts, dur, cat="cpu_op", tid=7, **more):
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": {}, **more}


def write(path, events, **top):
    document = {"schemaVersion": 1, "baseTimeNanoseconds": 1_000_000_000, "traceEvents": events, **top}
    data = json.dumps(document).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def test_times_are_the_base_plus_microseconds_with_three_decimals(tmp_path):
    table = read_trace(write(tmp_path / "t.json", [event("aten::mm", 4_325_710_950_392.203, 211.795)]))
    assert table.start_ns.tolist() == [1_000_000_000 + 4_325_710_950_392_203]
    assert (table.end_ns - table.start_ns).tolist() == [211_795]


def test_events_come_in_order_of_start_the_outer_one_first(tmp_path):
    events = [event("late", 5, 1), event("inner", 1, 1), event("outer", 1, 3)]
    table = read_trace(write(tmp_path / "t.json", events))
    assert [table.name_of(row) for row in range(3)] == ["outer", "inner", "late"]


def test_an_event_without_an_end_ends_with_the_trace(tmp_path):
    events = [event("open", 1, 0), event("negative", 2, -5), event("minus one", 2, -1), event("last", 3, 4)]
    del events[0]["dur"]
    events.append({"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 11})
    table = read_trace(write(tmp_path / "t.json", events))
    assert (table.end_ns - 1_000_000_000).tolist() == [11_000, 7_000]
    assert table.open_events == 1
    assert table.losses == ("left out: 2 events that would have ended before they began",)


def test_a_span_that_kineto_cut_at_the_stop_is_counted_as_open(tmp_path):
    said = {"Record function id": 0, "finished": False, "Ev Idx": 0}
    events = [event("gloo:all_reduce", 1, 300, cat="user_annotation", args=said), event("gloo:barrier", 1, 3)]
    assert read_trace(write(tmp_path / "t.json", events)).open_events == 1


def test_a_collective_kernel_keeps_its_arguments_wherever_sorting_puts_it(tmp_path):
    said = {"Collective name": "allreduce", "In msg nelems": 64, "Group size": 2, "Process Group Name": "3", "Seq": 17}
    said["Process Group Ranks"] = "[4, 6]"
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    events = [event(name, 9, 5, cat="kernel", args=said), event("gemm", 1, 2, cat="kernel")]
    table = read_trace(write(tmp_path / "t.json", events))
    assert list(table.collectives) == [1]
    found = table.collectives[1]
    assert (found.name, found.group, found.sequence, found.elements) == ("allreduce", "3", 17, 64)
    assert (found.group_size, found.ranks) == (2, (4, 6))


def test_work_of_a_device_shares_a_number_with_the_call_that_launched_it(tmp_path):
    events = [
        event("gemm", 30, 5, "kernel", "stream 7", args={"device": 0, "correlation": 41}),
        event("Memcpy DtoH", 40, 5, "gpu_memcpy", "stream 7", args={"correlation": 42}),
        event("aten::mm", 0, 20, args={"correlation": 7}),
        event("cudaLaunchKernel", 5, 2, "cuda_runtime", args={"cbid": 211, "correlation": 41}),
        event("cudaMemcpyAsync", 9, 2, "cuda_runtime", args={"correlation": 42}),
        event("cuLaunchKernelEx", 12, 2, "cuda_driver", args={"correlation": "none", "cbid": 5}),
    ]
    path = write(tmp_path / "trace.json", events)
    table = read_trace(path, links=True)
    found = {table.name_of(row): int(table.link[row]) for row in range(len(table))}
    assert found == {
        "aten::mm": -1,
        "cudaLaunchKernel": 41,
        "cudaMemcpyAsync": 42,
        "cuLaunchKernelEx": -1,
        "gemm": 41,
        "Memcpy DtoH": 42,
    }
    assert len(read_trace(path).link) == 0


@pytest.mark.parametrize("keep", [0, 1, 40, 70])
def test_a_trace_cut_short_before_its_first_event_is_refused_with_its_name(tmp_path, keep):
    path = write(tmp_path / "t.json", [event("aten::mm", 1, 2)] * 5)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"t\.json"):
        read_trace(path)


def test_a_damaged_checksum_costs_nothing_but_is_said(tmp_path):
    path = write(tmp_path / "t.json.gz", [event("aten::mm", 1, 2)])
    path.write_bytes(path.read_bytes()[:-8] + b"\1" * 8)
    table = read_trace(path)
    assert len(table) == 1
    assert any("compressed data is damaged" in loss for loss in table.losses)


@pytest.mark.parametrize("keep", [10, 20])
def test_a_compressed_trace_without_any_text_is_refused(tmp_path, keep):
    path = write(tmp_path / "t.json.gz", [event(f"op{number}", number, 2) for number in range(99)])
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"t\.json\.gz"):
        read_trace(path)


def test_an_empty_trace_is_an_empty_table(tmp_path):
    table = read_trace(write(tmp_path / "t.json", []))
    assert len(table) == 0
    assert table.names_where([]).tolist() == []


@needs_traces
@pytest.mark.parametrize(
    ("path", "operators", "kernels"),
    [
        ("loader_stall/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz", 23622, 8772),
        ("resnet_1rank.json.gz", 39416, 9628),
        ("schemas/amd_trace/mi250_minitoy_train_ROCm6_2_kineto.json.gz", 70, 14),
        ("schemas/rank_non_gpu/rank_non_gpu.json.gz", 2424, 0),
        ("schemas/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz", 23910, 4350),
    ],
)
def test_real_traces_of_several_years_are_read_whole(path, operators, kernels):
    table = read_trace(TRACES / path)
    assert int((table.category == Category.OPERATOR).sum()) == operators
    assert int((table.category == Category.KERNEL).sum()) == kernels
    assert np.all(np.diff(table.start_ns) >= 0)
    assert np.all(table.end_ns >= table.start_ns)
    assert int(table.end_ns.max() - table.start_ns.min()) < 60e9
