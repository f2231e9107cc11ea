"""Frameworks under `eroica run` at default settings: is the job watched, are its steps counted, is its fault named.

`python benchmarks/tools.py --python FW/bin/python [--only NAME ...] [--cases DIR] [--keep DIR] [--page]`.

`FW` is an environment with the frameworks and Eroica (`make test-tools` makes one). Each job runs healthy without and
with Eroica, then once with each of its faults; a run's first answer counts. Results are added to
benchmarks/results/tools.json run by run; `--page` only draws the table in docs/tools.md from it. Ends with 1 if a run
was judged wrong. Jobs: those in
benchmarks/jobs/frameworks, and where `--cases` has them (default ../shared/cases/frameworks) those there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from machine import machine_facts, revision

HERE = Path(__file__).resolve().parent
OWN_JOBS = HERE / "jobs" / "frameworks"
RESULTS = HERE / "results" / "tools.json"
PAGE = HERE.parent / "docs" / "tools.md"
BEGIN, END = "<!-- table: benchmarks/tools.py --page -->", "<!-- end of table -->"
TORCHRUN = "torchrun --standalone --nproc-per-node 2"
ACCELERATE = "accelerate launch --multi_gpu --num_processes 2"
#: Steps of 20 to 60 ms: some twenty seconds healthy, and at least a minute with the fault.
PACED = {"ITERS": "2400", "ONSET": "600"}
#: The same for one whose steps are five times as long.
LONG_STEPS = {"ITERS": "900", "ONSET": "300"}
#: A run is ended after so long; a hang of the cases ends by itself after a minute.
PATIENCE_S = 420.0


@dataclass(frozen=True)
class Job:
    """One framework's job.

    Attributes:
        framework: As the table names it.
        script: File name without ".py".
        launch: What stands before it.
        packages: Whose versions are told.
        faults: Variant -> workers and one of the texts that the verdict must name; None = all workers.
        variables: More environment.
        shared: It is one of the cases, with its own truth.
    """

    framework: str
    script: str
    launch: str
    packages: tuple[str, ...]
    faults: dict[str, tuple[tuple[int, ...] | None, str]] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    shared: bool = False


JOBS = (
    Job("Hugging Face Trainer", "hf_trainer", TORCHRUN, ("transformers",), shared=True),
    Job("Accelerate", "accelerate_llama", ACCELERATE, ("accelerate",), shared=True),
    Job("TRL", "trl_sft", TORCHRUN, ("trl",), shared=True),
    Job("Lightning", "lightning_cnn", "python", ("lightning",), shared=True),
    Job("Ray Train", "ray_mlp", "python", ("ray",), shared=True),
    Job("Lightning Fabric", "fabric_mlp", TORCHRUN, ("lightning",), {"a": ((1,), "draw_pixels")}, PACED),
    Job("PyG", "pyg_gcn", TORCHRUN, ("torch_geometric",), {"a": (None, "share_of_mutual_edges")}, PACED),
    Job(
        "DeepSpeed", "deepspeed_mlp", TORCHRUN, ("deepspeed",), {"a": ((0,), "rewrite_history")},
        {"DS_ACCELERATOR": "cpu", **PACED},
    ),
    Job("torch.compile", "compiled_mlp", TORCHRUN, ("torch",), {"a": ((1,), "compare_with_table")}, PACED),
    Job("torchtitan-like loop", "titan_like", TORCHRUN, ("torch",), {"a": (None, "tokenize_document")}, LONG_STEPS),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--only", nargs="*", default=[], help="scripts, or script:variant")
    parser.add_argument("--cases", type=Path, default=HERE.parents[1] / "shared" / "cases" / "frameworks")
    parser.add_argument("--keep", type=Path, help="run directories go here instead of away")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    right = True
    for job in JOBS if not options.page else ():
        right &= measure(job, options)
    write_page(json.loads(RESULTS.read_text()))
    return 0 if right else 1


def measure(job: Job, options: argparse.Namespace) -> bool:
    """Run a job's variants that were asked for, and add each to the results; whether all of them were right."""
    directory = options.cases / "jobs" if job.shared else OWN_JOBS
    if not (directory / f"{job.script}.py").exists():
        print(f"{job.script}: not here, left out")
        return True
    right = True
    for variant, watched in (
        ("healthy", False),
        ("healthy", True),
        *((fault, True) for fault in faults_of(job, options)),
    ):
        wanted = {job.script, f"{job.script}:{variant}", f"{job.script}:{variant}:{'watched' if watched else 'bare'}"}
        if options.only and not wanted & set(options.only):
            continue
        print(f"{job.script} {variant} {'watched' if watched else 'bare'} ...", flush=True)
        record = run(job, variant, watched, directory, options)
        print(f"  {json.dumps({key: record[key] for key in record if key not in ('machine', 'versions')})}", flush=True)
        add(record)
        right &= record.get("right", True)
    return right


def faults_of(job: Job, options: argparse.Namespace) -> list[str]:
    if not job.shared:
        return sorted(job.faults)
    truth = json.loads((options.cases / "truth.json").read_text())
    names = [entry["job"].removeprefix(f"{job.script}_") for entry in truth if entry["job"].startswith(job.script)]
    return [name for name in names if name != "healthy"]


def run(job: Job, variant: str, watched: bool, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One run of a job; what was found."""
    binaries = options.python.parent
    command = [str(binaries / job.launch.split()[0]), *job.launch.split()[1:], str(directory / f"{job.script}.py")]
    command += ["--variant", variant]
    place = options.keep or Path(tempfile.mkdtemp(prefix="eroica-tools-"))
    report = place / f"{job.script}-{variant}"
    verdict_file = place / f"{job.script}-{variant}.json"
    if watched:
        command = [str(binaries / "eroica"), "run", "--out", str(report), "--json", str(verdict_file), "--", *command]
    with tempfile.TemporaryDirectory(prefix="eroica-tools-scratch-") as scratch:
        began = time.monotonic()
        out = _output(
            command, {**job.variables, "SCRATCH": scratch, "PATH": f"{binaries}:{os.environ['PATH']}"}, scratch
        )
    told = [json.loads(line) for line in out.splitlines() if line.startswith('{"job"')]
    told += [json.loads(found) for found in re.findall(r"\{\"job\": [^{}]*\}", out)] if not told else []
    record: dict[str, Any] = {
        "framework": job.framework,
        "script": job.script,
        "variant": variant,
        "watched": watched,
        "versions": versions(job, options.python),
        "wall_s": round(time.monotonic() - began, 1),
        "revision": revision(),
        "machine": machine_facts(),
        "load": round(os.getloadavg()[0], 1),
        **({name: told[-1].get(name) for name in ("iters", "mean_ms_before", "mean_ms_after")} if told else {}),
    }
    return record | (judge(job, variant, report, verdict_file, options) if watched else {})


def _output(command: list[str], variables: dict[str, str], directory: str) -> str:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("EROICA_")}
    environment = {**plain, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **variables}
    process = subprocess.Popen(
        command, env=environment, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        return process.communicate(timeout=PATIENCE_S)[0]
    except subprocess.TimeoutExpired:
        process.terminate()
        return process.communicate(timeout=60)[0]
    finally:
        if process.poll() is None:  # we are told to end: not without what we started
            process.terminate()
            process.communicate(timeout=60)


def judge(job: Job, variant: str, report: Path, verdict_file: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What Eroica counted and said, and whether that is right."""
    try:
        status = json.loads((report / "status.json").read_text())
        verdict = json.loads(verdict_file.read_text())
    except (OSError, ValueError) as error:
        return {"right": False, "said": f"no verdict: {error}"}
    cause = next((one for one in verdict["findings"] if one["role"] == "cause"), None)
    return {
        "counted": status["iteration"],
        "workers_seen": len(status["workers"]),
        "right": is_right(job, variant, verdict, cause, verdict_file, options),
        "said": verdict["summary"],
        "verdict": verdict["verdict"],
        "cause": cause and cause["cause"],
        "function": cause and cause["function"]["name"],
        "workers": cause and cause["workers"],
        "windows": len([one for one in status["windows"] if one["purpose"] != "baseline"]),
        "stall_s": verdict["cost"]["window_stall_s"],
    }


def is_right(
    job: Job,
    variant: str,
    verdict: dict[str, Any],
    cause: dict[str, Any] | None,
    file: Path,
    options: argparse.Namespace,
) -> bool:
    if job.shared:
        scoring = [sys.executable, str(options.cases / "score.py"), str(file), f"{job.script}_{variant}"]
        return subprocess.run(scoring, check=False, capture_output=True).returncode == 0
    if variant == "healthy":
        return verdict["verdict"] == "healthy" and cause is None
    workers, text = job.faults[variant]
    if cause is None or verdict["verdict"] != "slow":
        return False
    return text in cause["function"]["name"].split(".") and (
        cause["scope"] == "all" if workers is None else tuple(cause["workers"]) == workers
    )


def versions(job: Job, python: Path) -> dict[str, str]:
    """Package -> version in the frameworks' environment, PyTorch's always."""
    names = sorted({*job.packages, "torch"})
    code = "import sys; from importlib.metadata import version; print(*[version(name) for name in sys.argv[1:]])"
    asked = subprocess.run([python, "-c", code, *names], capture_output=True, text=True, check=True)
    return dict(zip(names, asked.stdout.split(), strict=True))


def add(record: dict[str, Any]) -> None:
    """Replace the result of the same run; what was said at earlier revisions stays with it."""
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    same = ("script", "variant", "watched")
    kept = [one for one in found if any(one[key] != record[key] for key in same)]
    for one in found:
        if one not in kept:
            told = {key: one.get(key) for key in ("revision", "load", "right", "said")}
            record["earlier"] = [*one.get("earlier", []), *([told] if one["watched"] else [])]
    order = {job.script: number for number, job in enumerate(JOBS)}
    kept = sorted([*kept, record], key=lambda one: (order[one["script"]], one["watched"], one["variant"] != "healthy"))
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


# ---------------------------------------------------------------------- the table


def write_page(records: list[dict[str, Any]]) -> None:
    """Put the table into docs/tools.md."""
    text = PAGE.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{chr(10).join(table(records))}\n{END}{after}")


def table(records: list[dict[str, Any]]) -> Iterator[str]:
    """A row for each framework; what was not run is empty."""
    heads = (
        "framework",
        "watched by the prefix alone",
        "steps: counted of made",
        "healthy: no cause",
        "fault named, and the function",
        "ms a step: without, with",
        "versions",
    )
    yield f"| {' | '.join(heads)} |"
    yield "|---|---|---|---|---|---|---|"
    for job in JOBS:
        rows = [one for one in records if one["script"] == job.script]
        if not rows:
            continue
        watched = [one for one in rows if one["watched"]]
        healthy = next((one for one in watched if one["variant"] == "healthy"), None)
        faults = [one for one in watched if one["variant"] != "healthy"]
        seen = [one for one in watched if one.get("workers_seen")]
        named = ", ".join(f"{one['variant']} {_named(one)}" for one in sorted(faults, key=lambda one: one["variant"]))
        cells = (
            f"{job.framework} (`{job.script}`)",
            "" if not watched else "yes" if len(seen) == len(watched) else f"{len(seen)} of {len(watched)} runs",
            "" if healthy is None else f"{healthy.get('counted', '–')} of {healthy.get('iters', '–')}",
            "" if healthy is None else "yes" if healthy["right"] else f"no: {healthy.get('verdict', 'none')}",
            named,
            _cost(rows, healthy),
            ", ".join(f"{name} {version}" for name, version in rows[-1]["versions"].items()),
        )
        yield f"| {' | '.join(cells)} |"


def _named(record: dict[str, Any]) -> str:
    return f"{'yes' if record['right'] else 'no'}: `{record['function']}`" if record.get("function") else "no"


def _cost(rows: list[dict[str, Any]], healthy: dict[str, Any] | None) -> str:
    bare = next((one for one in rows if not one["watched"]), None)
    if bare is None or healthy is None:
        return ""
    return f"{bare.get('mean_ms_after', '–')}, {healthy.get('mean_ms_after', '–')}"


if __name__ == "__main__":
    sys.exit(main())
