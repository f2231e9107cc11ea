"""A real job with a busy process beside it: who it is, and how the workers are set up, is in the patterns."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eroica.model.pattern import WorkerPattern
from eroica.wire.codec import decode_record
from support.faults import write_training

pytestmark = [pytest.mark.jobs, pytest.mark.long, pytest.mark.timeout(150)]

SETTINGS = {"expected_iteration_s": "0.002", "window_s": "2", "window_lead_s": "0.5", "baseline_window": "false"}
SECRET = "geheim-93741"


def test_a_busy_process_beside_a_real_job_is_in_its_patterns_and_secrets_are_not(tmp_path: Path) -> None:
    burner = tmp_path / "serve.py"
    burner.write_text("while True: pass\n")
    out, script = tmp_path / "report", write_training(tmp_path / "job")
    options = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("EROICA_")}
    environment = {**inherited, "OMP_NUM_THREADS": "1", "MY_API_KEY": SECRET, "TORCH_TOKEN": SECRET}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, str(script), "--seconds", "20"]
    with subprocess.Popen([sys.executable, str(burner), "--key", SECRET], start_new_session=True) as beside:
        try:
            subprocess.run(
                [sys.executable, "-m", "eroica", "run", "--quiet", "--out", str(out), *options, "--", *command],
                env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120, check=True,
            )  # fmt: skip
        finally:
            beside.kill()
    files = sorted((out / "windows" / "1" / "patterns").glob("*.pattern"))
    assert len(files) == 2 and all(file.stat().st_size <= 30_000 for file in files)
    patterns = [decode_record(file.read_bytes(), WorkerPattern) for file in files]
    workers = {pattern.worker.pid for pattern in patterns}
    for pattern in patterns:
        found = {one.pid: one for one in pattern.neighbors}
        assert beside.pid in found and not workers & set(found), pattern.neighbors
        assert found[beside.pid].name.endswith("(serve.py)") and found[beside.pid].cpu_cores > 0.05
        assert pattern.host_facts["cores_outside"] >= found[beside.pid].cpu_cores - 0.02
        assert pattern.host_facts["cores_job"] > 0
        assert pattern.setup["torch_threads"] == "1" and pattern.setup["env:OMP_NUM_THREADS"] == "1"
        assert pattern.setup["loader_workers"] == "0" and "affinity" in pattern.setup
    kept = b"".join(file.read_bytes() for file in out.rglob("*") if file.is_file())
    told = repr(patterns)
    assert SECRET.encode() not in kept and SECRET not in told
