"""Cost of capturing and replaying 512 to 8,192 ranks of one script: time, memory, ranks that were run.

    python benchmarks/scale.py --json benchmarks/results/scale.json
    python benchmarks/scale.py --pp 2 --pp 4 --pp 8 --tp 2 --world 1024 --json benchmarks/results/rank_classes.json
    python benchmarks/scale.py --keep DIRECTORY --start --json benchmarks/results/start.json

Stages are rank classes: with --pp several times the cost can be seen to follow their number, with --world several
times not to follow that. CPU seconds are those of all processes that the capture ran; a busy machine changes them less
than the time that passed. The replay is the best of five.

With --start, what an emulation of rank 0 takes to start: from the start of its command, which loads everything afresh,
until the assistant serves, the rank has made its last group, and its first iteration is over; and the most memory of
the process that plays all other ranks. --keep leaves captures in a directory, and takes them from there.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from prismllm import Rehearsal, examples
from prismllm.capture import CaptureOptions
from prismllm.emulation import emulate
from prismllm.rank_classes import capture_job

GPT = str(Path(examples.__file__).parent / "gpt.py")


def layout(pp: int, tp: int) -> tuple[str, ...]:
    """Arguments of the script for so many stages and tensor-parallel ranks."""
    return ("--pp", str(pp), "--tp", str(tp), "--layers", str(pp), "--heads", "8", "--microbatches", str(pp),
            "--batch", "1", "--width", "64", "--length", "16", "--data", "mean")  # fmt: skip


def children_s() -> float:
    """CPU seconds of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def capture_to(folder: Path, world: int, pp: int, tp: int) -> Path:
    """Where the capture lies; it is made where there is none."""
    where = folder / f"{world}-{pp}x{tp}"
    if not (where / "job.json").exists():
        capture_job(CaptureOptions((GPT, *layout(pp, tp)), world, where, slice_size=8, timed=3))
    return where


def measure_start(capture: Path, world: int, pp: int, tp: int) -> dict[str, Any]:
    """Start an emulation of rank 0 in a fresh process."""
    begun = time.monotonic_ns()
    command = [sys.executable, __file__, "--emulate", f"{capture}"]
    said = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=110).stdout)
    seconds = {name: (said[name] - begun) / 1e9 for name in ("loaded", "ready", "grouped", "first")}
    return {"world": world, "pp": pp, "tp": tp, **{f"{name}_s": one for name, one in seconds.items()},
            "memory_bytes": said["memory_bytes"], "emulated_s": said["emulated_s"], "predicted_s": said["predicted_s"],
            "load": os.getloadavg()[0]}  # fmt: skip


def start(capture: str) -> dict[str, Any]:
    """Emulate two iterations of rank 0; times of the monotonic clock."""
    rehearsal = Rehearsal.open(capture)
    loaded = time.monotonic_ns()
    result = emulate(rehearsal, Path(capture), [0], iterations=2)
    memory_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    record = result.records[0]
    return {"loaded": loaded, "ready": result.ready_ns, "grouped": record.grouped_ns, "first": record.stepped_ns[0],
            "memory_bytes": memory_bytes, "emulated_s": result.seconds,
            "predicted_s": rehearsal.predict().seconds}  # fmt: skip


def measure(world: int, pp: int, tp: int, keep: Path | None) -> dict[str, Any]:
    """Capture in this process, replay in a fresh one whose memory counts."""
    with tempfile.TemporaryDirectory() as folder:
        begun, used = time.monotonic(), children_s()
        where = capture_to(keep or Path(folder), world, pp, tp)
        captured_s, cpu_s = time.monotonic() - begun, children_s() - used
        job = Rehearsal.open(where).job
        command = [sys.executable, __file__, "--replay", f"{where}"]
        said = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=300).stdout)
    ran = sum(len(rank_class.ran) for rank_class in job.classes)
    return {"world": world, "pp": pp, "tp": tp, "kinds": len(job.classes), "ran": ran, "capture_s": captured_s,
            "capture_cpu_s": cpu_s, "load": os.getloadavg()[0], **said,
            "replay_us_per_rank": 1e6 * said["replay_cpu_s"] / world}  # fmt: skip


def replay(capture: str) -> dict[str, Any]:
    """Load, build and check the graph, replay one iteration."""
    begun = time.monotonic()
    rehearsal = Rehearsal.open(capture)
    built = time.monotonic()
    times, cpu_times = [], []
    for _ in range(5):
        since, cpu = time.monotonic(), time.process_time()
        rehearsal.run(iterations=1)
        times.append(time.monotonic() - since)
        cpu_times.append(time.process_time() - cpu)
    nodes, edges = rehearsal.graph.nodes_and_edges()
    return {"build_s": built - begun, "replay_s": min(times), "replay_cpu_s": min(cpu_times), "nodes": nodes,
            "edges": edges, "memory_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}  # fmt: skip


@click.command()
@click.option("--json", "out", type=click.Path(path_type=Path))
@click.option("--world", "worlds", type=int, multiple=True, default=(512, 2048, 8192), show_default=True)
@click.option("--pp", "stages", type=int, multiple=True, default=(8,), show_default=True, help="pipeline stages")
@click.option("--tp", type=int, default=8, show_default=True, help="tensor-parallel ranks")
@click.option("--keep", type=click.Path(path_type=Path), help="directory where captures stay, and are found again")
@click.option("--start", "is_start", is_flag=True, help="how long an emulation takes to start, instead of replays")
def main(out: Path | None, worlds: tuple[int, ...], stages: tuple[int, ...], tp: int, keep: Path | None,
         is_start: bool) -> None:  # fmt: skip
    """Measure each size."""
    rows = []
    for world, pp in ((world, pp) for world in worlds for pp in stages):
        if is_start:
            rows.append(start_of(world, pp, tp, keep))
            write(rows, out)
            continue
        row = measure(world, pp, tp, keep)
        rows.append(row)
        print(f"{world:5} ranks: {row['kinds']} classes by running {row['ran']}, captured in {row['capture_s']:.0f} s "
              f"({row['capture_cpu_s']:.0f} s of CPU), "
              f"graph of {row['nodes']:,} nodes in {row['build_s']:.2f} s, an iteration replayed in "
              f"{row['replay_s']:.2f} s ({row['replay_us_per_rank']:.0f} µs a rank), "
              f"{row['memory_bytes'] / 1e6:.0f} MB", flush=True)  # fmt: skip
        write(rows, out)


def start_of(world: int, pp: int, tp: int, keep: Path | None) -> dict[str, Any]:
    """Measure one start and say it."""
    with tempfile.TemporaryDirectory() as folder:
        row = measure_start(capture_to(keep or Path(folder), world, pp, tp), world, pp, tp)
    print(f"{world:5} ranks: the assistant serves after {row['ready_s']:.1f} s (graph after {row['loaded_s']:.1f} s) "
          f"with {row['memory_bytes'] / 1e6:.0f} MB at most; rank 0 has all groups after {row['grouped_s']:.1f} s, its "
          f"first iteration is over after {row['first_s']:.1f} s; load {row['load']:.1f}", flush=True)  # fmt: skip
    return row


def write(rows: list[dict[str, Any]], out: Path | None) -> None:
    """All rows so far."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] == "--replay":
        print(json.dumps(replay(sys.argv[2])))
    elif len(sys.argv) > 2 and sys.argv[1] == "--emulate":
        print(json.dumps(start(sys.argv[2])))
    else:
        main()
