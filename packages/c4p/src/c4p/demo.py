"""The demo: random against planned source ports on four paths, then a path that fails."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from c4p.measure import JobResult, JobSpec, run_jobs
from c4p.testbed import Shape, Testbed, build

PATHS, MBIT = 4, 200.0
CUT_AFTER_S = 2.0


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
    with build(Shape(hosts=2, spines=PATHS, mbit=MBIT)) as bed:
        rows = []
        for number in range(draws):
            result = run_jobs(bed, [JobSpec((0, 1), "random", seconds)])[0]
            rows.append(_row(f"random {number + 1}", result))
            say(_line(rows[-1]))
        planned = run_jobs(bed, [JobSpec((0, 1), "planned", seconds)])[0]
        rows.append(_row("planned", planned))
        say(_line(rows[-1]))
        mean = statistics.mean(row["mbit"] for row in rows[:-1])
        share = rows[-1]["mbit"] / (PATHS * MBIT)
        say(f"\nplanned / random: {rows[-1]['mbit'] / mean:.2f}; planned is {share:.0%} of the paths' sum\n")
        failed, cut = _failing(bed, max(seconds, 6.0))
    say("A path taken down at 0 s, planned ports, each allreduce:")
    for one in failed.operations:
        say(f"  {one['end'] - cut:6.2f} s {one['busbw_mbit']:6.0f} {_bar(one['busbw_mbit'])}")
    names = {address: name for name, address in bed.routers.items()}
    for rank, member in enumerate(failed.members):
        for event in member["events"]:
            say(f"  {event['time'] - cut:6.2f} s rank {rank}: {_says(event, names)}")
    say(f"  every sum was right: {'yes' if failed.right and planned.right else 'NO'}")


def _says(event: dict[str, Any], names: dict[str, str]) -> str:
    """Describe a path event in words."""
    here, there = (" > ".join(names.get(hop, hop) for hop in event[side]) for side in ("path", "to_path"))
    whats = {"dead": "nothing comes through", "slow": "it is slow", "lost": "the connection broke"}
    why = whats.get(event["why"], "")
    if event["what"] == "returned":
        return f"from {here} to its planned path over {there}"
    if event["what"] == "moved":
        return f"over {there} by another connection" if here == there else f"from {here} to {there}, as planned"
    if here == there:
        return f"another port over {here}: {why}, there or on its return path"
    return f"leaves the path over {here} for {there}: {why}"


def _failing(bed: Testbed, seconds: float) -> tuple[JobResult, float]:
    cut = []

    def during() -> None:
        time.sleep(CUT_AFTER_S)
        cut.append(time.time())
        bed.cut("spine1", "host1")

    result = run_jobs(bed, [JobSpec((0, 1), "planned", seconds, length=16 << 20)], during)[0]
    return result, cut[0]


def _row(name: str, result: JobResult) -> dict[str, Any]:
    return {"name": name, "mbit": result.busbw_mbit()}


def _line(row: dict[str, Any]) -> str:
    return f"  {row['name']:10} {row['mbit']:6.0f} {_bar(row['mbit'])}"


def _bar(mbit: float) -> str:
    return "█" * round(40 * mbit / (PATHS * MBIT))
