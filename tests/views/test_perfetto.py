"""One trace of several workers: its format, its axis, and that nothing in it or missing from it breaks it."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from eroica.cli import group
from eroica.errors import UsageError
from eroica.localize.axis import Place, TimeAxis
from eroica.model.pattern import Timeline, WorkerPattern
from eroica.model.series import decode_series, encode_series
from eroica.model.verdict import Verdict
from eroica.model.window import Capture, ClockPair
from eroica.model.worker import Worker
from eroica.offline.examine import examine, keep
from eroica.settings import Settings
from eroica.summarize.files import summarize_files
from eroica.views.lanes import Drawn, Lane, draw_kept, write_trace
from eroica.views.material import Material
from eroica.views.perfetto import choose_workers, write_perfetto
from eroica.wire.codec import decode_record, encode_record
from support.fleet import FleetPlan, synthesize
from support.timelines import with_timeline
from support.verdicts import cause, plain

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
MS = 1_000_000
EVIL = '</script><script>hacked=1</script>"\\\x00\u202e'


def verdict_on(*culprits: int) -> Verdict:
    found = [cause("compute-slow", *culprits, function="aten::addmm", kind="compute")] if culprits else []
    return plain("slow", f"Worker 1 is slow {EVIL}.", *found, job=f"job {EVIL}")


def fleet(workers: int = 4) -> list[WorkerPattern]:
    return [with_timeline(one, iteration=3) for one in synthesize(FleetPlan(workers=workers, iterations=12))]


def material_of(patterns: list[WorkerPattern], *culprits: int) -> Material:
    return Material(verdict=verdict_on(*culprits), patterns=patterns, window_id=2)


def gone(_: WorkerPattern) -> Drawn | None:
    return None


def written(path: Path, material: Material, ranks: tuple[int, ...]) -> Any:
    write_perfetto(path, material, ranks, gone)
    return read(path)


def read(path: Path) -> dict[str, Any]:
    raw = path.read_bytes()
    document: dict[str, Any] = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    check_format(document)
    return document


def check_format(document: dict[str, Any]) -> None:
    """The Trace Event format, as strictly as viewers read it."""
    assert set(document) == {"displayTimeUnit", "otherData", "traceEvents"}
    threads: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    named: set[tuple[str, int, int]] = set()
    for event in document["traceEvents"]:
        assert isinstance(event["pid"], int) and event["pid"] > 0
        assert isinstance(event["tid"], int) and isinstance(event["name"], str)
        assert event["ts"] >= 0
        if event["ph"] == "M":
            key = event["name"], event["pid"], event["tid"]
            assert key not in named
            named.add(key)
        elif event["ph"] == "X":
            assert event["dur"] > 0 and event["cat"]
            threads[event["pid"], event["tid"]].append((nanoseconds(event["ts"]), nanoseconds(event["dur"])))
        else:
            assert event["ph"] == "C"
            assert all(0 <= value <= 100 for value in event["args"].values())
    assert len({tid for _, tid in threads}) == len(threads)
    for (pid, tid), slices in threads.items():
        assert ("thread_name", pid, tid) in named and ("process_name", pid, 0) in named
        assert nests(slices)


def nanoseconds(microseconds: float) -> int:
    """As viewers do it: cut off, which must lose nothing."""
    cut = int(microseconds * 1000.0)
    assert cut == microseconds * 1000.0
    return cut


def nests(slices: list[tuple[int, int]]) -> bool:
    open_ends: list[int] = []
    for start, length in slices:
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if open_ends and start + length > open_ends[-1]:
            return False
        open_ends.append(start + length)
    return all(before[0] <= after[0] for before, after in pairwise(slices))


def names_of(document: dict[str, Any], what: str) -> dict[tuple[int, int], str]:
    events = [event for event in document["traceEvents"] if event["ph"] == "M" and event["name"] == what]
    return {(event["pid"], event["tid"]): event["args"]["name"] for event in events}


def slices_of(document: dict[str, Any], rank: int, lane: str) -> list[dict[str, Any]]:
    threads = names_of(document, "thread_name")
    wanted = {key for key, name in threads.items() if name == lane and key[0] == rank + 1}
    return [event for event in document["traceEvents"] if event["ph"] == "X" and (event["pid"], event["tid"]) in wanted]


def test_each_worker_is_a_process_with_its_critical_path_on_top(tmp_path: Path) -> None:
    document = written(tmp_path / "trace.json", material_of(fleet(), 1), (1, 0))
    assert names_of(document, "process_name") == {(2, 0): "worker 1 on node-0", (1, 0): "worker 0 on node-0"}
    threads = names_of(document, "thread_name")
    assert [name for (pid, _), name in threads.items() if pid == 2] == ["critical path"]
    order = {e["pid"]: e["args"]["sort_index"] for e in document["traceEvents"] if e["name"] == "process_sort_index"}
    assert order == {2: 0, 1: 1}
    labels = {e["pid"]: e["args"]["labels"] for e in document["traceEvents"] if e["name"] == "process_labels"}
    assert labels[2].startswith("culprit") and "culprit" not in labels[1]
    path = slices_of(document, 1, "critical path")
    assert {event["cat"].partition(",")[0] for event in path} >= {"compute", "collective", "python"}


def shifted(pattern: WorkerPattern, early_us: float) -> WorkerPattern:
    """As if the worker's window had begun earlier: all its ends come later by its clock."""
    records = tuple(
        msgspec.structs.replace(record, end_us=encode_series(decode_series(record.end_us, np.float64) + early_us))
        for record in pattern.collectives
    )
    timeline = decode_record(pattern.timeline, Timeline)
    timeline = msgspec.structs.replace(timeline, start_us=timeline.start_us + early_us)
    return msgspec.structs.replace(pattern, collectives=records, timeline=encode_record(timeline))


def test_workers_whose_windows_began_at_other_moments_lie_on_one_axis(tmp_path: Path) -> None:
    patterns = fleet()
    plain = written(tmp_path / "plain.json", material_of(patterns, 1), (1, 0))
    moved = written(tmp_path / "moved.json", material_of([shifted(patterns[0], 700_000), *patterns[1:]], 1), (1, 0))
    for rank in (0, 1):
        before, after = (slices_of(one, rank, "critical path") for one in (plain, moved))
        assert [event["ts"] for event in after] == pytest.approx([event["ts"] for event in before], abs=1)


def test_times_are_those_that_viewers_do_not_round(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    start = np.sort(generator.uniform(0, 1e9, 500))
    lane = Lane("lane", start, start + generator.uniform(1, 3e6, 500), np.zeros(500, np.int64), ["one"], ["compute"])
    cut = np.minimum(lane.end_ns, np.append(start[1:], np.inf))
    flat = Lane("lane", start, cut, lane.function, lane.names, lane.categories)
    place = Place(offset_ns=-12345.6, drift=0.0001, uncertainty_ns=0.0)
    write_trace(tmp_path / "trace.json", {0: Drawn((flat,), (), (0, 0), 0.0)}, {0: place}, {0: ("worker 0", "")}, {})
    found = [event for event in read(tmp_path / "trace.json")["traceEvents"] if event["ph"] == "X"]
    assert len(found) > 490
    assert found[0]["ts"] == 0


def test_a_damaged_timeline_costs_only_its_worker(tmp_path: Path) -> None:
    patterns = fleet()
    whole = patterns[0].timeline
    dice = random.Random(3)
    for turn in range(60):
        broken = bytearray(whole[: dice.randrange(len(whole))] if turn % 2 else whole)
        if broken and not turn % 2:
            broken[dice.randrange(len(broken))] ^= 1 << dice.randrange(8)
        damaged = [msgspec.structs.replace(patterns[0], timeline=bytes(broken)), *patterns[1:]]
        document = written(tmp_path / "trace.json", material_of(damaged, 1), (1, 0))
        assert slices_of(document, 1, "critical path")


def test_culprits_come_with_a_peer_each_and_eight_are_the_most() -> None:
    patterns = fleet(12)
    chosen = choose_workers(material_of(patterns, 3))
    assert chosen[0] == 3 and len(chosen) == 2 and chosen[1] != 3
    many = choose_workers(material_of(patterns, *range(6)))
    assert many[0] == 0 and set(range(4)) <= set(many) and len(many) <= 8
    assert len(choose_workers(material_of(patterns))) == 2
    assert choose_workers(material_of(patterns, 3), (5, 4, 5)) == (5, 4)
    with pytest.raises(UsageError, match="--worker 40: this window has no pattern of it; it has workers 0–11"):
        choose_workers(material_of(patterns), (40,))


# --- raw traces ---


def kept_window(directory: Path) -> tuple[WorkerPattern, Path]:
    """A window's raw files where an agent keeps them, and the pattern made from them."""
    place = directory / f"eroica-{os.getuid()}" / "night@node-1" / "window-4" / "100"
    place.mkdir(parents=True)
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 100, "tid": 100, "ts": at * 1e5 + begin, "dur": 40_000.0}
        for at in range(3)
        for name, begin in (("aten::mm", 10_000.0), ("aten::add", 55_000.0))
    ]
    trace = {"schemaVersion": 1, "baseTimeNanoseconds": 0, "displayTimeUnit": "ms", "traceEvents": events}
    (place / "trace.json").write_text(json.dumps(trace))
    capture = Capture(
        worker=Worker(global_rank=0, world_size=2, host="node-1", pid=100),
        window_id=4,
        first_iteration=5,
        last_iteration=8,
        boundaries_ns=(1, 100 * MS, 200 * MS, 300 * MS),
        clocks=(ClockPair(realtime_ns=0, monotonic_ns=0),),
        training_thread_id=100,
        training_thread_ident=100,
    )
    (place / "capture.json").write_bytes(msgspec.json.encode(capture))
    summarize_files(place / "capture.json", place.parent / "hardware", directory / "pattern")
    return decode_record((directory / "pattern").read_bytes(), WorkerPattern), place


def test_kept_traces_of_a_window_are_shown_whole(tmp_path: Path) -> None:
    pattern, _ = kept_window(tmp_path)
    where = {"EROICA_SCRATCH_DIR": str(tmp_path)}
    drawn = draw_kept(pattern, "night", where, {}, Settings())
    assert drawn is not None and drawn.is_whole and drawn.iterations == (0, 2)
    training = drawn.lanes[1]
    assert [training.names[at] for at in training.function] == ["aten::mm", "aten::add"] * 3
    material = Material(verdict=verdict_on(), patterns=[pattern])
    done = write_perfetto(
        tmp_path / "trace.json.gz", material, (0,), lambda one: draw_kept(one, "night", where, {}, Settings())
    )
    assert done[:2] == ("full traces of worker 0, iterations 5–7", "one worker alone, by its own clock")
    assert len(slices_of(read(tmp_path / "trace.json.gz"), 0, "training thread")) == 6


def test_full_traces_of_one_host_lie_on_its_clock_whatever_collectives_say(tmp_path: Path) -> None:
    lane = Lane("critical path", np.array([0.0]), np.array([MS]), np.zeros(1, np.int64), ["one"], ["compute"])
    clocks = {0: ("node-0", 5_000 * MS), 1: ("node-0", 5_020 * MS)}

    def whole(pattern: WorkerPattern) -> Drawn:
        return Drawn((lane,), (), (0, 0), 0.0, is_whole=True, clock=clocks[pattern.worker.global_rank])

    places = {rank: Place(offset_ns=(1 - rank) * 300.0 * MS, drift=0.0, uncertainty_ns=15e6) for rank in (0, 1)}
    for axis in (TimeAxis(places={}, uncertainty_ns=0.0, executions=0),
                 TimeAxis(places=places, uncertainty_ns=15e6, executions=9)):  # fmt: skip
        write_perfetto(tmp_path / "trace.json", material_of(fleet(), 1), (1, 0), whole, axis)
        document = read(tmp_path / "trace.json")
        starts = [slices_of(document, rank, "critical path")[0]["ts"] for rank in (0, 1)]
        assert starts == [0, 20_000]
        assert document["otherData"]["aligned_by"] == "the clock of their host"
        assert document["otherData"]["notes"][1] == "workers 0, 1 ran on one host and lie on its clock"
        assert document["otherData"]["uncertainty_us"] == 0


def test_what_was_kept_of_another_window_is_not_taken_for_it(tmp_path: Path) -> None:
    pattern, place = kept_window(tmp_path)
    where = {"EROICA_SCRATCH_DIR": str(tmp_path)}
    other = msgspec.structs.replace(pattern, first_iteration=4)
    assert draw_kept(other, "night", where, {}, Settings()) is None
    assert draw_kept(pattern, "day", where, {}, Settings()) is None
    (place / "trace.json").write_bytes(b'{"traceEvents":[')
    material = Material(verdict=verdict_on(), patterns=[pattern])
    done = write_perfetto(
        tmp_path / "trace.json", material, (0,), lambda one: draw_kept(one, "night", where, {}, Settings())
    )
    assert done[0].startswith("one iteration of worker 0, iteration 6")
    assert any(note.startswith("the raw trace of worker 0 is left out") for note in done)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `eroica diagnose --out` keeps of a real job."""
    if not TRACES.is_dir():
        pytest.skip("the real traces are not beside this checkout")
    run = tmp_path_factory.mktemp("recorded") / "run"
    keep(examine([TRACES / "dlrm_8ranks"], Settings(readers=1)), run)
    return run


def report(*arguments: object) -> Any:
    return CliRunner().invoke(group, ["report", *map(str, arguments)])


def test_a_diagnosed_job_is_one_trace_of_all_its_events(recorded: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.json.gz"
    result = report(recorded, "--perfetto", file, "--worker", 7, "--worker", 0)
    assert result.exit_code == 3
    assert "full traces of workers 0, 7, iteration 10" in result.output
    document = read(file)
    assert len(slices_of(document, 7, "training thread")) > 900
    ends = [[event["ts"] + event["dur"] for event in slices_of(document, rank, "collectives")] for rank in (7, 0)]
    assert len(ends[0]) == len(ends[1]) == 8
    assert ends[0] == pytest.approx(ends[1], abs=10)


def test_wrong_usage_is_said_before_the_work(recorded: Path, tmp_path: Path) -> None:
    verdict = tmp_path / "verdict.json"
    verdict.write_bytes((recorded / "verdict.json").read_bytes())
    for arguments, words in (
        ((recorded, "--worker", 1), "--worker chooses workers for --perfetto"),
        ((recorded, "--perfetto", tmp_path), "is a directory"),
        ((recorded, "--perfetto", "-"), "needs a file"),
        ((recorded, "--perfetto", tmp_path / "trace.json", "--worker", 8), "this window has no pattern of it"),
        ((verdict, "--perfetto", tmp_path / "trace.json"), "a verdict alone holds no traces"),
    ):
        result = report(*arguments)
        assert isinstance(result.exception, UsageError), (arguments, result.output)
        assert words in str(result.exception)
