import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eroica.agent.stacks import StackSampler, available, find_py_spy
from eroica.errors import UnavailableError
from eroica.trace.stacks import SampledThread, read_stacks

SWITCHER = """
import json, random, sys, time
def alpha(end):
    while time.monotonic_ns() < end: pass
def beta(end):
    while time.monotonic_ns() < end: pass
def main():
    chance, log = random.Random(1), []
    print("ready", flush=True)
    end = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < end:
        for function in (alpha, beta):
            now = time.monotonic_ns()
            log.append((now, function.__name__))
            function(now + int(chance.uniform(30e6, 60e6)))
    print(json.dumps(log), flush=True)
    sys.stdin.read()
main()
"""

FORKING = """
import os, sys, time
def in_child(end):
    while time.monotonic() < end: pass
def in_worker():
    sys.stdin.read()
print("ready", flush=True)
time.sleep(0.5)
pids = []
for seconds in (0.8, 60):
    pid = os.fork()
    if pid == 0:
        in_child(time.monotonic() + seconds); os._exit(0)
    pids.append(pid)
print(*pids, flush=True)
in_worker()
"""


def _start(code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def _script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture(autouse=True)
def _needs_py_spy() -> None:
    assert find_py_spy() is not None
    possible, reason = available(os.getpid())
    if not possible:
        pytest.skip(reason)


def test_switches_of_a_real_process_are_seen_within_one_and_a_half_periods(tmp_path: Path) -> None:
    process = _start(SWITCHER, "3")
    try:
        sampler = StackSampler(process.pid, tmp_path, hz=100)
        sampler.start()
        assert process.stdout is not None
        log = json.loads(process.stdout.readline())
        assert sampler.stop() == ()
    finally:
        _end(process)
    meta = json.loads((tmp_path / "stacks.meta.json").read_text())
    events = json.loads((tmp_path / "stacks.json").read_text())
    assert (meta["rate_hz"], meta["source"]) == (100, "py-spy")
    seen = [
        (meta["start_monotonic_ns"] + event["ts"] * 1000, event["name"])
        for event in events
        if event["ph"] == "B" and event["name"] in ("alpha", "beta")
    ][1:]
    assert len(seen) > 25
    ends = [moment for moment, _ in log[1:]] + [log[-1][0] + 60_000_000]
    stretches = [(start, end, name) for (start, name), end in zip(log, ends, strict=True)]
    period = 10_000_000
    inside, delays = 0, []
    for moment, function in seen:
        start, end = min(
            ((start, end) for start, end, name in stretches if name == function),
            key=lambda one: max(one[0] - moment, moment - one[1], 0),
        )
        inside += start - 1.5 * period <= moment <= end + 1.5 * period
        delays.append(moment - start)
    assert inside >= 0.9 * len(seen)
    assert -1.5 * period <= sorted(delays)[len(delays) // 5] <= 1.5 * period


def test_children_that_come_and_go_are_sampled_under_their_own_name(tmp_path: Path) -> None:
    process = _start(FORKING)
    children: list[int] = []
    try:
        sampler = StackSampler(process.pid, tmp_path)
        sampler.start()
        assert process.stdout is not None
        children = [int(text) for text in process.stdout.readline().split()]
        time.sleep(2.0)
        assert sampler.stop() == ()
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        _end(process)
    timeline = read_stacks([tmp_path / "stacks.json", *(tmp_path / f"stacks-{child}.json" for child in children)])
    seen = {process.pid: "in_worker", children[0]: "in_child", children[1]: "in_child"}
    ends = {}
    for pid, function in seen.items():
        stack, _, end = timeline.of_thread(timeline.threads.index(SampledThread(pid, pid)))
        assert any(frame.startswith(function) for one in stack for frame in timeline.stacks[one])
        ends[pid] = end[-1]
    assert ends[children[0]] < ends[children[1]] - 500_000_000 and len(timeline.threads) == 3


def test_a_worker_that_dies_during_the_window_leaves_its_stacks(tmp_path: Path) -> None:
    process = _start(SWITCHER, "30")
    sampler = StackSampler(process.pid, tmp_path)
    sampler.start()
    time.sleep(0.8)
    _end(process)
    sampler.stop()
    assert {"alpha", "beta"} & {event["name"] for event in json.loads((tmp_path / "stacks.json").read_text())}


def test_a_process_that_is_gone_has_no_stacks_and_the_text_says_why(tmp_path: Path) -> None:
    sampler = StackSampler(2**30, tmp_path)
    sampler.start()
    time.sleep(0.3)
    with pytest.raises(UnavailableError, match="no stacks of process"):
        sampler.stop()
    assert not (tmp_path / "stacks.json").exists()


def test_a_py_spy_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    hanging = _script(tmp_path / "py-spy", "exec sleep 60")
    possible, reason = available(os.getpid(), hanging, timeout_s=0.2)
    assert not possible
    assert "0.2 s" in reason
