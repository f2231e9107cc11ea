"""What the live page costs the collector with a thousand workers beating, and how soon the page shows what they report.

A real collector process; agents that are not there, but report over HTTP as often as real ones and do nothing else; one
headless Chromium with the page open, some programs that follow the events, and one that stopped reading.

    python benchmarks/live.py --json benchmarks/results/live.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil

from eroica.wire.address import Address, endpoint_of, page_link, read_address
from eroica.wire.messages import CollectorReply
from eroica.wire.patience import REPORT_S
from machine import machine_facts
from support.agents import Agents
from support.browser import Browser, why_no_browser

_WATCH = """
window.seen = [];
const number = document.getElementById("iteration");
new MutationObserver(() => seen.push([Date.now(), Number(number.textContent.replace(/,/g, ""))])).observe(number, {
  childList: true, characterData: true, subtree: true,
});
"""


@dataclass
class Fleet:
    """All agents, as one task each.

    Attributes:
        first_told: Iteration -> when the first report with it was sent, seconds since 1970.
        reports: How many were answered.
        slowest_s: The longest that one took.
    """

    agents: Agents
    address: Address
    report_s: float
    first_told: dict[int, float] = field(default_factory=dict)
    reports: int = 0
    slowest_s: float = 0.0

    async def beat(self) -> None:
        """Until cancelled."""
        await asyncio.gather(self._train(), *(self._agent(host) for host in range(self.agents.hosts)))

    async def _train(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.05)
            now = time.monotonic()
            self.agents.advance(now - last)
            last = now

    async def _agent(self, host: int) -> None:
        await asyncio.sleep(self.report_s * host / self.agents.hosts)
        where = endpoint_of(self.address.url)
        reader, writer = await asyncio.open_connection(where.host, where.port)
        head = f"POST /v1/report HTTP/1.1\r\nhost: c\r\nauthorization: Bearer {self.address.token}\r\ncontent-length: "
        while True:
            told, began = self.agents.iteration, time.time()
            body = self.agents.encoded(host)
            self.first_told.setdefault(told, began)
            writer.write(f"{head}{len(body)}\r\n\r\n".encode() + body)
            answer = await _answer(reader)
            self.reports += 1
            self.slowest_s = max(self.slowest_s, time.time() - began)
            reply = msgspec.msgpack.decode(answer, type=CollectorReply)
            self.agents.obey(reply)
            await asyncio.sleep(max(self.report_s, reply.pause_s))


async def _answer(reader: asyncio.StreamReader) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return await reader.readexactly(length)


async def _listen(address: Address, reads: bool, heard: list[int]) -> None:
    """Follow the events; one that does not read keeps its connection open."""
    where = endpoint_of(address.url)
    reader, writer = await asyncio.open_connection(where.host, where.port)
    writer.write(f"GET /v1/events HTTP/1.1\r\nhost: c\r\nauthorization: Bearer {address.token}\r\n\r\n".encode())
    if not reads:
        reader._transport.pause_reading()  # type: ignore[attr-defined]  # nothing else stops it
        await asyncio.sleep(3600)
    while data := await reader.read(65_536):
        heard[0] += len(data)


def _start(place: Path) -> tuple[subprocess.Popen[bytes], Address]:
    names = {"EROICA_JOB": "load", "EROICA_RUN_DIR": str(place / "run"), "EROICA_HOST": "bench"}
    environment = {**os.environ, **names, "EROICA_RUNTIME_DIR": str(place / "runtime"), "EROICA_BASELINE_WINDOW": "0"}
    process = subprocess.Popen([sys.executable, "-m", "eroica.collector"], env=environment)
    for _ in range(200):
        address = read_address(place / "run", "bench")
        if address is not None:
            return process, address
        time.sleep(0.05)
    raise SystemExit("the collector did not start")


async def _cpu(process: psutil.Process, seconds: float) -> float:
    """Share of one core that a process uses."""
    before, began = sum(process.cpu_times()[:2]), time.monotonic()
    await asyncio.sleep(seconds)
    return (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)


async def _page(address: Address, seconds: float, shot: Path | None) -> dict[str, Any]:
    """What a browser sees in so long, and what it says of it."""
    browser = await asyncio.to_thread(Browser)

    def look() -> dict[str, Any]:
        browser.reset()
        browser.open(page_link(address))
        browser.until(lambda: browser.text("#link") == "live")
        browser.script(_WATCH)
        time.sleep(seconds)
        if shot is not None:
            browser.screenshot(shot, whole=True)
        heap = browser.script("return performance.memory.usedJSHeapSize")
        return {"seen": browser.script("return seen"), "errors": browser.errors(), "page_heap_bytes": heap}

    try:
        return await asyncio.to_thread(look)
    finally:
        await asyncio.to_thread(browser.quit)


def _delays(seen: list[list[float]], told: dict[int, float]) -> list[float]:
    """From an iteration's first report to its number on the page, seconds."""
    return [at_ms / 1e3 - told[int(number)] for at_ms, number in seen if int(number) in told]


async def measure(place: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """All of it."""
    process, address = _start(place)
    watched, heard = psutil.Process(process.pid), [0]
    fleet = Fleet(Agents(arguments.hosts, arguments.workers // arguments.hosts, 0.4), address, REPORT_S)
    tasks = [asyncio.create_task(fleet.beat())]
    try:
        await asyncio.sleep(5)
        alone = await _cpu(watched, arguments.seconds)
        tasks += [asyncio.create_task(_listen(address, number > 0, heard)) for number in range(5)]
        looking: dict[str, Any] = {"seen": [], "errors": []}
        page = None
        if not why_no_browser():
            page = asyncio.create_task(_page(address, arguments.seconds + 4, arguments.screenshot))
        await asyncio.sleep(4)
        before, began = fleet.reports, time.monotonic()
        busy = await _cpu(watched, arguments.seconds)
        rate = round((fleet.reports - before) / (time.monotonic() - began))
        if page is not None:
            looking = await page
        delays = sorted(_delays(looking["seen"], fleet.first_told))
        return {
            **machine_facts(),
            "workers": fleet.agents.world_size, "hosts": arguments.hosts, "reports_per_s": rate,
            "collector_cpu_without_pages": round(alone, 3), "collector_cpu": round(busy, 3),
            "collector_rss_bytes": watched.memory_info().rss, "slowest_report_s": round(fleet.slowest_s, 3),
            "event_bytes_per_s_and_reader": round(heard[0] / 4 / (arguments.seconds + 4)),
            "page_delay_median_s": round(statistics.median(delays), 3) if delays else None,
            "page_delay_longest_s": round(delays[-1], 3) if delays else None,
            "page_updates": len(delays), "page_errors": looking["errors"],
            "page_heap_bytes": looking.get("page_heap_bytes"),
        }  # fmt: skip
    finally:
        for task in tasks:
            task.cancel()
        process.terminate()
        process.wait(20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--hosts", type=int, default=125)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--screenshot", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eroica-live-") as place:
        result = asyncio.run(measure(Path(place), arguments))
    print(json.dumps(result, indent=2))
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
