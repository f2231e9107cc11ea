"""A paced training program for many workers on few cores: it sleeps as if it computed, and communicates for real.

    RANK=0 WORLD_SIZE=8 MASTER_ADDR=... MASTER_PORT=... python -m support.paced --traffic mesh

Faults are files in a directory that each worker looks at once an iteration, so that one job can suffer several, one
after the other: `slow-<rank>` holds milliseconds of more sleep, `stop-outside-<rank>` and `stop-inside-<rank>` make the
worker stop itself (SIGSTOP) before or within a collective, `pause` lets all workers sleep for so many seconds once.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import random
import signal
import threading
import time
from pathlib import Path


def main() -> None:
    """Train until the file `enough` is there."""
    import torch
    import torch.distributed as dist

    options = _options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if options.dumps is not None:
        threading.Thread(target=_dump_when_asked, args=(options.faults, options.dumps, rank), daemon=True).start()
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    gradient = torch.ones(options.kilobytes * 256)
    pieces = torch.ones(options.kilobytes * 256 // world * world)
    other = torch.empty_like(pieces)
    generator = random.Random(rank)
    over = torch.zeros(1)
    iteration = 0
    while float(over) == 0:
        iteration += 1
        time.sleep(options.pace_ms / 1000 * generator.uniform(0.95, 1.05))
        _suffer(options.faults, rank)
        work = dist.all_reduce(gradient, async_op=True)
        if _take(options.faults / f"stop-inside-{rank}"):
            time.sleep(0.002)
            os.kill(os.getpid(), signal.SIGSTOP)
        work.wait()
        gradient.fill_(1.0)
        if options.traffic == "mesh":
            dist.all_to_all_single(other, pieces)
        optimizer.step()
        if iteration == 1 and rank == 0:
            print(f"iteration 1 at {time.monotonic():.3f}", flush=True)
        if iteration % 20 == 0:
            over.fill_(float((options.faults / "enough").exists()))
            dist.all_reduce(over, op=dist.ReduceOp.MAX)
            if rank == 0:
                print(f"iteration {iteration} at {time.monotonic():.3f}", flush=True)
    dist.destroy_process_group()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=Path, required=True, help="directory of the fault files")
    parser.add_argument("--traffic", choices=("ring", "mesh"), default="mesh")
    parser.add_argument("--kilobytes", type=int, default=256, help="of each collective")
    parser.add_argument("--pace-ms", type=float, default=60.0)
    parser.add_argument("--dumps", type=Path, help="write the Flight Recorder here once the file `dump` is there")
    return parser.parse_args()


def _dump_when_asked(faults: Path, place: Path, rank: int) -> None:
    """As torch dumps it at a time-out, which gloo does not do by itself."""
    bindings = importlib.import_module("torch._C._distributed_c10d")  # its stubs lack the function
    while not (faults / "dump").exists():
        time.sleep(0.2)
    (place / f"rank_{rank}").write_bytes(bindings._dump_fr_trace())


def _suffer(faults: Path, rank: int) -> None:
    with contextlib.suppress(OSError, ValueError):
        time.sleep(float((faults / f"slow-{rank}").read_text()) / 1000)
    with contextlib.suppress(OSError, ValueError):
        pause = faults / f"pause-{rank}"
        time.sleep(float(pause.read_text()))
        pause.unlink()
    if _take(faults / f"stop-outside-{rank}"):
        os.kill(os.getpid(), signal.SIGSTOP)


def _take(fault: Path) -> bool:
    """The fault is ordered; it is suffered once."""
    try:
        fault.unlink()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
