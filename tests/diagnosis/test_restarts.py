"""Loader processes that are started again and again are told, with the loop that does it."""

from __future__ import annotations

import numpy as np
import pytest

from eroica.model.pattern import FunctionKey
from eroica.model.verdict import Finding
from eroica.pipeline import analyze
from support import FleetPlan, synthesize, synthesize_window
from support.fleet import Draft

EVERYBODY = (0, 1, 2, 3)
LOADER = "torch/utils/data/dataloader.py"
LOOP = ("<module> (project/train.py:1)", "main (project/train.py:40)", "train_epoch (project/train.py:20)")
WAITING = (f"_BaseDataLoaderIter.__next__ ({LOADER}:720)", "_PollLikeSelector.select (selectors.py:402)")
STARTING = (f"DataLoader.__iter__ ({LOADER}:492)", "Popen._launch (multiprocessing/popen_fork.py:62)")
ENDING = (
    f"_MultiProcessingDataLoaderIter._shutdown_workers ({LOADER}:1606)",
    "wait (multiprocessing/connection.py:933)",
)


class Loading:
    """Milliseconds that some workers spend waiting for a batch, starting and ending loader processes."""

    def __init__(
        self, workers: tuple[int, ...], times: dict[tuple[str, ...], float], iterations: slice = slice(None)
    ) -> None:
        self.workers, self.ms, self.iterations = list(workers), times, iterations

    def apply(self, draft: Draft) -> None:
        for frames, ms in self.ms.items():
            on_WI = np.zeros(draft.shape)
            on_WI[self.workers, self.iterations] = ms * 1e3
            name, stack = frames[-1].partition(" ")[0], (*LOOP, *frames)
            draft.add(
                FunctionKey(kind="python", name=name, stack=stack, phase="input", thread="training"), on_WI, 4.0, 0.1
            )


def cause(workers: tuple[int, ...], *loading: Loading) -> tuple[Finding, str]:
    before = synthesize(FleetPlan(workers=4), (), 1)
    now = synthesize(FleetPlan(workers=4, draw=1), loading, 2)
    verdict = analyze("job", synthesize_window(now, "slow", before), now, before)
    assert verdict.cause is not None and verdict.cause.workers == workers
    assert verdict.cause.cause == "slow-data-loading"
    return verdict.cause, verdict.summary


@pytest.mark.parametrize(("workers", "who"), [(EVERYBODY, "All 4 workers start their"), ((1,), "Worker 1 starts its")])
def test_loader_processes_that_are_started_anew_are_told_with_the_loop_that_does_it(
    workers: tuple[int, ...], who: str
) -> None:
    found, summary = cause(workers, Loading(workers, {WAITING: 50, STARTING: 10, ENDING: 15}))
    assert summary.startswith(f"{who} loader processes anew again and again; train_epoch takes 7")
    assert found.function.name == "train_epoch" and found.function.stack[: len(LOOP)] == LOOP
    assert any("Starting and ending loader processes takes 2" in text for text in found.evidence)
    assert "persistent_workers=True" in found.next_step and found.gain is not None and found.gain > 0.2


@pytest.mark.parametrize(
    "starts",
    [
        Loading(EVERYBODY, {STARTING: 2}),
        Loading(EVERYBODY, {STARTING: 500}, slice(4, 5)),  # the end of an epoch
        Loading(EVERYBODY, {(f"DataLoader.__iter__ ({LOADER}:492)", "__iter__ (project/sampler.py:5)"): 25}),
        Loading(EVERYBODY, {(f"DataLoader.__iter__ ({LOADER}:492)", "Queue.get (multiprocessing/queues.py:98)"): 25}),
    ],
)
def test_what_starts_no_processes_or_seldom_does_is_not(starts: Loading) -> None:
    found, summary = cause(EVERYBODY, Loading(EVERYBODY, {WAITING: 75}), starts)
    assert "anew" not in summary and not any("Starting and ending" in text for text in found.evidence)
