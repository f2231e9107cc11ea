"""`make circle`: a worker is throttled, Eroica names it, TrainMover replaces it, and every loss is as if nothing was.

    python -m trainmover.demo.circle [--folder DIR]

`eroica run` watches the job and gives its order to `trainmover move --on-verdict -`; nobody else does anything. Rank 2
is throttled from outside, as by a quota: it gets 7 % of a core. Some iterations after the move the job
is ended, and the same job runs undisturbed for as many. Exit status 0 if Eroica's order named rank 2, it was moved,
iterations are fast again, and all losses are those of the undisturbed job, bit by bit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from trainmover.demo.picture import draw
from trainmover.demo.run import Run, ready

VICTIM, AFTER = 2, 60
SHAPE = ["--dp", "2", "--pp", "2", "--width", "96"]
QUOTA, RUN_S, STOP_MOST_S = 0.07, 0.004, 1.0
TIMES = '{"beat_s": 30}'  # a worker with so little of a core is silent for long, and not lost
#: Short windows and pauses, as the demonstration is short.
SETTINGS = {"baseline_window_s": 2, "window_s": 5, "window_lead_s": 0.5, "cooldown_s": 10, "window_deadline_s": 40}


class Throttle:
    """Gives a process a share of a core: what it has used is paid for with time in which it is stopped.

    Args:
        pid: Its main thread's is the time that counts.
    """

    def __init__(self, pid: int) -> None:
        self._pid, self._over = pid, threading.Event()
        self._used = Path(f"/proc/{pid}/schedstat")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Leave it in peace; it runs."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            paid_s = self._used_s()
            while not self._over.is_set():
                time.sleep(RUN_S)
                owed_s = (self._used_s() - paid_s) * (1 / QUOTA - 1)
                paid_s = self._used_s()
                os.kill(self._pid, signal.SIGSTOP)
                time.sleep(min(STOP_MOST_S, owed_s))
                os.kill(self._pid, signal.SIGCONT)

    def _used_s(self) -> float:
        return int(self._used.read_text().split()[0]) / 1e9


def watched(folder: Path) -> list[str]:
    """The beginning of the command: Eroica around the job, with the order that it may give."""
    mover = ["trainmover.cli", "move", "--folder", str(folder), "--on-verdict", "-", "--min-confidence", "0.5"]
    command = ["eroica", "run", "--quiet", "--out", str(folder / "eroica"), "--act-from", "0.5"]
    command += ["--on-verdict", shlex.join([sys.executable, "-m", *mover, "--force"])]
    return [*command, *(part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")), "--"]


def pace(lines: list[dict[str, Any]], since: float, until: float = float("inf")) -> float:
    """Median seconds of the iterations that ended within this time."""
    return float(statistics.median([one["took_s"] for one in lines if since < one["at"] < until] or [float("nan")]))


def orders(folder: Path) -> list[dict[str, Any]]:
    """What Eroica has ordered, and what became of it."""
    file = folder / "eroica" / "orders.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def has_learned(run: Path) -> bool:
    """Whether Eroica knows what is normal: all workers are steady, and its first window is done."""
    try:
        told = json.loads((run / "status.json").read_text())
    except (OSError, ValueError):
        return False
    steady = [one["state"] == "steady" for one in told["workers"]]
    looked = len(list((run / "windows" / "1" / "patterns").glob("*"))) == 4
    return told["phase"] == "watching" and len(steady) == 4 and all(steady) and looked


def main() -> int:
    """Run it; its exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    folder = parser.parse_args().folder or Path(tempfile.mkdtemp(prefix="trainmover-circle-"))
    if shutil.which("eroica") is None:
        raise SystemExit("the command `eroica` is not here: pip install eroica")
    job = Run(folder / "moved", [*SHAPE, "--iterations", "100000", "--pace", "0.05"], watched(folder / "moved"), TIMES)
    try:
        events = throttled(job)
    finally:
        job.end()
    moved = [{one["step"]: one for one in job.lines(rank)} for rank in range(4)]
    count = min(len(one) for one in moved)
    quiet = Run(folder / "undisturbed", [*SHAPE, "--iterations", str(count)])
    try:
        if quiet.process.wait(200) != 0:
            raise SystemExit(f"the undisturbed job failed; see {folder}")
    finally:
        quiet.end()
    (folder / "iterations.svg").write_text(draw([job.lines(rank) for rank in range(4)], events))
    lines = job.lines(0)
    before, during, after = (
        1e3 * pace(lines, *part)
        for part in ((events[0][0] - 10, events[0][0]), (events[0][0] + 1, events[1][0]), (events[1][0] + 1,))
    )
    print(
        f"iterations:  {before:.0f} ms before, {during:.0f} ms while rank {VICTIM} was throttled, {after:.0f} ms after"
    )
    equal = all(one["loss"] == moved[rank][one["step"]]["loss"] for rank in range(4) for one in quiet.lines(rank))
    print(f"loss equal:  {'yes' if equal else 'no'} ({count} iterations, 4 ranks, to the last bit)")
    print(f"picture of the iterations: {folder / 'iterations.svg'}")
    return 0 if equal and after < (before + during) / 2 else 1


def throttled(job: Run) -> list[tuple[float, str]]:
    """Throttle the victim and wait until it has been replaced; when each happened and what it was."""
    job.until(lambda _now: True)
    job.standby("spare-1")
    job.until(ready, 90)
    job.until(lambda _now: has_learned(job.folder / "eroica"), 120)
    begin = time.time()
    throttle = Throttle(job.lines(VICTIM)[-1]["pid"])
    try:
        job.until(lambda now: any(one["what"] == "moved" for one in now["history"]), 150)
    finally:
        throttle.stop()
    moved = time.time()
    order = next(one for one in orders(job.folder) if "action" in one)
    named = f"{order['action']} {order['workers']}, {order['cause']} with confidence {order['confidence']:.2f}"
    print(f"Eroica:      {named}, {moved - begin:.1f} s after rank {VICTIM} was throttled")
    holder = next(one["host"] for one in job.status()["members"] if one["rank"] == VICTIM)
    print(f"TrainMover:  rank {VICTIM} is on {holder} now")
    if order["workers"] != [VICTIM] or holder != "spare-1":
        raise SystemExit("another rank was named or moved")
    until = job.lines(0)[-1]["step"] + AFTER
    job.until(lambda now: min(one["step"] for one in now["members"]) > until, 120)
    return [(begin, f"rank {VICTIM} is throttled"), (moved, "it has been replaced")]


if __name__ == "__main__":
    raise SystemExit(main())
