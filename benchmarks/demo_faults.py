"""Runs every fault of the demo a few times and counts how often the verdict names it.

    python benchmarks/demo_faults.py --runs 3 --out demo_faults.jsonl

Each run is a real `eroica demo`, one after another. The first line of the output file describes the machine, each
further line is one run. Exit status 1 if any verdict was wrong.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from eroica.demo.rehearsal import EXPECTED
from eroica.model.verdict import Verdict
from eroica.model.words import worker_list


@click.command()
@click.option("--runs", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of each fault.")
@click.option("--fault", "faults", multiple=True, type=click.Choice(list(EXPECTED)), help="Only these; repeatable.")
@click.option("--workers", type=click.IntRange(2, 64), default=4, show_default=True)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="File for the raw results, one JSON object a line.")
def main(runs: int, faults: tuple[str, ...], workers: int, device: str, out: Path | None) -> None:
    """Count right verdicts."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    console = Console()
    lines = [machine()]
    for fault in faults or EXPECTED:
        for number in range(runs):
            line = run_demo(fault, number, workers, device)
            lines.append(line)
            word = "right" if line["right"] else "WRONG"
            console.print(
                f"{fault} {number + 1}/{runs}: {word}, {line['seconds']:.0f} s. {line['words']}", markup=False
            )
            if out is not None:
                out.write_text("".join(json.dumps(item) + "\n" for item in lines), encoding="utf-8")
    console.print(summary(lines[1:]))
    raise SystemExit(0 if all(line["right"] for line in lines[1:]) else 1)


def run_demo(fault: str, number: int, workers: int, device: str) -> dict[str, Any]:
    """One demo as a process of its own; what it said and how long it took."""
    with tempfile.TemporaryDirectory(prefix="eroica-bench-") as directory:
        file = Path(directory) / "verdict.json"
        command = [sys.executable, "-m", "eroica", "demo", "--fault", fault, "--workers", str(workers)]
        started, load = time.monotonic(), os.getloadavg()[0]
        status, output = run_to_the_end([*command, "--device", device, "--json", str(file)])
        seconds = time.monotonic() - started
        verdict = Verdict.from_json(file.read_bytes()) if file.exists() else None
    lines = output.strip().splitlines() or ["nothing was said"]
    said = [line for line in lines if not line.startswith("Report: ")] or lines
    return {
        "fault": fault,
        "run": number,
        "workers": workers,
        "device": device,
        "right": status == 0,
        "words": said[-1],
        "seconds": round(seconds, 1),
        "trigger_to_verdict_s": verdict.cost.trigger_to_verdict_s if verdict is not None else None,
        "load_before": round(load, 2),
        "verdict": verdict.to_dict() if verdict is not None else None,
    }


def run_to_the_end(command: list[str]) -> tuple[int, str]:
    """Exit status and output; whoever interrupts the benchmark ends the demo and its job too."""
    environment = {**os.environ, "NO_COLOR": "1"}
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    try:
        output, _ = demo.communicate()
    finally:
        demo.terminate()
        demo.wait()
    return demo.returncode, output


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    return {
        "command": " ".join(["python", "benchmarks/demo_faults.py", *sys.argv[1:]]),
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "eroica": importlib.metadata.version("eroica"),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def summary(lines: list[dict[str, Any]]) -> Table:
    """Right verdicts, iteration times and delay of each fault."""
    table = Table("fault", "right", "ms before → now", "s to verdict", "demo s", "last answer")
    for fault in dict.fromkeys(line["fault"] for line in lines):
        mine = [line for line in lines if line["fault"] == fault]
        verdicts = [line["verdict"] for line in mine if line["verdict"] is not None]
        table.add_row(
            fault,
            f"{sum(line['right'] for line in mine)}/{len(mine)}",
            ", ".join(_pace(verdict) for verdict in verdicts),
            ", ".join(_delay(verdict) for verdict in verdicts),
            ", ".join(f"{line['seconds']:.0f}" for line in mine),
            _answer(verdicts[-1]) if verdicts else "none",
        )
    return table


def _pace(verdict: dict[str, Any]) -> str:
    before, now = verdict["iteration"]["baseline_ms"], verdict["iteration"]["current_ms"]
    return "–" if before is None or now is None else f"{before:.0f} → {now:.0f}"


def _delay(verdict: dict[str, Any]) -> str:
    delay = verdict["cost"]["trigger_to_verdict_s"]
    return "–" if delay is None else f"{delay:.1f}"


def _answer(verdict: dict[str, Any]) -> str:
    for finding in verdict["findings"]:
        if finding["role"] == "cause":
            who = worker_list(finding["workers"]) if finding["scope"] == "some" else finding["scope"]
            return f"{finding['cause']}, {who}"
    return str(verdict["verdict"])


if __name__ == "__main__":
    main()
