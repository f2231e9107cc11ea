"""Runs ranks of a script in slices and collects their records."""

from __future__ import annotations

import os
import selectors
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from prismllm.errors import InputError, ScriptError, error_named
from prismllm.model import RankRecord, read_record

START_S = 60.0


@dataclass(frozen=True)
class CaptureOptions:
    """The options of a capture.

    Attributes:
        script: Training script and its arguments.
        world: Ranks of the job.
        out: Directory of the capture.
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
    for name in ("payloads", "logs", "failures"):
        (out / name).mkdir(parents=True)


def rank_file(rank: int, part: str = "structure") -> str:
    """Return the file name of a rank's record."""
    return f"rank{rank}.{part}.json"


class RankRunner:
    """A process with torch loaded, in which ranks are run; used as a context.

    Args:
        options: Of the capture.
    """

    def __init__(self, options: CaptureOptions) -> None:
        self.options = options
        self._process: subprocess.Popen[str] | None = None
        self._batches = 0

    def __enter__(self) -> RankRunner:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
                       "PYTHONHASHSEED": "0"}  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", "prismllm.worker"], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        process = self._process
        if process is not None:
            try:
                process.communicate(timeout=5)
            except (subprocess.TimeoutExpired, ValueError, BrokenPipeError):
                process.kill()
                process.wait(timeout=10)

    def run(self, slices: Sequence[Sequence[int]], *, part: str = "structure", parallel: int = 1,
            **orders: Any) -> None:  # fmt: skip
        """Run slices one after the other.

        Args:
            slices: Global ranks of each slice.
            part: Part of the records' file names.
            parallel: Slices at the same time.
            orders: Further fields of `session.RankTask`.

        Raises:
            PrismError: What the first rank that failed ran into.
        """
        path = self._write_batch(slices, part, parallel, orders)
        answer = self._ask(path, START_S + len(slices) * (self.options.timeout_s + 5))
        failures = sorted((self.options.out / "failures").glob("*.json"), key=lambda one: one.stat().st_mtime_ns)
        if failures:
            said = msgspec.json.decode(failures[0].read_bytes())
            for one in failures:
                one.unlink()
            raise error_named(said["error"], said["text"], tuple(said.get("needs", ())))
        if answer != "0":
            raise ScriptError(f"a slice failed without saying why (logs: {self.options.out / 'logs'})")

    def _write_batch(self, slices: Sequence[Sequence[int]], part: str, parallel: int, orders: dict[str, Any]) -> Path:
        options, self._batches = self.options, self._batches + 1
        out = options.out
        batch = [
            [
                {
                    "rank": rank, "world": options.world, "members": sorted(members), "script": list(options.script),
                    "local_world": options.local_world, "out": str(out), "warmup": options.warmup,
                    "name": rank_file(rank, part),
                    "meeting": str(out / f"meeting.{part}.{self._batches}.{at}"), **orders,
                }
                for rank in members
            ]
            for at, members in enumerate(slices)
        ]  # fmt: skip
        for old in out.glob(f"meeting.{part}.*"):
            old.unlink()
        path = out / f"orders.{part}.json"
        content = {"slices": batch, "timeout_s": options.timeout_s, "parallel": parallel}
        path.write_bytes(msgspec.json.encode(content))
        return path

    def _ask(self, path: Path, patience_s: float) -> str:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None or process.stderr is None:
            raise AssertionError("the process is not started")
        process.stdin.write(f"{path}\n")
        process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(patience_s):
                process.kill()
                raise ScriptError(f"the slices did not finish within {patience_s:.0f} s")
        answer = process.stdout.readline().strip()
        if not answer:
            process.wait(timeout=10)
            raise ScriptError(f"the process that runs slices has ended: {process.stderr.read().strip()[-400:]}")
        return answer


def capture_slices(runner: RankRunner, slices: Sequence[Sequence[int]]) -> dict[int, RankRecord]:
    """Record calls, operators and memory of these ranks, not their times."""
    runner.run(slices, timed=0, is_profiled=True)
    return {rank: read_record(runner.options.out / rank_file(rank), RankRecord) for part in slices for rank in part}


def capture_alone(runner: RankRunner, ranks: Sequence[int]) -> dict[int, RankRecord]:
    """Time these ranks, each alone: every call is pruned, payloads come from the recordings.

    Source: PrismLLM's inter-slice timing calibration, of which nothing more is public.
    """
    options = runner.options
    parallel = options.cores or min(options.local_world, options.world, os.cpu_count() or 1)
    runner.run([[rank] for rank in ranks], part="times", parallel=parallel, timed=options.timed,
             is_profiled=False)  # fmt: skip
    return {rank: read_record(options.out / rank_file(rank, "times"), RankRecord) for rank in ranks}


def in_slices(ranks: Sequence[int], size: int) -> list[list[int]]:
    """Split ranks into slices of at most `size`, in order."""
    return [list(ranks[at : at + size]) for at in range(0, len(ranks), size)]
