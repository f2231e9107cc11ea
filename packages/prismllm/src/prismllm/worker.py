"""`python -m prismllm.worker`: runs slices, each rank in a fork of this process, so that torch is imported once.

A line on standard input names a file with a batch; the answer on standard output is 0 or 1. A rank that fails leaves an
error file, which the caller turns into an exception.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import msgspec
import torch
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.parallel  # noqa: F401

from prismllm import session
from prismllm.errors import PrismError, SlicingError


class Batch(msgspec.Struct):
    """Slices to run.

    Attributes:
        slices: Orders of the ranks of each slice, which run at the same time.
        timeout_s: Most that one slice may take.
        parallel: Slices that run at the same time.
    """

    slices: list[list[session.RankTask]]
    timeout_s: float
    parallel: int = 1


class Failure(msgspec.Struct):
    """Why a rank's process failed."""

    rank: int
    error: str
    text: str
    needs: list[int] = []


def main() -> int:
    """Run batches until the input ends."""
    for line in sys.stdin:
        batch = msgspec.json.decode(Path(line.strip()).read_bytes(), type=Batch)
        todo = list(reversed(batch.slices))
        good = True
        while todo and good:
            good = _run([order for _ in range(min(batch.parallel, len(todo))) for order in todo.pop()], batch)
        print(0 if good else 1, flush=True)  # noqa: T201
    return 0


def _run(orders: list[session.RankTask], batch: Batch) -> bool:
    children = {_fork(order, batch): order for order in orders}
    until = time.monotonic() + batch.timeout_s
    good = True
    while children and good:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            if time.monotonic() > until:
                good = False
                break
            time.sleep(0.005)
            continue
        order = children.pop(pid, None)
        good = order is None or status == 0
    for pid, order in children.items():  # those that are left wait for a failed rank, or hang
        if time.monotonic() > until:
            text = f"rank {order.rank} did not finish within {batch.timeout_s:.0f} s; where it was: {_log(order)}"
            _fail(order, "ScriptError", text)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return good


def _log(order: session.RankTask) -> Path:
    return Path(order.out) / "logs" / f"{order.name}.log"


def _fail(order: session.RankTask, error: str, text: str, needs: tuple[int, ...] = ()) -> None:
    failure = Failure(order.rank, error, text, list(needs))
    (Path(order.out) / "failures" / f"{order.rank}.json").write_bytes(msgspec.json.encode(failure))


def _fork(order: session.RankTask, batch: Batch) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        log = os.open(_log(order), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.dump_traceback_later(max(1.0, batch.timeout_s - 2), file=2)
        session.capture(order)
        status = 0
    except PrismError as error:
        _fail(order, type(error).__name__, str(error), error.needs if isinstance(error, SlicingError) else ())
    except BaseException as error:  # noqa: BLE001 - the process ends here, whatever it was
        traceback.print_exc()
        _fail(order, "ScriptError", f"rank {order.rank}: {type(error).__name__}: {error} (log: {_log(order)})")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
