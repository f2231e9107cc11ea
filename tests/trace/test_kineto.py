import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from eroica.errors import InputError
from eroica.model.worker import ProcessGroup
from eroica.trace.kineto import read_trace
from eroica.trace.table import Category

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the folder ../shared/traces is not here")


def event(name, ts=0, dur=1, cat="cpu_op", tid=7, **more):
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, **more}


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
    assert table.named(str.isupper).tolist() == []


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


def read(tmp_path, events, **beside):
    path = tmp_path / "t.json"
    path.write_text(json.dumps({**beside, "traceEvents": events}))
    return read_trace(path)


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("python_function", Category.PYTHON),
        ("mtia_runtime", Category.RUNTIME),
        ("mtia_ccp_events", Category.KERNEL),
        ("xpu_runtime", Category.RUNTIME),
        ("xpu_driver", Category.RUNTIME),
        ("hip_runtime", Category.RUNTIME),
        ("privateuse1_driver", Category.RUNTIME),
        ("hpu_op", Category.RUNTIME),
        ("mlu_memcpy", Category.MEMORY),
        ("overhead", Category.OTHER),
        ("cuda_sync", Category.OTHER),
        ("mlu_user_annotation", Category.OTHER),
        ("Trace", Category.OTHER),
        ("", Category.OTHER),
    ],
)
def test_categories_of_all_accelerators_are_known(tmp_path, text, category):
    assert read(tmp_path, [event("x", cat=text)]).category.tolist() == [category]


def test_before_kineto_the_process_told_operators_from_kernels(tmp_path):
    events = [event("aten::mm", cat="", pid="CPU functions"), event("gemm", cat="", pid="CUDA functions")]
    assert read(tmp_path, events).category.tolist() == [Category.OPERATOR, Category.KERNEL]


@pytest.mark.parametrize(
    "name",
    [
        "ProfilerStep#5",
        "Optimizer.step#SGD.step",
        "Optimizer.zero_grad#Adam.zero_grad",
        "enumerate(DataLoader)#X.__next__",
    ],
)
def test_marks_that_were_operators_in_2021_are_annotations(tmp_path, name):
    table = read(tmp_path, [event(name, cat="Operator"), event("aten::" + name, cat="Operator")])
    assert table.category.tolist() == [Category.ANNOTATION, Category.OPERATOR]


def test_threads_and_streams_of_2021_are_numbers_in_text(tmp_path):
    events = [event("a", tid="25738"), event("k", cat="Kernel", pid=0, tid="stream 7"), event("t", tid="no number")]
    assert sorted(read(tmp_path, events).thread.tolist()) == [-1, 7, 25738]


def test_streams_of_several_devices_stay_apart(tmp_path):
    kernels = [event("k", cat="kernel", pid=device, tid=7, ts=device) for device in (2, 3, 5)]
    table = read(tmp_path, [*kernels, event("a", ts=9, tid=7), event("m", cat="gpu_memcpy", pid=3, tid=9, ts=10)])
    assert table.thread.tolist() == [7, 2**40 + 7, 2 * 2**40 + 7, 7, 2**40 + 9]


def test_microseconds_since_the_epoch_lose_nothing(tmp_path):
    table = read(tmp_path, [event("a", ts=1_669_783_687_464_181, dur=45), event("b", ts=1_669_783_687_464_200.25)])
    assert table.start_ns.tolist() == [1_669_783_687_464_181_000, 1_669_783_687_464_200_250]
    assert table.end_ns[0] == 1_669_783_687_464_226_000


def test_the_base_may_stand_before_or_after_the_events(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"baseTimeNanoseconds": 5, "traceEvents": [event("a", ts=1)]}))
    (tmp_path / "b.json").write_text(json.dumps({"traceEvents": [event("a", ts=1)], "baseTimeNanoseconds": "5"}))
    assert [read_trace(tmp_path / name).start_ns.tolist() for name in ("a.json", "b.json")] == [[1005], [1005]]


def test_begins_and_ends_become_events(tmp_path):
    def half(ph, name, ts):
        return {"ph": ph, "name": name, "cat": "cpu_op", "pid": 1, "tid": 7, "ts": ts}

    halves = [half("B", "outer", 1), half("B", "inner", 2), half("E", "", 4), half("E", "", 9), half("E", "", 10)]
    table = read(tmp_path, [*halves, half("B", "open", 11), event("last", 12, 3)])
    spans = zip(map(table.name_of, range(4)), table.start_ns.tolist(), table.end_ns.tolist(), strict=True)
    assert list(spans) == [
        ("outer", 1000, 9000),
        ("inner", 2000, 4000),
        ("open", 11_000, 15_000),
        ("last", 12_000, 15_000),
    ]
    assert table.open_events == 1


@pytest.mark.parametrize(
    ("inputs", "peer", "elements"),
    [
        ({"Concrete Inputs": ["", "", "1", "0"], "Input Dims": [[[4, 8]], [], [], []]}, 1, 32),
        ({"Concrete Inputs": ["", "", "0", "0"], "Input Dims": [[[2], [3]], [], [], []]}, 0, 0),
        ({"Concrete Inputs": ["", "", "2", "0"]}, 2, 0),
        ({"Concrete Inputs": ["", "", "2", "0"], "Input Dims": [[[10**9, [4]]]]}, 2, 0),
        ({"Concrete Inputs": ["", "", "2"], "Input Dims": [[[1] * 65]]}, 2, 0),
    ],
)
def test_sends_and_receives_tell_the_other_side_if_their_inputs_were_recorded(tmp_path, inputs, peer, elements):
    events = [event(name, start, 3, args=inputs) for start, name in ((1, "c10d::send"), (9, "c10d::recv_"))]
    table = read(tmp_path, events)
    assert [(one.name, one.peer_in_group, one.elements) for one in table.collectives.values()] == [
        ("send", peer, elements),
        ("recv", peer, elements),
    ]


def test_ids_beyond_64_bits_and_odd_types_are_no_threads(tmp_path):
    events = [event("a", tid=10**30), event("b", tid=[1]), event("c", tid=7.0), event("d", tid=None, pid={"x": 1})]
    assert sorted(read(tmp_path, events).thread.tolist()) == [-1, -1, -1, 7]


# --- what stands beside the events ---

GROUPS = [
    {
        "pg_name": "0",
        "pg_desc": "default_pg",
        "backend_config": "cpu:gloo,cuda:nccl",
        "pg_size": 4,
        "ranks": [0, 1, 2, 3],
    },
    {"pg_name": "1", "pg_desc": "mesh_tp", "backend_config": "nccl", "pg_size": 2, "ranks": [0, 1]},
]
EXPECTED = (
    ProcessGroup(name="0", description="default_pg", ranks=(0, 1, 2, 3), backend="nccl"),
    ProcessGroup(name="1", description="mesh_tp", ranks=(0, 1), backend="nccl"),
)
DISTRIBUTED = {"backend": "nccl", "rank": 1, "world_size": 4, "pg_count": 2, "pg_config": GROUPS, "nccl_version": None}


@pytest.mark.parametrize("form", [lambda told: told, json.dumps, str])
def test_rank_and_groups_are_read_from_a_record_or_its_text(tmp_path, form):
    header = read(tmp_path, [event("a")], distributedInfo=form(DISTRIBUTED)).header
    assert (header.rank, header.world_size, header.backend) == (1, 4, "nccl")
    assert header.groups == EXPECTED


def test_a_group_of_everybody_may_leave_its_members_out(tmp_path):
    told = {"rank": 0, "world_size": 3, "pg_config": [{"pg_name": "0", "pg_size": 3, "ranks": []}]}
    (group,) = read(tmp_path, [event("a")], distributedInfo=told).header.groups
    assert group.ranks == (0, 1, 2)


@pytest.mark.parametrize(
    "group",
    [
        {"pg_name": "0", "pg_size": 128, "ranks": "[0, 1, ..., 127]"},
        {"pg_name": "0", "pg_size": 128, "ranks": [0, 1, 2]},
        {"pg_name": "0", "pg_size": 128, "ranks": [0, 1, "..."]},
        {"pg_name": "0", "pg_size": 4, "ranks": []},
        {"pg_size": 2, "ranks": [0, 1]},
        ["0", [0, 1]],
        "nothing",
    ],
)
def test_a_group_whose_members_are_not_all_told_is_left_out(tmp_path, group):
    told = {"rank": 0, "world_size": 8, "pg_config": [group]}
    assert read(tmp_path, [event("a")], distributedInfo=told).header.groups == ()


@pytest.mark.parametrize(
    "told", ["", "not a record", [], 3, {"rank": "x"}, {"rank": -1}, {"rank": True}, {"rank": 10**40}, "[" * 9999]
)
def test_a_header_of_strange_types_says_nothing(tmp_path, told):
    header = read(tmp_path, [event("a")], distributedInfo=told, deviceProperties="oops", host_name=[1]).header
    assert (header.rank, header.groups, header.host, header.device) == (-1, (), "", "")


def test_job_host_and_device_are_read_where_they_stand(tmp_path):
    devices = [{"id": 0, "name": "A"}, {"id": 6, "name": "B"}]
    beside = {"mast_job_name": "run-1", "host_name": "node-7", "deviceProperties": str(devices)}
    header = read(tmp_path, [event("k", cat="kernel", pid=6), event("a", pid=77)], **beside).header
    assert (header.job, header.host, header.device) == ("run-1", "node-7", "B")
    assert header.process_id == 77


def test_a_file_of_merged_traces_says_so(tmp_path):
    table = read(tmp_path, [event("a"), event("a"), event("a", pid=2)])
    assert table.header.process_id == 1
    assert table.losses == (
        "the file holds operators of 2 processes, as if traces had been merged; process 1 counts as the worker",
    )


def test_a_base_that_is_no_time_is_refused(tmp_path):
    with pytest.raises(InputError, match="no time"):
        read(tmp_path, [event("a")], baseTimeNanoseconds="yesterday")


# --- collectives ---


def test_a_kernel_without_arguments_gets_those_of_the_call_that_launched_it(tmp_path):
    said = {"External id": 12, "Collective name": "allreduce", "Process Group Name": "3", "Seq": 5, "Group size": 8}
    events = [
        event("record_param_comms", 1, args=said),
        event("ncclDevKernel_X", 5, cat="kernel", args={"External id": 12}),
        event("ncclDevKernel_X", 6, cat="kernel", args={"External id": 13}),
        event("ncclDevKernel_X", 7, cat="kernel", args={"External id": 12, "correlation": 12}),
    ]
    table = read(tmp_path, events)
    assert list(table.collectives) == [1]
    assert (table.collectives[1].group, table.collectives[1].sequence) == ("3", 5)


# --- real traces ---


@needs_traces
def test_real_headers_tell_rank_groups_and_job():
    header = read_trace(TRACES / "schemas/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz").header
    assert (header.rank, header.world_size, header.host[:11]) == (0, 1, "twshared398")
    assert header.job.startswith("torchx-pytorch_resnet")
    gloo = read_trace(TRACES / "schemas/cpu_only/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz").header
    assert (gloo.rank, gloo.groups[0].ranks, gloo.groups[0].backend) == (34, tuple(range(300)), "gloo")
