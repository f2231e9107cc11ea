"""Downtime by faults that let a job hang, simulated from what `c4d.py` and `steer.py` have measured.

    python benchmarks/downtime.py --runs benchmarks/results/c4d.jsonl --steer benchmarks/results/steer.json

A job computes and keeps a checkpoint every so often. Faults come at random, the time between two exponential. Each
one is one of the hangs that were measured, drawn with equal chances: if its verdict named the right place with at least
`--act-from`, an order follows after the time that the verdict took; else the process group's time-out ends the job.
Then the job is started again, which takes what a measured start took, and what it had computed since its last
checkpoint is lost. Nothing here is about large clusters: starts and verdicts are those of some processes on one
machine.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "c4.md"
BEGIN, END = "<!-- downtime -->\n", "<!-- end of downtime -->"
HOUR_S, MONTH_S = 3600.0, 30 * 24 * 3600.0


@dataclass(frozen=True)
class Hang:
    """One that was measured.

    Attributes:
        verdict_s: From the fault to its verdict, seconds; infinite where there was none, or a wrong one.
        confidence: Of its first cause, 0-1.
    """

    verdict_s: float
    confidence: float


@dataclass(frozen=True)
class Repair:
    """What ends a standstill.

    Attributes:
        hangs: Those that were measured.
        starts_s: From an order to the first iteration of the job that was started again, seconds, as measured.
        act_from: Least confidence of an order; above 1 = no order is ever given.
        time_out_s: Of the process group.
    """

    hangs: Sequence[Hang]
    starts_s: Sequence[float]
    act_from: float
    time_out_s: float

    def standstill_s(self, draw: random.Random) -> float:
        """How long one fault keeps the job from computing, seconds."""
        hang = draw.choice(self.hangs)
        is_told = hang.confidence >= self.act_from and hang.verdict_s < self.time_out_s
        return (hang.verdict_s if is_told else self.time_out_s) + draw.choice(self.starts_s)

    @property
    def mean_s(self) -> float:
        """The same on average, in closed form."""
        told = [
            one.verdict_s if one.confidence >= self.act_from and one.verdict_s < self.time_out_s else self.time_out_s
            for one in self.hangs
        ]
        return statistics.fmean(told) + statistics.fmean(self.starts_s)


@dataclass(frozen=True)
class Lost:
    """Shares of a stretch of time, 0-1.

    Attributes:
        standing: Standing still or starting.
        repeated: Computing what a fault had undone.
    """

    standing: float
    repeated: float


def simulate(repair: Repair, every_s: float, checkpoint_s: float, seconds: float, draw: random.Random) -> Lost:
    """One job.

    Args:
        repair: What ends a standstill.
        every_s: Mean time from a start to the next fault.
        checkpoint_s: Time between two checkpoints, which cost nothing.
        seconds: How long the job is looked at.
        draw: Random numbers.
    """
    now = standing_s = repeated_s = 0.0
    while now < seconds:
        runs_s = draw.expovariate(1 / every_s)
        now += runs_s
        if now >= seconds:
            break
        repeated_s += math.fmod(runs_s, checkpoint_s)  # a job that was started again begins at a checkpoint
        stands_s = min(repair.standstill_s(draw), seconds - now)
        standing_s += stands_s
        now += stands_s
    return Lost(standing_s / seconds, repeated_s / seconds)


def expected(repair: Repair, every_s: float, checkpoint_s: float) -> Lost:
    """The same on average, as a formula: t / (F + t), and of what is computed the mean remainder since a checkpoint.

    The time from a start to a fault is exponential with mean F; its remainder after whole checkpoints of length c has
    the mean F - c / (exp(c / F) - 1).
    """
    cycle_s = every_s + repair.mean_s
    remainder_s = every_s - checkpoint_s / math.expm1(checkpoint_s / every_s)
    return Lost(repair.mean_s / cycle_s, remainder_s / cycle_s)


def measured_hangs(lines: Sequence[dict[str, Any]]) -> list[Hang]:
    """Those of `c4d.py`."""
    hangs = []
    for line in lines:
        if line["kind"] == "run" and not line.get("windows_alone") and line["truth_kind"].endswith("hang"):
            right = all(line["right"].values()) and line["after_s"] is not None and not _avoids_path(line)
            findings = line.get("findings") or [{"confidence": 0.0}]
            hangs.append(Hang(line["after_s"] if right else math.inf, findings[0]["confidence"] if right else 0.0))
    return hangs


def _avoids_path(line: dict[str, Any]) -> bool:
    """Nobody starts the job again for a cut way: its order is to avoid the path."""
    return bool(line.get("told")) and line["told"]["place"]["kind"] == "connection"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="lines of c4d.py")
    measured = parser.add_mutually_exclusive_group(required=True)
    measured.add_argument("--steer", type=Path, help="what steer.py has measured")
    measured.add_argument("--starts", help="instead: seconds from an order to the first iteration, with commas")
    parser.add_argument("--hours", default="3,10,30", help="mean time between faults, with commas")
    parser.add_argument("--checkpoint-minutes", type=float, default=10.0)
    parser.add_argument("--time-out-minutes", type=float, default=30.0)
    parser.add_argument("--months", type=int, default=200, help="simulated, each of one job")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    lines = [json.loads(line) for line in options.runs.read_text().splitlines()]
    known = [{**line, "truth_kind": line["truth"]["kind"]} for line in lines if line.get("truth")]
    hangs = measured_hangs(known)
    starts_s = [float(text) for text in (options.starts or "").split(",") if text]
    runs = json.loads(options.steer.read_text())["runs"] if options.steer else []
    starts_s += [run["fault_to_first_good_iteration_s"] - run["fault_to_order_s"] for run in runs]
    time_out_s = options.time_out_minutes * 60
    repairs = {
        "orders from 0.8": Repair(hangs, starts_s, 0.8, time_out_s),
        "orders from 0.95": Repair(hangs, starts_s, 0.95, time_out_s),
        "time-out alone": Repair(hangs, starts_s, 2.0, time_out_s),
    }
    table = page(repairs, [float(hours) for hours in options.hours.split(",")], options)
    text = PAGE.read_text()
    PAGE.write_text(f"{text.partition(BEGIN)[0]}{BEGIN}{table}\n{END}{text.partition(END)[2]}")
    print(table)
    return 0


def page(repairs: dict[str, Repair], hours: Sequence[float], options: argparse.Namespace) -> str:
    """The table and its inputs."""
    one = next(iter(repairs.values()))
    told = sorted(hang.verdict_s for hang in one.hangs if math.isfinite(hang.verdict_s))
    starts = sorted(one.starts_s)
    began = f"{starts[0]:.1f}" + (f" to {starts[-1]:.1f}" if len(starts) > 1 else "")
    rows = [
        f"Inputs: {len(one.hangs)} measured hangs, {len(told)} with the right place after {told[0]:.1f} to "
        f"{told[-1]:.1f} s (median {statistics.median(told):.1f}); {began} s from an order to the first iteration "
        f"({len(starts)} measured); a checkpoint every {options.checkpoint_minutes:g} minutes; time-out "
        f"{options.time_out_minutes:g} minutes; {options.months} simulated months.",
        "",
        "| a fault every | " + " | ".join(repairs) + " |",
        "|---|" + "---|" * len(repairs),
    ]
    checkpoint_s = options.checkpoint_minutes * 60
    for every in hours:
        cells = []
        for repair in repairs.values():
            draw = random.Random(options.seed)
            months = [simulate(repair, every * HOUR_S, checkpoint_s, MONTH_S, draw) for _ in range(options.months)]
            standing, repeated = (
                statistics.fmean(getattr(month, name) for month in months) for name in ("standing", "repeated")
            )
            formula = expected(repair, every * HOUR_S, checkpoint_s)
            cells.append(f"{standing:.2%} ({formula.standing:.2%}) + {repeated:.2%}")
        rows.append(f"| {every:g} h | " + " | ".join(cells) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
