"""Other tools on the same faults: each job of `benchmarks/faults.py` that a tool can watch, and what the tool said.

    python benchmarks/rivals.py --out benchmarks/results/faults/rivals.jsonl --traceml-python PATH --hta-python PATH

Tools are started as their documentation says: TraceML around the training loop, HTA on traces of torch.profiler,
torch's Flight Recorder analyzer on the dumps of a job that is blocked, py-spy on each worker, its dumps read by the
rules of `read_shares` and `read_blocked`. NVRx is only started. Runs that stand in the output file already are skipped.
How an answer is judged stands in `judge`; `benchmarks/rivals_page.py` draws the page.
"""

import argparse
import contextlib
import importlib.metadata
import json
import pickle
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from eroica.faults.expected import EXPECTED, culprit
from eroica.faults.rehearsal import Rehearsal, running
from machine import machine_facts, revision

WORKERS = 4
LAYOUT = "ddp"
#: Who is asked to have a fault: another one with another seed, as in `faults.py`.
ASKED = (2, 0, 1, 3)
#: First iteration with the fault, and for how long it is watched.
ONSET = 150
PHASE_S = 30.0
#: The training prints a line every so many iterations.
LOG_EVERY = 50
#: A job that is not at the fault by then is given up.
START_LIMIT_S = 90.0
#: How long a job must have been blocked before anybody looks at it.
BLOCKED_S = 20.0
#: TraceML sums up so many seconds at the end of the run (its --history-retention), and the run's length.
SUMMARY_S = 30.0
RUN_S = 48.0
#: Dumps of py-spy of each worker, and what share of them (0-1) must stand out.
DUMPS = 20
BLOCKED_DUMPS = 3
STANDS_OUT = 0.25
#: Iterations of torch.profiler in HTA's traces: left out after the onset, warmed up, recorded.
SCHEDULE = (30, 2, 5)

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
#: Which part of the iteration the training's own code belongs to, by file and function; "" = by file alone.
OWN_AREAS = {
    ("data.py", ""): "input",
    ("reading.py", ""): "input",
    ("batching.py", ""): "input",
    ("model.py", ""): "compute",
    ("tokens.py", "_read_block"): "input",
    ("tokens.py", "_split_text"): "input",
    ("tokens.py", "__getitem__"): "input",
    ("tokens.py", "_score_tokens"): "compute",
    ("tokens.py", "scale_grad"): "compute",
    ("tokens.py", "refresh"): "compute",
    ("tokens.py", "_entry"): "compute",
    ("bookkeeping.py", "agree"): "communication",
    ("watching.py", "reduce_norms"): "communication",
    ("saving.py", ""): "outside",
    ("train.py", "save_checkpoint"): "outside",
}

TRACEML_LOOP = (
    (
        "            loss = self.train_step()\n"
        "            for callback in self.faults.callbacks:\n"
        "                callback(iteration + 1)\n",
        "            tokens = next(self.batches)\n"
        "            with traceml.trace_step(self.layout.module):\n"
        "                loss = self.train_step(tokens)\n"
        "                for callback in self.faults.callbacks:\n"
        "                    callback(iteration + 1)\n",
    ),
    ("    def train_step(self) -> float | None:\n", "    def train_step(self, tokens) -> float | None:\n"),
    ("self.layout.run(next(self.batches), ", "self.layout.run(tokens, "),
    ("import torch\n", "import torch\nimport traceml_ai as traceml\n"),
    ("    options = read_options()\n", '    options = read_options()\n    traceml.init(mode="auto")\n'),
)
PROFILED_LOOP = (
    (
        "        for iteration in range(self.options.iterations):\n",
        "        profiler = _make_profiler(self.options.directory)\n"
        "        profiler.start()\n"
        "        for iteration in range(self.options.iterations):\n"
        "            profiler.step()\n",
    ),
    (
        "def pick_device(",
        "def _make_profiler(directory):\n"
        "    from torch import profiler\n\n"
        "    return profiler.profile(\n"
        "        activities=[profiler.ProfilerActivity.CPU],\n"
        "        schedule=profiler.schedule(wait={wait}, warmup={warmup}, active={active}, repeat=1),\n"
        "        on_trace_ready=profiler.tensorboard_trace_handler(\n"
        '            str(directory / "traces"), worker_name=f"rank{{dist.get_rank()}}"\n'
        "        ),\n"
        "    )\n\n\n"
        "def pick_device(",
    ),
)
DUMPING_MAIN = (
    (
        '    dist.init_process_group("gloo")\n',
        '    dist.init_process_group("gloo")\n    _dump_when_asked(options.directory)\n',
    ),
    (
        "def pick_device(",
        "def _dump_when_asked(directory):\n"
        "    import threading\n"
        "    from torch._C._distributed_c10d import _dump_fr_trace\n\n"
        "    def wait():\n"
        '        while not (directory / "dumps").exists():\n'
        "            time.sleep(0.5)\n"
        '        (directory / "dumps" / f"rank_{dist.get_rank()}").write_bytes(_dump_fr_trace())\n\n'
        "    threading.Thread(target=wait, daemon=True).start()\n\n\n"
        "def pick_device(",
    ),
)
HTA_CALL = (
    "import json, sys; from hta.trace_analysis import TraceAnalysis; "
    "found = TraceAnalysis(trace_dir=sys.argv[1]).get_potential_stragglers(num_candidates=1); "
    "print(json.dumps([int(rank) for rank in found]))"
)
NVRX_CALL = (
    "from nvidia_resiliency_ext import straggler; "
    "straggler.Detector.initialize(scores_to_compute='all', gather_on_rank0=True)"
)
Frame = tuple[str, str]


class Answer(NamedTuple):
    """What a tool said, in one form for all.

    Attributes:
        said: In its own words, short.
        workers: Global ranks that it names.
        area: The part of the iteration that it names.
        frame: File and function that it names, of the training's own code.
        alarm: It says that something is wrong.
        error: It could not read what it was given: why, in its words.
    """

    said: str
    workers: tuple[int, ...] = ()
    area: str = ""
    frame: Frame | None = None
    alarm: bool = False
    error: str = ""


class Case(NamedTuple):
    """One run."""

    tool: str
    fault: str
    seed: int

    @property
    def key(self) -> str:
        """Its name in the file."""
        return f"{self.tool}/{self.fault}/{LAYOUT}/middle/{self.seed}"

    @property
    def worker(self) -> int:
        """Who is asked to have the fault."""
        return ASKED[self.seed % len(ASKED)]


@dataclass(frozen=True)
class Changed(Rehearsal):
    """The same job, its training script written as a tool's documentation asks for.

    Attributes:
        changes: Pieces of the training's main file and what stands there instead.
        launch: Makes the command that starts it from the script and its arguments; None = torchrun, as ever.
    """

    changes: tuple[tuple[str, str], ...] = ()
    launch: Callable[[str, Sequence[str]], list[str]] | None = field(default=None)

    def training(self) -> list[str]:
        """See `Rehearsal.training`."""
        command = super().training()
        code = self.directory / "code"
        main = code / "tinylm" / "train.py"
        main.write_text(replaced(main.read_text(encoding="utf-8"), self.changes), encoding="utf-8")
        at = command.index(str(code / "train.py"))
        return command if self.launch is None else self.launch(command[at], command[at + 1 :])


def replaced(text: str, changes: Sequence[tuple[str, str]]) -> str:
    """The text with each piece replaced, which must be there exactly once."""
    for old, new in changes:
        if text.count(old) != 1:
            raise SystemExit(f"the training no longer contains this exactly once, so it cannot be changed: {old!r}")
        text = text.replace(old, new)
    return text


def profiled(wait: int, warmup: int, active: int) -> tuple[tuple[str, str], ...]:
    """Changes that put torch.profiler into the loop."""
    loop, maker = PROFILED_LOOP
    return loop, (maker[0], maker[1].format(wait=wait, warmup=warmup, active=active))


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


# TraceML


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


# py-spy, and a person who reads its dumps


def watch_pyspy(case: Case, directory: Path, _: Path | None) -> Answer:
    """`py-spy dump` of every worker, over and over."""
    rehearsal = rehearse(Rehearsal, case, directory)
    blocked = EXPECTED[case.fault].blocked
    with rehearsal.log.open("wb") as log, running(rehearsal, log, watched=False) as job:
        if not reached(rehearsal.log, ONSET, job):
            return failed(f"the job did not get to the fault: {last_line(rehearsal.log.read_text(errors='replace'))}")
        time.sleep(BLOCKED_S if blocked else 2.0)
        count = BLOCKED_DUMPS if blocked else DUMPS
        seen = dump_often(worker_pids(job.pid), directory / "code", count)
    return read_blocked(seen) if blocked else read_shares(seen)


def dump_often(pids: Mapping[int, int], code: Path, count: int) -> dict[int, list[Frame | None]]:
    """Innermost own frame of each worker's main thread in each dump, by global rank."""
    seen: dict[int, list[Frame | None]] = {worker: [] for worker in pids}
    for _ in range(count):
        due = time.monotonic() + PHASE_S / DUMPS
        for worker, pid in pids.items():
            out, _errors = call([str(Path(sys.executable).with_name("py-spy")), *PYSPY, str(pid)])
            with contextlib.suppress(json.JSONDecodeError):
                seen[worker].append(own_frame(json.loads(out), code))
        time.sleep(max(0.0, due - time.monotonic()))
    return seen


PYSPY = ("dump", "--nonblocking", "--json", "--full-filenames", "--pid")


def own_frame(threads: Sequence[Mapping[str, Any]], code: Path) -> Frame | None:
    """The innermost frame of the main thread that lies in the user's code; None if there is none."""
    main = next((thread for thread in threads if thread.get("thread_name") == "MainThread"), None)
    for frame in (main or {}).get("frames", ()):
        path = Path(str(frame.get("filename", "")))
        if path.is_relative_to(code):
            return path.name, str(frame["name"]).rpartition(".")[2]
    return None


def read_shares(seen: Mapping[int, Sequence[Frame | None]]) -> Answer:
    """Who is in one frame in more of his dumps than the others are in theirs (median), by 25 points or more.

    If nobody is, the frame that all are in most often is what a reader would report, and no alarm.
    """
    shares = {worker: {frame: n / len(all_) for frame, n in Counter(all_).items()} for worker, all_ in seen.items()}
    frames = sorted({frame for one in shares.values() for frame in one if frame is not None})
    if not frames:
        return failed("no dump shows a frame of the training's own code")
    ahead = {
        (worker, frame): mine.get(frame, 0.0) - _usual(frame, [one for w, one in shares.items() if w != worker])
        for worker, mine in shares.items()
        for frame in frames
    }
    (worker, frame), gap = max(ahead.items(), key=lambda pair: pair[1])
    if gap >= STANDS_OUT:
        mine = shares[worker][frame]
        text = f"worker {worker} is in {':'.join(frame)} in {mine:.0%} of its dumps, others in {mine - gap:.0%}"
        return Answer(text, (worker,), own_area(frame), frame, True)
    common = max(frames, key=lambda frame: _usual(frame, [*shares.values()]))
    often = _usual(common, [*shares.values()])
    text = f"nobody stands out; all are most often in {':'.join(common)} ({often:.0%})"
    return Answer(text, (), own_area(common), common)


def _usual(frame: Frame, shares: Sequence[Mapping[Frame | None, float]]) -> float:
    """Median share of the dumps in this frame."""
    return statistics.median(share.get(frame, 0.0) for share in shares) if shares else 0.0


def read_blocked(seen: Mapping[int, Sequence[Frame | None]]) -> Answer:
    """Whose main thread is in another frame than that of the majority."""
    now = {worker: Counter(frames).most_common(1)[0][0] for worker, frames in seen.items() if frames}
    if not now:
        return failed("no dump could be made")
    usual, count = Counter(now.values()).most_common(1)[0]
    odd = [worker for worker, frame in now.items() if frame != usual]
    if not odd or count <= len(now) / 2:
        places = ", ".join(sorted({spelled(frame) for frame in now.values()}))
        return Answer(f"no worker is elsewhere than the majority: {places}", alarm=True)
    places = "; ".join(f"worker {worker} is in {spelled(now[worker])}" for worker in odd)
    mine = now[odd[0]]
    area = own_area(mine) or own_area(usual)
    return Answer(f"{places}, the others in {spelled(usual)}", tuple(odd), area, mine, True)


def spelled(frame: Frame | None) -> str:
    return ":".join(frame) if frame else "no code of its own"


def own_area(frame: Frame | None) -> str:
    """The part of the iteration that a frame of the training belongs to; "" where it can be any."""
    if frame is None:
        return ""
    return OWN_AREAS.get(frame) or OWN_AREAS.get((frame[0], ""), "")


# HTA


def watch_hta(case: Case, directory: Path, python: Path | None) -> Answer:
    """Traces of torch.profiler of each worker, five iterations of the faulty phase, then HTA's straggler analysis."""
    assert python is not None
    wait, warmup, active = SCHEDULE
    rehearsal = rehearse(Changed, case, directory, changes=profiled(ONSET + wait, warmup, active))
    traces = directory / "traces"
    with rehearsal.log.open("wb") as log, running(rehearsal, log, watched=False) as job:
        if not reached(rehearsal.log, ONSET, job):
            return failed(f"the job did not get to the fault: {last_line(rehearsal.log.read_text(errors='replace'))}")
        wait_for(lambda: len(list(traces.glob("*.json"))) >= WORKERS, PHASE_S * 2)
        time.sleep(2.0)
    return read_hta(*call([str(python), "-c", HTA_CALL, str(traces)]))


def read_hta(out: str, errors: str) -> Answer:
    """The ranks that it returns, of as many as it was asked for."""
    found = re.findall(r"^\[[\d, ]*\]$", out, flags=re.MULTILINE)
    if not found:
        return failed(last_line(errors) or last_line(out))
    workers = tuple(json.loads(found[-1]))
    return Answer(f"potential straggler: {', '.join(map(str, workers)) or 'nobody'}", workers, alarm=bool(workers))


# torch's Flight Recorder analyzer


def watch_fr(case: Case, directory: Path, _: Path | None) -> Answer:
    """Dumps from inside the workers of a job that is blocked, then `torchfrtrace`.

    Dumps of gloo do not name their process groups, which the analyzer needs: where it fails on them as they are, it
    gets them once more with the groups' names filled in from the entries, and both is written down.
    """
    rehearsal = rehearse(Changed, case, directory, changes=DUMPING_MAIN)
    dumps = directory / "dumps"
    with rehearsal.log.open("wb") as log, running(rehearsal, log, watched=False) as job:
        if not reached(rehearsal.log, ONSET, job):
            return failed(f"the job did not get to the fault: {last_line(rehearsal.log.read_text(errors='replace'))}")
        time.sleep(BLOCKED_S)
        dumps.mkdir()
        wait_for(lambda: len(list(dumps.iterdir())) >= WORKERS, 10.0)
        time.sleep(1.0)
    analyzer = str(Path(sys.executable).with_name("torchfrtrace"))
    answer = read_fr(*call([analyzer, str(dumps)]))
    if answer.error and not answer.workers:
        name_groups(dumps)
        more = () if len(list(dumps.iterdir())) == WORKERS else ("--allow-incomplete-ranks",)
        again = read_fr(*call([analyzer, str(dumps), *more]))
        text = f"{answer.error}; with the groups named by hand: {again.said}"
        answer = again._replace(said=text, error=answer.error)
    return answer


def name_groups(dumps: Path) -> None:
    """Give each dump the process groups that its entries speak of, all of all workers."""
    for path in dumps.iterdir():
        dump = pickle.loads(path.read_bytes())  # noqa: S301  # written by the job above
        groups = {tuple(entry["process_group"]) for entry in dump["entries"]}
        everybody = str(list(range(WORKERS)))
        dump["pg_config"] = {name: {"name": name, "desc": desc, "ranks": everybody} for name, desc in sorted(groups)}
        path.write_bytes(pickle.dumps(dump))


def read_fr(out: str, errors: str) -> Answer:
    """Ranks of its first report: missing from a collective, culprit of a mismatch, or without a dump."""
    text = f"{out}\n{errors}"
    gone = re.search(r"Missing dump files from ranks \{([\d, ]+)\}", text)
    if gone:
        return Answer(gone[0], numbers(gone[1]), "process", None, True, gone[0])
    blamed = re.search(r"missing ranks: \{([\d, ]+)\}", text) or re.search(r"Culprit rank (\d+)", text)
    if blamed:
        what = re.findall(r"collective: (\S+)", text[: blamed.start()])
        about = f" ({what[-1]})" if what else ""
        return Answer(f"{blamed[0]}{about}", numbers(blamed[1]), "communication", None, True)
    if "Traceback" in text:
        return failed(last_line(errors))
    return Answer(last_line(text) or "nothing")


def numbers(text: str) -> tuple[int, ...]:
    return tuple(sorted(map(int, re.findall(r"\d+", text))))


# NVRx


def watch_nvrx(_case: Case, _directory: Path, python: Path | None) -> Answer:
    """Its detector is started, no more: it needs CUPTI and a GPU."""
    out, errors = call([str(python), "-c", NVRX_CALL])
    if errors and "Error" in errors:
        return failed(last_line(errors))
    return Answer(last_line(out) or "the detector starts")


WATCHED = {"traceml": watch_traceml, "pyspy": watch_pyspy, "hta": watch_hta, "fr": watch_fr, "nvrx": watch_nvrx}


def rehearse(kind: type[Rehearsal], case: Case, directory: Path, **more: Any) -> Rehearsal:
    """The job of a case."""
    return kind(
        case.fault, case.worker, WORKERS, directory, layout=LAYOUT, from_iteration=ONSET, seed=case.seed, **more
    )


def failed(why: str) -> Answer:
    """It could not read what it was given."""
    return Answer(why, error=why)


def reached(log: Path, iteration: int, job: subprocess.Popen[bytes]) -> bool:
    """Wait until the training has printed that it is at this iteration; whether it did."""
    wanted = iteration - iteration % LOG_EVERY
    wait_for(lambda: printed(log) >= wanted or job.poll() is not None, START_LIMIT_S)
    return printed(log) >= wanted


def printed(log: Path) -> int:
    """The last iteration that the training printed."""
    found = re.findall(r"^iteration +(\d+)  loss", log.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    return int(found[-1]) if found else 0


def wait_for(condition: Callable[[], bool], limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while time.monotonic() < until and not condition():
        time.sleep(0.25)


def worker_pids(launcher: int) -> dict[int, int]:
    """Process of each worker by its global rank: the children of the launcher that have one."""
    found: dict[int, int] = {}
    for process in psutil.Process(launcher).children():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            rank = process.environ().get("RANK")
            if rank is not None:
                found[int(rank)] = process.pid
    return dict(sorted(found.items()))


def call(command: Sequence[str]) -> tuple[str, str]:
    """What a command wrote to its output and its errors."""
    done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=120, errors="replace")
    return done.stdout, done.stderr


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


if __name__ == "__main__":
    sys.exit(main())
