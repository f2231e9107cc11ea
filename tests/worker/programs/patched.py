"""A training in an interpreter where somebody has replaced threads, reads, sleeps, clocks and the start of programs."""

import sys
from pathlib import Path


def taken_away(*_: object, **__: object) -> None:
    raise RuntimeError("this is not to be called any more")


def patch(how: str) -> None:
    if how == "gevent":
        from gevent import monkey

        monkey.patch_all()
    elif how == "eventlet":
        import eventlet

        eventlet.monkey_patch()
    elif how == "frozen-time":
        import freezegun

        freezegun.freeze_time("2020-01-01").start()


def take_away() -> None:
    """What no library does: nothing works any more, but for us."""
    import _thread
    import os
    import select
    import subprocess
    import threading
    import time

    threading.Thread.start = _thread.start_new_thread = subprocess.Popen = taken_away
    threading.Lock = threading.enumerate = threading.Event = threading.current_thread = taken_away
    os.read = os.posix_spawn = os.fork = os.waitpid = select.select = taken_away
    time.sleep = time.monotonic = time.monotonic_ns = taken_away


HOW, ITERATIONS = sys.argv[1], int(sys.argv[2])
ENOUGH = Path(sys.argv[3]) if sys.argv[3:] else None  # once this file exists, the training ends early
patch(HOW)

import torch  # noqa: E402

torch.set_num_threads(2)
torch.manual_seed(0)
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), 1e-6)
data = torch.utils.data.DataLoader(torch.ones(1, 256).expand(ITERATIONS, 256), batch_size=1)
model(torch.ones(200, 256)).sum().backward()  # from here on the process has several threads
if HOW == "taken-away":
    take_away()
for x in data:
    loss = model(x.expand(200, 256)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if ENOUGH is not None and ENOUGH.exists():
        break
sys.stdout.write(f"{loss.item().hex()}\n")
