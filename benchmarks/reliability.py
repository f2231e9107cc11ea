"""Never in the way: every disturbance, the training compared to the bit, its speed while Eroica is dead or stopped.

`python benchmarks/reliability.py [--only NAME ...] [--pairs N] [--json FILE] [--write-docs]`. Each disturbance is a
real job under `eroica run` beside the same job without it. Speed: hooks taken off and put on again every few iterations
inside one job, as `benchmarks/overhead.py` does, with agent and collector stopped, and killed whenever they come back.
`--write-docs` only draws `docs/results/disturbances.md` from the results that are there.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import psutil

from disturbances import DISTURBANCES
from machine import machine_facts
from overhead import JOB, slowdown
from reliability_page import write_page
from support.reliability import Disturbance, Outcome, differences
from support.reliability.comparison import steps_compared

RESULTS = Path(__file__).with_name("results") / "reliability.json"


def attempt(disturbance: Disturbance, alone: dict[tuple[object, ...], Outcome]) -> dict[str, object]:
    """One disturbance; what the training saw."""
    if disturbance.impossible_here:
        return {"skipped": disturbance.impossible_here}
    try:
        with tempfile.TemporaryDirectory() as name:
            if disturbance.compared_with not in alone:
                alone[disturbance.compared_with] = disturbance.without_eroica(Path(name) / "alone")
            without = alone[disturbance.compared_with]
            watched, seen = disturbance.with_eroica(Path(name) / "watched")
    except (AssertionError, TimeoutError, OSError, subprocess.SubprocessError) as error:
        return {"failed": f"{type(error).__name__}: {error}"}
    return {
        "differences": differences(watched, without, disturbance.exact_err),
        "steps": steps_compared(watched, without),
        "status": watched.status,
        "status_without": without.status,
        "stderr_exact": disturbance.exact_err,
        "eroica": seen,
        "said": list(dict.fromkeys(watched.said_by_eroica)),
    }


def speed(pairs: int, disturb: Callable[[psutil.Process, threading.Event, Path], None]) -> dict[str, object]:
    """Hooks on against hooks off while something is done to Eroica's processes."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "record.json"
        launch = [sys.executable, "-m", "eroica", "run", "--quiet", "--out", str(Path(name) / "run")]
        launch += ["--set", "baseline_window=false", "--set", "slowdown=10", "--"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
        job = subprocess.Popen(
            [*launch, *torchrun, str(JOB), "--out", str(out), "--pairs", str(pairs)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "EROICA_RUNTIME_DIR": name}, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        over = threading.Event()
        disturber = threading.Thread(target=disturb, args=(psutil.Process(job.pid), over, Path(name)))
        disturber.start()
        status = job.wait()
        over.set()
        disturber.join()
        measured = json.loads(out.read_text())["pairs"]
    return {**slowdown(measured), "status": status, "raw_pairs": measured}


def helpers(run: psutil.Process) -> list[psutil.Process]:
    """Agent and collector of an `eroica run`."""
    try:
        children = run.children()
        return [one for one in children if any(word.startswith("eroica.") for word in one.cmdline())]
    except psutil.Error:
        return []


def keep_doing(number: signal.Signals) -> Callable[[psutil.Process, threading.Event, Path], None]:
    def disturb(run: psutil.Process, over: threading.Event, memory: Path) -> None:
        while not over.wait(0.1) and not list(memory.rglob("*.beat")):
            continue  # the worker is not registered yet
        over.wait(2)
        while not over.wait(0.1):
            for helper in helpers(run):
                try:
                    if number == signal.SIGKILL or helper.status() != psutil.STATUS_STOPPED:
                        helper.send_signal(number)
                except psutil.Error:
                    continue

    return disturb


def leave_alone(run: psutil.Process, over: threading.Event, memory: Path) -> None:
    """For comparison: nothing is done to them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=[each.name for each in DISTURBANCES], default=None)
    parser.add_argument("--pairs", type=int, default=1500, help="0: measure no speed")
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--write-docs", action="store_true", help="draw the page from the results, run nothing")
    options = parser.parse_args()
    if options.write_docs:
        write_page(json.loads(options.json.read_text()))
        return
    results = json.loads(options.json.read_text()) if options.json.exists() else {}
    results.update(machine=machine_facts(), command="python benchmarks/reliability.py")
    alone: dict[tuple[object, ...], Outcome] = {}
    found = results.setdefault("disturbances", {})
    for disturbance in DISTURBANCES:
        if options.only is None or disturbance.name in options.only:
            found[disturbance.name] = attempt(disturbance, alone)
            print(f"{disturbance.name}: {json.dumps(found[disturbance.name])}", flush=True)
            options.json.write_text(json.dumps(results, indent=1))
    if options.pairs:
        results["speed"] = {
            "undisturbed": speed(options.pairs, leave_alone),
            "stopped": speed(options.pairs, keep_doing(signal.SIGSTOP)),
            "killed": speed(options.pairs, keep_doing(signal.SIGKILL)),
        }
        for name, measured in results["speed"].items():
            print(name, {key: value for key, value in measured.items() if key != "raw_pairs"})
        options.json.write_text(json.dumps(results, indent=1))
    write_page(results)


if __name__ == "__main__":
    main()
