"""The sidecar of deploy/kubernetes, as two containers see each other: one process namespace, other mounts.

Namespaces of this kernel stand for the containers; no Kubernetes is involved.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eroica.model.verdict import Verdict

pytestmark = [
    pytest.mark.root,
    pytest.mark.jobs,
    pytest.mark.thorough,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare"),
]

TRAIN = """
import eroica.auto
import os, time, torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Samples(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        if rank == 1 and time.monotonic() > begin + 12:
            fetch_from_archive()
        return torch.randn(64)

def fetch_from_archive():
    time.sleep(0.02)

dist.init_process_group("gloo")
rank, begin = dist.get_rank(), time.monotonic()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for batch in DataLoader(Samples(), batch_size=2):
    time.sleep(0.01)
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    enough = torch.tensor(float(os.path.exists(os.environ["ENOUGH"])))
    dist.all_reduce(enough)  # nobody leaves alone
    if enough > 0:
        break
dist.destroy_process_group()
"""
#: As in deploy/kubernetes/sidecar: ends well when it is told to.
WAIT = ["sh", "-c", 'trap "exit 0" TERM; while :; do sleep 1; done']
PATIENCE_S = 120.0


def container(command: list[str], environment: dict[str, str], directory: Path) -> subprocess.Popen[bytes]:
    """A process with a /dev/shm and a temporary directory of its own."""
    directory.mkdir()
    inside = 'mount -t tmpfs none /dev/shm && exec "$@"'
    return subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", inside, "sh", *command],
        env={**environment, "TMPDIR": str(directory)},
        cwd=directory,
        start_new_session=True,
    )


@pytest.mark.thorough
def test_a_sidecar_watches_a_training_in_another_container(tmp_path: Path) -> None:
    volume, reports = tmp_path / "eroica", tmp_path / "reports"
    volume.mkdir()
    plain = {name: value for name, value in os.environ.items() if not name.startswith("EROICA_")}
    shared = {**plain, "EROICA_RUNTIME_DIR": str(volume), "EROICA_SCRATCH_DIR": str(volume)}
    run = reports / "train"
    own = {
        "EROICA_JOB": "train",
        "EROICA_RUN_DIR": str(run),
        "ENOUGH": str(tmp_path / "enough"),
        "OMP_NUM_THREADS": "1",
    }
    (tmp_path / "train.py").write_text(TRAIN)
    ours = [sys.executable, "-m", "eroica", "run", "--job", "train", "--out", str(run), "--", *WAIT]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    sidecar = container(ours, shared, tmp_path / "one")
    train = container([*torchrun, str(tmp_path / "train.py")], {**shared, **own}, tmp_path / "two")
    try:
        await_slow(run)
        (tmp_path / "enough").touch()
        assert train.wait(60) == 0
        sidecar.send_signal(signal.SIGTERM)
        assert sidecar.wait(40) == 0
    finally:
        for process in (train, sidecar):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    verdict = Verdict.from_json((run / "verdict.json").read_bytes())
    assert verdict.verdict == "slow" and verdict.coverage.workers_reported == 2, verdict.summary
    assert verdict.cause is not None and verdict.cause.workers == (1,), verdict.summary
    assert "fetch_from_archive" in verdict.summary
    assert not list((run / "log").glob("collector.log.*")), "one agent and one collector: the sidecar's"


def await_slow(run: Path) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            status = json.loads((run / "status.json").read_bytes())
        except (OSError, ValueError):
            status = {}
        if any(window["verdict"] == "slow" for window in status.get("windows", [])):
            return
        time.sleep(0.5)
    logs = "\n".join(path.read_text() for path in run.glob("log/*"))
    pytest.fail(f"no slow window within {PATIENCE_S:.0f} s: {status}\n{logs}")
