"""Writes the table of docs/figures.md from what `benchmarks/c4d.py` has written.

python benchmarks/c4d_page.py benchmarks/results/c4d.jsonl [benchmarks/results/c4d_windows.jsonl]
"""

import json
import math
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "figures.md"
FAULTS = ("slow-compute", "slow-path", "slow-send", "slow-receive")
Cells = set[tuple[str, str]]


def main() -> None:
    lines = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    alone = [json.loads(line) for path in sys.argv[2:] for line in Path(path).read_text().splitlines()]
    text = PAGE.read_text()
    table = "\n".join(rows(lines, [one for one in alone if one["kind"] == "run"]))
    begin, end = "<!-- table -->\n", "<!-- end -->"
    head, tail = text.partition(begin)[0], text.partition(end)[2]
    PAGE.write_text(f"{head}{begin}{table}\n{end}{tail}")


def rows(lines: list[dict[str, Any]], alone: list[dict[str, Any]]) -> list[str]:
    by_fault, windows = defaultdict(list), defaultdict(list)
    void = [line for line in lines if line["kind"] == "run" and is_void(line)]
    for line in lines:
        if line["kind"] == "run" and line not in void:
            by_fault[line["fault"]].append(line)
    for line in alone:
        windows[line["fault"]].append(line)
    made = [
        "| fault | runs | class right | place right | verdict after, s: median, worst | mean + 2 deviations: place "
        "| windows alone: class, place, median s |",
        "|---|---|---|---|---|---|---|",
    ]
    made += [row(fault, by_fault[fault], windows[fault]) for fault in FAULTS if by_fault[fault]]
    every = [line for of_fault in by_fault.values() for line in of_fault if line["fault"] != "none"]
    for traffic in ("mesh", "ring"):
        of_traffic = [line for line in every if line["traffic"] == traffic]
        if of_traffic:
            made.append(row(f"all of {traffic}", of_traffic, []))
    made.append(row("all", every, [line for of_fault in windows.values() for line in of_fault]))
    newest = next((line["revision"] for line in reversed(lines) if line["kind"] == "run"), "")
    fresh = [line for line in every if line["revision"] == newest]
    if fresh and len(fresh) < len(every):
        made.append(row(f"of revision {newest}", fresh, []))
    calm = [line for line in lines if line["kind"] == "healthy" or line["fault"] == "none"]
    false = sum(bool(line["verdicts"]) for line in calm)
    seconds = sum(line["seconds"] for line in calm)
    said = [f"Healthy: {len(calm)} stretches, {seconds / 60:.0f} minutes in all; {false} with a verdict."]
    if void:
        said.append(f"Not counted: {len(void)} runs in rings that limited a way on which only acknowledgements go.")
    return [*made, "", *said]


def is_void(line: dict[str, Any]) -> bool:
    """Whether the way that was limited carries no data: in a ring each host sends to the one before it only."""
    if line["fault"] != "slow-path" or line["traffic"] != "ring":
        return False
    here, there = (int(host.removeprefix("node")) for host in line["truth"]["hosts"])
    return (here - 1) % line["hosts"] != there


def row(fault: str, lines: list[dict[str, Any]], windows: list[dict[str, Any]]) -> str:
    after = sorted(line["after_s"] for line in lines if line["after_s"])
    times = f"{statistics.median(after):.1f}, {after[-1]:.1f}" if after else ""
    of_class, of_place = (sum(line["right"][part] for line in lines) for part in ("class", "place"))
    ways = [line for line in lines if line["truth"]["place"] and line["told"]]
    simple = f"{sum(map(by_deviations, ways))} of {len(ways)}" if ways else ""
    beside = ""
    if windows:
        took = [line["after_s"] for line in windows if line["after_s"]]
        right = [sum(line["right"][part] for line in windows) for part in ("class", "place")]
        middle = f"{statistics.median(took):.0f}" if took else "none"
        beside = f"{right[0]}, {right[1]} of {len(windows)}; {middle}"
    return f"| {fault} | {len(lines)} | {of_class} | {of_place} | {times} | {simple} | {beside} |"


def by_deviations(line: dict[str, Any]) -> bool:
    """The public re-reading of a matrix: cells beyond mean + 2 standard deviations; right if they are the fault's."""
    matrix = line["told"]["matrix"]
    cells = {
        (here, there): delay
        for here, delays in zip(matrix["hosts"], matrix["delay_s"], strict=True)
        for there, delay in zip(matrix["hosts"], delays, strict=True)
        if delay is not None
    }
    mean = statistics.fmean(cells.values())
    limit = mean + 2 * math.sqrt(statistics.fmean((delay - mean) ** 2 for delay in cells.values()))
    found: Cells = {cell for cell, delay in cells.items() if delay > limit}
    kind, hosts = line["truth"]["place"][0], line["truth"]["hosts"]
    wanted = {cell for cell in cells if kind == "connection" and list(cell) == hosts}
    wanted |= {cell for cell in cells if kind == "sending" and cell[0] == hosts[0]}
    wanted |= {cell for cell in cells if kind == "receiving" and cell[1] == hosts[0]}
    return found == wanted


if __name__ == "__main__":
    main()
