"""One very large job on one collector: agents that beat, a window opened by hand, and the patterns of all its workers.

    python benchmarks/large_job.py --agents 12504 --json benchmarks/results/large_job.json

A real collector in a process of its own; one other process speaks for all agents, over 64 connections that stay open.
Each agent has eight workers, whose patterns are those of `benchmarks/scale.py`, one worker of them slow: its name must
be in the verdict. They are made before anything is measured (`--made FILE` keeps them). Latencies are those of reports
that were accepted, with what the sending process adds; patterns have 32 connections of their own. The collector's
processor time and memory are its own; its disk is a temporary directory's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from eroica.archive.load import count_patterns, open_window
from eroica.model.verdict import Verdict
from eroica.wire.address import Address, read_address
from eroica.wire.messages import (
    CollectorReply,
    JobStatus,
    ProfileRequest,
)
from machine import machine_facts
from scale import Job
from support.agents import Agents

PER_AGENT, CONNECTIONS, CARRIERS, ITERATION_S = 8, 64, 32, 2.0
REPORT_S = 0.25


class Connection:
    """HTTP over one socket that stays open; a lost one is opened again."""

    def __init__(self, run: Path) -> None:
        self._run, self._streams = run, None
        self._free = asyncio.Lock()
        self.latencies: list[float] = []

    async def ask(self, path: str, body: bytes, method: str = "POST") -> tuple[int, bytes]:
        """Status and body; (0, b"") if there was no answer."""
        async with self._free:
            try:
                began = time.perf_counter()
                answer = await asyncio.wait_for(self._ask(path, body, method), 60.0)
                self.latencies.append(time.perf_counter() - began)
                return answer
            except (OSError, EOFError, asyncio.TimeoutError, ValueError):
                if self._streams is not None:
                    self._streams[1].close()
                self._streams = None
                return 0, b""

    async def _ask(self, path: str, body: bytes, method: str) -> tuple[int, bytes]:
        if self._streams is None:
            address: Address | None = read_address(self._run, "n0")
            if address is None:
                raise OSError("no collector")
            host, port = address.url.removeprefix("http://").rsplit(":", 1)
            self._token = address.token
            self._streams = await asyncio.open_connection(host.strip("[]"), int(port))
        reader, writer = self._streams
        head = f"{method} {path} HTTP/1.1\r\nHost: c\r\nAuthorization: Bearer {self._token}\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = answer.partition(b"content-length:")[2].partition(b"\r\n")[0]
        return int(answer[9:12]), await reader.readexactly(int(length)) if length else b""


class LargeJob:
    """All agents of a job, and its collector."""

    def __init__(self, place: Path, agents: int, patterns: Sequence[bytes]) -> None:
        self.run, self.count, self.patterns = place / "run", agents, patterns
        self.agents = Agents(agents, PER_AGENT, ITERATION_S, name=lambda at: f"n{at}")
        self.refused = self.reports = self.sent_bytes = 0
        self.pause_s, self.window, self.handed_in = REPORT_S, 0, 0
        self._environ = {
            **os.environ, "EROICA_JOB": "large", "EROICA_RUN_DIR": str(self.run), "EROICA_HOST": "n0",
            "EROICA_RUNTIME_DIR": str(place / "runtime"), "EROICA_BASELINE_WINDOW": "0", "EROICA_PAGES": "0",
        }  # fmt: skip
        self.cpu_s, self.peak_bytes, self._spent_s = 0.0, 0, 0.0
        self.start()

    def start(self) -> None:
        """Start the collector."""
        self.collector = subprocess.Popen([sys.executable, "-m", "eroica.collector"], env=self._environ)
        self.process = psutil.Process(self.collector.pid)
        self.connections = [Connection(self.run) for _ in range(CONNECTIONS)]
        self.carriers = [Connection(self.run) for _ in range(CARRIERS)]

    def kill(self) -> None:
        """End the collector without a word, and start another one in its place, as `eroica run` does."""
        self.look()
        self._spent_s = self.cpu_s
        self.collector.kill()
        self.collector.wait()
        self._environ["EROICA_RESUME"] = "was ended by SIGKILL"
        self.start()

    def look(self) -> None:
        """Note the collector's time and memory."""
        times = self.process.cpu_times()
        self.cpu_s = self._spent_s + times.user + times.system
        self.peak_bytes = max(self.peak_bytes, self.process.memory_info().rss)

    async def report(self, agent: int) -> None:
        """One agent reports and obeys."""
        status, answer = await self.connections[agent % CONNECTIONS].ask("/v1/report", self.agents.encoded(agent))
        self.reports += 1
        if status != 200:
            self.refused += 1
            return
        reply = msgspec.msgpack.decode(answer, type=CollectorReply)
        self.pause_s = max(REPORT_S, reply.pause_s)
        self.agents.obey(reply)
        result = self.agents._result
        if result.kind == "window":
            self.window = result.window_id

    async def beat(self, until: Any) -> None:
        """All agents report, each as often as the collector asks for, until something is so."""
        due, last = 0, time.monotonic()
        running: set[asyncio.Task[None]] = set()
        while not until():
            now = time.monotonic()
            self.agents.advance(now - last)
            more = min((now - last) / self.pause_s * self.count, 4 * CONNECTIONS - len(running))
            last = now
            for _ in range(max(1, int(more))):
                running.add(asyncio.create_task(self.report(due % self.count)))
                due += 1
            await asyncio.sleep(0.01)
            running = {task for task in running if not task.done()}
            self.look()
        await asyncio.gather(*running)

    async def hand_in(self, agent: int) -> bool:
        """The patterns of one agent's workers."""
        ask = self.carriers[agent % CARRIERS].ask
        for pattern in self.patterns[agent * PER_AGENT : (agent + 1) * PER_AGENT]:
            self.sent_bytes += len(pattern)
            if (await ask("/v1/patterns", pattern))[0] != 204:
                return False
            self.handed_in += 1
        return True

    async def open_window(self) -> None:
        """Ask for a window, and beat until all workers have captured it."""
        wish = msgspec.msgpack.encode(ProfileRequest(iterations=20))
        before = self.window
        assert (await self.connections[0].ask("/v1/profile", wish))[0] == 200
        await self.beat(lambda: self.window > before)

    async def status(self) -> JobStatus:
        """What the collector says of the job."""
        return msgspec.json.decode((await self.connections[0].ask("/v1/status", b"", "GET"))[1], type=JobStatus)

    async def live(self, seconds: float, killed: bool = False) -> dict[str, Any]:
        """All of it; with a collector that is killed when half of the patterns have come."""
        while read_address(self.run, "n0") is None:
            await asyncio.sleep(0.1)
        began = time.monotonic()
        await self.beat(lambda: self.reports >= self.count)
        joined_s = time.monotonic() - began
        print(f"all {self.count} agents have reported after {joined_s:.1f} s", file=sys.stderr, flush=True)
        self.refused, cpu_s = 0, self.cpu_s
        self.forget()
        began, reports = time.monotonic(), self.reports
        await self.beat(lambda: time.monotonic() - began > seconds)
        beats = self.beats(time.monotonic() - began, self.cpu_s - cpu_s, self.reports - reports)
        if not self.patterns:
            return {"agents": self.count, "joined_s": round(joined_s, 1), "beats": beats, "load": os.getloadavg()}
        print(beats, file=sys.stderr, flush=True)
        await self.open_window()
        print(f"window {self.window} is captured", file=sys.stderr, flush=True)
        began, cpu_s, reports = time.monotonic(), self.cpu_s, self.reports
        self.forget()
        uploading = asyncio.create_task(self._upload())
        if killed:
            await self.beat(lambda: self.handed_in >= len(self.patterns) // 2)
            self.kill()
        await self.beat(uploading.done)
        stored_s = time.monotonic() - began
        uploading.result()
        stored = count_patterns(open_window(self.run / "windows" / str(self.window)))
        upload = {
            "s": round(stored_s, 1), "stored": stored, "collector_cpu_s": round(self.cpu_s - cpu_s, 1),
            "bytes_a_worker": round(self.sent_bytes / len(self.patterns)), "peak_mb": round(self.peak_bytes / 1e6),
            **self.beats(stored_s, self.cpu_s - cpu_s, self.reports - reports),
        }  # fmt: skip
        print(upload, file=sys.stderr, flush=True)
        verdict_file = self.run / "windows" / str(self.window) / "verdict.json"
        await self.beat(verdict_file.exists)
        verdict = Verdict.from_json(verdict_file.read_bytes())
        return {
            "agents": self.count, "workers": len(self.patterns), "joined_s": round(joined_s, 1), "beats": beats,
            "upload": upload, "stored_and_judged_s": round(time.monotonic() - began, 1),
            "analysis_s": round(time.monotonic() - began - stored_s, 1), "peak_mb": round(self.peak_bytes / 1e6),
            "summary": verdict.summary[:200], "reported": verdict.coverage.workers_reported,
            "load_average": os.getloadavg(),
        }  # fmt: skip

    async def _upload(self) -> None:
        slots = asyncio.Semaphore(CARRIERS)

        async def one(agent: int) -> None:
            async with slots:
                while not await self.hand_in(agent):
                    await asyncio.sleep(0.2)

        await asyncio.gather(*map(one, range(self.count)))

    def forget(self) -> None:
        """Latencies count from now on."""
        for one in self.connections:
            one.latencies.clear()

    def beats(self, seconds: float, cpu_s: float, reports: int) -> dict[str, Any]:
        """Figures of reports."""
        times = sorted(took for one in self.connections for took in one.latencies) or [0.0]
        return {
            "reports_a_second": round(reports / seconds), "refused": self.refused, "pause_s": round(self.pause_s, 2),
            "p50_ms": round(1e3 * times[len(times) // 2], 1), "p99_ms": round(1e3 * times[int(0.99 * len(times))], 1),
            "collector_core": round(cpu_s / seconds, 2), "rss_mb": round(self.process.memory_info().rss / 1e6),
        }  # fmt: skip


def made(workers: int, keep: Path | None) -> list[bytes]:
    """Patterns of all workers, of window 1."""
    if keep is not None and keep.exists():
        return list(pickle.loads(keep.read_bytes()))  # noqa: S301 - we wrote it
    patterns = list(Job(workers).wire())
    if keep is not None:
        keep.write_bytes(pickle.dumps(patterns))
    return patterns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=1256)
    parser.add_argument("--seconds", type=float, default=20.0, help="of beats alone")
    parser.add_argument("--beats-only", action="store_true", help="no window, no patterns")
    parser.add_argument("--kill", action="store_true", help="the collector, when half of the patterns have come")
    parser.add_argument("--made", type=Path)
    parser.add_argument("--only-make", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    patterns = [] if options.beats_only else made(options.agents * PER_AGENT, options.made)
    if options.only_make:
        return
    with tempfile.TemporaryDirectory(prefix="eroica-large-", ignore_cleanup_errors=True) as place:
        job = LargeJob(Path(place), options.agents, patterns)
        try:
            found = asyncio.run(job.live(options.seconds, options.kill))
        finally:
            job.collector.send_signal(signal.SIGKILL)
            job.collector.wait()
    text = json.dumps({"machine": machine_facts(), "measured": found}, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
