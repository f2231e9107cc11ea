"""Random faults at random moments in a real job of four processes, compared bit by bit with the same job without.

    python benchmarks/faults.py --faults 25 --seed 0 --out docs/figures/faults.jsonl

What happens, to whom and when is drawn from the seed. After each fault training has to go on on all four ranks, each
held by one process, within `LIMIT_S`. A record for each fault (what, rank, seconds until every rank is two iterations
further), then one for the whole.

    kill, stop            a member ends at once, or says nothing any more
    cut                   all connections between two members end (`ss -K`, for which the kernel has to be willing)
    two                   two members at once; without copies left everybody goes back to the checkpoint
    controller            the controller is killed
    joiner              a move is ordered, and the joiner dies at some stage
    kill in move          a move is ordered, and a member dies within the next second
    controller in move    likewise the controller
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.jobs import RunningJob, losses, running_job, states

KINDS = ("kill", "stop", "cut", "two", "controller", "joiner", "kill in move", "controller in move")
STAGES = ("shadow", "prepare", "hold", "state", "switch", "restore")
LIMIT_S = 90.0
PACE_S = 0.1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=200.0, help="no further fault after so long")
    parser.add_argument("--iterations", type=int, default=1500)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    folder = Path(tempfile.mkdtemp(prefix="trainmover-faults-"))
    shape = ["--dp", "2", "--pp", "2", "--iterations", str(given.iterations), "--checkpoint-every", "10"]
    given.out.parent.mkdir(parents=True, exist_ok=True)

    def write(record: dict) -> None:
        print(json.dumps(record), flush=True)
        with given.out.open("a") as file:
            file.write(json.dumps(record) + "\n")

    counts: Counter[str] = Counter()
    times = '{"heartbeat_timeout_s": 3}'
    saved = ["--checkpoint", str(folder / "saved")]
    with running_job(folder / "hit", 4, *shape, *saved, pace_s=PACE_S, timeouts=times) as job:
        job.until_step(12)
        began = time.monotonic()
        while counts.total() < given.faults and time.monotonic() - began < given.seconds:
            kind, rank = chance.choice(KINDS), chance.randrange(4)
            if chance.random() < 0.5 or "move" in kind:
                job.standby(f"spare-{len(job.others)}")
                job.until_ready()
            time.sleep(chance.uniform(0.0, 1.0))
            step, since = max(one["step"] for one in job.status()["members"]), time.monotonic()
            happen(job, kind, rank, chance)
            whole(job, step)
            counts[kind] += 1
            write({"seed": given.seed, "what": kind, "rank": rank, "on_after_s": round(time.monotonic() - since, 2)})
        job.pace(0.0)
        assert job.finish(250) == 0, job.log()
    with running_job(folder / "plain", 4, *shape) as plain:
        assert plain.finish(250) == 0
    equal = losses(job.out) == losses(plain.out), states(job.out) == states(plain.out)
    record = {"seed": given.seed, "faults": counts.total(), "kinds": dict(counts), "iterations": given.iterations}
    write({**record, "losses_equal": equal[0], "states_equal": equal[1]})


def happen(job: RunningJob, kind: str, rank: int, chance: random.Random) -> None:
    """Let one fault happen."""
    if kind == "kill":
        job.hit(rank)
    elif kind == "stop":
        job.hit(rank, signal.SIGSTOP)
    elif kind == "cut":
        cut(job.pid_of(rank), job.pid_of((rank + chance.randrange(1, 4)) % 4))
    elif kind == "two":
        for one in (rank, (rank + chance.randrange(1, 4)) % 4):
            job.hit(one)
    elif kind == "controller":
        kill_controller(job)
    elif kind == "joiner":
        name = f"dies-{len(job.others)}"
        child = job.standby(name, TRAINMOVER_FAULT=f"kill@{chance.choice(STAGES)}")
        deadline = time.monotonic() + LIMIT_S
        while child.poll() is None and not any(one["host"] == name and one["ready"] for one in standbys(job)):
            assert time.monotonic() < deadline, job.log()
            time.sleep(0.1)
        order(job, rank, name)
        child.kill()
    else:
        thread = threading.Thread(target=order, args=(job, rank, ""))
        thread.start()
        time.sleep(chance.uniform(0.0, 1.0))
        if kind == "kill in move":
            with contextlib.suppress(ProcessLookupError):
                job.hit(chance.randrange(4))
        else:
            kill_controller(job)
        thread.join(LIMIT_S)
        assert not thread.is_alive(), job.log()


def cut(one: int, other: int) -> None:
    """End all connections between two processes."""
    ends: dict[int, list[tuple[str, str]]] = {one: [], other: []}
    listed = subprocess.run(["ss", "-Htnp", "state", "established"], capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        for pid, found in ends.items():
            if f"pid={pid}," in line:
                found.append((line.split()[2], line.split()[3]))
    for near, far in set(ends[one]) & {(far, near) for near, far in ends[other]}:
        subprocess.run(["ss", "-K", "src", near, "dst", far], capture_output=True, check=True)


def standbys(job: RunningJob) -> list[dict]:
    return job.status()["standbys"]


def order(job: RunningJob, rank: int, target: str) -> None:
    """Order a move; whether it comes about is not the question."""
    hosts = [one["host"] for one in job.status()["members"] if one["rank"] == rank]
    with contextlib.suppress(Exception):
        job.move(hosts[0], target)


def kill_controller(job: RunningJob) -> None:
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        os.kill(json.loads((job.folder / "controller.json").read_text())["pid"], signal.SIGKILL)


def whole(job: RunningJob, step: int) -> None:
    """Every rank is held by one process, and two iterations further than `step`."""

    def on(now: dict) -> bool:
        members = now["members"]
        alone = [one["rank"] for one in members] == [0, 1, 2, 3]
        return alone and not now["under_way"] and min(one["step"] for one in members) >= step + 2

    job.until(on, LIMIT_S)
    job.until(on, LIMIT_S)


if __name__ == "__main__":
    main()
