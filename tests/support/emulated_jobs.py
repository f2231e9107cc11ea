"""Jobs without training: a real collector, with its real reporter beside it, and agents that only talk.

Each has a window opened by hand, hands in the patterns of a slow worker, and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import httpx
import msgspec
import psutil

from eroica.agent.home import CollectorLink
from eroica.model.pattern import WorkerPattern
from eroica.wire.address import Address, read_address
from eroica.wire.codec import encode_record
from eroica.wire.messages import ProfileRequest
from support import FleetPlan, SlowLoader, synthesize
from support.agents import Agents

HOSTS, WORKERS = 2, 4
UP_S = 30.0
#: Patterns of the same slow job; which are handed in is drawn.
_KINDS = 4


class EmulatedJob:
    """One job.

    Args:
        place: A directory; run directories of all jobs lie beside each other in it.
        name: Of the job.
        environ: Where it reports to, among others.
        lasts_s: Seconds from its first report to its end.
        chance: Draws which patterns it hands in.

    Attributes:
        run: Its run directory.
        collector: The process; another one after a `restart`.
        spoken: Versions in which its agents handed patterns over.
    """

    _made: ClassVar[list[list[WorkerPattern]]] = []

    def __init__(
        self, place: Path, name: str, environ: Mapping[str, str], lasts_s: float, chance: random.Random
    ) -> None:
        if not self._made:
            plans = (FleetPlan(workers=HOSTS * WORKERS, seed=seed, iterations=20) for seed in range(_KINDS))
            self._made.extend(synthesize(plan, [SlowLoader((2,), 40)], 2) for plan in plans)
        self.name, self.run, self._lasts_s = name, place / "runs" / name, lasts_s
        self._patterns = chance.choice(self._made)
        self._agents = Agents(HOSTS, WORKERS, 0.2, chance.randrange(1000), name=lambda at: f"{name}-n{at}")
        self._environ = {
            **environ, "EROICA_JOB": name, "EROICA_RUN_DIR": str(self.run), "EROICA_HOST": f"{name}-n0",
            "EROICA_RUNTIME_DIR": str(place / "runtime"), "EROICA_BASELINE_WINDOW": "0", "EROICA_PAGES": "0",
        }  # fmt: skip
        self._links = [CollectorLink(self.run) for _ in range(HOSTS)]
        self.spoken: set[int] = set()
        self._ended = False
        self.start()

    def start(self, died: str = "") -> None:
        """Start the collector; with `died`, as one that takes another's place."""
        environ = {**self._environ, **({"EROICA_RESUME": died} if died else {})}
        self.collector = subprocess.Popen([sys.executable, "-m", "eroica.collector"], env=environ)

    def reporters(self) -> list[psutil.Process]:
        """Processes that report this run."""
        found = []
        for pid in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208 - thousands of times
            with contextlib.suppress(OSError):
                words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
                if b"eroica.fleet.reporting" in words and os.fsencode(self.run) in words:
                    found.append(psutil.Process(int(pid)))
        return found

    async def live(self) -> None:
        """Report, have a window opened, hand in, end; whatever dies meanwhile is waited for."""
        end, asked, handed_in = time.monotonic() + self._lasts_s, False, -1
        async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
            while time.monotonic() < end or not handed_in > 0:
                if time.monotonic() > end + UP_S:
                    raise TimeoutError(f"{self.name} got no window")
                if self.collector.poll() is not None:
                    self.start("it was killed")
                self._agents.advance(0.5)
                for host in range(HOSTS):
                    reply = await self._links[host].report(self._agents.report(host))
                    if reply is not None:
                        self._agents.obey(reply)
                result = self._agents._result
                if not asked and self._agents.iteration > 10:
                    wish = msgspec.msgpack.encode(ProfileRequest(iterations=5))
                    asked = await self._ask(client, "/v1/profile", wish) is not None
                if result.kind == "window" and result.window_id not in (0, handed_in):
                    sent = [await self._hand_in(rank, result.window_id) for rank in range(HOSTS * WORKERS)]
                    handed_in = result.window_id if all(sent) else handed_in
                asked = asked and not (handed_in < 0 and time.monotonic() > end)  # lost with a collector: once more
                await asyncio.sleep(0.5)
            for link in self._links:
                await link.close()
            while self.collector.poll() is None:
                await self._ask(client, "/v1/finish", b"")
                await asyncio.sleep(0.3)
            if self.collector.returncode != 0:  # killed at the end: `eroica run` starts another one for the verdict
                self.start("it was killed")
                await self._end(client)

    async def _end(self, client: httpx.AsyncClient) -> None:
        for _ in range(200):
            await self._ask(client, "/v1/report", self._agents.encoded(0))
            await self._ask(client, "/v1/finish", b"")
            if self.collector.poll() is not None:
                return
            await asyncio.sleep(0.3)

    async def _hand_in(self, rank: int, window_id: int) -> bool:
        worker = self._agents._worker(rank)
        pattern = msgspec.structs.replace(self._patterns[rank], worker=worker, window_id=window_id)
        link = self._links[rank // WORKERS]
        self.spoken.add(getattr(link, "_spoken", 1))  # 0.1.0 knows one version only
        return await link.deliver(encode_record(pattern)) in ("taken", True)

    async def _ask(self, client: httpx.AsyncClient, path: str, body: bytes) -> bytes | None:
        """An answer; None if there was none."""
        address: Address | None = read_address(self.run, self._environ["EROICA_HOST"])
        if address is None:
            return None
        headers = {"Authorization": f"Bearer {address.token}"}
        try:
            answer = await client.post(f"{address.url}{path}", content=body, headers=headers)
        except httpx.HTTPError:
            return None
        return answer.content if answer.is_success else None

    async def handed_over(self, patience_s: float) -> bool:
        """Wait until the reporters have nothing left and are gone."""
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            if not self.reporters():
                return True
            await asyncio.sleep(0.5)
        return False

    def kept(self) -> tuple[dict[int, bytes], dict[int, int]]:
        """What lies in the run directory: verdicts by window, 0 the final one; and how many patterns by window."""
        verdicts, patterns = {}, {}
        if (self.run / "verdict.json").exists():
            verdicts[0] = (self.run / "verdict.json").read_bytes()
        for window in sorted((self.run / "windows").glob("*")):
            count = len(list((window / "patterns").glob("*.pattern")))
            if (window / "verdict.json").exists():
                verdicts[int(window.name)] = (window / "verdict.json").read_bytes()
            if count:
                patterns[int(window.name)] = count
        return verdicts, patterns

    def kill(self) -> None:
        """End what is left of it."""
        if self.collector.poll() is None:
            self.collector.send_signal(signal.SIGCONT)
            self.collector.kill()
        self.collector.wait()
        for process in self.reporters():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
