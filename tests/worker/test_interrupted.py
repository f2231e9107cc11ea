"""Whatever a signal's handler raises, and wherever in our code, the training gets it, and nothing is left half done."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from watched_jobs import SETTLED, Host

from eroica.wire.beat import STATE_NAMES, WINDOW, Order

pytestmark = pytest.mark.jobs

LATE = """
import gc, random, signal, sys, time, torch
class Late(Exception): pass
on, limits, lost = False, 0, 0
def handler(number, frame):
    if on: raise Late()
signal.signal(signal.SIGALRM, handler)
p = torch.nn.Parameter(torch.zeros(10)); p.grad = torch.ones(10)
optimizer = torch.optim.SGD([p], lr=0.0)
def iteration():
    optimizer.step(); time.sleep(0.0003)
for _ in range(20): iteration()  # what torch imports at the first ones
end = time.monotonic() + 4
while time.monotonic() < end:
    limits += 1
    try:
        try:
            on = True
            signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.003 * random.random())
            until = time.monotonic() + 5
            while time.monotonic() < until:
                iteration()
                if sys.argv[1] == "collecting": gc.collect(0)
            lost += 1
        finally:
            on = False
    except Late: pass
    torch.set_grad_enabled(True)
signal.setitimer(signal.ITIMER_REAL, 0)
print("lost", lost, limits > 100, p.sum().item(), torch.autograd.profiler._is_profiler_enabled)
"""


class Orders:
    """One window after another, as soon as the last one is settled."""

    def __init__(self) -> None:
        self.given = 0

    def __call__(self, host: Host) -> None:
        for pid, worker in host.workers.items():
            settled = [result.window_id for result in worker.results if result.status in SETTLED]
            if not worker.beats or self.given != (settled[-1] if settled else 0):
                continue
            self.given += 1
            first = worker.beats[-1].iteration + 8
            directory = host.scratch(f"{pid}-{self.given}")
            worker.reader.give(
                Order(
                    window_id=self.given, kind=WINDOW, first_iteration=first, last_iteration=first + 5,
                    directory=str(directory), flags=0, max_events=0, sampling_hz=0,
                )
            )  # fmt: skip


@pytest.mark.parametrize("how", ["stepping", "collecting"])
def test_a_time_limit_that_raises_anywhere_in_a_window_is_the_trainings(how: str, host: Host, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(LATE)
    orders = Orders()
    done = host.run([sys.executable, str(program), how], orders)
    assert (done.returncode, done.stdout, done.stderr) == (0, "lost 0 True 0.0 False\n", "")
    (worker,) = host.workers.values()
    assert STATE_NAMES[worker.beats[-1].state] == "finished" and orders.given > 1
