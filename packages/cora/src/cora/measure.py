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
from pathlib import Path
from typing import Any

import numpy as np

from cora.build import HEADERS_DIRECTORY
from cora.errors import BuildError, Unsupported
from cora.functions import load
from cora.machine import Costs
from cora.model import Choice, placement_of, predict, wakes_per_packet
from cora.namespaces import Testbed
from cora.placement import BOTH, FAST, SLOW, Placement, options
from cora.profile import make_profile
from cora.program import Program
from cora.traffic import Packet, Shape, make_traffic


def compile_sender(directory: Path) -> Path:
    """Compile the sender."""
    target = directory / "sender"
    clang = shutil.which("clang")
    if not clang:
        raise Unsupported("clang is missing; install it (Debian: clang)")
    done = subprocess.run(
        [clang, "-O2", str(HEADERS_DIRECTORY / "sender.c"), "-o", str(target)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BuildError(done.stderr)
    return target


def cpu_ns(pid: int) -> int:
    """Return the CPU time of a process and its threads in ns."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text(encoding="ascii").split()[0])
    return total


def pin(core: int) -> list[str]:
    """Return a command prefix that pins to a core, or nothing where there is one core only."""
    cores = sorted(os.sched_getaffinity(0))
    return ["taskset", "-c", str(cores[core % len(cores)])] if len(cores) > 1 and shutil.which("taskset") else []


def write_frames(path: Path, packets: Sequence[Packet], port: int, macs: tuple[bytes, bytes]) -> int:
    """Write the frames of one direction for the sender, with MAC addresses (own, next); return their number."""
    chosen = [packet.frame for packet in packets if packet.port == port]
    frames = [macs[1] + macs[0] + frame[12:] for frame in chosen]
    path.write_bytes(b"".join(struct.pack("<H", len(frame)) + frame for frame in frames))
    return len(frames)


class Bench:
    """A function between namespaces, with senders on both sides."""

    def __init__(self, bed: Testbed, scratch: Path) -> None:
        self.bed, self.scratch = bed, scratch
        self.sender = compile_sender(scratch)
        self.macs = {
            (place, device): self._mac(place, device)
            for place, device in (("client", "c0"), ("middle", "in"), ("middle", "out"), ("server", "s0"))
        }
        # Both sides are known before the first packet, as a running network would know them.
        for place, near, own in (("middle", "in", "c0"), ("middle", "out", "s0")):
            outer = "client" if own == "c0" else "server"
            for address in ("10.0.0.2",) if own == "c0" else ("10.1.0.2", "10.1.0.3"):
                mac = ":".join(f"{b:02x}" for b in self.macs[(outer, own)])
                bed.ip(place, f"neigh replace {address} lladdr {mac} dev {near}")

    def _mac(self, place: str, device: str) -> bytes:
        shown = json.loads(self.bed.ip(place, f"-j link show dev {device}"))
        return bytes(int(part, 16) for part in shown[0]["address"].split(":"))

    def start_run(self, function: str, settings: dict[str, Any], placement: Placement, adapt: bool) -> tuple[Any, Path]:
        """Start `cora run` in the middle; return the process and its state file once it is ready."""
        state, plan = self.scratch / "state.json", self.scratch / "plan.json"
        plan.write_text(
            json.dumps(
                {
                    "function": function,
                    "settings": settings,
                    "homes": placement.homes,
                    "fast_entries": placement.fast_entries,
                }
            ),
            encoding="utf-8",
        )
        command = [*pin(1), sys.executable, "-m", "cora.cli", "run", function, "--dev", "in", "--dev", "out"]
        command += ["--plan", str(plan), "--state", str(state), "--adapt" if adapt else "--no-adapt"]
        process = self.bed.start("middle", command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout
        assert process.stderr
        if process.stdout.readline() != "ready\n":
            raise BuildError(f"cora run ended: {process.stderr.read()}")
        return process, state

    def send(self, side: int, rate: float, parts: Sequence[tuple[float, Sequence[Packet]]], device: str = "") -> Any:
        """Start a sender on the client's (0) or the server's side (1)."""
        place, near = ("client", "c0") if side == 0 else ("server", "s0")
        macs = (self.macs[(place, near)], self.macs[("middle", "in" if side == 0 else "out")])
        command = [*pin(0), str(self.sender), device or near, str(rate)]
        for number, (seconds, packets) in enumerate(parts):
            path = self.scratch / f"frames_{side}_{number}"
            if write_frames(path, packets, side, macs):
                command += [str(seconds), str(path)]
        return self.bed.start(place, command, stdout=subprocess.PIPE, text=True)

    def received(self, side: int) -> int:
        """Return the packets that came to the client (0) or the server (1)."""
        place, near = ("client", "c0") if side == 0 else ("server", "s0")
        shown = json.loads(self.bed.ip(place, f"-j -s link show dev {near}"))
        return int(shown[0]["stats64"]["rx"]["packets"])


@contextmanager
def make_bench() -> Iterator[Bench]:
    """Make namespaces and a scratch directory for measurements."""
    with tempfile.TemporaryDirectory(prefix="cora-bench-") as scratch, Testbed() as bed:
        yield Bench(bed, Path(scratch))


def bench_plan(
    function: str,
    settings: dict[str, Any],
    program: Program,
    placement: Placement,
    shape: Shape,
    seconds: float,
    adapt: bool = True,
) -> dict[str, Any]:
    """Run a plan under made traffic; return what came through and the slow tier's CPU, after a second of warming up."""
    packets = make_traffic(function, shape)
    with make_bench() as bench:
        process, state = bench.start_run(function, settings, placement, adapt)
        warm = 2.0 if adapt else 1.0
        senders = [
            bench.send(side, shape.rate_per_s * share, [(warm + seconds, packets)])
            for side, share in ((0, 1 - shape.back), (1, shape.back))
            if share and any(packet.port == side for packet in packets)
        ]
        time.sleep(warm)
        begin, before = time.monotonic(), (cpu_ns(process.pid), _counts(state))
        time.sleep(max(0.1, seconds - 0.5))
        spent, later, wall = cpu_ns(process.pid), _counts(state), time.monotonic() - begin
        sent = [json.loads(sender.communicate()[0]) for sender in senders]
        time.sleep(0.3)
        process.terminate()
        process.communicate(timeout=20)
        end = json.loads(state.read_text(encoding="utf-8"))
        packets_seen = max(1, later["fast"]["packets"] - before[1]["fast"]["packets"])
        window = max(1e-9, later["time_unix_s"] - before[1]["time_unix_s"])
        per_second = packets_seen / window
        return {
            "function": function,
            "placement": placement.label(),
            "sent_packets": sum(one["sent_packets"] for one in sent),
            "sender_cpu_ns_per_packet": sum(one["cpu_ns"] for one in sent)
            / max(1, sum(one["sent_packets"] for one in sent)),
            "received_packets": end["counters"]["fast"]["packets"],
            "rate_packets_per_s": per_second,
            "crossing_share": (later["fast"]["crossed"] - before[1]["fast"]["crossed"]) / packets_seen,
            "slow_cpu_share": (spent - before[0]) / 1e9 / wall,
            "slow_cpu_ns_per_packet": (spent - before[0]) / wall / per_second,
            "lost_between_tiers": end["counters"]["fast"]["crossed"] - end["counters"]["slow"]["packets"],
            "counters": end["counters"],
        }


def _counts(state: Path) -> dict[str, Any]:
    """Return the next counters that the run writes."""
    deadline = time.monotonic() + 10
    seen = state.stat().st_mtime_ns if state.exists() else 0
    while not state.exists() or state.stat().st_mtime_ns == seen:
        if time.monotonic() > deadline:
            raise BuildError("cora run writes no state any more")
        time.sleep(0.005)
    data = json.loads(state.read_text(encoding="utf-8"))
    return {**data["counters"], "time_unix_s": data["time_unix_s"]}


_BUCKET = {"rate_per_s": 1_000_000, "burst": 1000}


def network_costs(costs: Costs, seconds: float = 3.0) -> dict[str, float]:
    """Return costs of real devices beyond the programs; see `Costs.network`.

    A token bucket runs all slow at two rates and all fast. Idle time comes from the fast run, and wake-ups and packets
    from the two slow ones. "fast" is the sender's CPU beyond what sending by a dummy device takes; 0 where
    the kernel has no dummy devices.
    """
    program = load("bucket", _BUCKET)

    def measured(home: str, rate: float) -> tuple[dict[str, Any], float, float]:
        shape = Shape(keys=64, skew=0.0, packets=2000, back=0.0, rate_per_s=rate)
        chosen = {t.name: Choice(BOTH if BOTH in options(program, t) else home) for t in program.tables.values()}
        run = bench_plan("bucket", _BUCKET, program, placement_of(chosen), shape, seconds, adapt=False)
        predicted = predict(program, make_profile(program, make_traffic("bucket", shape)), costs, chosen)
        return run, predicted.fast_ns, predicted.slow_ns

    fast, program_ns, _ = measured(FAST, 40_000)
    idle = fast["slow_cpu_share"] * 1e9
    rows, rest = [], []
    for rate in (8_000, 60_000):
        run, _, slow_ns = measured(SLOW, rate)
        real = run["rate_packets_per_s"]
        rows.append([1.0, wakes_per_packet(real)])
        rest.append(run["slow_cpu_ns_per_packet"] - slow_ns - idle / real)
    packet, wake = np.linalg.solve(np.array(rows), np.array(rest))
    sending = _idle_sender(Shape(keys=64, skew=0.0, packets=2000, back=0.0, rate_per_s=40_000))
    return {
        "fast": max(0.0, fast["sender_cpu_ns_per_packet"] - sending - program_ns) if sending else 0.0,
        "slow": max(0.0, float(packet)),
        "wake": max(0.0, float(wake)),
        "idle": idle,
    }


def _idle_sender(shape: Shape) -> float | None:
    """Return the sender's CPU per packet on a device that drops everything, or None where the kernel has none."""
    with make_bench() as bench:
        if bench.bed.run("client", ["ip", "link", "add", "d0", "type", "dummy"]).returncode:
            return None
        bench.bed.ip("client", "link set d0 up")
        sender = bench.send(0, shape.rate_per_s, [(2.0, make_traffic("bucket", shape))], "d0")
        sent = json.loads(sender.communicate()[0])
        return float(sent["cpu_ns"] / sent["sent_packets"])
