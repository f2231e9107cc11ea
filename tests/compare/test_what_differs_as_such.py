"""Devices, versions and sizes that differ come first; iterations judge their own noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eroica.compare import Run, compare
from eroica.model.comparison import Comparison
from eroica.offline.examine import read_spans
from eroica.settings import Settings
from support.written_jobs import WrittenJob
from support.written_worker import WrittenWorker

_CASES = Path(__file__).parents[2] / "../shared/cases/traces"
ONE = Settings(readers=1)


def run_of(path: Path, trace: dict[str, Any], **header: Any) -> Run:
    path.write_text(json.dumps({**trace, **header}))
    spans, _ = read_spans([path], ONE)
    return Run(name=path.name, patterns=[one.pattern for one in spans[0].summaries if one.pattern is not None])


def compared(tmp_path: Path, before: dict[str, Any], after: dict[str, Any], *headers: dict[str, Any]) -> Comparison:
    first, second = headers or ({}, {})
    return compare(run_of(tmp_path / "a.json", before, **first), run_of(tmp_path / "b.json", after, **second), ONE)


def lasting(*milliseconds: float) -> dict[str, Any]:
    """One worker whose iterations last so long."""
    job = WrittenJob(ranks=1, steps=len(milliseconds), jitter=0.0)
    trace, at = job.record()[0], 0.0
    events = []
    for number, length in enumerate(milliseconds):
        start = 1.7e15 + at * 1000
        events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 1, "tid": 1,
                       "ts": start, "dur": length * 1000 - 5})  # fmt: skip
        events.append({"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": start + 10,
                       "dur": length * 1000 - 30, "args": {"stream": 7}})  # fmt: skip
        at += length
    return {**trace, "traceEvents": events}


def test_another_device_comes_first_in_sentence_and_notes() -> None:
    if not _CASES.is_dir():
        pytest.skip("the shared cases are not here")
    runs = []
    for name in ("diff_v100.json", "diff_a100.json"):
        spans, _ = read_spans([_CASES / name], ONE)
        runs.append(Run(name=name, patterns=[one.pattern for one in spans[0].summaries if one.pattern is not None]))
    found = compare(*runs, ONE)
    assert found.summary.startswith("The device differs: Tesla V100-SXM2-16GB before, NVIDIA A100-SXM4-40GB after")
    assert "the number of workers differs: 2 before, 8 after" in found.summary
    assert found.notes[0].startswith("the device differs") and "of which 1 and 1 are here" in " ".join(found.notes)


def test_another_driver_is_told_and_the_same_one_is_not(tmp_path: Path) -> None:
    trace = WrittenWorker(calls=6, training=True, marks="steps").record()
    drivers = {"cuda_driver_version": 12020}, {"cuda_driver_version": 12040}
    assert "The CUDA driver differs: 12020 before, 12040 after" in compared(tmp_path, trace, trace, *drivers).summary
    assert "differs" not in compared(tmp_path, trace, trace, drivers[0], drivers[0]).summary


def test_every_iteration_slower_than_every_one_before_is_no_noise(tmp_path: Path) -> None:
    before, after = lasting(100, 101, 99, 100, 102), lasting(104, 190, 105, 110, 150)
    found = compared(tmp_path, before, after)
    assert found.comparison == "regression" and "Iterations take" in found.summary
    mixed = compared(tmp_path, before, lasting(98, 190, 99, 101, 150))
    assert mixed.comparison != "regression"


def test_iterations_of_one_distribution_are_no_regression(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    for _ in range(10):
        times = random.normal(100, 4, (2, 8))
        assert compared(tmp_path, lasting(*times[0]), lasting(*times[1])).comparison in ("equal", "undetermined")
