"""Faults of known truth in a rehearsed job of 1,024 workers, and what Eroica says about each.

    python benchmarks/eroica_faults.py --json benchmarks/results/eroica_faults.json

Eroica reads files alone: profiler traces of all ranks for slow jobs, Flight Recorder dumps for hangs.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from prismllm import Rehearsal, examples
from prismllm.capture import CaptureOptions
from prismllm.rank_classes import capture_job
from prismllm.views.flight import write_dumps
from prismllm.views.kineto import write_traces

GPT = str(Path(examples.__file__).parent / "gpt.py")
LAYOUT = ("--pp", "4", "--tp", "4", "--layers", "4", "--microbatches", "4", "--batch", "2", "--width", "64",
          "--length", "32", "--data", "mean")  # fmt: skip
#: Change, and the ranks that are to be named; none for healthy.
FAULTS: tuple[tuple[str, tuple[int, ...]], ...] = (
    *((f"hang rank={rank} op={op}", (rank,)) for rank, op in ((713, 0), (6, 11), (1020, 20), (500, 33))),
    ("", ()),
    *((f"slow rank={rank} by={by}", (rank,)) for by in (1.5, 2.0, 1.25, 1.1) for rank in (713, 6, 1020)),
    ("", ()),
    ("network by=0.2", ()),
)


def diagnose(folder: Path) -> dict[str, Any]:
    """Eroica's verdict on a folder."""
    out = folder.parent / "verdict.json"
    out.unlink(missing_ok=True)
    command = [str(Path(sys.executable).parent / "eroica"), "diagnose", str(folder), "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if not out.exists():
        raise SystemExit(f"eroica failed: {done.stderr.strip()[-300:]}")
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def try_fault(rehearsal: Rehearsal, change: str, truth: tuple[int, ...], seed: int) -> dict[str, Any]:
    """One fault: write what would be recorded, ask, compare."""
    changes = [change] if change else []
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "recorded"
        if change.startswith("hang"):
            write_dumps(rehearsal.graph, rehearsal.run(changes, iterations=1)[-1], folder)
        else:
            write_traces(rehearsal.graph, rehearsal.run(changes, iterations=7, noise=seed, keep=6), folder)
        begun = time.monotonic()
        verdict = diagnose(folder)
        took_s = time.monotonic() - begun
        shutil.rmtree(folder)
    causes = [one for one in verdict["findings"] if one["role"] == "cause"]
    named = sorted(causes[0]["workers"]) if causes else []
    plain, predicted = rehearsal.predict().seconds, rehearsal.predict(*changes).seconds
    cost = predicted / plain - 1 if truth and math.isfinite(predicted) else None
    return {"change": change or "none", "truth": list(truth), "cost": cost,
            "verdict": verdict["verdict"], "named": named, "cause": causes[0]["cause"] if causes else "",
            "is_right": named == list(truth), "diagnosed_s": took_s, "summary": verdict["summary"]}  # fmt: skip


def _costs(share: float | None) -> str:
    return f"costs {100 * share:5.1f} %" if share is not None else " " * 13


@click.command()
@click.option("--json", "out", type=click.Path(path_type=Path))
@click.option("--world", default=1024, show_default=True)
@click.option("--capture", type=click.Path(path_type=Path), help="use this capture instead of a new one")
@click.option("--only", type=int, multiple=True, help="numbers of faults; all by default")
def main(out: Path | None, world: int, capture: Path | None, only: tuple[int, ...]) -> None:
    """Try all faults."""
    with tempfile.TemporaryDirectory() as folder:
        if capture is None:
            capture = Path(folder) / "c"
            capture_job(CaptureOptions((GPT, *LAYOUT), world, capture, slice_size=8, timed=5))
        rehearsal = Rehearsal.open(capture)
    rows = []
    for seed, (change, truth) in enumerate(FAULTS):
        if only and seed not in only:
            continue
        row = try_fault(rehearsal, change, truth, seed)
        rows.append(row)
        print(f"{row['change']:26} {_costs(row['cost'])}  {row['verdict']:12} {row['named']!s:10} "
              f"{row['cause']:24} {'right' if row['is_right'] else 'WRONG'}", flush=True)  # fmt: skip
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(rows, indent=1))
    print(f"{sum(row['is_right'] for row in rows)} of {len(rows)} right")


if __name__ == "__main__":
    main()
