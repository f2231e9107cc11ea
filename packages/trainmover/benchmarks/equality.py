"""1,000 iterations with 20 random moves and losses (seeded), compared bit by bit with the same job without.

    python benchmarks/equality.py --events 20 --iterations 1000 --out docs/figures/equality.jsonl

A record for each event (what, rank, seconds that the training lost), then one for the whole: equal or not, and the
share of its time that the disturbed job spent training (1 - lost / total). Memory of rank 2, which stays, is sampled
from /proc every 50 ms around planned moves: for a second before, for `CONTROL_S` without a move, then through the move.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.jobs import WAITING_S, losses, running_job, states

from benchmarks.pause import lines, lost_s

#: About as long as a move with the iterations after it.
CONTROL_S = 2.5


class Memory:
    """Resident bytes of one process, sampled."""

    def __init__(self, pid: int) -> None:
        self.pid, self.samples, self.going = pid, [], True
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        """Sample until stopped."""
        while self.going:
            fields = Path(f"/proc/{self.pid}/statm").read_text().split()
            self.samples.append(int(fields[1]) * 4096)
            time.sleep(0.05)

    def stop(self) -> list[int]:
        """All samples, bytes."""
        self.going = False
        self.thread.join()
        return self.samples


def main() -> None:  # noqa: PLR0915 - one run from beginning to end
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--gap", type=float, default=1.0, help="seconds between the end of an event and the next standby"
    )
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    shape = ["--dp", "2", "--pp", "2", "--iterations", str(given.iterations), "--width", "128"]
    folder = Path(tempfile.mkdtemp(prefix="trainmover-equality-"))
    given.out.parent.mkdir(parents=True, exist_ok=True)

    def write(record: dict) -> None:
        print(json.dumps(record), flush=True)
        with given.out.open("a") as file:
            file.write(json.dumps(record) + "\n")

    with running_job(folder / "plain", 4, *shape) as plain:
        assert plain.finish(500) == 0
    with running_job(folder / "moved", 4, *shape, pace_s=0.25, timeouts='{"heartbeat_timeout_s": 10}') as job:
        job.until_step(5)
        moments = []
        for event in range(given.events):
            job.standby(f"spare-{event}")
            job.until_ready()
            time.sleep(given.gap + WAITING_S)  # the iteration under way still waits as long
            rank, what = chance.randrange(4), chance.choice(["planned", "planned", "loss"])
            found = job.status()
            known, begin = len(found["history"]), time.time()
            memory = Memory(job.pid_of(2)) if what == "planned" and rank != 2 else None
            marks: list[int] = []
            if memory is not None:
                for seconds in (1.0, CONTROL_S):
                    time.sleep(seconds)
                    marks.append(len(memory.samples))
                begin = time.time()
            if what == "planned":
                assert job.move(found["members"][rank]["host"])["done"]
            else:
                job.hit(rank)
                job.until(lambda now, known=known: len(now["history"]) > known and not now["under_way"])
            time.sleep(1.5)
            record = {"event": event, "what": what, "rank": rank}
            if memory is not None:
                samples = memory.stop()
                before, control, through = samples[: marks[0]], samples[marks[0] : marks[1]], samples[marks[1] :]
                most = {"before_bytes": max(before), "control_bytes": max(control), "move_bytes": max(through)}
                record["memory"] = most
            moments.append((record, begin))
        job.pace(0.0)
        assert job.finish(300) == 0, job.log()
        logged = lines(job.out)
        for record, begin in moments:
            record["lost_s"] = round(lost_s(logged, begin), 4)
            write(record)
        total_s = moments[-1][1] - logged[0]["at"]
        lost = sum(max(0.0, record["lost_s"]) for record, _ in moments)
        share = round(1 - lost / total_s, 4)
        every_s = round(statistics.mean(b - a for (_, a), (_, b) in pairwise(moments)), 1)
        equal = losses(job.out) == losses(plain.out), states(job.out) == states(plain.out)
        write(
            {
                "iterations": given.iterations,
                "events": given.events,
                "seed": given.seed,
                "losses_equal": equal[0],
                "states_equal": equal[1],
                "event_every_s": every_s,
                "share_training": share,
            }
        )


if __name__ == "__main__":
    main()
