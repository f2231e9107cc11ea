"""The demo: calibrate, plan a load balancer, run it under skewed traffic that shifts, compare with the prediction."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from cora.calibrate import calibrate
from cora.files import write
from cora.functions import load
from cora.machine import Limits
from cora.measure import run_phases
from cora.model import placement_of
from cora.plan import Problem, simple_plans
from cora.planfile import solve
from cora.profile import make_profile
from cora.report import explain, page
from cora.traffic import Shape, make_traffic

FUNCTION = "balancer"
SHAPE = Shape(keys=4096, skew=1.2, packets=20_000, rate_per_s=15_000.0, back=0.0)
#: Memory that the demo grants the fast tier, so that only heavy connections fit.
MEMORY = 64 * 1024
PHASE_S = 3.0


def run_demo(page_file: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Run the demo; return what it measured."""
    begin = time.monotonic()
    say("Calibrating on this machine ...")
    costs = msgspec.structs.replace(calibrate(quick=True), network={})
    program = load(FUNCTION)
    profile = make_profile(program, make_traffic(FUNCTION, SHAPE))
    answer = solve(Problem(program, profile, costs, Limits(bytes=MEMORY)))
    milliseconds = answer.plan.seconds * 1000
    say(f"\nPlan for Zipf {SHAPE.skew} traffic, {MEMORY:,} bytes in the fast tier ({milliseconds:.0f} ms):")
    say(explain(answer))
    write(page_file, page(FUNCTION, answer))
    say("\nRunning all slow, then the plan; the heavy connections change after each phase ...")
    slow = simple_plans(program, answer.problem.instance)["all slow"]
    found = {}
    for name, chosen, rotations in (("all slow", slow, [0]), ("plan", answer.plan.chosen, [0, 1000, 2500])):
        shapes = [replace(SHAPE, rotate=rotation) for rotation in rotations]
        run = found[name] = run_phases(FUNCTION, {}, placement_of(chosen), shapes, PHASE_S)
        for rotation, one in zip(rotations, run["phases"], strict=True):
            say(
                f"  {name:8} heavy keys from {rotation:4}: {one['crossing_share']:6.1%} cross, slow tier "
                f"{one['slow_cpu_ns_per_packet']:6.0f} ns of CPU a packet, {one['replans']} re-plans so far"
            )
        counted = sum(row["value"]["packets"] for row in run["state"]["tables"]["connections"])
        say(
            f"  {run['sent_packets']:,} packets sent, {run['received_packets']:,} came in, "
            f"{run['lost_between_tiers']:,} found the slow tier's queue full, {counted:,} counted in exact state"
        )
    first, before = found["plan"]["phases"][0], found["all slow"]["phases"][0]["slow_cpu_ns_per_packet"]
    say(
        f"\nFirst phase: {first['crossing_share']:.1%} of the packets crossed "
        f"({answer.prediction.crossing_share:.1%} predicted); the slow tier took "
        f"{first['slow_cpu_ns_per_packet']:.0f} ns of CPU a packet, "
        f"{1 - first['slow_cpu_ns_per_packet'] / before:.0%} less than all slow."
    )
    say(f"Plan page: {page_file}. The demo took {time.monotonic() - begin:.0f} s.")
    return found
