"""Whatever a signal's handler raises, and wherever in our code, the training gets it, and nothing is left half done."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from watched_jobs import Host, Windows

from eroica.wire.beat import STATE_NAMES

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


@pytest.mark.parametrize("how", ["stepping", "collecting"])
def test_a_time_limit_that_raises_anywhere_in_a_window_is_the_trainings(how: str, host: Host, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(LATE)
    orders = Windows(5)
    done = host.run([sys.executable, str(program), how], orders)
    assert (done.returncode, done.stdout, done.stderr) == (0, "lost 0 True 0.0 False\n", "")
    (worker,) = host.workers.values()
    assert STATE_NAMES[worker.beats[-1].state] == "finished" and orders.given > 1


ANY_ERROR = """
import ctypes, functools, signal, sys, threading, time, torch
class Late(Exception): pass
class LateWithWords(Exception):
    def __init__(self): super().__init__("too late")
how, fired, on = sys.argv[1], 0, False
def deleted(number, frame):
    del frame
    raise Late
def worded(number, frame):
    del frame
    raise TimeoutError("too late")
def below(number, frame): next(iter([open("/nowhere")]))
class Handler:
    def __call__(self, *_): raise OSError(5, "mine")
def leaves(*_): raise SystemExit(3)
def interrupts(*_): raise KeyboardInterrupt
handlers = {"deleted": deleted, "worded": worded, "below": below, "partial": functools.partial(Handler()),
            "exit": leaves, "interrupt": interrupts}
main, armed = threading.get_ident(), threading.Event()
def raise_there(what):
    while armed.wait():
        armed.clear(); time.sleep(0.002)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(what))
others = {"async": Late, "async-words": LateWithWords, "async-builtin": TimeoutError, "async-exit": SystemExit}
if how in handlers:
    signal.signal(signal.SIGALRM, handlers[how])
    arm = lambda: signal.setitimer(signal.ITIMER_REAL, 0.002)
else:
    threading.Thread(target=raise_there, args=(others[how],), daemon=True).start()
    arm = armed.set
p = torch.nn.Parameter(torch.zeros(1)); p.grad = torch.ones(1)
class Quick(torch.optim.Optimizer):
    def __init__(self, parameters): super().__init__(parameters, {})
    def step(self, closure=None): pass
one, two = Quick([p]), Quick([p])  # two of them: no iteration is plain
for _ in range(100): one.step(); two.step()
if sys.argv[2] == "exchange":
    import torch.distributed as dist
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    class Exchange:
        def step(self): dist.broadcast(p, 0)
    one = Exchange()
lost = 0
for number in range(400):
    try:
        arm()
        end = time.perf_counter() + 5
        while time.perf_counter() < end:
            one.step()
            if sys.argv[2] == "both": two.step()
        lost += 1
    except (Exception, SystemExit, KeyboardInterrupt): pass
print("lost", lost)
"""
HOW = (
    "deleted",
    "worded",
    "below",
    "partial",
    "exit",
    "interrupt",
    "async",
    "async-words",
    "async-builtin",
    "async-exit",
)


@pytest.mark.parametrize("optimizers", ["one", "both", "exchange"])
@pytest.mark.parametrize("how", HOW)
def test_an_error_of_the_trainings_leaves_the_hooks_as_it_came(
    how: str, optimizers: str, host: Host, tmp_path: Path
) -> None:
    done = host.run_python(tmp_path, ANY_ERROR, how, optimizers)
    assert (done.returncode, done.stdout, done.stderr) == (0, "lost 0\n", "")
    (worker,) = host.workers.values()
    assert STATE_NAMES[worker.beats[-1].state] == "finished"
    assert not list(tmp_path.glob("run/log/*"))


WATCHDOG = """
import sys, threading, time, torch
model = torch.nn.Linear(100, 100); optimizer = torch.optim.SGD(model.parameters(), 1e-3)
def names():
    known = {thread.ident: thread.name for thread in threading.enumerate()}
    return {known[ident] for ident in sys._current_frames()}
idle = threading.Event(); threading.Thread(target=idle.wait, daemon=True, name="mine").start()
seen = set()
for number in range(150):
    optimizer.zero_grad(); model(torch.ones(20, 100)).sum().backward(); optimizer.step()
    for _ in range(20): seen |= names(); time.sleep(0.0002)
idle.set()
while threading.active_count() > 1: time.sleep(0.001)
print(seen - {"eroica"}, [thread.name for thread in threading.enumerate()])
"""


def test_a_watchdog_finds_every_frame_in_the_list_of_threads(host: Host, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(WATCHDOG.replace('{"eroica"}', '{"eroica"} == {"MainThread", "mine"}'))

    def act(host: Host) -> None:
        orders(host)
        for pid in host.workers:
            question = host.runtime / f"{pid}.ask"
            if question.exists():
                question.write_bytes(b"A")

    orders = Windows(5)
    done = host.run([sys.executable, str(program)], act)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True ['MainThread']\n", "")
    assert list(host.workers)
