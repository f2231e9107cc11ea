"""Pauses and wasted device-hours at sizes that nobody measured here: a projection from measured parts, as a table.

    python benchmarks/projection.py docs/measured/rebuild.jsonl docs/measured/pause.jsonl --detected 1.33

Measured parts: the switch for each connection (rebuild.jsonl, its largest job), a planned pause (pause.jsonl, the
median), and the time from detection until all go on (as given). Assumed, and said
in the table's head: TP 8 and PP 8; one interruption in 2.7 hours on 16,384 devices (Llama 3's), in proportion to
devices; expected to unexpected as 1 to 8.9 (the TrainMover paper's); copies every 10 iterations of 5 s, of which half
are lost on average; the state of a member takes as long as here.

    connections of one member   c(N) = 2 (7 + 7 + (N / 64 - 1) + (N - 1))
    planned pause               planned + switch c(N)
    unexpected                  detected + switch c(N) + 25 s of iterations done again
    wasted device-hours a week  N (168 h N / (2.7 h 16,384)) (planned pause / 9.9 + unexpected 8.9 / 9.9) / 3600
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

DEVICES = (1_024, 8_192, 131_072)
WEEK_H, MTTF_H, MTTF_DEVICES, UNEXPECTED_SHARE, REDONE_S = 168, 2.7, 16_384, 8.9 / 9.9, 25.0
#: Share of all device time that a restart costs, and seconds of one, as the paper says.
PAPER = {1_024: "< 20 / < 30 s", 8_192: "restart: 388 s", 131_072: "restart: 31.79 % of all time"}


def read(path: str) -> list[dict]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rebuild")
    parser.add_argument("pause")
    parser.add_argument("--detected", type=float, required=True, help="seconds from detection until all go on")
    given = parser.parse_args()
    largest = max(read(given.rebuild), key=lambda one: one["ranks"])
    switch_s = largest["switch_s"] / (2 * largest["groups"] * (largest["ranks"] - 1))
    planned_s = statistics.median(one["pause_s"] for one in read(given.pause) if one["what"] == "planned")
    detected_s: float = given.detected
    print(
        f"switch {1e3 * switch_s:.4f} ms a connection, planned {planned_s:.2f} s, after detection {detected_s:.2f} s\n"
    )
    print("| devices | connections | planned, s | unexpected, s | interruptions a week | device-hours wasted a week "
          "| share | paper |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    for devices in DEVICES:
        connections = 2 * (7 + 7 + devices // 64 - 1 + devices - 1)
        planned, unexpected = planned_s + switch_s * connections, detected_s + switch_s * connections + REDONE_S
        count = WEEK_H * devices / (MTTF_H * MTTF_DEVICES)
        each_s = planned * (1 - UNEXPECTED_SHARE) + unexpected * UNEXPECTED_SHARE
        wasted_h = devices * count * each_s / 3600
        print(f"| {devices:,} | {connections:,} | {planned:.1f} | {unexpected:.1f} | {count:,.0f} | {wasted_h:,.0f} "
              f"| {100 * wasted_h / devices / WEEK_H:.2f} % | {PAPER[devices]} |")  # fmt: skip


if __name__ == "__main__":
    main()
