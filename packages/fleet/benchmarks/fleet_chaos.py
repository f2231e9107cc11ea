"""Everything between a job and the fleet's database is killed, stopped and cut off at random; nothing may be lost.

    python packages/fleet/benchmarks/fleet_chaos.py --runs 100 --json packages/fleet/benchmarks/results/fleet_chaos.json

Each run is a job with a real collector and a real reporter and agents that only talk; the service and PostgreSQL are
real, too. While jobs run, a few at a time, one of them or what they share gets a blow every second or two. In the end,
each verdict and each worker's pattern that lies in a run directory must be in the database exactly once, and so must
its iteration times; its hosts and its end must be known. Trainings under the same treatment:
`benchmarks/reliability.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy as sa

sys.path.extend(str(Path(__file__).resolve().parents[up] / name) for up, name in ((1, "tests"), (3, "benchmarks")))

from eroica.fleet.reporting.packing import read_history
from eroica.model.verdict import Verdict
from machine import machine_facts, revision
from support.emulated_jobs import EmulatedJob

from eroica_fleet.database import open_database, runs
from eroica_fleet.queries import points_of
from postgres import Postgres
from serving import Serving, command

HANDED_OVER_S = 120.0


class Cable:
    """What lies between jobs and service: forwards, until it is cut."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self._to = where.hostname, where.port
        self._cut = False
        self._open: set[asyncio.StreamWriter] = set()

    async def lay(self) -> str:
        """Its URL."""
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def cut(self, seconds: float) -> None:
        """Break all connections, and every new one for so long."""
        self._cut = True
        for writer in tuple(self._open):
            writer.transport.abort()
        await asyncio.sleep(seconds)
        self._cut = False

    def remove(self) -> None:
        """For good."""
        self._server.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._cut:
            writer.transport.abort()
            return
        try:
            behind, onward = await asyncio.open_connection(*self._to)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, onward}
        await asyncio.gather(_pass_on(reader, onward), _pass_on(behind, writer), return_exceptions=True)
        self._open -= {writer, onward}


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


class Chaos:
    """The fleet, and what happens to it.

    Args:
        place: A directory of its own.
        chance: Draws what happens, to whom and when.
        at_once: Jobs that run at the same time.
        database: "postgresql" or "sqlite"; the latter has no process to be disturbed.
    """

    def __init__(self, place: Path, chance: random.Random, at_once: int, database: str) -> None:
        self._place, self._chance = place, chance
        self._room = asyncio.Semaphore(at_once)
        self.database = Postgres() if database == "postgresql" else None
        self.url = f"sqlite:///{place / 'fleet.db'}" if self.database is None else self.database.new_database()
        self.service = Serving(place / "data", environ={"EROICA_FLEET_DATABASE": self.url})
        self._jobs: list[EmulatedJob] = []
        self.blows: Counter[str] = Counter()
        self.late: list[str] = []
        self._over = False

    async def run(self, runs: int) -> list[EmulatedJob]:
        """All jobs, disturbed."""
        self._cable = Cable(self.service.url)
        url = await self._cable.lay()
        environ = {
            **self.service.environ(),
            "EROICA_FLEET": url,
            "EROICA_FLEET_REPORT_S": "1",
            "EROICA_FLEET_PATIENCE_S": "300",
        }
        made: list[EmulatedJob] = []
        disturbing = asyncio.create_task(self._disturb())
        await asyncio.gather(*(self._one(f"chaos-{number:03d}", environ, made) for number in range(runs)))
        self._over = True
        await disturbing  # whoever is stopped or dead by then comes back
        for job in made:
            if not await job.handed_over(HANDED_OVER_S):
                self.late.append(job.name)
        await asyncio.to_thread(command, environ, "fleet", "send", str(self._place / "runs"))  # of reporters that died
        self._cable.remove()
        return made

    async def _one(self, name: str, environ: dict[str, str], made: list[EmulatedJob]) -> None:
        async with self._room:
            job = EmulatedJob(self._place, name, environ, self._chance.uniform(6, 14), self._chance)
            made.append(job)
            self._jobs.append(job)
            try:
                await job.live()
            finally:
                self._jobs.remove(job)
                print(f"{name} is over", file=sys.stderr, flush=True)

    async def _disturb(self) -> None:
        acts: tuple[Callable[[], Awaitable[None]], ...] = (
            self.kill_collector, self.stop_collector, self.kill_reporter, self.stop_reporter,
            self.kill_service, self.stop_service, self.cut_off,
            *((self.kill_database, self.stop_database) if self.database is not None else ()),
        )  # fmt: skip
        while not self._over:
            await asyncio.sleep(self._chance.uniform(0.8, 2.0))
            act = self._chance.choice(acts)
            await act()
            self.blows[act.__name__] += 1
            print(f"{len(self._jobs)} jobs at work; {act.__name__}", file=sys.stderr, flush=True)

    async def kill_collector(self) -> None:
        """Of one job."""
        if self._jobs:
            self._chance.choice(self._jobs).collector.kill()

    async def stop_collector(self) -> None:
        """Of one job."""
        if self._jobs:
            await self._stop(self._chance.choice(self._jobs).collector)

    async def kill_reporter(self) -> None:
        """Of one job."""
        for process in self._chance.choice(self._jobs).reporters() if self._jobs else ():
            process.kill()

    async def stop_reporter(self) -> None:
        """Of one job."""
        for process in self._chance.choice(self._jobs).reporters() if self._jobs else ():
            await self._stop(process)

    async def kill_service(self) -> None:
        """It is started again a moment later."""
        await asyncio.to_thread(self.service.kill)
        await asyncio.sleep(self._chance.uniform(0, 1.5))
        await asyncio.to_thread(self.service.start)

    async def stop_service(self) -> None:
        """For a moment."""
        await self._stop(self.service.process)

    async def kill_database(self) -> None:
        """It is started again a moment later."""
        assert self.database is not None
        await asyncio.to_thread(self.database.kill)
        await asyncio.sleep(self._chance.uniform(0, 1.5))
        await asyncio.to_thread(self.database.start)

    async def stop_database(self) -> None:
        """For a moment."""
        assert self.database is not None
        await self._stop(self.database.process)

    async def cut_off(self) -> None:
        """Nobody reaches the service."""
        await self._cable.cut(self._chance.uniform(0.5, 3))

    async def _stop(self, process: Any) -> None:
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(self._chance.uniform(0.5, 3))
        process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End what was started."""
        self.service.stop()
        if self.database is not None:
            self.database.stop()


def compared(url: str, jobs: list[EmulatedJob], with_patterns: bool = True) -> dict[str, Any]:
    """What lies in run directories beside what the database has; patterns may have met their quota there."""
    engine = open_database(url)
    lost, doubled, other, verdicts, patterns = [], [], [], 0, 0
    with engine.connect() as connection:
        for job in jobs:
            kept, workers = job.kept()
            verdicts, patterns = verdicts + len(kept), patterns + sum(workers.values())
            rows = _rows(connection, job.name)
            doubled += [f"{job.name} {what}" for what, count in rows["times"].items() if count > 1]
            for window, text in kept.items():
                here = Verdict.from_json(text)
                if (window, here.summary) not in rows["verdicts"]:
                    lost.append(f"{job.name} verdict {window}: {here.summary[:80]}")
            lost += [f"{job.name} {what}" for what in _untold(connection, job)]
            if with_patterns and set(workers.items()) - set(rows["patterns"].items()):
                lost.append(f"{job.name} patterns {workers}, there {rows['patterns']}")
            if 0 not in kept or len(kept) < 2:
                other.append(f"{job.name} has verdicts of {sorted(kept)} only")
    engine.dispose()
    return {"verdicts": verdicts, "patterns": patterns, "lost": lost, "doubled": doubled, "without": other}


def _untold(connection: sa.Connection, job: EmulatedJob) -> list[str]:
    """What of a run's course is in its directory and not in the database."""
    row = connection.execute(sa.select(runs).where(runs.c.job == job.name)).first()
    if row is None:
        return ["its run"]
    history = read_history(job.run)
    missing = set(history.at_s if history is not None else ()) - set(points_of(connection, row.id).at_s)
    is_over = (job.run / "verdict.json").exists()
    found = [f"{len(missing)} iteration times"] if missing else []
    found += ["its end"] if is_over and row.phase != "over" else []
    return [*found, *(["its hosts"] if not row.hosts else [])]


def _rows(connection: sa.Connection, job: str) -> dict[str, Any]:
    def all_of(text: str) -> list[Any]:
        return list(connection.execute(sa.text(text), {"job": job}).all())

    times: Counter[str] = Counter()
    times["run"] = all_of("select count(*) from runs where job = :job")[0][0]
    found = all_of("select v.window_id, v.summary from verdicts v join runs r on r.id = v.run_id where r.job = :job")
    times.update(f"verdict {row[0]}" for row in found)
    files = all_of(
        "select p.window_id, sum(p.workers) from pattern_files p join runs r on r.id = p.run_id where r.job = :job "
        "group by p.window_id"
    )
    return {
        "times": times,
        "verdicts": {tuple(row) for row in found},
        "patterns": {row[0]: int(row[1]) for row in files},
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All of it."""
    with tempfile.TemporaryDirectory(prefix="eroica-chaos-") as name:
        began = time.monotonic()
        jobs: list[EmulatedJob] = []

        async def work() -> dict[str, Any]:
            chaos = Chaos(Path(name), random.Random(options.seed), options.at_once, options.database)
            try:
                jobs.extend(await chaos.run(options.runs))
                told = await asyncio.to_thread(compared, chaos.url, jobs)
                return {
                    "blows": dict(chaos.blows),
                    "reporters_late": chaos.late,
                    **told,
                }
            finally:
                for job in jobs:
                    job.kill()
                chaos.close()

        found = asyncio.run(work())
    seconds = round(time.monotonic() - began, 1)
    facts = {"machine": machine_facts(), "revision": revision(), "seed": options.seed, "database": options.database}
    return {**facts, "runs": options.runs, "seconds": seconds, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--database", choices=["postgresql", "sqlite"], default="postgresql")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    text = json.dumps(measure(options), indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
