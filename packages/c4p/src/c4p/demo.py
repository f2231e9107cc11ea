"""The demo: random against planned source ports on four paths, then a path that fails."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from c4p.measure import JobSpec, run_jobs
from c4p.testbed import Shape, build

PATHS, MBIT = 4, 200.0
CUT_AFTER_S = 2.0
_WHY = {"dead": "nothing comes through", "slow": "it is slow", "lost": "the connection broke"}


def run_demo(seconds: float, draws: int, say: Callable[[str], None]) -> None:
    """Run the demo.

    Args:
        seconds: Length of each run.
        draws: Random draws.
        say: Prints a line.

    Raises:
        TestbedError: No root, or namespaces cannot be made here.
    """
    say(f"{PATHS} paths of {MBIT:g} Mbit/s between two hosts (network namespaces), 4 TCP flows in each direction.")
    say("Bus bandwidth of an allreduce of 32 MiB over two members, Mbit/s:\n")
    cut = 0.0
    with build(Shape(hosts=2, spines=PATHS, mbit=MBIT)) as bed:

        def cut_a_path() -> None:
            nonlocal cut
            time.sleep(CUT_AFTER_S)
            cut = time.time()
            bed.cut("spine1", "host1")

        results = []
        for number in range(draws + 1):
            ports = "random" if number < draws else "planned"
            results.append(run_jobs(bed, [JobSpec((0, 1), ports, seconds)])[0])
            name = f"random {number + 1}" if number < draws else ports
            say(f"  {name:10} {_bar(results[-1].busbw_mbit())}")
        *random, planned = (result.busbw_mbit() for result in results)
        share = planned / (PATHS * MBIT)
        say(f"\nplanned / random: {planned / statistics.mean(random):.2f}; planned is {share:.0%} of the paths' sum\n")
        failed = run_jobs(bed, [JobSpec((0, 1), "planned", max(seconds, 6.0), length=16 << 20)], cut_a_path)[0]
    say("A path taken down at 0 s, planned ports, each allreduce:")
    for one in failed.operations:
        say(f"  {one['end'] - cut:6.2f} s {_bar(one['busbw_mbit'])}")
    names = {address: name for name, address in bed.routers.items()}
    for rank, member in enumerate(failed.members):
        for event in member["events"]:
            say(f"  {event['time'] - cut:6.2f} s rank {rank}: {_says(event, names)}")
    say(f"  every sum was right: {'yes' if all(result.right for result in [*results, failed]) else 'NO'}")


def _says(event: dict[str, Any], names: dict[str, str]) -> str:
    """Describe a path event in words."""
    here, there = (" > ".join(names.get(hop, hop) for hop in event[side]) for side in ("path", "to_path"))
    if event["what"] != "left":
        return f"{event['what']} from {here} to {there}, as planned"
    if here == there:
        return f"takes another port over {here}: {_WHY[event['why']]}, there or on its return path"
    return f"leaves the path over {here} for {there}: {_WHY[event['why']]}"


def _bar(mbit: float) -> str:
    return f"{mbit:6.0f} {'█' * round(40 * mbit / (PATHS * MBIT))}"
