"""The smoke part of the fault benchmark: two real jobs under `eroica run`, and the page that is drawn from them."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
#: What a machine on which other tests run may be found to lack.
SHARED_CORES = ("cpu-contention", "sibling-process")


@pytest.mark.long  # other jobs of `make test` have these two in them
def test_the_smoke_part_of_the_benchmark_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "runs.jsonl"
    command = [sys.executable, str(BENCHMARKS / "faults.py"), "--smoke", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=560, check=False)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    runs = {line["fault"]: line for line in lines if line["kind"] == "run"}
    assert set(runs) == {"slow-loader", "none"}, done.stderr[-2000:]
    slow = runs["slow-loader"]
    assert slow["right"] and slow["parts"]["function"], slow["said"]
    assert slow["onset_to_trigger_s"] > 0 and slow["trigger_to_verdict_s"] > 0
    healthy = runs["none"]["said"]
    assert healthy["verdict"] != "none" and healthy.get("cause", SHARED_CORES[0]) in SHARED_CORES, healthy
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    text = "\n".join(importlib.import_module("accuracy_page").page(list(runs.values()), {}))
    assert "| faulty runs right | 1 of 1: 100 %" in text
