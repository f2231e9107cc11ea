"""What these programs share: how many iterations they run, the time of each, and a stand-in for a device."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator

SEED = int(os.environ.get("SEED", "0"))
WARM_UP = 10


class Tempo:
    """Iterations of one program. `onset` None: nothing happens on the way, and ONSET is ignored."""

    def __init__(self, job: str, iters: int, onset: int | None) -> None:
        self.job = job
        self.iters = int(os.environ.get("ITERS", str(iters)))
        self.onset = None if onset is None else int(os.environ.get("ONSET", str(onset)))
        self.ends: list[float] = []

    def after_onset(self, step: int) -> bool:
        return self.onset is not None and step >= self.onset

    def start(self) -> None:
        self.ends = [time.perf_counter()]

    def beat(self) -> None:
        self.ends.append(time.perf_counter())

    def __iter__(self) -> Iterator[int]:
        self.start()
        for step in range(self.iters):
            yield step
            self.beat()

    def report(self, rank: int) -> None:
        if rank:
            return
        took = [1e3 * (b - a) for a, b in zip(self.ends, self.ends[1:], strict=False)]
        split = len(took) // 2 if self.onset is None else self.onset
        before = statistics.fmean(took[WARM_UP:split]) if WARM_UP < split else None
        rest = took[max(split, WARM_UP) :]
        after = statistics.fmean(rest) if rest else None
        line = {
            "job": self.job,
            "iters": len(took),
            "mean_ms_before": before and round(before, 2),
            "mean_ms_after": after and round(after, 2),
            "slowdown": round(after / before, 2) if before and after else None,
        }
        print(json.dumps(line), flush=True)


def device_wait(ms: float) -> None:
    """The host has nothing to do until the accelerator, which this machine lacks, would be done."""
    time.sleep(ms / 1e3)
