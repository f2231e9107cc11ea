"""Replays against a real engine: `transformers serve` with a tiny model of random weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from made import requests_table
from servegen.calibrate import agreement, calibrate
from servegen.engine import Engine
from servegen.replay import ReplayOptions, replay_requests, summarize
from servegen.workload import Slo

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
pytest.importorskip("transformers", reason="transformers is not installed")


def test_a_real_engine_is_replayed_and_calibrated(tmp_path: Path) -> None:
    import tiny_server

    make = "import sys, pathlib, tiny_server; tiny_server.make_model(pathlib.Path(sys.argv[1]))"
    environment = {**os.environ, "PYTHONPATH": str(Path(tiny_server.__file__).parent), "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-c", make, str(tmp_path)], check=True, env=environment, timeout=120)
    rng = np.random.default_rng(1)
    times = np.cumsum(rng.exponential(0.25, 60))
    rows = [(float(t), f"c{i % 2}", int(rng.integers(20, 200)), int(rng.integers(5, 30))) for i, t in enumerate(times)]
    with tiny_server.serve(tmp_path) as urls:
        replay = replay_requests(requests_table(rows), ReplayOptions(tuple(urls), str(tmp_path)))
    summary = summarize(replay, Slo())
    assert summary["all"]["failed"] == 0, summary["all"]["errors"]
    assert summary["prompts"]["checked"] and summary["prompts"]["of_other_length"] == 0
    assert all(r.output_counted == r.output_asked for r in replay.records)
    assert set(summary["clients"]) == {"c0", "c1"}
    assert 0 < summary["all"]["ttft_s"]["p50"] < 30
    engine = calibrate(replay.records, Engine(batch_tokens=512, blocks=512, block_tokens=32))
    assert all(abs(error) < 1 for error in agreement(engine, replay.records).errors().values())
