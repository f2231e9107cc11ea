"""`make demo`: a job of four processes loses a member twice, by order and by a kill, with equal results.

    python examples/demo.py [--folder DIR]

It compares with the same job, undisturbed, and writes DIR/iterations.svg. The exit status is 0 if all losses are
bitwise equal.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from pathlib import Path

from picture import draw
from run import Run, ready
from trainmover.cli import ask

ITERATIONS = 400
SHAPE = ["--dp", "2", "--pp", "2", "--tp", "1", "--iterations", str(ITERATIONS)]
PACE_S = 0.04


def main() -> int:
    """Run the demo; its exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    folder = parser.parse_args().folder or Path(tempfile.mkdtemp(prefix="trainmover-demo-"))
    began = time.monotonic()
    print("TrainMover demo: a small GPT on 4 processes (2 pipeline stages x 2 replicas), each counts as a host")
    quiet, moved = Run(folder / "undisturbed", [*SHAPE, "--pace", "0"]), None
    try:
        if quiet.process.wait(300) != 0:
            print(f"the undisturbed job failed; see {folder}")
            return 1
        moved = Run(folder / "moved", [*SHAPE, "--pace", str(PACE_S)])
        events = disturb(moved)
        status = moved.process.wait(300)
    finally:
        quiet.end()
        if moved is not None:
            moved.end()
    picture = folder / "iterations.svg"
    picture.write_text(draw([moved.lines(rank) for rank in range(4)], events))
    differ = sum(
        {one["step"]: one["loss"] for one in quiet.lines(rank)}
        != {one["step"]: one["loss"] for one in moved.lines(rank)}
        for rank in range(4)
    )
    states = all(
        (quiet.out / f"state-{r}.txt").read_text() == (moved.out / f"state-{r}.txt").read_text() for r in range(4)
    )
    print(f"picture of the iterations: {picture}")
    print(f"loss equal: {'no' if differ or status else 'yes'} ({ITERATIONS} iterations, 4 ranks, to the last bit)")
    print(f"parameters, optimizer, random numbers and data position equal: {'yes' if states else 'no'}")
    print(f"took {time.monotonic() - began:.0f} s")
    return 0 if states and not differ and status == 0 else 1


def disturb(job: Run) -> list[tuple[float, str]]:
    """Move one member by order, kill another; when each happened and what it was."""
    job.until(lambda _now: True)
    job.standby("spare-1")
    job.until(ready)
    events = [(time.time(), "node-1 is moved to spare-1")]
    answer = ask(job.access(), {"ask": "move", "hosts": [("node-1", "spare-1")]})
    print(f"by order:    {answer['text']}")
    job.standby("spare-2")
    job.until(ready)
    victim = job.lines(3)[-1]["pid"]
    events.append((time.time(), "node-3 is killed"))
    os.kill(victim, signal.SIGKILL)
    found = job.until(lambda now: any(one["what"] == "recovery" for one in now["history"]) and not now["under_way"])
    took_s = next(one["took_s"] for one in found["history"] if one["what"] == "recovery")
    print(f"by surprise: rank 3 was killed; spare-2 has its role {took_s:.2f} s after the loss was seen")
    pauses = [one["took_s"] for one in found["history"] if one["what"] == "switched"]
    print(f"             the move by order had stopped the ranks for {max(pauses):.3f} s at most")
    return events


if __name__ == "__main__":
    raise SystemExit(main())
