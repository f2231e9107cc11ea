"""Other tools on the same faults: each job of `benchmarks/faults.py` that a tool can watch, and what the tool said.

    python benchmarks/rivals.py --out benchmarks/results/faults/rivals.jsonl --traceml-python PATH --hta-python PATH

Tools are started as their documentation says: TraceML around the training loop, HTA on traces of torch.profiler,
torch's Flight Recorder analyzer on the dumps of a job that is blocked, py-spy on each worker, its dumps read by the
rules of `rival_pyspy`. NVRx is only started. Runs that stand in the output file already are skipped.
How an answer is judged stands in `judge`; `benchmarks/rivals_page.py` draws the page.
"""

import argparse
import contextlib
import importlib.metadata
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from injected.expected import EXPECTED, culprit
from machine import machine_facts, revision
from rival_jobs import LAYOUT, Answer, Case, call
from rival_pyspy import watch_pyspy
from rival_records import watch_fr, watch_hta, watch_nvrx
from rival_traceml import watch_traceml

SLOW = (
    "slow-loader",
    "slow-compute",
    "slow-backward",
    "none",
    "slow-storage",
    "slow-python",
    "gc-pause",
    "blocking-checkpoint",
    "load-imbalance",
    "tiny-collectives",
)
BLOCKED = ("hang", "hang-queue", "stopped-worker")
#: Which faults each tool is tried on.
FAULTS = {"traceml": SLOW, "pyspy": (*SLOW, *BLOCKED), "hta": SLOW, "fr": BLOCKED, "nvrx": ("any",)}
WATCHED = {"traceml": watch_traceml, "pyspy": watch_pyspy, "hta": watch_hta, "fr": watch_fr, "nvrx": watch_nvrx}
#: The right part of the iteration; where two words are right, both stand there.
AREAS: dict[str, tuple[str, ...]] = {
    "slow-loader": ("input",),
    "slow-storage": ("input",),
    "slow-compute": ("compute",),
    "slow-backward": ("compute",),
    "slow-python": ("compute",),
    "gc-pause": ("compute",),
    "load-imbalance": ("compute",),
    "blocking-checkpoint": ("outside",),
    "tiny-collectives": ("communication", "outside"),
    "hang": ("communication",),
    "hang-queue": ("input",),
    "stopped-worker": ("process",),
    "none": (),
}


def main() -> int:
    options = read_options()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # the job that runs is ended on the way out
    versions = {tool: version_of(tool, options) for tool in options.tools}
    for tool in [tool for tool, version in versions.items() if not version]:
        print(f"{tool} is left out: {MISSING[tool]}")
    known = done(options.out)
    for case in all_cases([tool for tool in options.tools if versions[tool]], options.faults, options.seeds):
        if case.key in known:
            continue
        if options.until and time.strftime("%H:%M") >= options.until:
            break
        line = run_case(case, versions[case.tool], options)
        with options.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        named = ", ".join(name for name in NAMES if line[name])
        print(f"{case.key}: {line['said'][:160]} [right: {named or 'nothing'}] {line['wall_s']:.0f} s", flush=True)
    return 0


MISSING = {
    "traceml": "--traceml-python must be a Python with traceml-ai, torch and eroica",
    "hta": "--hta-python must be a Python with traceinsight (HTA)",
    "nvrx": "--nvrx-python must be a Python with nvidia-resiliency-ext",
    "pyspy": "py-spy is not installed beside this Python",
    "fr": "torch is not installed",
}
DISTRIBUTIONS = {
    "traceml": "traceml-ai",
    "hta": "traceinsight",
    "nvrx": "nvidia-resiliency-ext",
    "pyspy": "py-spy",
    "fr": "torch",
}
NAMES = ("names_worker", "names_area", "names_function")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="raw results, one JSON object a line; appended to")
    parser.add_argument("--tools", type=words, default=tuple(FAULTS), help="only these, with commas between them")
    parser.add_argument("--faults", type=words, default=(), help="only these, with commas between them")
    parser.add_argument("--seeds", type=words, default=("0",), help="numbers with commas between them")
    parser.add_argument("--until", default="", help="start no run after this time of day, as 07:30")
    parser.add_argument("--traceml-python", type=Path, help=MISSING["traceml"])
    parser.add_argument("--hta-python", type=Path, help=MISSING["hta"])
    parser.add_argument("--nvrx-python", type=Path, help=MISSING["nvrx"])
    parser.add_argument("--keep", type=Path, help="keep the directories of the runs here")
    options = parser.parse_args()
    unknown = sorted({*options.tools} - {*FAULTS}) + sorted({*options.faults} - {*SLOW, *BLOCKED, "any"})
    if unknown:
        parser.error(f"not known: {', '.join(unknown)}; tools {', '.join(FAULTS)}; faults {', '.join(FAULTS['pyspy'])}")
    return options


def words(text: str) -> tuple[str, ...]:
    """What stands between the commas."""
    return tuple(filter(None, text.split(",")))


def all_cases(tools: Sequence[str], faults: Sequence[str], seeds: Sequence[str]) -> Iterator[Case]:
    """One fault after another, each with all its tools: stopped early, the first faults have all of them."""
    known = list(dict.fromkeys(fault for tool in FAULTS for fault in FAULTS[tool]))
    for seed in seeds:
        for fault in known:
            if not faults or fault in faults:
                yield from (Case(tool, fault, int(seed)) for tool in tools if fault in FAULTS[tool])


def done(out: Path) -> set[str]:
    return {json.loads(line)["key"] for line in out.read_text().splitlines()} if out.exists() else set()


def python_of(tool: str, options: argparse.Namespace) -> Path | None:
    """Which Python has the tool."""
    asked: Path | None = getattr(options, f"{tool}_python", None)
    return asked if tool in ("traceml", "hta", "nvrx") else Path(sys.executable)


def version_of(tool: str, options: argparse.Namespace) -> str:
    """Its version; "" if it is not there."""
    python, name = python_of(tool, options), DISTRIBUTIONS[tool]
    if python is None:
        return ""
    if python == Path(sys.executable):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
        return ""
    with contextlib.suppress(OSError):
        return call([str(python), "-c", f"import importlib.metadata as all; print(all.version({name!r}))"])[0].strip()
    return ""


def run_case(case: Case, version: str, options: argparse.Namespace) -> dict[str, Any]:
    """One job from its start to its end, and what the tool said about it."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="eroica-rivals-") as name:
        directory = Path(name).resolve()
        answer = WATCHED[case.tool](case, directory, python_of(case.tool, options))
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            directory.rename(options.keep / f"{case.key.replace('/', '-')}-{time.strftime('%H%M%S')}")
            directory.mkdir()
    return {**record(case, version, answer), "wall_s": round(time.monotonic() - began, 1)}


def record(case: Case, version: str, answer: Answer) -> dict[str, Any]:
    """The line of the file."""
    expected = EXPECTED.get(case.fault)
    return {
        "kind": "rival",
        "key": case.key,
        "tool": case.tool,
        "version": version,
        "fault": case.fault,
        "layout": LAYOUT,
        "onset": "middle",
        "seed": case.seed,
        "expected": {
            "cause": expected.cause if expected else "",
            "workers": list(wanted_workers(case.fault, case.worker)),
            "scope": expected.scope if expected else "",
            "areas": list(AREAS.get(case.fault, ())),
            "function": expected.function or expected.file if expected else "",
        },
        "said": answer.said,
        "error": answer.error,
        "ran": case.tool != "nvrx" or not answer.error,
        "workers_named": list(answer.workers),
        "area_named": answer.area,
        "function_named": ":".join(answer.frame) if answer.frame else "",
        **judge(answer, case.fault, case.worker),
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine_facts(),
        "revision": revision(),
    }


def wanted_workers(fault: str, worker: int) -> tuple[int, ...]:
    """Who should be named; empty where a fault is of all workers, changes between them, or is none."""
    expected = EXPECTED.get(fault)
    return (culprit(fault, worker),) if expected is not None and expected.one_worker and expected.cause else ()


def judge(answer: Answer, fault: str, worker: int) -> dict[str, bool | None]:
    """What the answer has right; None = there is nothing of this kind to name.

    A worker is right if it is the only one named. On a fault of all workers nobody is to be singled out: naming one is
    wrong, naming none is neither right nor wrong.

    Args:
        answer: What the tool said.
        fault: A key of `EXPECTED`; another one = the tool has not run.
        worker: Global rank of the worker that was asked to have it.
    """
    expected = EXPECTED.get(fault)
    healthy = expected is None or not expected.cause
    alarms = answer.alarm if expected is not None and healthy else None
    if expected is None or healthy:
        return {"names_worker": None, "names_area": None, "names_function": None, "alarms_on_healthy": alarms}
    wanted = wanted_workers(fault, worker)
    right_worker = answer.workers == wanted if wanted else (False if len(answer.workers) == 1 else None)
    place = expected.function or expected.file
    return {
        "names_worker": right_worker,
        "names_area": answer.area in AREAS[fault],
        "names_function": (answer.frame is not None and place in answer.frame) if place else None,
        "alarms_on_healthy": alarms,
    }


if __name__ == "__main__":
    sys.exit(main())
