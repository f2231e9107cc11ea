import json
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from synthetic_window import PID, TRAINING, capture

from eroica.errors import InputError
from eroica.hardware.store import SampleWriter
from eroica.hardware.writer import Channel
from eroica.model.pattern import WorkerPattern
from eroica.model.series import decode_series
from eroica.settings import Settings
from eroica.summarize.files import main, read_window, summarize_files
from eroica.summarize.staging import stage_window
from eroica.wire.codec import decode_record

MS = 1_000_000
WALL = 1_795_000_000_000_000_000


@pytest.fixture
def files(tmp_path):
    """A worker's directory as agent and worker leave it: three iterations of 50 ms."""
    directory = tmp_path / str(PID)
    directory.mkdir()
    events = []
    for number in range(3):
        at = number * 50_000.0
        events.append(("cpu_op", "aten::mm", TRAINING, at + 1000, 30_000.0))
        events.append(("user_annotation", "gloo:all_reduce", 201, at + 35_000, 10_000.0))
    rows = [
        {"ph": "X", "cat": cat, "name": name, "pid": PID, "tid": tid, "ts": ts, "dur": dur, "args": {"Ev Idx": 1}}
        for cat, name, tid, ts, dur in events
    ]
    (directory / "trace.json").write_text(json.dumps({"baseTimeNanoseconds": WALL, "traceEvents": rows}))
    flight = [
        {
            "profiling_name": "gloo:all_reduce",
            "process_group": ["0", "default_pg"],
            "collective_seq_id": 70 + number,
            "input_sizes": [[100]],
            "time_created_ns": WALL + (number * 50 + 34) * MS,
        }
        for number in range(3)
    ]
    (directory / "flight.json").write_text(json.dumps({"entries": flight}))
    frames = [(f"thread ({TRAINING})", "", 0), ("<module>", "/a/b/train.py", 1)]
    stacks = [
        {"ph": "B", "name": name, "pid": PID, "tid": 1, "ts": 0, "args": {"filename": file, "line": line}}
        for name, file, line in frames
    ]
    stacks += [{**one, "ph": "E", "ts": 150_000} for one in reversed(stacks)]
    (directory / "stacks.json").write_text(json.dumps(stacks))
    (directory / "stacks.meta.json").write_text(json.dumps({"start_monotonic_ns": 1000, "rate_hz": 100}))
    facts = capture(
        (1000, 1000 + 50 * MS, 1000 + 100 * MS, 1000 + 150 * MS),
        clocks=((WALL, 1000),),
        trace_path=str(directory / "trace.json"),
        stacks_path=str(directory / "stacks.json"),
        flight_path=str(directory / "flight.json"),
    )
    (directory / "capture.json").write_bytes(msgspec.json.encode(facts))
    writer = SampleWriter(tmp_path / "hardware")
    number = writer.declare(Channel("cpu", f"{PID}/{TRAINING}", "fraction", 1.0, resolution_ns=MS))
    for moment in range(200):
        writer.add(number, 1000 + moment * MS, 0.5)
    writer.close()
    return directory


def words(files):
    return [str(files / "capture.json"), str(files.parent / "hardware"), str(files / "pattern")]


def summarized(files):
    """The pattern that becomes of the files as they are now."""
    assert main(words(files)) == 0
    return decode_record((files / "pattern").read_bytes(), WorkerPattern)


def amend(files, **facts):
    """Facts of the capture are others."""
    before = msgspec.json.decode((files / "capture.json").read_bytes())
    (files / "capture.json").write_bytes(msgspec.json.encode({**before, **facts}))


def test_files_of_a_worker_become_its_pattern(files):
    pattern = summarized(files)
    rows = {row.key.name: row for row in pattern.functions}
    assert rows["aten::mm"].critical_s == pytest.approx(0.090)
    assert rows["aten::mm"].mu == pytest.approx(0.5)
    assert rows["gloo:all_reduce"].critical_s == pytest.approx(0.030)
    assert rows["<module>"].critical_s == pytest.approx(0.030)
    assert decode_series(pattern.collectives[0].sequence, np.int64).tolist() == [70, 71, 72]
    assert pattern.raw_bytes > 1000
    assert pattern.summarize_s > 0
    assert not (files / "pattern.part").exists()


def test_a_probe_tells_whom_sends_go_to(files):
    amend(files, process_groups=[{"name": "0", "ranks": [0, 1, 2], "backend": "gloo"}])

    def trace(iterations, inputs):
        rows = []
        for number in range(iterations):
            at = number * 50_000.0 + 1000
            common = {"ph": "X", "pid": PID, "tid": TRAINING}
            rows.append({**common, "cat": "cpu_op", "name": "c10d::send", "ts": at, "dur": 50.0, "args": inputs})
            rows.append({**common, "cat": "user_annotation", "name": "gloo:send", "ts": at + 40, "dur": 900.0})
        return json.dumps({"baseTimeNanoseconds": WALL, "traceEvents": rows})

    (files / "trace.json").write_text(trace(3, {}))
    (record,) = summarized(files).collectives
    assert (record.paired_by, record.peers) == ("none", b"")
    (files / "probe.json").write_text(trace(1, {"Concrete Inputs": ["", "", "2", "0"], "Input Dims": [[[8]]]}))
    (record,) = summarized(files).collectives
    assert (record.paired_by, decode_series(record.peers, np.int32).tolist()) == ("order", [2, 2, 2])


def test_the_command_works_on_its_own_and_says_nothing(files):
    command = [sys.executable, "-m", "eroica.summarize.files", *words(files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert decode_record((files / "pattern").read_bytes(), WorkerPattern).window_id == 1


@pytest.mark.parametrize(
    ("name", "text"), [("stacks.json", "broken"), ("flight.json", "{"), ("stacks.meta.json", ""), ("probe.json", "{")]
)
def test_what_is_damaged_but_optional_becomes_a_note(files, name, text):
    (files / name).write_text(text)
    pattern = summarized(files)
    assert any(name in note for note in pattern.notes)


def test_a_cut_capture_fails_with_one_line_that_names_it(files, capsys):
    path = files / "capture.json"
    path.write_bytes(path.read_bytes()[:-20])
    assert main(words(files)) == 1
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert "capture.json" in complaint
    assert not (files / "pattern").exists()


def test_of_a_cut_trace_counts_what_is_whole_and_the_loss_is_told(files):
    path = files / "trace.json"
    path.write_bytes(path.read_bytes()[:-200])
    pattern = summarized(files)
    assert any("cut" in note or "end" in note for note in pattern.notes), pattern.notes


def test_what_worker_and_agent_know_of_the_settings_is_in_the_pattern(files):
    amend(files, setup={"torch_threads": "2", "nice": "worker"})
    (files / "setup.json").write_text(json.dumps({"nice": "5", "env:OMP_NUM_THREADS": "2"}))
    pattern = summarized(files)
    assert pattern.setup == {"env:OMP_NUM_THREADS": "2", "nice": "5", "torch_threads": "2"}
    (files / "setup.json").write_text("[")
    pattern = summarized(files)
    assert pattern.setup["nice"] == "worker" and any("holds no facts" in note for note in pattern.notes)


@pytest.mark.parametrize("way", ["up", "absolute", "link"])
def test_what_a_capture_names_is_looked_for_beside_it_only(files, tmp_path, way):
    secret = tmp_path / "elsewhere" / "trace.json"
    secret.parent.mkdir()
    (files / "trace.json").rename(secret)
    amend(files, trace_path=str(secret) if way == "absolute" else "../elsewhere/trace.json")
    if way == "link":
        (files / "trace.json").symlink_to(secret)
    with pytest.raises(InputError):
        summarize_files(*map(Path, words(files)))


def test_a_link_in_place_of_samples_costs_only_them(files, tmp_path):
    (files / "stacks.json").unlink(missing_ok=True)
    (tmp_path / "elsewhere.json").write_text("{}")
    (files / "stacks.json").symlink_to(tmp_path / "elsewhere.json")
    pattern = summarized(files)
    assert any("is a link" in note for note in pattern.notes)


@pytest.mark.parametrize("is_begun", [False, True])
def test_of_a_worker_that_ended_before_its_trace_stacks_and_iterations_are_left(files, is_begun):
    (files / "trace.json").unlink()
    if is_begun:
        (files / "trace.json").touch()
    amend(files, trace_path="")
    pattern = summarized(files)
    assert not pattern.has_trace
    assert {row.key.name: pytest.approx(row.critical_s) for row in pattern.functions} == {"<module>": 0.150}
    assert decode_series(pattern.iteration_us, np.float32).tolist() == [50_000.0] * 3
    window = read_window(files / "capture.json", files.parent / "hardware", Settings())  # a picture of it can be drawn
    staged = stage_window(window.capture, window.events, window.stacks, window.flight, hardware=window.samples)
    assert len(staged.critical.start)


def test_a_trace_that_is_named_and_missing_is_an_error(files):
    (files / "trace.json").unlink()
    with pytest.raises(InputError):
        summarize_files(*map(Path, words(files)))
