import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, testrun_uid: str) -> Path:
    """Losses and final states of the tests' job of four when nothing happens to it."""
    from tests.jobs import SHAPE

    return _left_alone(tmp_path_factory.getbasetemp().parent / f"undisturbed-{testrun_uid}", 4, SHAPE)


@pytest.fixture(scope="session")
def undisturbed_pair(tmp_path_factory: pytest.TempPathFactory, testrun_uid: str) -> Path:
    """The same of the job of two."""
    from tests.jobs import PAIR

    return _left_alone(tmp_path_factory.getbasetemp().parent / f"undisturbed-pair-{testrun_uid}", 2, PAIR)


def _left_alone(place: Path, n_ranks: int, shape: tuple[str, ...]) -> Path:
    """Run a job once for all test processes; where it wrote its losses and states."""
    from tests.jobs import alone

    place.mkdir(exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = place / "done"
        if not done.exists():
            alone(place, n_ranks, *shape)
            done.touch()
        return place / "out"


def environment(**more: str) -> dict[str, str]:
    """One thread a process, no variables of an outer job."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRAINMOVER_", "TORCHELASTIC_"))}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **more}


def torchrun(program: str, n_ranks: int, *arguments: str, timeout_s: float = 400) -> str:
    """Run one of the test programs under torchrun; its output."""
    assert shutil.which(sys.executable)
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", str(n_ranks), str(PROGRAMS / program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment(), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
