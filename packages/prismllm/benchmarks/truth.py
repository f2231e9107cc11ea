"""The same script run for real and rehearsed: iteration time, peak memory, faults.

    python benchmarks/truth.py --json benchmarks/results/truth.json [--case dp4]

Every rank really runs in the reference, as a process with gloo. Compute is paced (each block sleeps until its time is
over), so that many ranks are an honest reference on few cores; what is not paced, communication above all, still
contends there. Where it is allowed, the ranks of the reference run with real-time priority, so that their waking does
not depend on what else this machine does; measure the costs in the same way (`prismllm measure --urgent`).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from prismllm import Rehearsal, examples
from prismllm.capture import CaptureOptions
from prismllm.costs import Costs, read_costs
from prismllm.kinds import capture_job
from prismllm.measure import measure

GPT = str(Path(examples.__file__).parent / "gpt.py")
SMALL = ("--width", "32", "--length", "16", "--batch", "1", "--vocabulary", "64", "--layers", "2", "--iterations", "9")
CASES: dict[str, tuple[int, tuple[str, ...], str, str]] = {
    "dp2": (2, ("--microbatches", "4"), "", ""),
    "fsdp2": (2, ("--data", "fsdp", "--microbatches", "4"), "", ""),
    "tp2": (2, ("--tp", "2", "--data", "mean", "--microbatches", "4"), "", ""),
    "pp2": (2, ("--pp", "2", "--microbatches", "4"), "", ""),
    "dp4": (4, ("--microbatches", "4"), "", ""),
    "dp4 accumulate": (4, ("--microbatches", "4", "--accumulate", "4"), "", ""),
    "fsdp4": (4, ("--data", "fsdp", "--microbatches", "4"), "", ""),
    "pp2 dp2": (4, ("--pp", "2", "--microbatches", "4"), "", ""),
    "pp2 dp2 uneven": (4, ("--pp", "2", "--microbatches", "4", "--uneven", "1"), "", ""),
    "tp2 dp2": (4, ("--tp", "2", "--data", "mean", "--microbatches", "4"), "", ""),
    "dp2 pp2 tp2": (8, ("--pp", "2", "--tp", "2", "--microbatches", "4"), "", ""),
    "dp4 slow": (4, ("--microbatches", "4"), "1:1.5", "slow rank=1 by=1.5"),
    "pp2 dp2 slow": (4, ("--pp", "2", "--microbatches", "4"), "3:1.5", "slow rank=3 by=1.5"),
    "dp4 pp2 tp2": (16, ("--pp", "2", "--tp", "2", "--microbatches", "4"), "", ""),
}
WARMUP = 2
PACE_S = 0.12


def run_for_real(world: int, arguments: tuple[str, ...]) -> list[dict[str, Any]]:
    """What every rank of a real run says: peak memory and when its iterations ended."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--real", f"{world}", folder, GPT, *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        subprocess.run(command, env=environment, check=True, timeout=150, stderr=subprocess.DEVNULL)
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(world)]


def real_ranks(world: int, folder: str, script: list[str]) -> None:
    """Fork all ranks, so that torch is imported once."""
    import torch
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.distributed.tensor.parallel  # noqa: F401

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), MASTER_PORT=str(port),
                                  LOCAL_WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1")  # fmt: skip
                _real_rank(rank, Path(folder), script)
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    if any(os.waitpid(pid, 0)[1] for pid in children):
        raise SystemExit("a rank of the reference failed")


def peak_bytes(profiler: Any) -> int:
    """Most memory in use at any time, without what gloo allocates for itself inside a call (and frees elsewhere)."""
    events = list(profiler.kineto_results.events())
    calls = sorted((one.start_ns(), one.start_ns() + one.duration_ns()) for one in events
                   if one.name().startswith("c10d::"))  # fmt: skip
    memory = sorted((one.start_ns(), one.nbytes()) for one in events if one.name() == "[memory]")
    now = most = at = 0
    for when, nbytes in memory:
        while at < len(calls) and calls[at][1] < when:
            at += 1
        if at == len(calls) or when < calls[at][0]:
            now += nbytes
            most = max(most, now)
    return most


def _real_rank(rank: int, folder: Path, script: list[str]) -> None:
    import torch

    torch.set_num_threads(1)
    with contextlib.suppress(PermissionError):  # ranks mostly sleep; who else runs here must not delay their waking
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    peak, ends = run_measured(script)
    (folder / f"{rank}.json").write_text(json.dumps({"peak": peak, "ends": ends}))


def run_measured(script: list[str]) -> tuple[int, list[float]]:
    """Run a script in this process: its most memory in use while it warms up, bytes, and when optimizers stepped."""
    import runpy

    from torch.autograd.profiler import profile
    from torch.optim.optimizer import register_optimizer_step_post_hook

    profiler = profile(use_cpu=True, record_shapes=True, profile_memory=True)
    ends: list[float] = []
    peak = 0

    def after(*_: object) -> None:
        nonlocal peak
        ends.append(time.monotonic())
        if len(ends) == WARMUP + 1:
            profiler.__exit__(None, None, None)
            peak = peak_bytes(profiler)

    register_optimizer_step_post_hook(after)
    sys.argv = script
    profiler.__enter__()
    runpy.run_path(script[0], run_name="__main__")
    return peak, ends


def iteration_seconds(said: list[dict[str, Any]]) -> list[float]:
    """From the last rank's end of one iteration to that of the next, after the profiled ones; seconds."""
    ends = [max(column) for column in zip(*(one["ends"] for one in said), strict=True)]
    return [b - a for a, b in zip(ends[WARMUP + 1 :], ends[WARMUP + 2 :], strict=False)]


def measure_case(name: str, costs: Costs, pace: float) -> dict[str, Any]:
    """One layout: truth, prediction, errors."""
    world, layout, slow, change = CASES[name]
    arguments = (*SMALL, *layout, "--pace", str(pace))
    said = run_for_real(world, (*arguments, *(("--slow", slow) if slow else ())))
    truth = iteration_seconds(said)
    with tempfile.TemporaryDirectory() as folder:
        options = CaptureOptions((GPT, *arguments), world, Path(folder) / "c", slice_size=world, timed=5,
                                 is_urgent=os.geteuid() == 0)  # fmt: skip
        begun = time.monotonic()
        job = capture_job(options)
        captured_s = time.monotonic() - begun
    prediction = Rehearsal(job, costs).predict(*([change] if change else []))
    real = statistics.median(truth)
    memory = [abs(job.kinds[job.kind_of[rank]].peak_bytes / one["peak"] - 1) for rank, one in enumerate(said)]
    return {
        "case": name, "ranks": world, "pace_s": pace, "real_s": real, "real_all_s": truth,
        "predicted_s": prediction.seconds, "low_s": prediction.low, "high_s": prediction.high,
        "error": prediction.seconds / real - 1, "memory_error_worst": max(memory), "capture_s": captured_s,
        "load": os.getloadavg()[0],
    }  # fmt: skip


def costs_for(world: int, folder: Path) -> Costs:
    """Costs of groups of 2 and 4 among so many ranks, all of which call at the same time; measured once."""
    path = folder / f"costs{world}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        measure([2, 4] if world > 2 else [2], path, world=world, is_urgent=os.geteuid() == 0)
    return read_costs(path)


@click.command()
@click.option("--json", "out", type=click.Path(path_type=Path))
@click.option("--case", "cases", multiple=True, help="only these")
@click.option("--pace", default=PACE_S, show_default=True, help="seconds of a block's forward pass; 0 for unpaced")
@click.option(
    "--costs",
    type=click.Path(path_type=Path),
    default=Path("/tmp/prismllm-costs"),
    show_default=True,
    help="directory of measured costs; measured where they are missing",
)
def main(out: Path | None, cases: tuple[str, ...], pace: float, costs: Path) -> None:
    """Run all cases."""
    rows = []
    for name in cases or CASES:
        row = measure_case(name, costs_for(CASES[name][0], costs), pace)
        rows.append(row)
        if out is not None:
            keep(row, out)
        print(f"{name:16} {row['ranks']:3} ranks  real {1e3 * row['real_s']:8.1f} ms  predicted "
              f"{1e3 * row['predicted_s']:8.1f} ms  error {100 * row['error']:+6.2f} %  memory "
              f"{100 * row['memory_error_worst']:.4f} %  load {row['load']:.1f}", flush=True)  # fmt: skip
    errors = [abs(row["error"]) for row in rows]
    print(f"mean {100 * statistics.mean(errors):.2f} %, worst {100 * max(errors):.2f} %")


def keep(row: dict[str, Any], out: Path) -> None:
    """Write a result; an older one of the same case goes."""
    out.parent.mkdir(parents=True, exist_ok=True)
    kept = json.loads(out.read_text()) if out.exists() else []
    kept = [one for one in kept if (one["case"], one["pace_s"]) != (row["case"], row["pace_s"])]
    out.write_text(json.dumps([*kept, row], indent=1))


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--real":
        real_ranks(int(sys.argv[2]), sys.argv[3], sys.argv[4:])
    else:
        main()
