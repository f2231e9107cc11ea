"""TraceML on one job: started around the training loop as its documentation says, read from its final summary."""

import contextlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eroica.demo.rehearsal import running
from injected.expected import EXPECTED
from rival_jobs import START_LIMIT_S, WORKERS, Answer, Case, Changed, failed, last_line, rehearse

#: TraceML sums up so many seconds at the end of the run (its --history-retention), and the run's length.
SUMMARY_S = 30.0
RUN_S = 48.0
#: Which part of the iteration a diagnosis of TraceML is about; "STRAGGLER" alone says that the cause was not measured.
TRACEML_AREAS = {
    "INPUT_STRAGGLER": "input",
    "INPUT_BOUND": "input",
    "COMPUTE_STRAGGLER": "compute",
    "COMPUTE_BOUND": "compute",
    "H2D_STRAGGLER": "copies",
    "H2D_BOUND": "copies",
    "RESIDUAL_HEAVY": "outside",
}
_IMPORT = ("import torch\n", "import torch\nimport traceml_ai as traceml\n")
TRACEML_LOOP = {
    "loop.py": (
        (
            "            loss = self.train_step()\n            if not self.after_step(iteration + 1, loss):\n",
            "            tokens = next(self.batches)\n"
            "            with traceml.trace_step(self.module):\n"
            "                loss = self.train_step(tokens)\n"
            "                goes_on = self.after_step(iteration + 1, loss)\n"
            "            if not goes_on:\n",
        ),
        _IMPORT,
    ),
    "train.py": (
        ("    def train_step(self) -> float | None:\n", "    def train_step(self, tokens) -> float | None:\n"),
        ("self.layout.run(next(self.batches), ", "self.layout.run(tokens, "),
        _IMPORT,
        ("    options = read_options()\n", '    options = read_options()\n    traceml.init(mode="auto")\n'),
    ),
}


def watch_traceml(case: Case, directory: Path, python: Path | None) -> Answer:
    """`traceml run` until the training ends by itself, then its summary of the last seconds."""
    assert python is not None
    logs = directory / "logs"

    def launch(script: str, arguments: Sequence[str]) -> list[str]:
        how = ("--nproc-per-node", str(WORKERS), "--logs-dir", str(logs), "--run-name", "job")
        last = ("--history-retention", f"{SUMMARY_S:.0f}s")
        return [str(python.with_name("traceml")), "run", script, *how, *last, "--args", *arguments]

    job = (*EXPECTED[case.fault].job, "--seconds", f"{RUN_S:.0f}")
    rehearsal = rehearse(Changed, case, directory, job=job, changes=TRACEML_LOOP, launch=launch)
    late = contextlib.suppress(subprocess.TimeoutExpired)
    with rehearsal.log.open("wb") as log, running(rehearsal, log, watched=False) as training, late:
        training.wait(RUN_S + START_LIMIT_S)
    found = sorted(logs.rglob("final_summary.json"))
    if not found or training.returncode:
        return failed(f"the run ended early: {last_line(rehearsal.log.read_text(errors='replace'))}")
    return read_traceml(json.loads(found[0].read_text(encoding="utf-8")))


def read_traceml(summary: Mapping[str, Any]) -> Answer:
    """Its primary diagnosis; one of severity "info" is context and no alarm.

    The worker is the culprit of a rank comparison; findings about shares of the iteration name nobody.
    """
    primary = summary.get("primary_diagnosis") or {}
    kind, severity = str(primary.get("kind", "")), str(primary.get("severity", ""))
    if not kind:
        return failed("no primary diagnosis in final_summary.json")
    detail = ((summary.get("step_time") or {}).get("diagnosis") or {}).get("evidence") or {}
    blamed = detail.get("culprit_rank") if kind.endswith("STRAGGLER") else None
    text = f"{primary.get('status', kind)} ({severity}): {primary.get('summary', '')}"
    workers = () if blamed is None else (int(blamed),)
    alarm = severity in ("warn", "crit")
    return Answer(text, workers, TRACEML_AREAS.get(kind, "") if alarm else "", None, alarm)
