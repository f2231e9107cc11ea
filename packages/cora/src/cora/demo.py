"""The demo: calibrate, plan a load balancer, run it under skewed traffic that shifts, compare with the prediction."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from cora.calibrate import calibrate
from cora.functions import load
from cora.machine import Limits
from cora.measure import cpu_ns, make_bench
from cora.model import Choice, placement_of, predict
from cora.placement import BOTH, SLOW, SPLIT
from cora.planfile import make_plan
from cora.profile import make_profile
from cora.report import explain, page
from cora.traffic import Shape, make_traffic

FUNCTION = "balancer"
RATE, KEYS = 15_000.0, 4096
#: Memory that the demo grants the fast tier, so that only heavy connections fit.
MEMORY = 64 * 1024
PHASE_S = 6.0


def run_demo(page_file: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Run the demo; return what it measured."""
    begin = time.monotonic()
    say("Calibrating on this machine ...")
    costs = calibrate(quick=True)
    costs = replace(costs, network={"fast": 0.0, "slow": 0.0, "wake": 0.0, "idle": 0.0})
    program = load(FUNCTION)
    shape = Shape(keys=KEYS, skew=1.2, packets=20_000, rate_per_s=RATE, back=0.0)
    traffic = make_traffic(FUNCTION, shape)
    profile = make_profile(program, traffic)
    limits = Limits(bytes=MEMORY)
    found = make_plan(program, profile, costs, limits)
    say(f"\nPlan for Zipf {shape.skew} traffic, {MEMORY:,} bytes in the fast tier ({found[1].seconds * 1000:.0f} ms):")
    say(explain(program, found, costs))
    page_file.write_text(page(FUNCTION, program, profile, costs, limits, found), encoding="utf-8")
    slow = {
        name: next((c for c in options if c.home in {BOTH, SLOW}), options[0])
        for name, options in found[0].choices.items()
    }
    say("\nRunning all slow, then the plan; the heavy connections change after each phase ...")
    all_slow = _phases(slow, [0], shape, say)
    planned = _phases(found[1].chosen, [0, 1000, 2500], shape, say)
    predicted = predict(program, profile, costs, found[1].chosen).cross_share
    saved = 1 - planned[0]["slow_cpu_ns"] / all_slow[0]["slow_cpu_ns"]
    say(
        f"\nFirst phase: {planned[0]['crossing_share']:.1%} of the packets crossed ({predicted:.1%} predicted); "
        f"the slow tier took {planned[0]['slow_cpu_ns']:.0f} ns of CPU a packet, {saved:.0%} less than all slow."
    )
    say(f"Plan page: {page_file}. The demo took {time.monotonic() - begin:.0f} s.")
    return {"all_slow": all_slow, "planned": planned, "predicted_crossing_share": predicted}


def _phases(
    chosen: dict[str, Choice], rotations: list[int], shape: Shape, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Run a plan through phases whose heavy keys differ; return crossing share and CPU of each, once settled."""
    results = []
    split = any(choice.home == SPLIT for choice in chosen.values())
    with make_bench() as bench:
        process, state = bench.start_run(FUNCTION, {}, placement_of(chosen), adapt=split)
        parts = [(PHASE_S, make_traffic(FUNCTION, replace(shape, rotate=rotation))) for rotation in rotations]
        sender = bench.send(0, RATE, parts)
        for rotation in rotations:
            time.sleep(2.0)
            first, spent = _counters(state), cpu_ns(process.pid)
            time.sleep(PHASE_S - 2.6)
            last, later = _counters(state), cpu_ns(process.pid)
            packets = max(1, last["fast"]["packets"] - first["fast"]["packets"])
            results.append(
                {
                    "rotation": rotation,
                    "crossing_share": (last["fast"]["crossed"] - first["fast"]["crossed"]) / packets,
                    "slow_cpu_ns": (later - spent) / packets,
                    "replans": last["replans"],
                }
            )
            say(
                f"  {'plan' if split else 'all slow':8} heavy keys from {rotation:4}: "
                f"{results[-1]['crossing_share']:6.1%} cross, slow tier "
                f"{results[-1]['slow_cpu_ns']:6.0f} ns of CPU a packet, {last['replans']} re-plans so far"
            )
            time.sleep(0.6)
        sent = json.loads(sender.communicate()[0])["sent_packets"]
        process.terminate()
        process.communicate(timeout=20)
        end = json.loads(state.read_text(encoding="utf-8"))
        counted = sum(row["value"]["packets"] for row in end["tables"]["connections"])
        counters = end["counters"]
        come = counters["fast"]["packets"] - counters["fast"]["up"]
        lost = counters["fast"]["crossed"] - counters["slow"]["packets"]
        say(
            f"  {sent:,} packets sent, {come:,} came in, {lost:,} found the slow tier's queue full, "
            f"{counted:,} counted in exact state"
        )
    return results


def _counters(state: Path) -> dict[str, Any]:
    return dict(json.loads(state.read_text(encoding="utf-8"))["counters"])
