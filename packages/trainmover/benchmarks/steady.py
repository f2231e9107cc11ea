"""What TrainMover costs while nothing happens: processor time of the training processes with a controller and without.

    python benchmarks/steady.py --pairs 3 --out docs/figures/steady.jsonl

Each pair is the same job (`--ranks` data-parallel members, the trainmover backend) run twice: alone, and under
`trainmover run` with copies every ten iterations. What counts is the processor time of each training process, threads
included, from iteration 30 to the last, so that other work on the machine matters little. "wall" is the same ratio in
seconds that passed, "controller_s" the controller's processor time. One record a pair.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.jobs import alone, running_job

FIRST = 30


def spent(out: Path, name: str) -> float:
    """Sum over ranks, from iteration FIRST to the last."""
    total = 0.0
    for path in out.glob("losses-*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        total += lines[-1][name] - next(one[name] for one in lines if one["step"] == FIRST)
    return total


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--iterations", type=int, default=230)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    shape = ["--dp", str(given.ranks), "--width", str(given.width), "--iterations", str(given.iterations)]
    for _ in range(given.pairs):
        folder = Path(tempfile.mkdtemp(prefix="trainmover-steady-"))
        without = alone(folder / "alone", given.ranks, *shape, timeout_s=600)
        with running_job(folder / "run", given.ranks, *shape, timeouts='{"heartbeat_timeout_s": 60}') as job:
            pid = json.loads((job.folder / "controller.json").read_text())["pid"]
            job.until_step(given.iterations - 20, 600)
            ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            assert job.finish(600) == 0, job.log()
        record = {"ranks": given.ranks, "width": given.width, "iterations": given.iterations - FIRST}
        for name in ("cpu", "wall"):
            key = {"cpu": "cpu_s", "wall": "at"}[name]
            record |= {f"{name}_alone_s": round(spent(without, key), 3), f"{name}_run_s": round(spent(job.out, key), 3)}
            record[f"{name}_ratio"] = round(record[f"{name}_run_s"] / record[f"{name}_alone_s"], 4)
        record["controller_s"] = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        record["load"] = round(os.getloadavg()[0], 1)
        print(json.dumps(record), flush=True)
        with given.out.open("a") as file:
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
