"""Training steps in any thread: counted, never a crash, not a word, and a window in one thread or none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from watched_jobs import SETTLED, Host, OneOrder, Windows

from eroica.wire.beat import DONE, SKIPPED, STATE_NAMES, WINDOW

pytestmark = pytest.mark.jobs

HEAD = """
import asyncio, concurrent.futures, random, sys, threading, time, torch
torch.set_num_threads(1)
def a_training():
    p = torch.nn.Parameter(torch.ones(64, 64)); optimizer = torch.optim.SGD([p], 1e-3)
    def step():
        optimizer.zero_grad(); (p @ p).sum().backward(); optimizer.step(); time.sleep(0.002)
    return step
step = a_training()
def steps(count):
    for _ in range(count): step()
def run(*works):
    threads = [threading.Thread(target=work) for work in works]
    for one in threads: one.start()
    for one in threads: one.join()
"""
ONE = "run(lambda: steps(200))"
POOL = """
pools = [concurrent.futures.ThreadPoolExecutor(1) for _ in range(2)]
for i in range(200): pools[i // 7 % 2].submit(step).result()
"""
ASYNCIO = """
async def train():
    for i in range(200): await asyncio.to_thread(step)
asyncio.run(train())
"""
ENDING = "run(lambda: steps(int(sys.argv[1]))); steps(200 - int(sys.argv[1]))"
ANOTHER = "steps(60)\nfor _ in range(14): run(lambda: steps(10))"
SHARED = """
q = torch.nn.Parameter(torch.ones(4)); q.grad = torch.ones(4); common = torch.optim.SGD([q], 1e-3)
def light():
    for _ in range(50): common.step(); time.sleep(0.002)
run(*[light] * 4)
"""
EACH = "run(*[lambda step=a_training(): [step() for _ in range(200)] for _ in range(4)])"
TWO = "run(lambda: steps(200), lambda step=a_training(): [step() for _ in range(37)])"


@pytest.mark.parametrize(
    ("code", "iterations"),
    [(ONE, 200), (POOL, 200), (ASYNCIO, 200), (ANOTHER, 200), (SHARED, 200), (EACH, 200), (TWO, 200)],
    ids=["one", "pool", "asyncio", "another", "shared", "each", "two"],
)
def test_steps_of_any_thread_are_counted_and_windows_disturb_nobody(
    code: str, iterations: int, host: Host, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(f"{HEAD}{code}\nprint('ended')\n")
    command = [sys.executable, str(tmp_path / "train.py")]
    done = host.run(command, Windows(8), limit_s=240, EROICA_WORKER_FAILURES_RAISE="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")
    (worker,) = host.workers.values()
    assert STATE_NAMES[worker.beats[-1].state] == "finished"
    ends = [beat.iteration_end_ns for beat in worker.beats]
    assert ends == sorted(ends)
    # once one of two threads ends, some steps belong to no iteration of the pattern before nor after
    assert worker.beats[-1].iteration == pytest.approx(iterations, abs=6 if code == TWO else 3)
    durations = worker.reader.durations(20, worker.beats[-1].iteration)
    assert durations and min(durations) > 0 and max(durations) < 10e9
    settled = [result for result in worker.results if result.status in SETTLED]
    if code == ONE:  # it need not be the main thread
        assert DONE in [result.status for result in settled]
    if code == POOL:
        assert {result.status for result in settled[1:]} == {SKIPPED} and "several threads" in settled[-1].note


def test_a_thread_that_ends_inside_a_window_closes_it(host: Host, tmp_path: Path) -> None:
    """Its profiler could be stopped by nobody afterwards."""
    order = OneOrder(1, WINDOW, at=15, lead=4, length=150)
    (tmp_path / "train.py").write_text(f"{HEAD}{ENDING}\nprint('ended', torch.autograd._profiler_enabled())\n")
    command = [sys.executable, str(tmp_path / "train.py"), "80"]
    done = host.run(command, order, limit_s=240, EROICA_WORKER_FAILURES_RAISE="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended False\n", "")
    (worker,) = host.workers.values()
    (last,) = [result for result in worker.results if result.status in SETTLED]
    assert last.status == DONE and last.last_iteration == 80
