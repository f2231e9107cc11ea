"""Runs ranks of a script in slices and collects their records.

Each rank is a fork of multiprocessing's fork server, which loads torch once for all captures of this process.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from prismllm.errors import InputError, PrismError, ScriptError
from prismllm.model import RankRecord, RankTask, read_record

CONTEXT = multiprocessing.get_context("forkserver")
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONHASHSEED": "0"}
_meetings = itertools.count()


@dataclass(frozen=True)
class CaptureOptions:
    """The options of a capture.

    Attributes:
        slice_size: Ranks that run at the same time.
        warmup: Iterations before those that repeat; DDP arranges its buckets in the first two.
        timed: Iterations that are timed.
        local_world: Ranks of a host.
        timeout_s: Most that one slice may take.
        cores: Ranks that are timed at the same time; 0: as many as a host has, on as many cores. They share caches and
            memory as ranks of a host do.
        check_s: All ranks are timed if that takes at most this long; else three of each class. Seconds.
        seed: Of the choice of ranks that are timed.
    """

    script: tuple[str, ...]
    world: int
    out: Path
    slice_size: int = 8
    warmup: int = 2
    timed: int = 5
    local_world: int = 8
    timeout_s: float = 120.0
    cores: int = 0
    check_s: float = 30.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.world < 1 or self.slice_size < 1:
            raise InputError("--world and --slice must be at least 1")
        if self.warmup < 0 or self.timed < 1 or self.local_world < 1:
            raise InputError("--warmup must be at least 0, --timed and --ranks-per-host at least 1")
        if not self.script or not Path(self.script[0]).is_file():
            named = self.script[0] if self.script else ""
            raise InputError(f"there is no script {named!r}: prismllm capture … -- train.py ARGUMENTS")


def prepare(options: CaptureOptions) -> None:
    """Make an empty directory for the capture, replacing an older capture.

    Raises:
        InputError: The directory holds something else.
    """
    out = options.out
    if out.exists() and any(out.iterdir()) and not (out / "payloads").exists():
        raise InputError(f"{out} is not empty and holds no capture; name another directory (--out)")
    shutil.rmtree(out, ignore_errors=True)
    for name in ("payloads", "logs"):
        (out / name).mkdir(parents=True)


def rank_file(rank: int, part: str = "structure") -> str:
    """Return the file name of a rank's record."""
    return f"rank{rank}.{part}.json"


def run_slices(
    options: CaptureOptions,
    slices: Sequence[Sequence[int]],
    *,
    part: str = "structure",
    parallel: int = 1,
    assistants: dict[int, Any] | None = None,
    **others: Any,
) -> None:
    """Run slices one after the other, each rank in a process of its own.

    Args:
        options: Of the capture.
        slices: Global ranks of each slice.
        part: Part of the records' file names.
        parallel: Slices at the same time.
        assistants: Each rank's connection to the assistant, for an emulation.
        others: Further fields of `RankTask`.

    Raises:
        PrismError: What the first rank that failed ran into.
    """
    start_server()
    for at in range(0, len(slices), parallel):
        tasks = []
        for members in slices[at : at + parallel]:
            meeting = options.out / f"meeting.{next(_meetings)}"
            meeting.unlink(missing_ok=True)
            tasks += [
                RankTask(
                    rank, options.world, sorted(members), options.local_world, list(options.script), options.out,
                    options.warmup, meeting=meeting, name=rank_file(rank, part), timeout_s=options.timeout_s,
                    assistant=(assistants or {}).get(rank), **others,
                )
                for rank in members
            ]  # fmt: skip
        _run(tasks, options.timeout_s)


def _run(tasks: Sequence[RankTask], timeout_s: float) -> None:
    """Run ranks at the same time; if one fails, end the others."""
    running: dict[Any, RankTask] = {}
    processes = []
    try:
        for task in tasks:
            ours, theirs = CONTEXT.Pipe(duplex=False)
            running[ours] = task
            process = CONTEXT.Process(target=_play, args=(task, theirs, {**os.environ, **_ENVIRONMENT}))
            process.start()
            processes.append(process)
            theirs.close()
        until = time.monotonic() + timeout_s
        while running:
            ended: list[Any] = wait(list(running), max(0.0, until - time.monotonic()))
            if not ended:
                task = next(iter(running.values()))
                late = f"rank {task.rank} did not finish within {timeout_s:.0f} s"
                raise ScriptError(f"{late}; where it was: {task.log}")
            for pipe in ended:
                task = running.pop(pipe)
                try:
                    error: PrismError | None = pipe.recv()
                except EOFError:
                    error = ScriptError(f"rank {task.rank} was killed (log: {task.log})")
                if error is not None:
                    raise error
    finally:
        for process in processes:
            process.kill()
            process.join()


def start_server() -> None:
    """Start the server unless it runs. It loads torch in the environment of ranks; do not wait for that."""
    CONTEXT.set_forkserver_preload(["prismllm.session"])
    kept = dict(os.environ)
    os.environ.update(_ENVIRONMENT)
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(kept)


def _play(task: RankTask, pipe: Any, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    from prismllm import session

    session.play(task, pipe)


def capture_slice(options: CaptureOptions, ranks: Sequence[int]) -> dict[int, RankRecord]:
    """Record calls, operators and memory of ranks that run at the same time, not their times."""
    run_slices(options, [ranks], timed=0, is_profiled=True)
    return {rank: read_record(options.out / rank_file(rank), RankRecord) for rank in ranks}


def capture_alone(options: CaptureOptions, ranks: Sequence[int]) -> dict[int, RankRecord]:
    """Time these ranks, each alone: every call is pruned, payloads come from the recordings.

    Source: PrismLLM's inter-slice timing calibration, of which nothing more is public.
    """
    parallel = options.cores or min(options.local_world, options.world, os.cpu_count() or 1)
    run_slices(options, [[rank] for rank in ranks], part="times", parallel=parallel, timed=options.timed,
               is_profiled=False)  # fmt: skip
    return {rank: read_record(options.out / rank_file(rank, "times"), RankRecord) for rank in ranks}
