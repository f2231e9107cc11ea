"""A large job on a small machine: 1,024 ranks of a small GPT are rehearsed, one is slowed, Eroica finds it.

    python -m prismllm.demo

The layout is 4 pipeline stages by 4 tensor-parallel ranks by 64 replicas. Eroica is found on the path and met through
files alone; without it the demo shows the rest.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import click

from prismllm.capture import CaptureOptions
from prismllm.kinds import capture_job
from prismllm.rehearsal import Rehearsal
from prismllm.views.kineto import write_traces
from prismllm.views.path import critical_path
from prismllm.views.timeline import bars, draw_svg

_LAYOUT = ("--pp", "4", "--tp", "4", "--layers", "4", "--microbatches", "4", "--batch", "2", "--width", "64",
           "--length", "32", "--data", "mean", "--pace", "0.01")  # fmt: skip
_PATIENCE_S = 100.0


@click.command()
@click.option("--world", type=int, default=1024, show_default=True)
@click.option("--slow", "slow_rank", type=int, default=713, show_default=True, help="rank that gets slow")
@click.option("--by", type=float, default=1.5, show_default=True, help="how many times as long it computes")
@click.option("--out", type=click.Path(path_type=Path), default=Path("prismllm-demo"), show_default=True)
def main(world: int, slow_rank: int, by: float, out: Path) -> None:
    """Rehearse, slow one rank, show the timeline, ask Eroica."""
    begun = time.monotonic()

    def say(text: str) -> None:
        click.echo(f"{time.monotonic() - begun:5.1f} s  {text}")

    script = str(Path(__file__).parent / "examples" / "gpt.py")
    job = capture_job(CaptureOptions((script, *_LAYOUT), world, out / "capture", slice_size=8, timed=4), say=say)
    rehearsal = Rehearsal(job)
    ran = sum(len(kind.ran) for kind in job.kinds)
    nodes, _ = rehearsal.graph.nodes_and_edges()
    say(f"{world:,} ranks are {len(job.kinds)} kinds, found by running {ran}; graph of {nodes:,} nodes, checked")
    change = f"slow rank={slow_rank} by={by}"
    say(f"as captured: {rehearsal.predict()}")
    say(f"{change}: {rehearsal.predict(change)}")
    iteration = rehearsal.run([change])[-1]
    column = [rank for rank in range(world) if rank // 16 == slow_rank // 16]
    picture = out / "timeline.svg"
    picture.write_text(draw_svg(bars(rehearsal.graph, iteration, column), critical_path(rehearsal.graph, iteration),
                                f"{world:,} ranks, {change}: the pipeline of rank {slow_rank}"))  # fmt: skip
    say(f"timeline: {picture}")
    traces = out / "traces"
    shutil.rmtree(traces, ignore_errors=True)
    kept = rehearsal.run([change], iterations=7, noise=1, keep=6)
    say(f"{write_traces(rehearsal.graph, kept, traces):,} profiler traces in {traces}")
    eroica = shutil.which("eroica")
    if eroica is None:
        say("eroica is not on the path: pip install eroica, then: eroica diagnose " + str(traces))
        return
    verdict = out / "verdict.json"
    done = subprocess.run([eroica, "diagnose", str(traces), "--json", str(verdict)], capture_output=True, text=True,
                          timeout=_PATIENCE_S, check=False)  # fmt: skip
    if not verdict.exists():
        raise click.ClickException(f"eroica failed: {done.stderr.strip()[-300:]}")
    said = json.loads(verdict.read_text())
    causes = [one for one in said["findings"] if one["role"] == "cause"]
    named = causes[0]["workers"] if causes else []
    say(f"Eroica: {said['summary']}")
    say("that is right" if named == [slow_rank] else f"that is not rank {slow_rank}")
    sys.exit(0 if named == [slow_rank] else 1)


if __name__ == "__main__":
    main()
