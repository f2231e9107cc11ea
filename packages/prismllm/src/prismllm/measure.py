"""Measures what communication costs on this machine: real gloo groups whose members call at an agreed time.

Each figure is the median of several calls, from the coming of the last member to the leaving of the last one, without
the time in which a member's thread was ready and no core was free.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.multiprocessing.spawn import ProcessException

from prismllm.costs import Costs, Measured
from prismllm.errors import InputError, ScriptError
from prismllm.model import write_record
from prismllm.recorder import own_ns

SIZES = (4_096, 65_536, 524_288, 4_194_304)
_REPEATS = 9
_AHEAD_S = 0.01
_PATIENCE_S = 120.0


def measure(members: Sequence[int], out: Path, sizes: Sequence[int] = SIZES, *, world: int = 0) -> Costs:
    """Measure groups of these sizes and write a file of costs.

    Args:
        members: Numbers of members, 2 or more each.
        out: File.
        sizes: Payloads, bytes.
        world: Processes, in as many groups as there is room for, which all call at the same time; the largest number of
            members by default.

    Raises:
        InputError: A group does not fit.
        ScriptError: A process failed or hung.
    """
    world = world or max(members)
    if min(members) < 2 or max(members) > world:
        raise InputError(f"groups have 2 to {world} members, not {list(members)}")
    rows = _measure(members, world, sizes)
    said = f"measured with gloo, {world} processes of one machine in groups of {', '.join(map(str, members))}"
    costs = Costs(table=rows, where=said)
    write_record(out, costs)
    return costs


def _measure(members: Sequence[int], world: int, sizes: Sequence[int]) -> list[Measured]:
    with tempfile.TemporaryDirectory() as folder:
        args = world, members, sizes, Path(folder)
        started = multiprocessing.start_processes(_member, args, world, join=False, start_method="fork")
        until = time.monotonic() + _PATIENCE_S
        try:
            while not started.join(max(0.0, until - time.monotonic())):
                if time.monotonic() > until:
                    raise ScriptError("measuring did not finish")
        except ProcessException as error:
            raise ScriptError(f"measuring {world} processes failed: {error}") from None
        finally:
            for process in started.processes:
                process.kill()
        return msgspec.json.decode((Path(folder) / "rows.json").read_bytes(), type=list[Measured])


def _member(rank: int, world: int, members: Sequence[int], sizes: Sequence[int], folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.FileStore(str(folder / "meeting"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
    rows: list[Measured] = []
    for count in members:
        group, is_member = None, False
        for first in range(0, world // count * count, count):
            ranks = list(range(first, first + count))
            made = dist.new_group(ranks)
            if rank in ranks:
                group, is_member = made, True
        for size in sizes:
            for op, (nbytes, call) in _calls(rank, count, size // 4, group).items():
                rows.append(Measured(op, count, nbytes, _timed(call if is_member else None)))
    if rank == 0:
        (folder / "rows.json").write_bytes(msgspec.json.encode(rows))
    dist.barrier()
    dist.destroy_process_group()


def _calls(rank: int, count: int, elements: int, group: Any) -> dict[str, tuple[int, Callable[[], Any]]]:
    """Operation -> payload as `Call.nbytes` counts it, and the call."""
    whole = torch.ones(elements // count * count)
    share = torch.ones(elements // count)
    first = rank // count * count

    def send() -> None:
        if rank == first:
            dist.send(whole, first + 1, group=group)
        elif rank == first + 1:
            dist.recv(whole, first, group=group)

    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # torch 2.13 renamed them
    scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    nbytes = whole.nbytes
    calls: dict[str, tuple[int, Callable[[], Any]]] = {
        "all_reduce": (nbytes, lambda: dist.all_reduce(whole, group=group)),
        "all_gather": (nbytes, lambda: gather(whole, share, group=group)),
        "reduce_scatter": (nbytes, lambda: scatter(share, whole, group=group)),
        "broadcast": (nbytes, lambda: dist.broadcast(whole, first, group=group)),
    }
    if count == 2:
        calls["send"] = nbytes, send
    return calls


def _timed(call: Callable[[], Any] | None) -> float:
    """Return the median seconds of the slowest group, the same on all ranks; without waits for a core."""
    found: list[float] = []
    for _ in range(_REPEATS):
        when = torch.tensor([time.monotonic() + _AHEAD_S], dtype=torch.float64)
        dist.broadcast(when, 0)
        time.sleep(max(0.0, float(when) - time.monotonic()))
        begin, own_begin = time.monotonic(), own_ns()
        if call is not None:
            call()
        end = begin + (own_ns() - own_begin) / 1e9
        times = torch.tensor([begin, end] if call is not None else [0.0, 0.0], dtype=torch.float64)
        dist.all_reduce(times, op=dist.ReduceOp.MAX)
        found.append(float(times[1] - times[0]))
    return statistics.median(found)
