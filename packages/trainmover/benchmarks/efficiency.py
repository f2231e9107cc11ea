"""Share of its time that a job trains while one of its members is moved every 60, 30 and 10 seconds.

    python benchmarks/efficiency.py --every 60,30,10 --moves 2,3,6 --out docs/figures/efficiency.jsonl

The share is iterations done, times the median iteration before the first move, over the time that passed. Standbys are
warm before it begins: on one machine their warming would take cores from the training, which a machine of their own
would not. With `--pauses FILE` (records of pause.py) the shares of other ways are added, computed from their pauses:
1 - pause / interval.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.jobs import running_job

from benchmarks.pause import lines

SHAPE = ["--dp", "2", "--pp", "2", "--width", "128", "--length", "16", "--batch", "2", "--iterations", "100000"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", default="60,30,10")
    parser.add_argument("--moves", default="2,3,6")
    parser.add_argument("--pace", type=float, default=0.25)
    parser.add_argument("--pauses", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    for every_s, n_moves in zip(map(float, given.every.split(",")), map(int, given.moves.split(",")), strict=True):
        record = {"every_s": every_s, "moves": n_moves, "share": {"moved": round(measure(every_s, n_moves, given), 4)}}
        for one in map(json.loads, given.pauses.read_text().splitlines()) if given.pauses else ():
            if one["ranks"] == 4:
                record["share"][f"{one['what']}, computed"] = round(max(0.0, 1 - one["pause_s"] / every_s), 4)
        print(json.dumps(record), flush=True)
        with given.out.open("a") as file:
            file.write(json.dumps(record) + "\n")


def measure(every_s: float, n_moves: int, given: argparse.Namespace) -> float:
    """The share with so many moves in so long."""
    folder = Path(tempfile.mkdtemp(prefix="trainmover-efficiency-"))
    with running_job(folder, 4, *SHAPE, pace_s=given.pace, timeouts='{"heartbeat_timeout_s": 20}') as job:
        job.until_step(5)
        for move in range(n_moves):
            job.standby(f"spare-{move}")
        job.until_ready(n_moves)
        time.sleep(8.0)
        begin = time.time()
        normal_s = statistics.median(one["took_s"] for one in lines(job.out, 1) if one["at"] > begin - 6)
        for move in range(n_moves):
            time.sleep(max(0.0, begin + (move + 0.5) * every_s - time.time()))
            host = next(one["host"] for one in job.status()["members"] if one["rank"] == 2)
            answer = job.move(host)
            assert answer["done"], answer
        time.sleep(max(0.0, begin + n_moves * every_s - time.time()))
        inside = [one["at"] for one in lines(job.out, 1) if one["at"] > begin]
        return (len(inside) - 1) * normal_s / (inside[-1] - inside[0])


if __name__ == "__main__":
    main()
