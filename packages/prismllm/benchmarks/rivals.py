"""Other ways to know an iteration's time and a rank's memory in advance, on the jobs of the truth benchmark.

    python benchmarks/rivals.py --json benchmarks/results/rivals.json

Rivals: torch's fake process group (one rank runs, calls return at once), an estimate by the same measured costs (the
busiest rank's work plus each of its calls, no waiting), and the same by latency and bandwidth alone, as a send has them
here. Real times are those of `truth.json`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from prismllm import Rehearsal
from prismllm.capture import CaptureOptions
from prismllm.costs import Costs, Link
from prismllm.rank_classes import capture_job
from truth import CASES, GPT, PACE_S, SMALL, WARMUP, costs_for, run_measured

JOBS = ("dp4", "fsdp4", "pp2 dp2", "tp2 dp2")


def fake_rank(script: list[str]) -> None:
    """Rank 0 under the fake process group, as its documentation says; prints seconds of iterations and peak memory."""
    import statistics

    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    original = dist.init_process_group
    world = int(os.environ["WORLD_SIZE"])
    dist.init_process_group = lambda *_, **__: original("fake", rank=0, world_size=world, store=FakeStore())
    peak, ends, _ = run_measured(script)
    steps = [b - a for a, b in zip(ends[WARMUP + 1 :], ends[WARMUP + 2 :], strict=False)]
    print(json.dumps({"seconds": statistics.median(steps), "peak": peak}))


def run_fake(world: int, arguments: tuple[str, ...]) -> dict[str, Any]:
    """What the fake process group says, or how it fails."""
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": str(world), "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, __file__, "--fake", GPT, *arguments], env=environment, capture_output=True,
                          text=True, timeout=120, check=False)  # fmt: skip
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "Error" in line]
        return {"failed": lines[-1][:200] if lines else f"exit status {done.returncode}"}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def of_a_send(costs: Costs) -> Costs:
    """Latency and bandwidth of a measured send, for the formulas."""
    sends = sorted((one.nbytes, one.seconds) for one in costs.table if one.op == "send" and one.ranks == 2)
    (least, first_s), (most, last_s) = sends[0], sends[-1]
    return Costs(host=Link(first_s, (most - least) / max(last_s - first_s, 1e-9)))


def estimate(rehearsal: Rehearsal, costs: Costs) -> float:
    """Seconds by costs, without waiting: the busiest rank's work and all of its calls, one after the other."""
    job = rehearsal.job
    best = 0.0
    for rank_class in job.classes:
        seconds = sum(rank_class.step.segments_ns) / 1e9
        for call in rank_class.step.calls:
            ranks = 2 if call.is_pairwise else len(job.groups[call.group].ranks)
            op = "send" if call.is_pairwise else call.op
            seconds += costs.seconds(op, call.nbytes, ranks, is_remote=False)
        best = max(best, seconds)
    return best


@click.command()
@click.option("--json", "out", type=click.Path(path_type=Path))
@click.option("--truth", type=click.Path(path_type=Path), default=Path(__file__).parent / "results" / "truth.json")
def main(out: Path | None, truth: Path) -> None:
    """Compare all on each job."""
    if os.geteuid() == 0:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # what is started from here inherits it
    real = {row["case"]: row for row in json.loads(truth.read_text()) if row["pace_s"] == PACE_S}
    rows = []
    for name in JOBS:
        world, layout, _, _ = CASES[name]
        arguments = (*SMALL, *layout, "--pace", str(PACE_S))
        with tempfile.TemporaryDirectory() as folder:
            options = CaptureOptions((GPT, *arguments), world, Path(folder) / "c", slice_size=world, timed=3)
            rehearsal = Rehearsal(capture_job(options), costs_for(world, Path("/tmp/prismllm-costs")))
        fake = run_fake(world, arguments)
        seconds = real[name]["real_s"]
        row = {"case": name, "real_s": seconds, "prismllm_s": rehearsal.predict().seconds,
               "estimate_s": estimate(rehearsal, rehearsal.costs),
               "plain_s": estimate(rehearsal, of_a_send(rehearsal.costs)), "fake_s": fake.get("seconds"),
               "fake_failed": fake.get("failed", ""), "fake_peak": fake.get("peak"),
               "prismllm_peak": rehearsal.job.classes[0].peak_bytes}  # fmt: skip
        rows.append(row)
        shown = "  ".join(
            f"{who} {100 * (row[f'{who}_s'] / seconds - 1):+7.2f} %" if row[f"{who}_s"] else f"{who} failed"
            for who in ("prismllm", "estimate", "plain", "fake")
        )
        print(f"{name:10} real {1e3 * seconds:7.1f} ms  {shown}  {row['fake_failed']}", flush=True)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--fake":
        fake_rank(sys.argv[2:])
    else:
        main()
