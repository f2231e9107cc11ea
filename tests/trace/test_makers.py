"""Devices of other makers: read where the form allows, else said to be left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eroica.model.verdict import Verdict
from eroica.offline import diagnose
from eroica.settings import Settings
from eroica.trace.kineto import read_trace
from eroica.trace.table import Category

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


def kinds(path: Path, events: list[dict[str, Any]]) -> dict[str, Category]:
    path.write_text(json.dumps(events))
    table = read_trace(path)
    return {table.name_of(row): Category(table.category[row]) for row in range(len(table))}


def judged(path: Path, events: list[dict[str, Any]]) -> Verdict:
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": {"rank": 0, "world_size": 1}}))
    return diagnose(path, settings=Settings(readers=1))


def test_ascend_s_streams_are_a_device_and_its_communication_communicates(tmp_path: Path) -> None:
    found = kinds(
        tmp_path / "trace_view.json",
        [
            *(named("process_name", pid, name) for pid, name in ((1, "Python"), (2, "CANN"), (3, "Ascend Hardware"))),
            named("process_name", 4, "Communication"),
            named("thread_name", 4, "Group 0 Communication", 1),
            named("thread_name", 4, "Plane 0", 2),
            named("process_name", 5, "Overlap Analysis"),
            event("aten::mm", 1, 1, 0, 5, "cpu_op"),
            event("AscendCL@aclnnMm", 2, 1, 1, 2),
            event("MatMulV2", 3, 7, 10, 20),
            event("EVENT_WAIT", 3, 7, 30, 5),
            event("MEMCPY_ASYNC", 3, 7, 35, 5),
            event("hcom_allReduce__503_0_1", 4, 1, 40, 10),
            event("Notify_Wait", 4, 2, 41, 5),
            event("Computing", 5, 0, 10, 20),
        ],
    )
    assert found["MatMulV2"] is found["hcom_allReduce__503_0_1"] is Category.KERNEL
    assert found["AscendCL@aclnnMm"] is Category.RUNTIME and found["MEMCPY_ASYNC"] is Category.MEMORY
    assert found["EVENT_WAIT"] is found["Computing"] is found["Notify_Wait"] is Category.OTHER


def test_a_converted_xplane_has_its_device_s_operations(tmp_path: Path) -> None:
    found = kinds(
        tmp_path / "a.trace.json",
        [
            named("process_name", 3, "/device:TPU:0"),
            named("thread_name", 3, "XLA Modules", 1),
            named("thread_name", 3, "XLA Ops", 2),
            named("process_name", 701, "/host:CPU"),
            event("jit_train_step", 3, 1, 0, 100),
            event("fusion.12", 3, 2, 0, 50),
            event("aten::mm", 701, 1, 0, 5, "cpu_op"),
        ],
    )
    assert found["fusion.12"] is Category.KERNEL and found["jit_train_step"] is Category.OTHER


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


def test_the_folder_of_an_ascend_rank_says_its_rank(tmp_path: Path) -> None:
    for rank in (0, 1):
        folder = tmp_path / f"host_{rank}77_2024_ascend_pt"
        (folder / "ASCEND_PROFILER_OUTPUT").mkdir(parents=True)
        (folder / f"profiler_info_{rank}.json").write_text("{}")
        device = [named("process_name", 9, "Ascend Hardware")]
        device += [event("MatMulV2", 9, 3, 500.0 * one, 480) for one in range(120)]
        (folder / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").write_text(json.dumps([*steps(), *device]))
    verdict = diagnose(tmp_path, settings=Settings(readers=1))
    assert verdict.coverage.workers_reported == 2 and not verdict.coverage.missing
