"""Memory of Eroica's processes beside a job: the most that each held, by the kernel's own count.

    python benchmarks/memory.py [--ranks 8] [--seconds 60]

A job of gloo ranks under `eroica run`, with its baseline window. Prints megabytes by process: resident (VmHWM, which
counts shared libraries in each process), and private and its share of what is shared (Pss, as sampled).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRAINING = """
import sys, time, torch, torch.distributed as dist
torch.set_num_threads(1); dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), 1e-3); end = time.time() + float(sys.argv[1])
while True:
    optimizer.zero_grad(); model(torch.ones(8, 64)).sum().backward(); optimizer.step(); time.sleep(0.05)
    over = torch.tensor(float(time.time() > end)); dist.all_reduce(over)
    if over: break
"""


def memory_mb(process: Path) -> tuple[int, int]:
    """Peak of the resident memory, and the proportional share now."""
    peak = next(line for line in (process / "status").read_text().splitlines() if line.startswith("VmHWM"))
    share = next(line for line in (process / "smaps_rollup").read_text().splitlines() if line.startswith("Pss:"))
    return int(peak.split()[1]) // 1000, int(share.split()[1]) // 1000


def main() -> None:
    """Run the job and look at its processes four times a second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    most: dict[str, tuple[int, int]] = {}
    with tempfile.TemporaryDirectory() as place:
        program = Path(place) / "train.py"
        program.write_text(TRAINING)
        tools = Path(sys.executable).parent
        launcher = [tools / "torchrun", "--standalone", "--nproc-per-node", str(options.ranks)]
        job = subprocess.Popen(
            [tools / "eroica", "run", "--quiet", "--out", Path(place) / "out", "--set", "baseline_after_iterations=20",
             "--", *launcher, program, str(options.seconds)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        while job.poll() is None:
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    words = (process / "cmdline").read_bytes().split(b"\0")
                    ours = place.encode() in (process / "environ").read_bytes() or process.name == str(job.pid)
                    name = next((word.decode() for word in words if word.startswith(b"eroica.")), "")
                    name = "eroica run" if process.name == str(job.pid) else name
                    if ours and name:
                        before, now = most.get(name, (0, 0)), memory_mb(process)
                        most[name] = (max(before[0], now[0]), max(before[1], now[1]))
                except (OSError, StopIteration):
                    continue
            time.sleep(0.25)
    for name, (peak, share) in sorted(most.items()):
        print(f"{name}: {peak} MB resident at most, {share} MB its share")


if __name__ == "__main__":
    main()
