"""`python benchmarks/notice.py [--json FILE]`: how soon the trigger notices a change, and how often it errs.

Series of iteration times with known truth are replayed through the trigger of one worker, default settings. Their noise
is synthetic (lognormal, a wander with a memory of 100 s, short pushes by other processes), so they stand beside runs of
real jobs and not in their place. A window is taken to find nothing on a healthy series (its margin grows, as online).

Kinds: jumps of 1.1 to 20 times at any iteration, ramps, healthy jobs with evaluations, checkpoints, cycles and slow
starts. A jump counts as detected in time within max(15 s, five iterations) from half as long again on, and within
max(45 s, fifteen iterations) below that; a tenth is granted for the noise of those iterations.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from eroica.agent.slowdown import Slowdown
from eroica.settings import Settings

PACES_S = (0.02, 0.06, 0.25, 1.0, 4.0, 15.0)
JUMPS = (1.1, 1.15, 1.2, 1.3, 1.5, 2.0, 5.0, 20.0)
ONSETS_S = (6.0, 20.0, 90.0, 600.0)
LEAST_ITERATIONS = 40
AFTER_S = 240.0
HEALTHY_S = 3600.0
QUIET, BESIDE = (0.04, 0.01, 0.0), (0.08, 0.04, 0.01)  # noise of an iteration, wander, pushes a second


class Healthy(NamedTuple):
    """A way in which healthy jobs vary: factor on iteration i of the given pace, seconds."""

    name: str
    factor: Callable[[int, float], float]


HEALTHY = (
    Healthy("plain", lambda i, s: 1.0),
    Healthy("evaluation", lambda i, s: 1.0 + (20.0 / s if i % max(100, round(60 / s)) == 0 else 0.0)),
    Healthy("checkpoint", lambda i, s: 1.0 + (3.0 / s if i % max(25, round(30 / s)) == 0 else 0.0)),
    Healthy("cycles of 4", lambda i, s: (0.5, 0.5, 0.5, 2.5)[i % 4]),
    Healthy("slow start", lambda i, s: 6.0 if i < 25 else 1.0),
    Healthy("lengths", lambda i, s: (0.6, 0.8, 1.0, 1.2, 1.4)[i * 7919 % 5]),
)


def job(rng: random.Random, pace_s: float, noise: tuple[float, float, float]) -> Iterator[float]:
    """Iteration times of a healthy job, without end."""
    scatter, wander, pushes = noise
    level, pushed_s = 0.0, 0.0
    while True:
        memory = min(1.0, pace_s / 100.0)
        level += -level * memory + wander * math.sqrt(2 * memory) * rng.gauss(0, 1)
        if rng.random() < pushes * pace_s:
            pushed_s = rng.expovariate(1.0)
        seconds = pace_s * math.exp(scatter * rng.gauss(0, 1) + level) * (1.6 if pushed_s > 0 else 1.0)
        pushed_s -= seconds
        yield seconds


class Found(NamedTuple):
    """When the trigger fired: iterations and seconds since the onset; before it, or on a healthy job, how often."""

    iterations: int
    seconds: float
    false: int
    grown: float


def watch(durations: Iterator[float], change: Callable[[int, float], float], onset: int, until_s: float) -> Found:
    """Replay one series until a trigger comes after the onset, or for so long beyond it."""
    slowdown, since_s, false, iteration = Slowdown(Settings()), 0.0, 0, 0
    while since_s < until_s:
        iteration += 1
        factor = change(iteration, since_s)
        seconds = next(durations) * factor
        since_s += seconds if iteration > onset else 0.0
        if slowdown.observe(iteration, seconds) is None:
            continue
        if iteration > onset:
            return Found(iteration - onset, since_s, false, factor)
        false += 1
        slowdown.absolve()
    return Found(0, since_s, false, change(iteration, since_s))


def jumps(seed: int) -> Iterator[dict[str, object]]:
    for pace_s in PACES_S:
        for times in JUMPS:
            for onset_s in ONSETS_S:
                onset = max(LEAST_ITERATIONS, round(onset_s / pace_s))
                rng = random.Random(f"{seed} {pace_s} {times} {onset}")
                after_s = max(AFTER_S, 60 * pace_s * times)
                found = watch(
                    job(rng, pace_s, QUIET), lambda i, s, o=onset, t=times: t if i > o else 1.0, onset, after_s
                )
                limit_s = max(15.0, 5 * pace_s * times) if times >= 1.5 else max(45.0, 15 * pace_s * times)
                yield {
                    "kind": "jump", "pace_s": pace_s, "times": times, "onset": onset, "false": found.false,
                    "detected": found.iterations > 0, "delay_s": round(found.seconds, 1),
                    "iterations": found.iterations,
                    "in_time": found.iterations > 0 and found.seconds <= 1.1 * limit_s, "limit_s": round(limit_s, 1),
                }  # fmt: skip


def ramps(seed: int) -> Iterator[dict[str, object]]:
    for pace_s in PACES_S:
        for over_s in (180.0, 900.0, 7200.0):
            rng = random.Random(f"{seed} {pace_s} {over_s}")
            onset, over = max(LEAST_ITERATIONS, round(20 / pace_s)), max(60.0, over_s / pace_s)
            found = watch(
                job(rng, pace_s, QUIET),
                lambda i, s, o=onset, n=over: 1.0 + 0.6 * max(0, i - o) / n if i - o < n else 1.6,
                onset,
                2 * max(over_s, 60 * pace_s),
            )
            yield {
                "kind": "ramp", "pace_s": pace_s, "over_s": over_s, "detected": found.iterations > 0,
                "grown": round(found.grown - 1.0, 3), "in_time": found.iterations > 0 and found.grown <= 1.3,
                "false": found.false,
            }  # fmt: skip


def healthy(seed: int) -> Iterator[dict[str, object]]:
    for name, noise in (("quiet", QUIET), ("beside other work", BESIDE)):
        for pace_s in PACES_S[:5]:
            for way in HEALTHY:
                rng = random.Random(f"{seed} {name} {pace_s} {way.name}")
                total, series, false, slowdown = 0.0, job(rng, pace_s, noise), 0, Slowdown(Settings())
                iteration = 0
                while total < HEALTHY_S:
                    iteration += 1
                    seconds = next(series) * way.factor(iteration, pace_s)
                    total += seconds
                    if slowdown.observe(iteration, seconds) is not None:
                        false += 1
                        slowdown.absolve()
                yield {"kind": "healthy", "machine": name, "way": way.name, "pace_s": pace_s, "false": false}


def told(rows: list[dict[str, object]]) -> Iterator[str]:
    """The table for people."""
    changed = [row for row in rows if row["kind"] == "jump"]
    for times in JUMPS:
        here = [row for row in changed if row["times"] == times]
        delays = sorted(float(str(row["delay_s"])) for row in here if row["detected"])
        in_time = sum(bool(row["in_time"]) for row in here)
        shown = f"median {median(delays):6.1f} s, longest {delays[-1]:6.1f} s" if delays else ""
        yield f"jump x{times:<5g} {len(here):3} series  detected {len(delays):3}  in time {in_time:3}  {shown}"
    grown = [row for row in rows if row["kind"] == "ramp"]
    most = max(float(str(row["grown"])) for row in grown)
    in_time = sum(bool(row["in_time"]) for row in grown)
    yield f"ramps       {len(grown):3} series  noticed by + 30 % {in_time:3}  latest at + {100 * most:.0f} %"
    for machine in ("quiet", "beside other work"):
        here = [row for row in rows if row["kind"] == "healthy" and row["machine"] == machine]
        false = sum(int(str(row["false"])) for row in here)
        ways = ", ".join(sorted({str(row["way"]) for row in here if row["false"]})) or "none"
        yield f"healthy, {machine}: {false} false windows in {len(here)} hours (in: {ways})"
    yield f"before the onset of a change: {sum(int(str(row['false'])) for row in changed + grown)} false windows"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    rows: list[dict[str, object]] = []
    for seed in range(given.seeds):
        for part in (jumps, ramps, healthy):
            rows.extend(part(seed))
            print(f"seed {seed}: {part.__name__} done, {len(rows)} series", flush=True)
    print("\n".join(told(rows)))
    if given.json:
        given.json.write_text(
            json.dumps({"command": "python benchmarks/notice.py", "series": rows}, indent=None) + "\n"
        )


if __name__ == "__main__":
    main()
