"""Cost of capturing and replaying 512 to 8,192 ranks of one script: time, memory, ranks that were run.

python benchmarks/scale.py --json benchmarks/results/scale.json
"""

from __future__ import annotations

import json
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
LAYOUT = ("--pp", "8", "--tp", "8", "--layers", "8", "--heads", "8", "--microbatches", "8", "--batch", "1",
          "--width", "64", "--length", "16", "--data", "mean")  # fmt: skip


def measure(world: int) -> dict[str, Any]:
    """Capture in this process, replay in a fresh one whose memory counts."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        job = capture_job(CaptureOptions((GPT, *LAYOUT), world, Path(folder) / "c", slice_size=8, timed=3))
        captured_s = time.monotonic() - begun
        command = [sys.executable, __file__, "--replay", f"{folder}/c"]
        said = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=300).stdout)
    ran = sum(len(kind.ran) for kind in job.kinds)
    return {"world": world, "kinds": len(job.kinds), "ran": ran, "capture_s": captured_s, **said,
            "replay_us_per_rank": 1e6 * said["replay_s"] / world}  # fmt: skip


def replay(capture: str) -> dict[str, Any]:
    """Load, build and check the graph, replay one iteration."""
    begun = time.monotonic()
    rehearsal = Rehearsal.open(capture)
    built = time.monotonic()
    rehearsal.run(iterations=1)
    done = time.monotonic()
    nodes, edges = rehearsal.graph.nodes_and_edges()
    return {"build_s": built - begun, "replay_s": done - built, "nodes": nodes, "edges": edges,
            "memory_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}  # fmt: skip


@click.command()
@click.option("--json", "out", type=click.Path(path_type=Path))
@click.option("--world", "worlds", type=int, multiple=True, default=(512, 2048, 8192), show_default=True)
def main(out: Path | None, worlds: tuple[int, ...]) -> None:
    """Measure each size."""
    rows = []
    for world in worlds:
        row = measure(world)
        rows.append(row)
        print(f"{world:5} ranks: {row['kinds']} kinds by running {row['ran']}, captured in {row['capture_s']:.0f} s, "
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
