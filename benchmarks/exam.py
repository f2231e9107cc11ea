"""Jobs that nobody here wrote the rules for: each once, at default settings, as a user starts it; the verdict judged.

    python benchmarks/exam.py ../shared/cases/reports --out exam.jsonl [--jobs csv_history,replay_copy] [--seeds 0,1]

The folder holds `truth.json` (a list: job, nproc, command, fault_kind, workers, function_contains, cause_contains,
verdict, onset) and `jobs/`. A job reads ITERS and ONSET from its environment and prints, last, one line of JSON with
the mean iteration before and after its fault. `--corpus` puts its windows into the corpus, as an exam.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from corpus_entry import Truth, as_record, is_among_best, marks, write_entry
from corpus_keep import kept_run
from eroica.errors import EroicaError
from eroica.model.verdict import Verdict
from machine import machine_facts, revision

Job = dict[str, Any]
#: Seconds after which a job is ended that has not ended by itself.
LONGEST_S = 600.0
#: First iteration with the fault where neither the job nor the caller says.
ONSET = 150


def command_of(folder: Path, job: Job, python: Path) -> list[str]:
    """How a user starts it, with the programs of one environment."""
    name = job["job"]
    script = folder / "jobs" / f"{name}.py"
    said = job.get("command", f"torchrun --nproc-per-node {job.get('nproc', 1)} {script}")
    words = [str(folder / word) if word.startswith("jobs/") else word for word in shlex.split(said)]
    beside = python.parent / words[0]
    return [str(beside) if beside.exists() else words[0], *words[1:]]


def name_of(folder: Path) -> str:
    """A folder of jobs as records call it: beneath `benchmarks`, else its own name."""
    here = Path(__file__).resolve().parent
    return str(folder.relative_to(here)) if folder.is_relative_to(here) else folder.name


def truth_of(job: Job) -> Truth:
    """Its truth as the corpus states it."""
    if job["verdict"] == "healthy":
        return Truth(verdict="healthy")
    workers = job["workers"]
    named = () if isinstance(workers, str) else tuple(workers)
    scope = {"all": "all", "rotating": "rotating"}.get(workers, "any") if isinstance(workers, str) else "some"
    if job.get("workers_also"):
        scope, named = "any", ()
    words = (*job.get("function_contains", ()), *job.get("cause_contains", ()))
    return Truth(verdict=job["verdict"], words=words, scope=scope, workers=named, hosts=tuple(job.get("hosts", ())))  # type: ignore[arg-type]


#: Words in a job's code that say how it is spread, first match first.
_LAYOUTS = (
    ("fully_shard", "fsdp2"),
    ("FullyShardedDataParallel", "fsdp"),
    ("deepspeed.initialize", "deepspeed zero"),
    ("DistributedDataParallel", "ddp"),
    ("Trainer(", "ddp"),
    ("Accelerator(", "ddp"),
    ("Fabric(", "ddp"),
)


def layout_of(folder: Path, job: Job) -> str:
    """How a job is spread, as the corpus calls it: as its truth states, else by what its code uses."""
    if job.get("layout") or job.get("nproc") == 1:
        return str(job.get("layout") or "single process")
    words = command_of(folder, job, Path(sys.executable))
    script = next((Path(word) for word in words if word.endswith(".py")), None)
    text = script.read_text() if script is not None and script.exists() else ""
    return next((layout for word, layout in _LAYOUTS if word in text), "own collectives" if text else "unknown")


def onset_of(job: Job, environment: Mapping[str, str]) -> int | None:
    """First iteration with the fault, None for a healthy job."""
    if job["verdict"] == "healthy":
        return None
    if job.get("onset") == 0:
        return 0
    return int(environment.get("ONSET", job.get("onset") or ONSET))


def run(folder: Path, job: Job, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One job under `eroica run`; what was said about it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "SEED": str(seed), "PYTHONHASHSEED": str(seed)}
    for name, value in (("ITERS", options.iterations), ("ONSET", options.onset)):
        if value:
            environment[name] = str(value)
    if job.get("onset") == 0:
        environment.pop("ONSET", None)
    with tempfile.TemporaryDirectory(prefix="eroica-exam-") as name:
        place = Path(name).resolve()
        command = [
            *(str(options.python), "-m", "eroica", "run", "--out", str(place / "run")),
            *("--json", str(place / "verdict.json"), "--", *command_of(folder, job, options.python)),
        ]
        began = time.monotonic()
        with (place / "log").open("wb") as log:
            done = subprocess.Popen(command, env=environment, cwd=place, stdout=log, stderr=subprocess.STDOUT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                done.wait(options.longest)
            if done.poll() is None:
                done.terminate()
                done.wait()
        line = {
            "folder": name_of(folder), "job": job["job"], "seed": seed, "fault": job["fault_kind"],
            "truth": job["verdict"], "wall_s": round(time.monotonic() - began, 1), "status": done.returncode,
            **judged(place / "verdict.json", truth_of(job)), **printed(place / "log"),
            "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "revision": revision(),
            "machine": machine_facts(), "load": os.getloadavg()[0],
        }  # fmt: skip
        line |= delays(place / "run", onset_of(job, environment))
        if options.corpus:
            keep(folder, job, seed, place / "run", onset_of(job, environment))
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            place.rename(options.keep / f"{job['job']}-{seed}-{time.strftime('%H%M%S')}")
            place.mkdir()
    return line


def keep(folder: Path, job: Job, seed: int, run_directory: Path, onset: int | None) -> None:
    """Put the windows of a run into the corpus, as an exam; nothing where it holds none."""
    known = str(name_of(folder))
    with contextlib.suppress(EroicaError, OSError):
        entry = kept_run(
            run_directory,
            name=f"{folder.name}-{job['job']}-{seed}",
            origin=job.get("source") or (f"benchmarks/{known}" if known != folder.name else known),
            fault=job["fault_kind"],
            layout=layout_of(folder, job),
            launch=job.get("launch", "torchrun"),
            truth=truth_of(job),
            onset=onset,
            use="exam",
        )
        write_entry(entry)


def judged(path: Path, truth: Truth) -> dict[str, Any]:
    """The final verdict and its marks."""
    try:
        verdict = Verdict.from_json(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return {"verdict": "none", "right": False}
    found, mark = verdict.cause, as_record(marks(verdict, truth))
    line: dict[str, Any] = {"verdict": verdict.verdict, "summary": verdict.summary, "marks": mark}
    line["right"] = mark["right"]
    line["is_among_best"] = is_among_best(verdict, truth)
    line["considered"] = [[one.cause, one.function, list(one.workers)] for one in verdict.considered[:3]]
    if found is not None:
        line |= {"cause": found.cause, "workers": list(found.workers), "scope": found.scope, "gain": found.gain}
        line |= {"function": found.function.name, "confidence": found.confidence, "evidence": list(found.evidence[:5])}
    line["notes"] = list(verdict.coverage.notes[:6])
    return line


def printed(log: Path) -> dict[str, Any]:
    """What the job itself measured of its pace."""
    for text in reversed(log.read_text(errors="replace").splitlines()):
        start = text.find('{"job"')
        if start >= 0:
            with contextlib.suppress(ValueError):
                own = json.loads(text[start:])
                return {"before_ms": own.get("mean_ms_before"), "after_ms": own.get("mean_ms_after")}
    return {}


def delays(run_directory: Path, onset: int | None) -> dict[str, Any]:
    """Seconds from the fault's first iteration to the trigger and to the first verdict after it, from the history."""
    try:
        history = json.loads((run_directory / "history.json").read_bytes())
    except (OSError, ValueError):
        return {}
    events = [(one["kind"], round(one["at_s"], 1), one["iteration"]) for one in history["marks"]]
    if not onset:
        return {"events": events}
    reached = next(
        (at for at, number in zip(history["at_s"], history["iteration"], strict=True) if number >= onset), None
    )
    found: dict[str, Any] = {"events": events, "onset_s": reached}
    if reached is not None:
        for kind in ("trigger", "verdict"):
            at = next((at for what, at, number in events if what == kind and number >= onset), None)
            found[f"onset_to_{kind}_s"] = None if at is None else round(at - reached, 1)
    return found


def jobs_of(folder: Path, only: str) -> Iterator[Job]:
    """Jobs of a folder, those with these names or all.

    Raises:
        SystemExit: A name is not there.
    """
    known: list[Job] = json.loads((folder / "truth.json").read_text())
    wanted = list(filter(None, only.split(",")))
    unknown = set(wanted) - {job["job"] for job in known}
    if unknown:
        raise SystemExit(f"{folder} has no job {', '.join(sorted(unknown))}")
    return (job for job in known if not wanted or job["job"] in wanted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="one JSON object a run; appended to")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="of the environment with the jobs'")
    parser.add_argument("--jobs", default="", help="only these, with commas between them")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--iterations", type=int, help="ITERS of the jobs; default: their own")
    parser.add_argument("--onset", type=int, help="ONSET of the jobs; default: their own")
    parser.add_argument("--longest", type=float, default=LONGEST_S, help="seconds, then a job is ended as by a user")
    parser.add_argument("--keep", type=Path, help="keep run directories here")
    parser.add_argument("--corpus", action="store_true", help="put the windows into the corpus")
    options = parser.parse_args()
    folder = options.folder.resolve()
    lines = []
    for seed in map(int, options.seeds.split(",")):
        for job in jobs_of(folder, options.jobs):
            line = run(folder, job, seed, options)
            lines.append(line)
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            word = "right" if line["right"] else "WRONG"
            times = (
                f"{line.get('onset_to_trigger_s')} s to the trigger, {line.get('onset_to_verdict_s')} s to a verdict"
            )
            print(f"{line['job']}/{seed}: {word}, {times}: {line.get('summary', line['verdict'])}", flush=True)
    print(f"{sum(line['right'] for line in lines)} of {len(lines)} right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
