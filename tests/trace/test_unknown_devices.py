"""Device events of an unknown kind are said to be left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eroica.model.verdict import Verdict
from eroica.offline import diagnose
from eroica.settings import Settings

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
