"""Cost of capturing and replaying 512 to 8,192 ranks of one script: time, memory, ranks that were run.

    python benchmarks/scale.py --json benchmarks/results/scale.json
    python benchmarks/scale.py --pp 2 --pp 4 --pp 8 --tp 2 --world 1024 --json benchmarks/results/kinds.json

Stages are kinds of ranks: with --pp several times the cost can be seen to follow their number, with --world several
times not to follow that. CPU seconds are those of all processes that the capture ran; a busy machine changes them less
than the time that passed. The replay is the best of five.
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
from prismllm.kinds import capture_job

GPT = str(Path(examples.__file__).parent / "gpt.py")


def layout(pp: int, tp: int) -> tuple[str, ...]:
    """Arguments of the script for so many stages and tensor-parallel ranks."""
    return ("--pp", str(pp), "--tp", str(tp), "--layers", str(pp), "--heads", "8", "--microbatches", str(pp),
            "--batch", "1", "--width", "64", "--length", "16", "--data", "mean")  # fmt: skip


def children_s() -> float:
    """CPU seconds of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(world: int, pp: int, tp: int) -> dict[str, Any]:
    """Capture in this process, replay in a fresh one whose memory counts."""
    with tempfile.TemporaryDirectory() as folder:
        begun, used = time.monotonic(), children_s()
        job = capture_job(CaptureOptions((GPT, *layout(pp, tp)), world, Path(folder) / "c", slice_size=8, timed=3))
        captured_s, cpu_s = time.monotonic() - begun, children_s() - used
        command = [sys.executable, __file__, "--replay", f"{folder}/c"]
        said = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=300).stdout)
    ran = sum(len(kind.ran) for kind in job.kinds)
    return {"world": world, "pp": pp, "tp": tp, "kinds": len(job.kinds), "ran": ran, "capture_s": captured_s,
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
def main(out: Path | None, worlds: tuple[int, ...], stages: tuple[int, ...], tp: int) -> None:
    """Measure each size."""
    rows = []
    for world, pp in ((world, pp) for world in worlds for pp in stages):
        row = measure(world, pp, tp)
        rows.append(row)
        print(f"{world:5} ranks: {row['kinds']} kinds by running {row['ran']}, captured in {row['capture_s']:.0f} s "
              f"({row['capture_cpu_s']:.0f} s of CPU), "
              f"graph of {row['nodes']:,} nodes in {row['build_s']:.2f} s, an iteration replayed in "
              f"{row['replay_s']:.2f} s ({row['replay_us_per_rank']:.0f} µs a rank), "
              f"{row['memory_bytes'] / 1e6:.0f} MB", flush=True)  # fmt: skip
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] == "--replay":
        print(json.dumps(replay(sys.argv[2])))
    else:
        main()
