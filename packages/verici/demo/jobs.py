"""Start tiny torchrun jobs that really fail or run, learn from their launch files, and check one before it starts.

    python demo/jobs.py [FOLDER]

Each job is a folder with a launch file and a configuration. The training builds a device mesh of tp × pp × dp ranks,
which torch refuses if the number of ranks is another one. Needs torch; nothing leaves this machine.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

PYTHON = sys.executable
TRAIN = """\
import os
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

torch.set_num_threads(1)
config = dict(line.split(": ") for line in open(sys.argv[1]).read().splitlines())
tp, pp, dp, heads = (int(config[name]) for name in ("tp", "pp", "dp", "heads"))
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (pp, dp, tp), mesh_dim_names=("pp", "dp", "tp"))
weight = torch.ones(heads, 4)
for _ in range(3):
    gradient = weight.clone()
    dist.all_reduce(gradient, group=mesh.get_group("dp"))
    weight -= 0.01 * gradient
dist.destroy_process_group()
os._exit(0)  # the threads of gloo's groups may abort at the interpreter's end: torch 2.13
"""
#: ranks, tp, pp, dp of each job; a job whose product is not the number of ranks fails.
JOBS = [
    (1, 1, 1, 1), (2, 2, 1, 1), (2, 1, 1, 2), (2, 2, 1, 2), (1, 1, 1, 1), (2, 1, 2, 1), (1, 1, 1, 2), (2, 1, 1, 2),
    (1, 2, 1, 1), (1, 1, 1, 1), (2, 1, 1, 1), (3, 1, 1, 3), (1, 1, 2, 1), (1, 1, 1, 1),
]  # fmt: skip


def main() -> None:
    """Run the demo in the given folder, or in one that is removed afterwards."""
    if len(sys.argv) > 1:
        show(Path(sys.argv[1]).resolve())
        return
    with tempfile.TemporaryDirectory() as folder:
        show(Path(folder))


def show(folder: Path) -> None:
    """Run the past jobs, learn, and check a new one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(TRAIN)
    past = folder / "jobs"
    print(f"== {len(JOBS)} past jobs, really started", flush=True)
    for number, job in enumerate(JOBS):
        place = past / f"job-{number:02}"
        write_job(place, *job)
        status = start(place, folder / "train.py")
        (place / "exit_code").write_text(str(status))
        ranks, tp, pp, dp = job
        print(f"{place.name}: {ranks} ranks, tp {tp}, pp {pp}, dp {dp}: exit {status}", flush=True)
    print("\n== learn from their launch files", flush=True)
    verici(folder, "preflight", "learn", "jobs")
    print("\n== check a job before it starts: 6 ranks have not been tried yet", flush=True)
    write_job(folder / "bad", 6, 2, 1, 2)
    bad = verici(folder, "preflight", "check", "bad")
    write_job(folder / "good", 6, 3, 1, 2)
    good = verici(folder, "preflight", "check", "good")
    print(f"bad job: status {bad}, good job: status {good}")
    if (bad, good) != (3, 0):
        sys.exit("this is a fault of the demo: 3 and 0 are right")


def write_job(place: Path, ranks: int, tp: int, pp: int, dp: int) -> None:
    """Write a job's launch file and configuration."""
    place.mkdir(parents=True)
    (place / "config.yaml").write_text(f"tp: {tp}\npp: {pp}\ndp: {dp}\nheads: 8\nlr: 0.01\n")
    (place / "launch.sh").write_text(
        f'exec torchrun --nproc-per-node {ranks} --master-port "$PORT" "$TRAIN" config.yaml\n'
    )


def start(place: Path, train: Path) -> int:
    """Run a job's launch file; return its exit status."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {
        **os.environ, "PATH": f"{Path(PYTHON).parent}:{os.environ['PATH']}", "PORT": str(port), "TRAIN": str(train),
        "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    with (place / "output.txt").open("w") as output:
        return subprocess.run(
            ["sh", "launch.sh"], cwd=place, env=env, stdout=output, stderr=output, check=False
        ).returncode


def verici(folder: Path, *arguments: str) -> int:
    """Run the command `verici`."""
    print(f"$ verici {' '.join(arguments)}", flush=True)
    return subprocess.run([PYTHON, "-m", "verici", *arguments], cwd=folder, check=False).returncode


if __name__ == "__main__":
    main()
