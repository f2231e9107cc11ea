"""These start real processes for a second or two: whether a process is left stopped cannot be seen on a fake."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eroica.demo.faults import THROTTLE_PROGRAM

BUSY = "while True: pass"


@pytest.fixture
def target() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", BUSY])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def throttled(target: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-I", "-S", str(THROTTLE_PROGRAM), str(target.pid), "5", "45"]
    helper = subprocess.Popen(command, start_new_session=True)
    eventually(lambda: state(target.pid) == "T")
    yield helper
    helper.kill()
    helper.wait()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def eventually(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def stays_running(pid: int) -> bool:
    """Whether it is never seen stopped in ten duty cycles."""
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        if state(pid) == "T":
            return False
        time.sleep(0.002)
    return True


def test_the_process_gets_only_its_share_of_a_core(
    target: subprocess.Popen[bytes], throttled: subprocess.Popen[bytes]
) -> None:
    before, start = cpu_seconds(target.pid), time.monotonic()
    eventually(lambda: time.monotonic() - start > 1.0)
    assert cpu_seconds(target.pid) - before < 0.4 * (time.monotonic() - start)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_however_the_helper_ends_the_process_runs_freely_afterwards(
    target: subprocess.Popen[bytes], throttled: subprocess.Popen[bytes], number: signal.Signals
) -> None:
    eventually(lambda: state(target.pid) == "T")
    throttled.send_signal(number)
    throttled.wait(10)
    eventually(lambda: state(target.pid) != "T")
    assert stays_running(target.pid)


def test_the_helper_ends_with_its_process(target: subprocess.Popen[bytes], throttled: subprocess.Popen[bytes]) -> None:
    target.kill()
    assert throttled.wait(10) == 0
