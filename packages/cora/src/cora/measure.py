"""Measurements on real devices: a sender in C, the plan between two devices, CPU time from the scheduler.

CPU is that of the processes in ns (/proc/PID/schedstat). The sender and the fast tier share a core, because a veth
processes a packet on the sender's core; the slow tier has the other one, where there are two.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cora.build import HEADERS_DIRECTORY, clang
from cora.errors import BuildError
from cora.files import write
from cora.functions import load
from cora.machine import Costs
from cora.model import Choice, placement_of, predict, wakes_per_packet
from cora.namespaces import MACS, Testbed
from cora.placement import BOTH, FAST, SLOW, Placement, options
from cora.planfile import PlanFile
from cora.profile import make_profile
from cora.traffic import Packet, Shape, make_traffic

_SIDES = (("client", "c0", "in"), ("server", "s0", "out"))


def cpu_ns(pid: int) -> int:
    """Return the CPU time of a process and its threads in ns."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text(encoding="ascii").split()[0]) for task in tasks)


def pin(core: int) -> list[str]:
    """Return a command prefix that pins to a core, or nothing where there is one core only."""
    cores = sorted(os.sched_getaffinity(0))
    return ["taskset", "-c", str(cores[core % len(cores)])] if len(cores) > 1 and shutil.which("taskset") else []


class Sample(NamedTuple):
    """Counters of a run and its CPU time, read at the same moment."""

    counters: dict[str, Any]
    time_s: float
    cpu_ns: int


class Bench:
    """Namespaces in which functions run between two devices, with senders on both sides."""

    def __init__(self, bed: Testbed, scratch: Path) -> None:
        self.bed, self.scratch = bed, scratch
        self.sender, self.state = scratch / "sender", scratch / "state.json"
        clang(HEADERS_DIRECTORY / "sender.c", "-o", self.sender)

    def start_run(self, function: str, settings: dict[str, Any], placement: Placement, adapt: bool) -> Any:
        """Start `cora run` in the middle; return the process once it is ready."""
        plan = self.scratch / "plan.json"
        write(plan, PlanFile(function=function, settings=settings, **asdict(placement)))
        command = [*pin(1), sys.executable, "-m", "cora.cli", "run", function, "--dev", "in", "--dev", "out"]
        command += ["--plan", str(plan), "--state", str(self.state), "--adapt" if adapt else "--no-adapt"]
        process = self.bed.start("middle", command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if process.stdout and process.stdout.readline() != "ready\n":
            raise BuildError(f"cora run ended: {process.communicate()[1]}")
        return process

    def send(self, side: int, rate: float, parts: Sequence[tuple[float, Sequence[Packet]]]) -> Any:
        """Start a sender on the client's (0) or the server's side (1)."""
        place, near, far = _SIDES[side]
        command = [*pin(0), str(self.sender), near, str(rate)]
        for number, (seconds, packets) in enumerate(parts):
            path = self.scratch / f"frames_{side}_{number}"
            frames = [MACS[far] + MACS[near] + packet.frame[12:] for packet in packets if packet.port == side]
            path.write_bytes(b"".join(struct.pack("<H", len(frame)) + frame for frame in frames))
            command += [str(seconds), str(path)]
        return self.bed.start(place, command, stdout=subprocess.PIPE, text=True)

    def sample(self, process: Any) -> Sample:
        """Return the next counters that the run writes."""
        deadline = time.monotonic() + 10
        seen = self.state.stat().st_mtime_ns if self.state.exists() else 0
        while not self.state.exists() or self.state.stat().st_mtime_ns == seen:
            if time.monotonic() > deadline:
                raise BuildError("cora run writes no state any more")
            time.sleep(0.002)
        spent, data = cpu_ns(process.pid), json.loads(self.state.read_text(encoding="utf-8"))
        return Sample(data["counters"], data["time_unix_s"], spent)

    def received(self, side: int) -> int:
        """Return the packets that came to the client (0) or the server (1)."""
        shown = json.loads(self.bed.ip(_SIDES[side][0], f"-j -s link show dev {_SIDES[side][1]}"))
        return int(shown[0]["stats64"]["rx"]["packets"])


@contextmanager
def make_bench() -> Iterator[Bench]:
    """Make namespaces and a scratch directory for measurements."""
    with tempfile.TemporaryDirectory(prefix="cora-bench-") as scratch, Testbed() as bed:
        yield Bench(bed, Path(scratch))


def run_phases(
    function: str,
    settings: dict[str, Any],
    placement: Placement,
    shapes: Sequence[Shape],
    seconds: float,
    adapt: bool = True,
    settle: float = 2.0,
) -> dict[str, Any]:
    """Run a plan under made traffic whose shape changes.

    Args:
        function: Name of the function.
        settings: Its settings.
        placement: Where its tables live.
        shapes: Traffic of each phase; rate and share of packets from device 1 are those of the first.
        seconds: How long each phase is measured.
        adapt: Move keys of split tables.
        settle: Seconds of each phase before it is measured.

    Returns:
        For each phase its rate, share of crossing packets and slow-tier CPU; packets sent, received, lost between the
        tiers, and the state file at the end.
    """
    with make_bench() as bench:
        process = bench.start_run(function, settings, placement, adapt)
        length = settle + seconds + 1.2  # a sample is taken within a second
        parts = [(length, make_traffic(function, shape)) for shape in shapes]
        senders = [
            bench.send(side, shapes[0].rate_per_s * share, parts)
            for side, share in ((0, 1 - shapes[0].back), (1, shapes[0].back))
            if share
        ]
        begin, phases = time.monotonic(), []
        for number in range(len(shapes)):
            time.sleep(max(0.0, begin + number * length + settle - time.monotonic()))
            first = bench.sample(process)
            time.sleep(max(0.0, seconds - 0.5))
            last = bench.sample(process)
            wall, old, new = last.time_s - first.time_s, first.counters["fast"], last.counters["fast"]
            packets = max(1, new["packets"] - old["packets"])
            phases.append(
                {
                    "rate_packets_per_s": packets / wall,
                    "crossing_share": (new["crossed"] - old["crossed"]) / packets,
                    "slow_cpu_share": (last.cpu_ns - first.cpu_ns) / 1e9 / wall,
                    "slow_cpu_ns_per_packet": (last.cpu_ns - first.cpu_ns) / packets,
                    "replans": last.counters["replans"],
                }
            )
        sent = [json.loads(sender.communicate()[0]) for sender in senders]
        time.sleep(0.3)
        process.terminate()
        process.communicate(timeout=20)
        end = json.loads(bench.state.read_text(encoding="utf-8"))
    counters, packets = end["counters"], max(1, sum(one["sent_packets"] for one in sent))
    return {
        "function": function,
        "placement": placement.label(),
        "sent_packets": packets,
        "sender_cpu_ns_per_packet": sum(one["cpu_ns"] for one in sent) / packets,
        "received_packets": counters["fast"]["packets"] - counters["fast"]["up"],
        "lost_between_tiers": counters["fast"]["crossed"] - counters["slow"]["packets"],
        "phases": phases,
        "state": end,
    }


_BUCKET = {"rate_per_s": 1_000_000, "burst": 1000}


def network_costs(costs: Costs, seconds: float = 3.0) -> dict[str, float]:
    """Return costs of real devices beyond the programs; see `Costs.network`.

    A token bucket runs all slow at four rates and all fast. Idle time comes from the fast run, and wake-ups and packets
    from a fit to the slow ones.
    """
    program = load("bucket", _BUCKET)

    def measured(home: str, rate: float) -> tuple[dict[str, Any], float]:
        shape = Shape(keys=64, skew=0.0, packets=2000, back=0.0, rate_per_s=rate)
        chosen = {t.name: Choice(BOTH if BOTH in options(program, t) else home) for t in program.tables.values()}
        run = run_phases("bucket", _BUCKET, placement_of(chosen), [shape], seconds, adapt=False, settle=1.0)
        predicted = predict(program, make_profile(program, make_traffic("bucket", shape)), costs, chosen)
        return run["phases"][0], predicted.slow_ns

    idle = measured(FAST, 40_000)[0]["slow_cpu_share"] * 1e9
    rows, rest = [], []
    for rate in (8_000, 16_000, 30_000, 60_000):
        run, slow_ns = measured(SLOW, rate)
        real = run["rate_packets_per_s"]
        rows.append([1.0, wakes_per_packet(real)])
        rest.append(run["slow_cpu_ns_per_packet"] - slow_ns - idle / real)
    packet, wake = np.linalg.lstsq(np.array(rows), np.array(rest), rcond=None)[0]
    if min(packet, wake) < 0:  # noise: one of the two explains all
        packet, wake = (np.mean(rest), 0.0) if wake < 0 else (0.0, np.mean(rest) / np.mean(rows, axis=0)[1])
    return {"slow": max(0.0, float(packet)), "wake": max(0.0, float(wake)), "idle": idle}
