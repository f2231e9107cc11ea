"""Real trainings of the frameworks: callbacks over a run directory whose verdict is known, then the prefix alone.

`make test-tools` runs all of them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eroica.archive.store import Store, write_json
from eroica.integrations import metrics, news
from eroica.model.verdict import Verdict
from eroica.wire.messages import JobStatus, WindowLine
from support.verdicts import cause, plain
from support.watched import WatchedJob, environment

READ = news._read
PROGRAMS = Path(__file__).with_name("programs")
JOBS = Path(__file__).parents[2] / "benchmarks" / "jobs" / "frameworks"
VERDICT = plain("slow", "Worker 2 loads.", cause("slow-data-loading", 2, gain=0.38, confidence=0.97))
LINE = WindowLine(window_id=3, purpose="slow", phase="done", verdict="slow", summary="Worker 2 loads.")
STATUS = JobStatus(job="train", phase="watching", message="", mean_ms=24.4, best_ms=18.2, windows=(LINE,))
KNOWN = {
    "eroica/iteration_ms": 24.4,
    "eroica/best_iteration_ms": 18.2,
    "eroica/window": 3.0,
    "eroica/verdict": 2.0,
    "eroica/gain": 0.38,
    "eroica/confidence": 0.97,
    "eroica/worker": 2.0,
}
SENTENCE = "SLOW: Worker 2 loads."


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"`make test-tools` has {', '.join(missing)}")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    directory.mkdir()
    write_json(directory / "status.json", STATUS)
    Store(directory).save_verdict(3, VERDICT)
    return directory


def train(run: Path, program: str, *arguments: str) -> str:
    """Run a program beside the run directory; what it printed."""
    (run.parent / "work").mkdir(exist_ok=True)
    variables = environment(
        EROICA_RUN_DIR=str(run),
        EROICA_DISABLE="1",  # only the callback is tried: nobody writes into this directory
        MLFLOW_TRACKING_URI=f"file://{run.parent}/mlflow",
        MLFLOW_ALLOW_FILE_STORE="true",
        TENSORBOARD_LOGGING_DIR=str(run.parent / "work" / "board"),
        WANDB_MODE="offline",
    )
    command = [sys.executable, str(PROGRAMS / program), *arguments]
    done = subprocess.run(
        command, env=variables, cwd=run.parent / "work", capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def board(directory: Path) -> tuple[dict[str, float], list[str]]:
    """Latest scalars, and texts, of all TensorBoard files below a directory."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    scalars: dict[str, float] = {}
    texts: list[str] = []
    for file in directory.rglob("events.out.tfevents.*"):
        found = EventAccumulator(str(file), size_guidance={"tensors": 0})
        found.Reload()
        scalars |= {tag: found.Scalars(tag)[-1].value for tag in found.Tags()["scalars"]}
        for tag in found.Tags()["tensors"]:
            if "eroica.verdict" in tag:
                texts += [event.tensor_proto.string_val[0].decode() for event in found.Tensors(tag)]
    return scalars, texts


def offline(directory: Path) -> tuple[dict[str, object], dict[str, object]]:
    """History, later values over earlier ones, and summary of the one W&B run kept offline below, as W&B reads it."""
    history: dict[str, object] = {}
    summary: dict[str, object] = {}
    (file,) = directory.rglob("run-*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    read = subprocess.run(
        command, env={**os.environ, "WANDB_MODE": "offline"}, capture_output=True, text=True, check=True
    )
    for record in map(json.loads, read.stdout.splitlines()):
        history.update(record.get("history", {}).get("item", {}))
        summary.update(record.get("summary", {}).get("update", {}))
    return history, summary


def test_nothing_of_a_framework_is_imported_with_the_package() -> None:
    code = "import sys, eroica, eroica.integrations; print(*[name.partition('.')[0] for name in sys.modules])"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & {"torch", "transformers", "lightning", "ray", "numpy", "msgspec", "mlflow", "wandb"}


def test_news_are_a_flat_dict_for_any_tracker(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EROICA_RUN_DIR", str(run))
    assert metrics() == KNOWN


@pytest.mark.parametrize("content", [b"", b"[]", b'{"windows": 3, "mean_ms": "x"}', b"[" * 500_000, bytes(3_000_000)])
def test_a_damaged_or_missing_status_is_no_news(run: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setenv("EROICA_RUN_DIR", str(run))
    (run / "status.json").write_bytes(content)
    assert metrics() == {}
    (run / "status.json").unlink()
    assert metrics() == {}


def test_of_a_damaged_verdict_what_the_status_says_remains(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EROICA_RUN_DIR", str(run))
    (run / "windows" / "3" / "verdict.json").write_bytes(b'{"findings": [{"role": "cause", "gain": "much"}, 4]}')
    assert metrics() == {name: KNOWN[name] for name in list(KNOWN)[:4]}


def test_a_file_system_that_hangs_is_waited_for_once_and_briefly(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EROICA_RUN_DIR", str(run))
    assert metrics() == KNOWN
    over = threading.Event()

    def hang(path: Path) -> object:
        over.wait()
        return READ(path)

    monkeypatch.setattr(news, "_read", hang)
    began = time.monotonic()
    for _ in range(20):
        assert metrics() == KNOWN
    assert time.monotonic() - began < 20 * 0.1
    over.set()


def test_settings_of_another_version_do_not_raise_where_a_callback_is_unpickled() -> None:
    companion = pickle.loads(pickle.dumps(news.Companion({"window_s": 5.0})))
    assert companion.__getstate__() == {"settings": {"window_s": 5.0}}
    companion.__setstate__({"settings": {"of_another_version": 1}})
    assert companion.__getstate__() == {"settings": {}}


def kept(tracker: str, run: Path) -> tuple[dict[str, object], object]:
    """Numbers and the sentence that a tracker has kept, as the tracker itself reads them."""
    if tracker == "tensorboard":
        scalars, texts = board(run.parent / "work")
        assert len(texts) == 1
        return dict(scalars), texts[0]
    if tracker == "wandb":
        history, summary = offline(run.parent / "work")
        return history, summary["eroica.verdict"]
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"file://{run.parent}/mlflow")
    (found,) = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    return dict(found.data.metrics), found.data.tags["eroica.verdict"]


@pytest.mark.parametrize(
    ("program", "tracker", "prefix"),
    [
        *(
            pytest.param("hf.py", tracker, "train/", marks=needs("transformers", "accelerate", tracker))
            for tracker in ("tensorboard", "mlflow", "wandb")
        ),
        pytest.param("sft.py", "tensorboard", "train/", marks=needs("trl", "datasets", "tensorboard")),
        *(
            pytest.param("pl.py", tracker, "", marks=needs("lightning", tracker))
            for tracker in ("tensorboard", "mlflow", "wandb")
        ),
    ],
)
def test_a_trainer_reports_numbers_and_the_sentence_to_its_trackers(
    run: Path, monkeypatch: pytest.MonkeyPatch, program: str, tracker: str, prefix: str
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert '"steps": 20' in train(run, program, tracker)
    numbers, sentence = kept(tracker, run)
    assert {name: numbers[prefix + name] for name in KNOWN} == pytest.approx(KNOWN)
    assert sentence == SENTENCE
    for file in (run.parent / "work").rglob("metrics.csv"):  # of Lightning's second logger
        assert "eroica/gain" in file.read_text()


@needs("transformers", "accelerate")
def test_a_tracker_that_fails_costs_the_callback_and_not_the_training(run: Path) -> None:
    assert '"steps": 20, "batches": 40, "told": 0, "tried": 1' in train(run, "hf.py", "broken")
    (log,) = (run / "log").glob("worker-*.log")
    assert "the tracker is down" in log.read_text()


def test_a_watched_loop_of_ray_takes_what_it_took() -> None:
    import inspect

    from eroica.integrations.ray import watched

    def plain(config: dict[str, int]) -> int:
        return config["x"]

    loop = watched(plain)
    assert list(inspect.signature(loop).parameters) == ["config"] and loop.__name__ == "plain"


# ---------------------------------------------------------------------- the callback, and nothing else of Eroica


def alone(directory: Path, *command: str) -> Verdict:
    """The final verdict on a training that only its callback watches."""
    variables = environment(
        MLFLOW_TRACKING_URI=f"file://{directory}/mlflow",
        MLFLOW_ALLOW_FILE_STORE="true",
        TENSORBOARD_LOGGING_DIR=str(directory / "board"),
        EROICA_JOB_END_GRACE_S="3",
    )
    done = subprocess.run(
        command, env=variables, cwd=directory, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    end = time.monotonic() + 60
    while not list(directory.glob("eroica-report/*/verdict.json")):
        assert time.monotonic() < end, "no final verdict"
        time.sleep(0.5)
    (file,) = directory.glob("eroica-report/*/verdict.json")
    return Verdict.from_json(file.read_bytes())


@needs("transformers", "accelerate", "tensorboard", "mlflow")
@pytest.mark.jobs
@pytest.mark.timeout(400)
def test_a_callback_alone_watches_a_transformers_training_and_tells_its_trackers(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    verdict = alone(tmp_path, *torchrun, str(JOBS / "trackers.py"), str(tmp_path / "out"))
    assert verdict.cause is not None and verdict.cause.workers == (0,), verdict.summary
    assert "WeightsAsText" in verdict.summary
    scalars, texts = board(tmp_path / "board")
    assert scalars["train/eroica/worker"] == 0 and scalars["train/eroica/iteration_ms"] > 1
    assert texts and "WeightsAsText" in texts[-1]


@needs("lightning", "tensorboard")
@pytest.mark.jobs
@pytest.mark.timeout(400)
def test_a_callback_alone_watches_a_lightning_training_and_tells_its_logger(tmp_path: Path) -> None:
    verdict = alone(tmp_path, sys.executable, str(PROGRAMS / "pl_alone.py"), str(tmp_path / "board"))
    assert verdict.cause is not None and "WeightsAsText" in verdict.summary, verdict.summary
    scalars, texts = board(tmp_path / "board")
    assert scalars["eroica/gain"] > 0.1
    assert texts and "WeightsAsText" in texts[-1]


@pytest.fixture
def cluster() -> Iterator[str]:
    """Address of a Ray that was started without Eroica."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--num-cpus", "3"]
    command += ["--node-ip-address", "127.0.0.1", "--port", str(port), "--include-dashboard", "false"]
    process = subprocess.Popen(command, env=for_ray(), stdout=subprocess.DEVNULL)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def for_ray() -> dict[str, str]:
    """Environment of a cluster and of its clients: without tokens, which are the user's."""
    return environment(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled")


@needs("ray", "torch", "transformers")  # only where all frameworks are: a dozen processes beside other tests' jobs
@pytest.mark.jobs
@pytest.mark.timeout(400)
def test_a_loop_in_a_ray_that_runs_already_is_watched(cluster: str, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    out.mkdir()
    command = [sys.executable, str(PROGRAMS / "ray_loop.py"), str(out), cluster, str(run)]
    done = subprocess.run(command, env=for_ray(), capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in (0, 1):
        assert json.loads((out / f"{rank}.json").read_text())["eroica/iteration_ms"] > 30
    end = time.monotonic() + 60
    while not (run / "verdict.json").exists():
        assert time.monotonic() < end, "no final verdict"
        time.sleep(0.5)
    status = json.loads((run / "status.json").read_text())
    assert status["iteration"] == 600 and len(status["workers"]) == 2


# --- the prefix alone: an iteration is what each framework calls a step ---


TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")
EPOCHS, BATCHES = 4, 41


def watched_run(directory: Path, *command: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a program of a framework under the prefix: what it counted itself, and Eroica's last status."""
    variables = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "DS_ACCELERATOR": "cpu", "ITERS": "60"}
    variables |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    with WatchedJob(directory, [*command], {}, **variables) as job:
        assert job.process.wait(220) == 0, job.said
    made = json.loads(re.findall(r"\{\"job\": [^{}]*\}", job.said)[-1])
    return made, job.status()


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("launcher", "program"),
    [
        pytest.param(TORCHRUN, "hf", marks=needs("transformers", "accelerate")),
        pytest.param(TORCHRUN, "sft", marks=needs("trl", "datasets")),
        pytest.param(
            ("accelerate", "launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0"),
            "accelerated_accumulating",
            marks=needs("accelerate"),
        ),
        pytest.param(("python",), "pl", marks=needs("lightning")),
        pytest.param(TORCHRUN, "fabric_accumulating", marks=needs("lightning")),
        pytest.param(("python",), "ray_accumulating", marks=needs("ray", "transformers")),
    ],
)
def test_an_iteration_is_a_step_of_the_framework_and_not_a_batch(
    tmp_path: Path, launcher: tuple[str, ...], program: str
) -> None:
    made, status = watched_run(tmp_path, *launcher, str(PROGRAMS / f"{program}.py"))
    assert made["batches"] == EPOCHS * BATCHES
    assert made["steps"] == EPOCHS * (BATCHES + 1) // 2
    assert (status["iteration"], len(status["workers"])) == (made["steps"], 2)


@needs("deepspeed")
@pytest.mark.jobs
def test_workers_of_deepspeeds_launcher_are_found_and_their_steps_counted(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    launcher = ("deepspeed", "--num_gpus", "2", "--master_port", port)
    made, status = watched_run(tmp_path, *launcher, str(JOBS / "deepspeed_mlp.py"))
    assert (status["iteration"], len(status["workers"])) == (made["iters"], 2)
