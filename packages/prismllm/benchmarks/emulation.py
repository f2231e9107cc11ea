"""Predictions beside what is emulated, and beside what a schedule has to last, on the real clock.

    python benchmarks/emulation.py --json benchmarks/results/emulation.json

The tests make the same comparisons on a clock that only sleeping moves (`tests/clocked.py`). Here computing takes
its time, too, so a busy machine shows: the bounds are 15 % between an emulation and the prediction, and for a schedule
from the sum of its paces to twice that. Ends with status 1 if one is not kept.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from prismllm import Rehearsal
from prismllm.capture import CaptureOptions
from prismllm.emulation import emulate
from prismllm.rank_classes import capture_job
from truth import GPT

COLUMN = ("--pp", "2", "--tp", "2", "--data", "fsdp", "--layers", "2", "--microbatches", "2", "--batch", "2",
          "--width", "32", "--length", "16", "--pace", "0.006")  # fmt: skip
#: A rank that is played, and one that runs.
SLOW = (12, 37)
MOST_ERROR = 0.15
PACE_S = 0.004
SCHEDULES = {"1f1b": (), "gpipe": ("--schedule", "gpipe")}
#: Eight micro-batches and the bubble of one, forward and twice as long backward.
LEAST_S = 9 * 3 * PACE_S


def options(out: Path, world: int, *arguments: str) -> CaptureOptions:
    return CaptureOptions((GPT, *arguments), world, out, slice_size=4, timed=2, timeout_s=60.0)


def measure_emulation(folder: Path) -> Iterator[dict[str, Any]]:
    """Two ranks of 64 run for real while one is slow: the median of three iterations, and the prediction."""
    out = folder / "column"
    rehearsal = Rehearsal(capture_job(options(out, 64, *COLUMN)))
    for rank in SLOW:
        change = f"slow rank={rank} by=2"
        predicted_s = rehearsal.predict(change).seconds
        result = emulate(rehearsal, out, [37, 39], [change], iterations=3, timeout_s=60.0)
        error = statistics.median(result.seconds) / predicted_s - 1
        yield {"case": f"37, 39 of 64, {change}", "predicted_s": predicted_s, "seconds": result.seconds,
               "error": error, "most_error": MOST_ERROR, "is_within": abs(error) <= MOST_ERROR,
               "load": os.getloadavg()[0]}  # fmt: skip


def measure_schedules(folder: Path) -> Iterator[dict[str, Any]]:
    """Two stages and eight micro-batches: the prediction, and what the paces alone add up to."""
    arguments = ("--layers", "2", "--batch", "4", "--microbatches", "8", "--width", "32", "--length", "32",
                 "--pace", str(PACE_S), "--pp", "2")  # fmt: skip
    for name, schedule in SCHEDULES.items():
        job = capture_job(options(folder / name, 2, *arguments, *schedule))
        seconds = Rehearsal(job).predict().seconds
        yield {"case": f"2 stages, {name}", "predicted_s": seconds, "least_s": LEAST_S, "most_s": 2 * LEAST_S,
               "is_within": LEAST_S < seconds < 2 * LEAST_S, "load": os.getloadavg()[0]}  # fmt: skip


@click.command()
@click.option("--json", "out", type=click.Path(path_type=Path))
def main(out: Path | None) -> None:
    """Run all cases."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [*measure_emulation(Path(folder)), *measure_schedules(Path(folder))]
    for row in rows:
        beside = (
            f"emulated {1e3 * statistics.median(row['seconds']):.1f} ms  error {100 * row['error']:+.2f} %"
            if "seconds" in row
            else f"paces {1e3 * row['least_s']:.1f} ms"
        )
        print(f"{row['case']:36} predicted {1e3 * row['predicted_s']:7.1f} ms  {beside}  load {row['load']:.1f}  "
              f"{'within' if row['is_within'] else 'OUTSIDE'}")  # fmt: skip
    if out is not None:
        out.write_text(json.dumps(rows, indent=1))
    sys.exit(0 if all(row["is_within"] for row in rows) else 1)


if __name__ == "__main__":
    main()
