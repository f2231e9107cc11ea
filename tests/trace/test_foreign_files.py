"""What is no trace is named with what it is."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from eroica.errors import InputError, UsageError
from eroica.model.verdict import Verdict
from eroica.offline import diagnose
from eroica.offline.discover import discover
from eroica.settings import Settings
from eroica.trace.kineto import read_trace

_TRACE = {"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 5}]}
_TEXT = json.dumps(_TRACE)

_FILES: list[tuple[str, bytes, str]] = [
    ("a.json", _TEXT.encode("utf-16"), "UTF-16"),
    ("a.json", _TEXT.encode("utf-16-le"), "UTF-16"),
    ("a.json", _TEXT.encode("utf-16-be"), "UTF-16"),
    ("a.json.gz", gzip.compress(gzip.compress(_TEXT.encode())), "gzip twice"),
    (
        "a.json",
        b'{"$schema":"https://www.speedscope.app/file-format-schema.json","shared":{},"profiles":[]}',
        "speedscope",
    ),
    ("a.json", b'{"schema":"1.0.2-chakra.0.0.4","pid":3,"time":"x","start_ts":1,"nodes":[]}', "Execution Trace"),
    ("a.json", b'{"rocprofiler-sdk-tool":[{"metadata":{}}]}', "rocprofv3"),
    ("a.xplane.pb", b"\n\x20\x08\x01\x12\x0d/device:TPU:0" + b"\0" * 40, "XPlane"),
    ("a.nsys-rep", b"whatever", "nsys export"),
    ("a.json", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "Git LFS"),
    ("a.json", b"\n<!DOCTYPE html><html></html>", "web page"),
]


@pytest.mark.parametrize(("name", "data", "words"), _FILES, ids=[words for _, _, words in _FILES])
def test_a_refused_file_is_named_with_what_it_is(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=words) as refused:
        read_trace(tmp_path / name)
    assert str(tmp_path / name) in str(refused.value)


def test_a_trace_of_another_tool_is_no_trace_of_pytorch(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "FEE", "name": "fib (a.py:1)", "pid": 1, "tid": 1, "ts": 1, "dur": 5}
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"traceEvents": [event], "viztracer_metadata": {"version": "1"}}))
    with pytest.raises(InputError, match="a trace, but not PyTorch's: VizTracer"):
        diagnose(path)


def test_in_a_folder_files_of_other_tools_are_named_too(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text(_TEXT)
    (tmp_path / "flames.json").write_bytes(_FILES[4][1])
    (tmp_path / "host.nsys-rep").write_bytes(b"x")
    notes = " ".join(discover([tmp_path]).notes)
    assert "flames.json is a speedscope profile" in notes and "host.nsys-rep is a report of Nsight Systems" in notes
    (tmp_path / "rank0.json").unlink()
    with pytest.raises(UsageError, match="speedscope"):
        discover([tmp_path])


START = 1_700_000_000_000_000.0


def named(kind: str, pid: int, name: str, tid: int = 0) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"labels" if "labels" in kind else "name": name}}


def event(name: str, pid: int, tid: int, ts: float, dur: float, cat: str | None = None) -> dict[str, Any]:
    said = {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": START + ts, "dur": dur}
    return {**said, "cat": cat} if cat is not None else said


def steps(count: int = 6, length: float = 10_000.0) -> list[dict[str, Any]]:
    """Steps with operators of a host, all of them busy."""
    events = []
    for number in range(count):
        at = number * length
        events.append(event(f"ProfilerStep#{number}", 1, 1, at, length - 5, "user_annotation"))
        events += [event("aten::mm", 1, 1, at + 100 * one, 90, "cpu_op") for one in range(20)]
        events.append(event("AddmmBackward0", 1, 1, at + 3_000, 500, "cpu_op"))
    return events


def judged(path: Path, events: list[dict[str, Any]]) -> Verdict:
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": {"rank": 0, "world_size": 1}}))
    return diagnose(path, settings=Settings(readers=1))


def test_device_events_of_an_unknown_kind_are_said_to_be_left_out_and_nothing_is_healthy(tmp_path: Path) -> None:
    device = [named("process_name", 9, "Gaudi"), named("process_labels", 9, "HPU 0")]
    device += [event("mme_gemm", 9, 3, 1_000.0 * one, 900, "hpu_kernel_new") for one in range(50)]
    verdict = judged(tmp_path / "rank0.json", [*steps(), *device])
    assert verdict.verdict == "undetermined" and verdict.exit_code == 4
    assert "device events of an unknown kind (hpu_kernel_new) were left out: 50 of them" in verdict.summary


def test_marks_of_a_known_device_are_no_unknown_work(tmp_path: Path) -> None:
    device = [named("process_name", 0, "python"), named("process_labels", 0, "GPU 0")]
    device += [event("gemm", 0, 7, 500.0 * one, 480, "kernel") for one in range(120)]
    device += [
        event("ProfilerStep#1", 0, 7, 0, 900, "gpu_user_annotation"),
        event("Event Sync", 0, 7, 5, 9, "cuda_sync"),
    ]
    verdict = judged(tmp_path / "rank0.json", [*steps(), *device])
    assert not any("unknown kind" in note for note in (verdict.summary, *verdict.coverage.notes))
