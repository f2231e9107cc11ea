"""One iteration as it went: what of it travels, in which steps, and that it never costs anything else."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from synthetic_window import LOADER, PID, SCRIPT, STEP, TRAINING, Events, capture, timeline
from test_worker_pattern import CHILD, training

import eroica.summarize.timeline as module
from eroica.hardware.store import Samples, Series
from eroica.hardware.writer import Channel
from eroica.model.series import decode_series
from eroica.model.timeline import Timeline
from eroica.model.worker import Worker
from eroica.settings import Settings
from eroica.summarize.pattern import summarize_worker
from eroica.summarize.recorded import summarize_recording
from eroica.trace.kineto import read_trace
from eroica.trace.schema import Category
from eroica.wire.codec import decode_record, encode_record

MS = 1_000_000
TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
GETITEM = "Pictures.__getitem__ (project/data.py:12)"
DECODE = "decode (project/data.py:30)"
FETCH = "fetch (torch/utils/data/_utils/fetch.py:49)"
NEXT = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
STREAM = 7


def pattern_of(events, stretches=None, edges=(0, 100, 200, 300), flight=(), samples=None, threads=None, **changed):
    stacks = None if stretches is None else timeline({(PID, TRAINING): stretches, **(threads or {})})
    settings = changed.pop("settings", Settings())
    taken = capture(tuple(edge * MS for edge in edges), **changed)
    return summarize_worker(taken, events.table(), stacks, samples, flight, settings)


def read(pattern):
    assert pattern.timeline, pattern.notes
    return decode_record(pattern.timeline, Timeline)


def slices(track):
    """(name, start, duration) in milliseconds."""
    columns = (
        decode_series(track.function, np.int32).tolist(),
        decode_series(track.start_us, np.float32).astype(float).tolist(),
        decode_series(track.duration_us, np.float32).astype(float).tolist(),
    )
    return [(track.names[at], start / 1e3, length / 1e3) for at, start, length in zip(*columns, strict=True)]


def named(track, name):
    return [one for one in slices(track) if one[0] == name]


def track_of(found, thread):
    return next(track for track in found.tracks if track.thread == thread)


def is_nested(track):
    """Slices come in order and never cross. Exactly, not nearly."""
    starts = decode_series(track.start_us, np.float32).astype(float).tolist()
    ends = [at + one for at, one in zip(starts, decode_series(track.duration_us, np.float32).tolist(), strict=True)]
    open_ends = []
    for start, end in zip(starts, ends, strict=True):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if open_ends and end > open_ends[-1]:
            return False
        open_ends.append(end)
    return starts == sorted(starts)


def test_the_middle_iteration_is_shown_and_the_same_one_whatever_it_holds():
    events, flight, stretches = training(5)
    found = read(pattern_of(events, stretches, (0, 100, 200, 300, 400, 500), flight))
    assert (found.iteration, found.start_us, found.duration_us) == (2, 200_000, 100_000)
    quiet = read(pattern_of(Events().add("aten::mm", 210 * MS, 220 * MS), None, (0, 100, 200, 300, 400, 500)))
    assert quiet.iteration == 2
    assert slices(quiet.tracks[0]) == [("aten::mm", pytest.approx(10, abs=0.01), pytest.approx(10, abs=0.01))]


def test_the_critical_path_fills_the_iteration_without_overlaps():
    events, flight, stretches = training(3)
    found = read(pattern_of(events, stretches, flight=flight))
    rows = slices(found.critical)
    assert sum(length for _, _, length in rows) == pytest.approx(100, abs=0.1)
    assert all(before[1] + before[2] <= after[1] for before, after in pairwise(rows))
    assert [name for name, *_ in rows if name == "gloo:all_reduce"] == ["gloo:all_reduce"]
    assert found.tracks[0].thread == "training"
    assert named(track_of(found, "collective"), "gloo:all_reduce")[0][2] == pytest.approx(15.5, abs=0.02)


def test_the_code_of_a_slow_loader_stands_inside_the_loaders_next():
    events, stretches = Events(), []
    for at in (0, 100, 200):
        events.note(NEXT, at * MS, (at + 60) * MS).add("aten::mm", (at + 60) * MS, (at + 100) * MS)
        stretches.append((at * MS, (at + 60) * MS, (SCRIPT, STEP, LOADER[0], FETCH, GETITEM, DECODE)))
        stretches.append(((at + 60) * MS, (at + 100) * MS, (SCRIPT, STEP)))
    track = read(pattern_of(events, stretches)).tracks[0]
    around = named(track, "_SingleProcessDataLoaderIter.__next__")[0]
    found = named(track, "Pictures.__getitem__")[0]
    assert found[2] == pytest.approx(60, abs=6)
    assert around[1] <= found[1] and found[1] + found[2] <= around[1] + around[2]
    assert track.phases[track.names.index("Pictures.__getitem__")] == "input"
    assert track.kinds[track.names.index("Pictures.__getitem__")] == "python"
    assert is_nested(track)


def test_python_shows_only_where_no_operator_runs():
    events = Events().add("aten::mm", 120 * MS, 150 * MS)
    stretches = [(0, 300 * MS, (SCRIPT, STEP)), (300 * MS, 301 * MS, (SCRIPT,))]
    track = read(pattern_of(events, stretches)).tracks[0]
    assert [(start, length) for name, start, length in slices(track) if name == "step"] == [
        (0, pytest.approx(20, abs=0.02)),
        (pytest.approx(50, abs=0.02), pytest.approx(50, abs=0.02)),
    ]


def test_children_of_the_loader_have_tracks_of_their_own():
    events, flight, stretches = training(3)
    child = {(300, 300): [(0, 300 * MS, (*CHILD, FETCH, GETITEM))]}
    found = read(pattern_of(events, stretches, flight=flight, threads=child))
    track = track_of(found, "loader")
    assert track.name == "loader process"
    assert named(track, "Pictures.__getitem__")[0][2] == pytest.approx(100, abs=0.1)


def test_streams_show_kernels_and_leave_collectives_to_their_own_track():
    events = Events().add("cudaLaunchKernel", 100 * MS, 101 * MS, Category.RUNTIME)
    events.add("gemm", 110 * MS, 140 * MS, Category.KERNEL, STREAM)
    events.add("ncclDevKernel_AllReduce_Sum_f32", 150 * MS, 190 * MS, Category.KERNEL, STREAM)
    events.add("Memcpy HtoD", 105 * MS, 109 * MS, Category.MEMORY, STREAM)
    found = read(pattern_of(events))
    device = track_of(found, "device")
    assert device.name == "stream 7"
    assert [name for name, *_ in slices(device)] == ["Memcpy HtoD", "gemm"]
    assert dict(zip(device.names, device.kinds, strict=True)) == {"gemm": "compute", "Memcpy HtoD": "memory"}
    assert len(slices(track_of(found, "collective"))) == 1


def many_kernels(count=4000):
    """Short kernels of many names, back to back, with a long one in the middle."""
    events = Events().add("aten::mm", 100 * MS, 200 * MS)
    length = 90 * MS // count
    for number in range(count):
        start = 100 * MS + number * length + (10 * MS if number >= count // 2 else 0)
        events.add(f"void kernel_{number % 50}<float, {'x' * 60}>", start, start + length, Category.KERNEL, STREAM)
    return events.add("long one", 145 * MS, 155 * MS, Category.KERNEL, STREAM)


def test_of_too_many_the_longest_stay_and_short_ones_become_one_slice_without_gaps():
    pattern = pattern_of(many_kernels())
    found = read(pattern)
    assert len(pattern.timeline) <= Settings().timeline_bytes
    device = track_of(found, "device")
    assert named(device, "long one")[0][1:3] == (pytest.approx(45, abs=0.02), pytest.approx(10, abs=0.02))
    assert named(device, "many short ones")
    assert sum(length for _, _, length in slices(device)) == pytest.approx(100, abs=0.2)
    assert device.dropped > 3000
    assert is_nested(device)


def test_slices_nest_when_inner_calls_are_dropped():
    events = Events()
    for at in range(100, 200):
        events.add("outer", at * MS, (at + 1) * MS).add("middle", at * MS, at * MS + 800_000)
        for inner in range(40):
            events.add(f"inner {inner}", at * MS + inner * 20_000, at * MS + inner * 20_000 + 15_000)
    track = read(pattern_of(events)).tracks[0]
    assert track.dropped > 2000
    assert is_nested(track)
    assert {name for name, *_ in slices(track)} >= {"outer"}


@pytest.mark.parametrize(("world", "most"), [(1024, 4000), (1025, 1500), (100_000, 1500)])
def test_large_jobs_have_small_timelines(world, most):
    worker = Worker(global_rank=0, world_size=world, host="node-1", pid=PID)
    size = len(pattern_of(many_kernels(), worker=worker).timeline)
    assert 0.5 * most < size <= most


def test_a_timeline_never_pushes_anything_out_of_the_pattern():
    events, flight, stretches = training(3)
    for number in range(2000):
        events.add(f"aten::{hash_text(number)}", 300 * MS + number * 1000, 300 * MS + number * 1000 + 900)
    edges = (0, 100, 200, 310)
    with_it = pattern_of(events, stretches, edges, flight)
    without = pattern_of(events, stretches, edges, flight, settings=Settings(timeline_bytes=0))
    assert without.timeline == b""
    assert (with_it.functions, with_it.collectives) == (without.functions, without.collectives)
    assert len(encode_record(with_it)) <= Settings().pattern_bytes * 5 // 4


def hash_text(number):
    """Names that hardly shrink."""
    return f"{number * 2654435761 % 2**32:08x}{number * 40503 % 2**16:04x}"


def test_whatever_fails_costs_only_the_timeline(monkeypatch):
    def broken(*_):
        raise IndexError("no such row")

    monkeypatch.setattr(module, "find_strands", broken)
    events, flight, stretches = training(3)
    pattern = pattern_of(events, stretches, flight=flight)
    assert pattern.timeline == b""
    assert pattern.functions
    assert pattern.notes[-1] == "there is no timeline: IndexError: no such row"


def test_channels_are_no_finer_than_they_were_measured():
    t_ns = np.arange(1, 31, dtype=np.int64) * 10 * MS
    value = np.where(np.arange(30) % 2 == 0, 1.0, 0.0)
    channel = Channel("cpu", f"{PID}/{TRAINING}", "fraction", 1.0, rate_hz=100.0, resolution_ns=10 * MS)
    samples = Samples(series=(Series(channel=channel, start_ns=0, t_ns=t_ns, value=value),))
    events, flight, stretches = training(3)
    found = read(pattern_of(events, stretches, flight=flight, samples=samples))
    cpu = found.channels[0]
    assert (cpu.name, cpu.per_s) == ("cpu", 100.0)
    at, mean, highest = (decode_series(one, np.float32) for one in (cpu.at_us, cpu.mean, cpu.highest))
    assert len(at) == len(mean) == len(highest) <= 30
    assert (np.diff(at) > 0).all() and at[0] > 0 and at[-1] < 300_000
    assert mean.mean() == pytest.approx(0.5, abs=0.05)
    assert highest.max() == 1.0 and (highest >= mean).all()


def test_long_windows_have_few_bins_and_moments_without_samples_are_not_numbers():
    t_ns = np.arange(1, 2001, dtype=np.int64) * MS
    channel = Channel("cpu", f"{PID}/{TRAINING}", "fraction", 1.0, rate_hz=1000.0, resolution_ns=MS)
    half = Samples(series=(Series(channel=channel, start_ns=0, t_ns=t_ns, value=np.full(2000, 0.25)),))
    events = Events().add("aten::mm", 0, 4000 * MS)
    found = read(pattern_of(events, None, (0, 2000, 4000), samples=half))
    mean = decode_series(found.channels[0].mean, np.float32)
    assert 100 <= len(mean) <= 120
    assert np.isnan(mean[-40:]).all()
    assert mean[:40] == pytest.approx(np.full(40, 0.25))


def test_names_travel_as_they_are():
    hostile = "<script>alert(1)</script>\u202e\x00" + "é" * 300
    track = read(pattern_of(Events().add(hostile, 100 * MS, 150 * MS))).tracks[0]
    assert track.names == (hostile[:200],)


def test_nothing_to_show_is_no_timeline():
    assert pattern_of(Events().add("aten::mm", 0, 50 * MS), None, (0, 100, 200, 300)).timeline == b""


@pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not beside this checkout")
@pytest.mark.parametrize(
    "wanted", ["dlrm_8ranks/worker7*", "loader_stall/resnet50_num_workers_0/*", "schemas/*/*_non_gpu*"]
)
def test_real_traces_are_shown_whole_and_nested(wanted):
    path = sorted(TRACES.glob(wanted))[0]
    events = read_trace(path)
    pattern = summarize_recording(events, path.name, -1, Settings()).pattern
    found = read(pattern)
    assert len(pattern.timeline) <= Settings().timeline_bytes
    assert all(map(is_nested, (found.critical, *found.tracks)))
    covered = sum(length for _, _, length in slices(found.critical)) * 1e3
    assert covered <= found.duration_us * 1.001
    idle = pattern.idle_s / pattern.duration_s
    assert covered >= found.duration_us * (0.9 - 2 * idle)
    assert (found.critical.phases and len(found.critical.phases)) == len(found.critical.names)


@pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not beside this checkout")
def test_a_loader_that_stalls_is_the_longest_slice_of_its_thread():
    path = sorted(TRACES.glob("loader_stall/resnet50_num_workers_0/*"))[0]
    track = read(summarize_recording(read_trace(path), path.name, -1, Settings()).pattern).tracks[0]
    longest = max(slices(track), key=lambda one: one[2])
    assert longest[0] == "_SingleProcessDataLoaderIter.__next__"
    assert 40 < longest[2] < 80
