"""Blind test: in each run one rank gets slow on the way; which, how and by how much is drawn and kept from the tool.

    python benchmarks/hidden_rank.py --runs 50 --out hidden_rank.jsonl [--seed 0] [--lanes 4] [--stop-at 560]
    python benchmarks/hidden_rank.py --judge hidden_rank.jsonl

DDP and FSDP2 on gloo, four to eight ranks that mostly wait, 13 kinds of fault, slowdowns of 1.3 to 3; Eroica runs at
its defaults, as a user starts it (`eroica run ... -- torchrun ... jobs/hidden.py`). The job is told one number, from
which each rank draws the same plan. Seeds that stand in the output are skipped, so it can be stopped and started again.
A run is right about the rank if the first cause names that rank and no other; about the cause, if it is in `TRUE`.
`--plain` runs the jobs without Eroica, to see that they get as slow as drawn.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from rich.console import Console
from rich.table import Table

from corpus_entry import Truth, write_entry
from corpus_keep import kept_run
from eroica.errors import EroicaError
from exam import delays, judged, printed
from jobs.hidden import KINDS, Plan, draw
from machine import machine_facts, revision

JOB = Path(__file__).with_name("jobs") / "hidden.py"
#: Causes that are true of each kind, by their meaning in `eroica.model.causes`, and the function of the job's code.
TRUE: dict[str, tuple[frozenset[str], str]] = {
    # The loop waits for its batch: in its own process, in the loader's, because samples are decoded in Python.
    "loader": (frozenset({"slow-data-loading"}), "read_sample"),
    "loader-process": (frozenset({"slow-data-loading"}), "read_sample"),
    "decoding": (frozenset({"slow-data-loading"}), "decode"),
    # It waits in the read of a socket: the more exact word and the one that contains it.
    "storage-read": (frozenset({"slow-storage-read", "slow-data-loading"}), "fetch"),
    # The same operators, equally often, take longer, the optimizer's too.
    "compute": (frozenset({"compute-slow"}), ""),
    # The same operators on larger batches; the optimizer takes as long as ever.
    "uneven-work": (frozenset({"load-imbalance"}), ""),
    # Python runs while no operator does: after the step, and in a hook inside backward.
    "python": (frozenset({"python-on-critical-path"}), "count_words"),
    "backward-hook": (frozenset({"python-on-critical-path"}), "rescale"),
    "collections": (frozenset({"garbage-collection"}), ""),
    "checkpoint": (frozenset({"blocking-checkpoint"}), "save_state"),
    "logging": (frozenset({"blocking-logging"}), "emit"),
    # Its only core is shared with programs that do not belong to the job, and its peers may use all cores.
    "contention": (frozenset({"cpu-contention", "sibling-process", "misconfiguration"}), ""),
    # Many more copies than on the peers: more operators, and these are copies.
    "copies": (frozenset({"memory-operation-storm", "load-imbalance"}), "keep_weights"),
}
#: Seconds from the first iteration to the end of a job: more than 60 of them with the fault.
LONGEST_S = 92.0
#: So long a run takes besides, at most: it starts, and its last window is judged.
BESIDE_S = 75.0
#: Fewer cores than this are not divided.
CORES_TO_SHARE = 4
WANTED = {"rank": 49, "cause": 47}


def truth_of(plan: Plan) -> Truth:
    causes, function = TRUE[plan.fault]
    return Truth(
        verdict="slow", causes=tuple(sorted(causes)), scope="some", workers=(plan.rank,), function=function,
        gain=round(1 - 1 / plan.slowdown, 4),
    )  # fmt: skip


def command_of(plan: Plan, place: Path, cores: list[int], options: argparse.Namespace) -> list[str]:
    """As a user starts it, on these cores only (none = on all)."""
    pinned = ["taskset", "-c", ",".join(map(str, cores))] if cores and shutil.which("taskset") else []
    watched = [
        *(str(options.python), "-m", "eroica", "run", "--out", str(place / "run")),
        *("--json", str(place / "verdict.json"), "--"),
    ]
    beside = options.python.parent / "torchrun"
    launch = [str(beside)] if beside.exists() else [str(options.python), "-m", "torch.distributed.run"]
    launch += ["--standalone", "--nproc-per-node", str(plan.ranks), str(JOB)]
    return [*pinned, *([] if options.plain else watched), *launch]


def run(seed: int, cores: list[int], options: argparse.Namespace) -> dict[str, Any]:
    """One job; what was said about it."""
    plan = draw(seed)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EROICA_")}
    environment = {**kept, "OMP_NUM_THREADS": "1", "DRAW": str(seed), "LONGEST": str(options.longest)}
    if options.onset:
        environment["ONSET"] = str(options.onset)
        plan = replace(plan, onset=options.onset)
    with tempfile.TemporaryDirectory(prefix="hidden-") as name:
        place = Path(name).resolve()
        began = time.monotonic()
        with (place / "log").open("wb") as log:
            command = command_of(plan, place, cores, options)
            job = subprocess.Popen(command, env=environment, cwd=place, stdout=log, stderr=subprocess.STDOUT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(options.longest + BESIDE_S)
            if job.poll() is None:
                job.terminate()
                job.wait()
        line = {
            "kind": "plain" if options.plain else "run", "seed": seed, "layout": plan.layout, "ranks": plan.ranks,
            "rank": plan.rank, "fault": plan.fault, "loader_processes": plan.loader_processes, "onset": plan.onset,
            "iteration_ms": 1e3 * plan.iteration_s, "slowdown": plan.slowdown, **measured(place / "log"),
            "status": job.returncode, "wall_s": round(time.monotonic() - began, 1),
            "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "revision": revision(),
            "machine": machine_facts(), "load": round(os.getloadavg()[0], 2), "lanes": options.lanes,
        }  # fmt: skip
        if not options.plain:
            line |= answer(place, plan)
        if options.corpus:
            with contextlib.suppress(EroicaError, OSError):
                write_entry(
                    kept_run(
                        place / "run", name=f"hidden-{plan.fault}-{seed}", origin="hidden rank", fault=plan.fault,
                        layout=plan.layout, truth=truth_of(plan), onset=plan.onset, use="exam",
                    )
                )  # fmt: skip
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            shutil.copytree(place, options.keep / f"{seed}-{time.strftime('%H%M%S')}")
        elif job.returncode and not line.get("after_ms"):
            line["log"] = (place / "log").read_text(errors="replace")[-1500:]
    return line


def measured(log: Path) -> dict[str, Any]:
    """The slowdown that the job itself saw."""
    own = printed(log)
    before, after = own.get("before_ms"), own.get("after_ms")
    cores = re.findall(r'"job": "hidden".*"cpu": ([0-9.]+)', log.read_text(errors="replace"))
    return {
        **own, "slowdown_measured": round(after / before, 2) if before and after else None,
        "cores_of_rank_0": float(cores[-1]) if cores else None,
    }  # fmt: skip


def answer(place: Path, plan: Plan) -> dict[str, Any]:
    """The final verdict, and what is right of it."""
    truth = truth_of(plan)
    line = judged(place / "verdict.json", truth)
    named = line["verdict"] == "slow" and "cause" in line
    line["rank_first"] = named and line["workers"] == [plan.rank]
    line["cause_right"] = named and line["cause"] in truth.causes
    return line | delays(place / "run", plan.onset)


def lanes_of(count: int) -> list[list[int]]:
    """Cores of each lane; empty lists where there are too few to divide."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < max(CORES_TO_SHARE, count):
        return [[] for _ in range(count)]
    each = len(cores) // count
    return [cores[each * lane : each * (lane + 1)] for lane in range(count)]


def all_runs(seeds: list[int], options: argparse.Namespace) -> None:
    """Runs in their lanes, each written as it ends; none is begun that could not end in time."""
    began, writing = time.monotonic(), threading.Lock()
    free: SimpleQueue[list[int]] = SimpleQueue()
    for cores in lanes_of(options.lanes):
        free.put(cores)

    def one(seed: int) -> None:
        cores = free.get()
        try:
            if options.stop_at and time.monotonic() - began + options.longest + BESIDE_S > options.stop_at:
                return
            line = run(seed, cores, options)
        finally:
            free.put(cores)
        with writing:
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(one_line(line), flush=True)

    with ThreadPoolExecutor(options.lanes) as pool:
        list(pool.map(one, seeds))


def one_line(line: dict[str, Any]) -> str:
    what = f"{line['seed']}: {line['fault']} on {line['rank']} of {line['ranks']}, {line['layout']}"
    pace = f"{line.get('before_ms')} to {line.get('after_ms')} ms "
    pace += f"(x {line['slowdown_measured']}, {line['slowdown']} planned), {line['wall_s']} s"
    if line["kind"] == "plain":
        return f"{what}: {pace}"
    words = [
        f"{name} {'right' if line[key] else 'WRONG'}"
        for name, key in (("rank", "rank_first"), ("cause", "cause_right"))
    ]
    said = f"{line.get('cause', line['verdict'])} on {line.get('workers')}, {line.get('function')}"
    return f"{what}: {', '.join(words)}: {said}; {pace}, {line.get('onset_to_verdict_s')} s to a verdict"


def known(out: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in out.read_text().splitlines()] if out.exists() else []


def table(lines: list[dict[str, Any]]) -> Table:
    """Runs with the rank, and with the cause, by kind of fault."""
    result = Table("fault", "runs", "rank first", "cause", "both", "among best two", "s to verdict", "wrong answers")
    for kind in (*KINDS, ""):
        mine = [line for line in lines if not kind or line["fault"] == kind]
        if not mine:
            continue
        is_right = [(line["rank_first"], line["cause_right"]) for line in mine]
        waited = sorted(filter(None, (line.get("onset_to_verdict_s") for line in mine)))
        wrong = [
            f"{line.get('cause', line['verdict'])} on {line.get('workers', [])} for {line['rank']}"
            for line in mine
            if not (line["rank_first"] and line["cause_right"])
        ]
        counts = [sum(rank for rank, _ in is_right), sum(cause for _, cause in is_right), sum(map(all, is_right))]
        counts.append(sum(bool(line.get("is_among_best")) for line in mine))
        result.add_row(
            kind or "all", str(len(mine)), *map(str, counts),
            str(waited[len(waited) // 2]) if waited else "–", "; ".join(wrong) if kind else "",
        )  # fmt: skip
    return result


def show(lines: list[dict[str, Any]]) -> None:
    """The table, and how it stands to what is wanted of 50."""
    runs = [line for line in lines if line["kind"] == "run"]
    Console(width=140).print(table(runs))
    rank, cause = (sum(line[key] for line in runs) for key in ("rank_first", "cause_right"))
    print(
        f"rank first {rank} of {len(runs)} (wanted: {WANTED['rank']} of 50), cause {cause} (wanted: {WANTED['cause']})"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("hidden_rank.jsonl"), help="one JSON object a run; appended to"
    )
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the first run; each has the next one")
    parser.add_argument("--seeds", default="", help="only these, with commas between them")
    parser.add_argument("--lanes", type=int, default=1, help="runs side by side, each on cores of its own")
    parser.add_argument("--stop-at", type=float, default=0.0, help="begin no run that might not end within so long, s")
    parser.add_argument("--longest", type=float, default=LONGEST_S, help="of a job from its first iteration on, s")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="of the environment with torch")
    parser.add_argument("--onset", type=int, help="first iteration with the fault; default: drawn")
    parser.add_argument("--plain", action="store_true", help="without Eroica")
    parser.add_argument("--keep", type=Path, help="keep run directories here")
    parser.add_argument("--corpus", action="store_true", help="put the windows into the corpus")
    parser.add_argument("--judge", type=Path, help="print the table of such a file, and run nothing")
    parser.add_argument("--list", action="store_true", help="print what would be drawn, and run nothing")
    options = parser.parse_args()
    seeds = [int(one) for one in options.seeds.split(",")] if options.seeds else []
    seeds = seeds or list(range(options.seed, options.seed + options.runs))
    if options.list:
        for seed in seeds:
            print(json.dumps({"seed": seed, **asdict(draw(seed))}))
        return 0
    if not options.judge:
        have = {line["seed"] for line in known(options.out) if line["kind"] == "run" and not options.plain}
        all_runs([seed for seed in seeds if seed not in have], options)
    lines = known(options.judge or options.out)
    if not options.plain:
        show(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
