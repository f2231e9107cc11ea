"""Small Kineto traces, written as torch writes them, for tests that need files of their own."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

START_US = 1_700_000_000_000_000.0
STEP_US = 100_000.0


def trace(
    rank: int | None = 0,
    world_size: int = 0,
    first_step: int = 5,
    steps: int = 6,
    load_us: float = 1_000.0,
    start_us: float = START_US,
    pid: int = 4242,
    kernels: int = 4,
) -> dict[str, Any]:
    """A training on one device: data loading, forward with kernels, optimizer; `load_us` a step goes to the loader."""
    events: list[dict[str, Any]] = []
    for step in range(steps):
        at = start_us + step * STEP_US
        _host(events, pid, f"ProfilerStep#{first_step + step}", "user_annotation", at, STEP_US - 50)
        loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        _host(events, pid, loader, "user_annotation", at + 10, load_us)
        work = at + 20 + load_us
        length = (STEP_US - 2_000 - load_us) / kernels
        for number in range(kernels):
            begin = work + number * length
            _host(events, pid, "aten::mm", "cpu_op", begin, 20)
            _host(events, pid, "cudaLaunchKernel", "cuda_runtime", begin + 5, 10)
            events.append(_event("sgemm_128x64", "kernel", 0, 7, begin + 20, length - 30))
        _host(events, pid, "Optimizer.step#SGD.step", "user_annotation", at + STEP_US - 1_500, 1_000)
    content: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": []}
    if rank is not None:
        said: dict[str, Any] = {"backend": "nccl", "rank": rank}
        content["distributedInfo"] = {**said, "world_size": world_size} if world_size else said
    return {**content, "traceEvents": events, "traceName": "trace.json"}


def _host(events: list[dict[str, Any]], pid: int, name: str, category: str, ts: float, dur: float) -> None:
    events.append(_event(name, category, pid, pid, ts, dur))


def _event(name: str, category: str, pid: int, tid: int, ts: float, dur: float) -> dict[str, Any]:
    arguments = {"stream": tid} if category == "kernel" else {}
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": arguments}


def write(path: Path, content: object | None = None, **options: Any) -> Path:
    """Write a trace (or other JSON), packed if the name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(trace(**options) if content is None else content).encode()
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    return path
