"""The demo: random against planned source ports on four paths, then a path that fails."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from c4p.measure import JobResult, JobSpec, run_jobs
from c4p.testbed import Shape, Testbed, build

PATHS, MBIT = 4, 200.0
CUT_AFTER_S = 2.0


def run_demo(seconds: float, draws: int, picture: Path, say: Callable[[str], None]) -> None:
    """Run the demo.

    Args:
        seconds: Length of each run.
        draws: Random draws.
        picture: SVG file to write.
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
    series = [(o["end"] - cut, o["busbw_mbit"]) for o in failed.operations]
    for at, mbit in series:
        say(f"  {at:6.2f} s {mbit:6.0f} {_bar(mbit)}")
    names = {address: name for name, address in bed.routers.items()}
    for rank, member in enumerate(failed.members):
        for event in member["events"]:
            say(f"  {event['time'] - cut:6.2f} s rank {rank}: {_says(event, names)}")
    say(f"  every sum was right: {'yes' if failed.right and planned.right else 'NO'}")
    picture.write_text(draw(rows, series), encoding="utf-8")
    say(f"\npicture: {picture.absolute()}")


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


def draw(rows: Sequence[dict[str, Any]], series: Sequence[tuple[float, float]]) -> str:
    """Draw bars of the runs, and the bandwidth over time around the failure.

    Args:
        rows: Name and Mbit/s of each run; the last one is the planned one.
        series: Seconds from the failure, and Mbit/s, of each allreduce.

    Returns:
        SVG.
    """
    most = PATHS * MBIT
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 420" font-family="sans-serif" font-size="13">',
        '<rect width="760" height="420" fill="white"/>',
        '<text x="20" y="24" font-size="15">Random against planned source ports, Mbit/s</text>',
    ]
    for number, row in enumerate(rows):
        y, width = 40.0 + 24 * number, 480 * row["mbit"] / most
        color = "#0072b2" if number == len(rows) - 1 else "#e69f00"
        parts.append(f'<text x="20" y="{y + 14:.0f}">{row["name"]}</text>')
        parts.append(f'<rect x="110" y="{y:.0f}" width="{width:.1f}" height="18" fill="{color}"/>')
        parts.append(f'<text x="{118 + width:.1f}" y="{y + 14:.0f}">{row["mbit"]:.0f}</text>')
    edge = 40 + 24 * len(rows)
    parts.append(f'<line x1="590" y1="36" x2="590" y2="{edge}" stroke="#555" stroke-dasharray="4 3"/>')
    parts.append(f'<text x="600" y="{edge - 4}" fill="#555">all paths: {most:.0f}</text>')
    top, height = edge + 50, 400 - edge - 70
    parts.append(f'<text x="20" y="{top - 18}" font-size="15">A path fails at 0 s (planned ports)</text>')
    if series:
        first, last = series[0][0], max(series[-1][0], 0.1)

        def place(at: float, mbit: float) -> str:
            return f"{110 + 480 * (at - first) / (last - first):.1f},{top + height * (1 - mbit / most):.1f}"

        parts.append(f'<polyline points="{" ".join(place(*p) for p in series)}" fill="none" stroke="#0072b2"/>')
        for level, name in ((most, "4 paths"), (most * (PATHS - 1) / PATHS, "3 paths")):
            y = top + height * (1 - level / most)
            parts.append(f'<line x1="110" y1="{y:.1f}" x2="590" y2="{y:.1f}" stroke="#555" stroke-dasharray="4 3"/>')
            parts.append(f'<text x="600" y="{y + 4:.1f}" fill="#555">{name}</text>')
        x = 110 + 480 * (0 - first) / (last - first)
        parts.append(f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{top + height}" stroke="#d55e00"/>')
        parts.append(f'<text x="{x + 4:.1f}" y="{top + height - 4}" fill="#d55e00">0 s</text>')
    return "\n".join([*parts, "</svg>", ""])
