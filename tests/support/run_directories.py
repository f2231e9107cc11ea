"""Run directories as collectors leave them, with verdicts and patterns made by hand."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from eroica.archive.store import Store, write_json
from eroica.model.history import IterationHistory
from eroica.model.pattern import FunctionKey, FunctionPattern, WorkerPattern
from eroica.model.verdict import Coverage, IterationTimes, Verdict, VerdictWord
from eroica.model.window import Window, WindowPurpose
from eroica.model.worker import Worker
from eroica.pipeline import analyze
from eroica.wire.codec import encode_record
from eroica.wire.messages import JobStatus, WindowLine, WorkerStatus
from support import verdicts
from support.fleet import FleetPlan, synthesize, synthesize_window
from support.troubles import Trouble


def a_verdict(  # noqa: PLR0913
    job: str = "llm",
    word: VerdictWord = "slow",
    *,
    workers: Sequence[int] = (3,),
    hosts: Sequence[str] = ("node1",),
    function: str = "read_block",
    cause: str = "slow-data-loading",
    gain: float = 0.3,
    scope: Any = "some",
    baseline_ms: float = 100.0,
    current_ms: float = 140.0,
    summary: str = "",
) -> Verdict:
    finding = verdicts.cause(
        cause, *workers, function=function, scope=scope, hosts=tuple(hosts), gain=gain,
        evidence=("It takes 40 ms.",), next_step="Look there.",
    )  # fmt: skip
    found = (finding,) if word in ("slow", "blocked") else ()
    return verdicts.plain(
        word, summary or f"{word}: {function} on {', '.join(hosts)}.", *found, job=job,
        iteration=IterationTimes(baseline_ms=baseline_ms, current_ms=current_ms),
        coverage=Coverage(workers_expected=8, workers_reported=8),
    )  # fmt: skip


def a_pattern(rank: int, window_id: int, host: str = "", functions: int = 5, seconds: float = 0.2) -> WorkerPattern:
    worker = Worker(
        global_rank=rank, local_rank=rank % 4, world_size=8, host=host or f"node{rank // 4}", pid=100 + rank,
        device=f"cuda:{rank % 4}",
    )  # fmt: skip
    stacks = [("main (train.py:1)", f"step (train.py:{40 + at})", f"f{at} (m.py:9)") for at in range(functions)]
    keys = [FunctionKey(kind="python", name=f"f{at}", stack=stack) for at, stack in enumerate(stacks)]
    rows = tuple(FunctionPattern(key=key, beta=0.1, critical_s=seconds, count=3, resource="cpu") for key in keys)
    return WorkerPattern(
        worker=worker, window_id=window_id, first_iteration=10, last_iteration=30, duration_s=2.0, iteration_us=b"",
        wait_us=b"", functions=rows,
    )  # fmt: skip


def save_patterns(window_directory: Path, window: Window, patterns: Iterable[WorkerPattern]) -> None:
    """Write a window directory that `eroica.archive.load` opens."""
    store = Store(window_directory.parent.parent)
    write_json(window_directory / "window.json", window)
    for pattern in patterns:
        store.save_pattern(pattern, encode_record(pattern))


def save_judged(run: Path, window_id: int, purpose: WindowPurpose = "manual", *troubles: Trouble) -> Verdict:
    """Keep a window of a synthetic job with these troubles, and its verdict unless it is a baseline window's."""
    patterns = synthesize(FleetPlan(iterations=20, draw=window_id), troubles, window_id)
    window = synthesize_window(patterns, purpose)
    save_patterns(run / "windows" / str(window_id), window, patterns)
    verdict = analyze("resnet", window, patterns)
    if purpose != "baseline":
        Store(run).save_verdict(window_id, verdict)
    return verdict


class RunDirectory:
    """A run directory, filled by hand as a collector fills it."""

    def __init__(self, path: Path, job: str = "llm", hosts: int = 2, began: float = 0.0) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path, self.job, self.hosts = path, job, hosts
        self.store = Store(path)
        self.began = began or time.time() - 100
        self.means: list[float] = []
        self.lines: list[WindowLine] = []

    def course(self, *means: float) -> None:
        """So many more seconds, with these mean iteration times in milliseconds."""
        self.means += means
        numbers = tuple(range(1, len(self.means) + 1))
        self.store.save_history(
            IterationHistory(
                job=self.job,
                began=self.began,
                at_s=tuple(map(float, numbers)),
                iteration=numbers,
                mean_ms=tuple(self.means),
                slowest_ms=tuple(self.means),
                slowest_worker=(0,) * len(self.means),
            )
        )
        self.status()

    def status(self, phase: str = "watching") -> None:
        workers = tuple(
            WorkerStatus(worker=a_pattern(rank, 0).worker, state="steady", iteration=len(self.means))
            for rank in range(4 * self.hosts)
        )
        status = JobStatus(
            job=self.job, phase=phase, message="all well", iteration=len(self.means),
            mean_ms=self.means[-1] if self.means else None, best_ms=min(self.means, default=None),
            hosts=tuple(f"node{at}" for at in range(self.hosts)), workers=workers, windows=tuple(self.lines),
        )  # fmt: skip
        write_json(self.path / "status.json", status)

    def window(self, window_id: int, verdict: Verdict | None, workers: int = 8, seconds: float = 0.2) -> None:
        purpose: Literal["slow", "baseline"] = "slow" if verdict is not None else "baseline"
        self.store.save_window(
            Window(window_id=window_id, purpose=purpose, reason="r", first_iteration=10, last_iteration=30)
        )
        for rank in range(workers):
            pattern = a_pattern(rank, window_id, seconds=seconds)
            self.store.save_pattern(pattern, encode_record(pattern))
        if verdict is not None:
            self.store.save_verdict(window_id, verdict)
        self.lines.append(WindowLine(window_id=window_id, purpose=purpose, phase="done"))
        self.status()

    def end(self, verdict: Verdict) -> None:
        self.store.save_final(verdict)
