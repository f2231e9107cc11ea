"""What the jobs share: their counts of iterations, the time of each, and a stand-in for an accelerator."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator

SEED = int(os.environ.get("SEED", "0"))
SKIPPED = 10


class Laps:
    """Iterations of one job. `onset` None: the job has no fault and ignores ONSET."""

    def __init__(self, job: str, iters: int, onset: int | None) -> None:
        self.job = job
        self.iters = int(os.environ.get("ITERS", str(iters)))
        self.onset = None if onset is None else int(os.environ.get("ONSET", str(onset)))
        self.marks = [time.perf_counter()]

    def late(self, step: int) -> bool:
        return self.onset is not None and step >= self.onset

    def tick(self) -> None:
        self.marks.append(time.perf_counter())

    def __iter__(self) -> Iterator[int]:
        self.marks = [time.perf_counter()]
        for step in range(self.iters):
            yield step
            self.tick()

    def report(self, rank: int) -> None:
        if rank:
            return
        laps = [1e3 * (b - a) for a, b in zip(self.marks, self.marks[1:], strict=False)]
        split = len(laps) // 2 if self.onset is None else self.onset
        before = statistics.fmean(laps[SKIPPED:split]) if split > SKIPPED else None
        after = statistics.fmean(laps[max(split, SKIPPED) :]) if max(split, SKIPPED) < len(laps) else None
        line = {
            "job": self.job,
            "iters": len(laps),
            "mean_ms_before": before and round(before, 2),
            "mean_ms_after": after and round(after, 2),
            "slowdown": round(after / before, 2) if before and after else None,
        }
        print(json.dumps(line), flush=True)


def kernel(ms: float) -> None:
    """The host waits while an accelerator, which this machine lacks, would compute."""
    time.sleep(ms / 1e3)
