"""What the framework jobs share: options, and the time of each step as the job itself sees it. Knows of no tool."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from itertools import pairwise

_WARM_UP = 10


class Steps:
    """Options of a run, and when each of its steps ended.

    Args:
        name: Of the job.
    """

    def __init__(self, name: str) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("--variant", choices=["healthy", "a"], default="healthy")
        self.variant = parser.parse_known_args()[0].variant
        self.name = name
        self.count = int(os.environ.get("ITERS", "600"))
        self.onset = int(os.environ.get("ONSET", "150"))
        self.rank = int(os.environ.get("RANK", "0"))
        self._ends: list[float] = [time.perf_counter()]

    @property
    def done(self) -> int:
        """Steps so far."""
        return len(self._ends) - 1

    def faulty(self, rank: int | None = None) -> bool:
        """Whether the fault is there now, on this rank (None: on all)."""
        return self.variant == "a" and self.done >= self.onset and rank in (None, self.rank)

    def end(self) -> None:
        """A step has ended."""
        self._ends.append(time.perf_counter())

    def report(self) -> None:
        """Print what the job saw, one line of JSON; on rank 0 only."""
        if self.rank:
            return
        laps = [1e3 * (later - earlier) for earlier, later in pairwise(self._ends)]
        split = self.onset if self.variant == "a" else len(laps) // 2
        before, after = laps[_WARM_UP:split], laps[split:]
        facts = {"job": self.name, "variant": self.variant, "iters": len(laps)}
        facts |= {"mean_ms_before": _mean(before), "mean_ms_after": _mean(after)}
        print(json.dumps(facts), flush=True)


def _mean(laps: list[float]) -> float | None:
    return round(statistics.fmean(laps), 1) if laps else None
