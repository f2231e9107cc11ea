import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eroica.hardware.cpu import ASLEEP, HIDDEN, NAPPING, Target, is_alive, threads_of
from eroica.hardware.sampler import Pace, Sampler
from eroica.hardware.store import Samples, read_samples

WORKER = """
import os, sys, threading, time
def run(until):
    while time.monotonic() < until: pass
child = os.fork()
if child == 0:
    run(time.monotonic() + 60); os._exit(0)
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print(child, flush=True)
for _ in range(2000):
    run(time.monotonic() + 0.01); time.sleep(0.01)
"""


@pytest.fixture
def worker() -> Iterator[tuple[int, int]]:
    """A process that is half busy, with a sleeping thread and a busy child: (its pid, the child's)."""
    process = subprocess.Popen([sys.executable, "-c", WORKER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    yield process.pid, child
    os.kill(child, signal.SIGKILL)
    process.kill()
    process.stdout.close()
    process.wait()


def _sample(directory: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "eroica.hardware.sampler", "--out", str(directory), *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE)


def _wait_for_samples(directory: Path, seconds: float = 20.0) -> Samples:
    """Poll until the store holds something of every kind."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (directory / "samples.bin").is_file() and (directory / "samples.bin").stat().st_size > 20_000:
            return read_samples(directory)
        time.sleep(0.05)
    raise AssertionError("the sampler wrote nothing")


def test_a_running_worker_is_sampled_with_its_threads_and_children(worker: tuple[int, int], tmp_path: Path) -> None:
    pid, child = worker
    done = _sample(tmp_path, "--pid", str(pid), "--seconds", "2")
    assert done.communicate(timeout=30)[1] == b""
    assert done.returncode == 0
    samples = read_samples(tmp_path)
    assert {f"{pid}/{tid}" for tid in threads_of(pid)} <= set(samples.devices("cpu"))
    own, other = samples.find("cpu", f"{pid}/{pid}"), samples.find("cpu", f"{child}/{child}")
    waiting = samples.find("run_queue", f"{child}/{child}")
    state, busy = samples.find("state", f"{pid}/{pid}"), samples.find("cpu_process", str(child))
    assert own is not None
    assert other is not None
    assert waiting is not None
    assert state is not None
    assert busy is not None
    span = [own.start_ns + 100_000_000], [own.t_ns[-1] - 100_000_000]
    share = other.mean_over(*span)[0]
    assert 0.0 < own.mean_over(*span)[0] < 0.75
    assert share + waiting.mean_over(*span)[0] == pytest.approx(1.0, abs=0.08)
    assert busy.mean_over(*span)[0] == pytest.approx(share, abs=0.08)
    sleeps = (ASLEEP, NAPPING, HIDDEN)  # some kernels do not tell which
    assert sum(state.share_over(code, *span)[0] for code in (ord("R"), *sleeps)) > 0.95
    asleep = sum(state.share_over(code, *span)[0] for code in sleeps)
    assert 0.05 < asleep < 0.75
    assert samples.named("cpu_host")
    assert samples.named("net")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_sampler_with_everything_written(
    worker: tuple[int, int], tmp_path: Path, number: signal.Signals
) -> None:
    running = _sample(tmp_path, "--pid", str(worker[0]))
    _wait_for_samples(tmp_path)
    running.send_signal(number)
    assert running.communicate(timeout=10)[1] == b""
    assert running.returncode == 0
    assert read_samples(tmp_path).series


def test_the_sampler_ends_when_its_parent_is_gone(worker: tuple[int, int], tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-m', 'eroica.hardware.sampler', *sys.argv[1:]])\n"
        "while not os.path.exists(sys.argv[-1] + '/samples.bin'): time.sleep(0.02)\n"
        "time.sleep(0.3)\nprint(p.pid, flush=True)\n"
    )
    command = [sys.executable, "-c", code, "--pid", str(worker[0]), "--out", str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=30, check=True)
    sampler = int(done.stdout)
    end = time.monotonic() + 10
    while is_alive(sampler) and time.monotonic() < end:
        time.sleep(0.02)
    assert not is_alive(sampler)


def test_a_probe_that_fails_is_left_out_and_the_rest_goes_on(tmp_path: Path) -> None:
    class Broken:
        period_ns = 1_000_000

        def read(self) -> None:
            raise OSError(5, "Input/output error")

        def close(self) -> None:
            """Nothing to give back."""

    sampler = Sampler([Target(os.getpid(), os.getpid())], tmp_path)
    sampler._probes.append(Broken())
    sampler._tasks = sampler._schedule(time.monotonic_ns())
    sampler.run(lambda: False, seconds=0.1)
    samples = read_samples(tmp_path)
    assert "Broken stopped: [Errno 5] Input/output error" in samples.notes
    assert samples.find("state", f"{os.getpid()}/{os.getpid()}") is not None


def test_the_pace_is_lowered_in_proportion_to_what_it_costs_too_much() -> None:
    pace = Pace(budget=0.1)
    assert not pace.update(1_000_000_000, 5.0)
    assert not pace.update(2_000_000_000, 5.1)
    assert pace.update(3_000_000_000, 5.4)
    assert pace.stretch == pytest.approx(3.0)
    assert pace.update(4_000_000_000, 15.0)
    assert pace.stretch == 10.0
    assert not pace.update(5_000_000_000, 25.0)


def test_a_directory_that_cannot_be_written_exits_with_1(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = _sample(tmp_path / "file" / "inside", "--pid", str(os.getpid()))
    assert b"cannot be written" in done.communicate(timeout=20)[1]
    assert done.returncode == 1
