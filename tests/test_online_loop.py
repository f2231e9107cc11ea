"""The whole loop on real torchrun jobs: a door, hooks, windows, samplers, summaries, comparison, verdict on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import psutil
import pytest

from eroica.archive.load import decode_history
from eroica.demo.rehearsal import write_training
from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Verdict
from eroica.wire.codec import decode_record
from support.watched import WatchedJob, environment, torchrun

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(150)]

SETTINGS = {
    "expected_iteration_s": "0.002",  # any iteration of these jobs is longer: slow from the start
    "window_s": "3",
    "baseline_window": "false",
    "cooldown_s": "600",
}
RENAMED = {
    "TokenWindows": "Shelf",
    "_read_block": "pick_up",
    "__getitem__": "__getitem__",
    "_score_tokens": "weigh",
    "tokens": "library",
}


ENDLESS = ("--iterations", "100000")
IN_CHILDREN = """
from captioner import data, loop
loop.make_loader = lambda dataset, batch: data.make_loader(dataset, batch, loader_workers=1)
if __name__ == "__main__":
    loop.main()
"""


@pytest.mark.thorough
def test_renamed_and_moved_code_inside_loader_children_is_named_with_its_worker(tmp_path: Path) -> None:
    script = write_training(tmp_path / "elsewhere", package="captioner", rename=RENAMED)
    script.write_text(IN_CHILDREN)
    fault = "slow-loader:worker=1,from_iteration=0,seconds=0.02"
    with WatchedJob(tmp_path, torchrun(script, *ENDLESS), SETTINGS, EROICA_FAULT=fault) as job:
        job.await_status(lambda status: any(line["phase"] == "done" for line in status["windows"]), 120)
        time.sleep(3)  # some seconds of the job after it, for its history
    verdict, said = job.verdict(), job.said
    cause = verdict.cause
    assert cause is not None, verdict.summary
    assert (cause.cause, cause.workers, cause.scope) == ("slow-data-loading", (1,), "some"), verdict.summary
    assert "pick_up" in cause.function.name or any("pick_up" in frame for frame in cause.function.stack)
    assert cause.gain is not None and cause.gain > 0.1
    assert verdict.coverage.workers_reported == 2 and verdict.coverage.missing == ()
    patterns = list((tmp_path / "report" / "windows" / "1" / "patterns").glob("*.pattern"))
    assert len(patterns) == 2 and all(path.stat().st_size <= 30_000 for path in patterns)
    assert verdict.cost.trigger_to_verdict_s is not None
    assert " ".join(said.split()).count(verdict.summary[:60]) == said.count("SLOW") == 1
    check_history(tmp_path / "report" / "history.json", verdict)


def check_history(path: Path, verdict: Verdict) -> None:
    """The iteration times kept are the verdict's, and the window is marked where its iterations are."""
    history = decode_history(path.read_bytes())
    assert verdict.window is not None and verdict.iteration.current_ms is not None
    assert len(history.at_s) >= 5 and 0.5 < median(history.mean_ms) / verdict.iteration.current_ms < 2
    assert all(slowest >= mean for slowest, mean in zip(history.slowest_ms, history.mean_ms, strict=True))
    marks = {mark.kind: mark for mark in history.marks}
    assert {"trigger", "window", "verdict"} <= marks.keys()
    window = marks["window"]
    assert (window.iteration, window.last_iteration) == (verdict.window.first_iteration, verdict.window.last_iteration)
    before = [done for at_s, done in zip(history.at_s, history.iteration, strict=True) if at_s < window.at_s]
    assert all(done <= window.iteration for done in before)
    assert window.until_s is not None and marks["trigger"].at_s <= window.at_s < window.until_s <= marks["verdict"].at_s


LOOP = """
import eroica.auto
import sys, time, torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.utils.data.TensorDataset(torch.randn(100_000, 64))
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    for (x,) in torch.utils.data.DataLoader(data, batch_size=32):
        time.sleep(0.004)
        model(x).square().mean().backward()
        optimizer.step()
        if time.monotonic() > end:
            break
print("trained")
"""


def test_one_import_is_enough_and_the_job_ends_with_a_verdict(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    variables = {f"EROICA_{name.upper()}": value for name, value in SETTINGS.items()}
    variables |= {"EROICA_JOB": f"auto-{os.getpid()}", "EROICA_JOB_END_GRACE_S": "1", "EROICA_WINDOW_S": "1"}
    done = subprocess.run(
        [sys.executable, "train.py", "14"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        env=environment(**variables),
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")
    run = tmp_path / "eroica-report" / variables["EROICA_JOB"]
    end = time.monotonic() + 60
    while not (run / "verdict.json").exists() and time.monotonic() < end:
        time.sleep(0.1)
    final = json.loads((run / "verdict.json").read_text())
    assert final["verdict"] in ("slow", "undetermined", "healthy") and final["window"] is not None
    assert (run / "windows" / "1" / "patterns" / "0.pattern").exists()


def test_profile_opens_a_window_on_a_healthy_job_and_finds_nothing(tmp_path: Path) -> None:
    command = torchrun(write_training(tmp_path / "job"), *ENDLESS)
    with WatchedJob(tmp_path, command, {"window_s": "3"}) as job:
        job.await_status(lambda status: status["iteration"] > 60)
        asked = subprocess.run(
            [sys.executable, "-m", "eroica", "profile", "--out", str(job.out), "--json", str(tmp_path / "v.json")],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    verdict = Verdict.from_json((tmp_path / "v.json").read_bytes())
    assert asked.returncode == verdict.exit_code, asked.stdout + asked.stderr
    found = verdict.cause  # the other tests' work on the same two cores, if anything: it is nobody's fault
    longer = verdict.iteration.current_ms >= 1.15 * (verdict.iteration.baseline_ms or float("inf"))
    shared = found is not None and (found.cause, found.scope, longer) == ("compute-slow", "rotating", True)
    assert found is None or found.cause in ("cpu-contention", "sibling-process") or shared, asked.stdout
    assert verdict.window is not None and verdict.window.reason == "asked for by hand"
    assert job.process.returncode != 0  # the signal reached torchrun


LONG_WINDOW = {
    "window_s": "60",
    "max_window_iterations": "100000",
    "max_window_events": "5000000",
    "hard_window_events": "5000000",
    "baseline_window": "false",
}


def test_a_scheduler_that_ends_the_job_inside_a_window_still_gets_its_verdict(tmp_path: Path) -> None:
    command = torchrun(write_training(tmp_path / "job"), *ENDLESS)
    with WatchedJob(tmp_path, command, LONG_WINDOW) as job:
        job.order_window()
        seen = job.status()["iteration"]
        job.await_status(lambda status: status["iteration"] > seen + 30)  # it begins a second ahead or so
        time.sleep(1.5)
        job.process.terminate()
        job.process.wait(30)
    assert job.process.returncode != 0  # what happened to the training is seen
    verdict = job.verdict()
    assert verdict.coverage.workers_reported == 2, verdict.summary
    assert verdict.window is not None and verdict.window.last_iteration is not None
    assert any("the job is told to end" in note for note in verdict.coverage.notes), verdict.coverage.notes


@pytest.mark.thorough
def test_a_window_outlives_the_collector_that_ordered_it(tmp_path: Path) -> None:
    command = torchrun(write_training(tmp_path / "job"), *ENDLESS)
    with WatchedJob(tmp_path, command, {"window_s": "4", "baseline_window": "false"}) as job:
        job.order_window()
        children = psutil.Process(job.process.pid).children()
        (collector,) = [child for child in children if "eroica.collector" in " ".join(child.cmdline())]
        collector.kill()
        status = job.await_status(lambda status: any(line["phase"] == "done" for line in status["windows"]))
        assert [line["window_id"] for line in status["windows"]] == [1]
        assert any("the collector was started again" in note for note in status["notes"])
        verdict = job.verdict(1)
    assert verdict.coverage.workers_reported == 2 and verdict.window is not None, verdict.summary


@pytest.mark.long
def test_a_busy_process_beside_a_real_job_is_in_its_patterns_and_secrets_are_not(tmp_path: Path) -> None:
    burner, secret = tmp_path / "serve.py", "geheim-93741"
    burner.write_text("while True: pass\n")
    command = torchrun(write_training(tmp_path / "job"), "--iterations", "1000")
    variables = {"MY_API_KEY": secret, "TORCH_TOKEN": secret}
    with subprocess.Popen([sys.executable, str(burner), "--key", secret], start_new_session=True) as beside:
        try:
            with WatchedJob(tmp_path, command, {**SETTINGS, "window_s": "2"}, **variables) as job:
                assert job.process.wait(120) == 0
        finally:
            beside.kill()
    files = sorted((job.out / "windows" / "1" / "patterns").glob("*.pattern"))
    patterns = [decode_record(file.read_bytes(), WorkerPattern) for file in files]
    workers = {pattern.worker.pid for pattern in patterns}
    assert len(workers) == 2
    for pattern in patterns:
        found = {one.pid: one for one in pattern.neighbors}
        assert beside.pid in found and not workers & set(found), pattern.neighbors
        assert found[beside.pid].name.endswith("(serve.py)") and found[beside.pid].cpu_cores > 0.05
        assert pattern.host_facts["cores_outside"] >= found[beside.pid].cpu_cores - 0.02
        assert pattern.host_facts["cores_job"] > 0
        assert pattern.setup["torch_threads"] == "1" and pattern.setup["env:OMP_NUM_THREADS"] == "1"
        assert pattern.setup["loader_workers"] == "0" and "affinity" in pattern.setup
    kept = b"".join(file.read_bytes() for file in job.out.rglob("*") if file.is_file())
    assert secret.encode() not in kept and secret not in repr(patterns)
