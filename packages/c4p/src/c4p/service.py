"""The planner as a service: all jobs' flows in one place, over HTTP, on disk.

| request | answer |
|---|---|
| `PUT /jobs/{name}` | registers a job's flows; its assignment, and how many flows of other jobs move |
| `GET /jobs/{name}/members/{rank}?version=v` | ways of one member where they differ from version v; renews the lease |
| `DELETE /jobs/{name}` | the job has ended |
| `PUT /avoid` | links that no flow is to take, such as those a diagnosis has named |
| `GET /` | jobs, flows, the most loaded links |

State is a SQLite file, written through before an answer is given, so an answer survives the end of the process.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from c4p.demand import Question
from c4p.errors import BadRequest
from c4p.planner import Assignment, Demand, link_loads, plan

LEASE_S = 60.0
MOST_BYTES = 64 * 1024 * 1024


class Body(msgspec.Struct, frozen=True):
    """What a job registers: see `c4p.demand.Question`."""

    demand: Demand
    ranks: list[int]
    ways: list[tuple[int, int, str, str]]
    flows: list[int]


class Avoid(msgspec.Struct, frozen=True):
    """Links (from, to) to avoid; replaces what was said before."""

    links: list[tuple[str, str]]


class Kept(msgspec.Struct, frozen=True):
    """A job on disk."""

    body: Body
    assignment: Assignment
    version: int


@dataclass(slots=True)
class Job:
    """A registered job."""

    body: Body
    assignment: Assignment
    version: int
    seen: float
    _answers: list[list[str]] | None = None

    def answers(self) -> list[list[str]]:
        """Ways of each member's connections."""
        if self._answers is None:
            ways = {(pair, side, top): way for pair, side, top, way in self.body.ways}
            question = Question(self.body.demand, self.body.ranks, ways, self.body.flows)
            self._answers = question.answers(self.assignment)
        return self._answers


@dataclass(slots=True)
class Planner:
    """Jobs and their plan; every change is on disk before it is answered.

    Args:
        path: The SQLite file; None: memory only.
        lease_s: A job that nobody asks for in this time has ended.
        clock: Seconds.
    """

    path: Path | None = None
    lease_s: float = LEASE_S
    clock: Callable[[], float] = time.time
    jobs: dict[str, Job] = field(default_factory=dict)
    avoid: list[tuple[str, str]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _disk: sqlite3.Connection | None = None

    def __post_init__(self) -> None:
        if self.path is None:
            return
        self._disk = sqlite3.connect(self.path, check_same_thread=False)
        self._disk.executescript(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
            "CREATE TABLE IF NOT EXISTS jobs (name TEXT PRIMARY KEY, kept BLOB);"
            "CREATE TABLE IF NOT EXISTS avoid (one INTEGER PRIMARY KEY CHECK (one = 1), kept BLOB);"
        )
        for name, kept in self._disk.execute("SELECT name, kept FROM jobs ORDER BY rowid"):
            job = msgspec.msgpack.decode(kept, type=Kept)
            self.jobs[name] = Job(job.body, job.assignment, job.version, self.clock())
        for (kept,) in self._disk.execute("SELECT kept FROM avoid"):
            self.avoid = msgspec.msgpack.decode(kept, type=list[tuple[str, str]])

    def close(self) -> None:
        """Close the file."""
        if self._disk is not None:
            self._disk.close()

    def register(self, name: str, body: Body) -> tuple[Job, int]:
        """A job comes, or comes with other flows.

        Returns:
            The job, and how many flows of other jobs move for it.

        Raises:
            BadRequest: Its demand contradicts itself.
        """
        _check(name, body)
        with self._lock:
            self._expire()
            others = {other: job for other, job in self.jobs.items() if other != name}
            demands = {other: job.body.demand for other, job in others.items()} | {name: body.demand}
            before = {other: job.assignment for other, job in others.items()}
            same = self.jobs.get(name)
            if same is not None and same.body.demand == body.demand:
                before[name] = same.assignment
            planned = plan(demands, before, self.avoid)
            self.jobs[name] = Job(body, planned.assignments[name], same.version + 1 if same else 0, self.clock())
            moved = self._take_over(planned.assignments, but=name)
            self._write([name, *moved])
            return self.jobs[name], sum(planned.moved[other] for other in others)

    def member(self, name: str, rank: int, version: int) -> tuple[int, list[str] | None]:
        """Ways of a member's connections, where its job's version is another one; renews the lease.

        Raises:
            KeyError: No such job or member.
        """
        with self._lock:
            job = self.jobs[name]
            job.seen = self.clock()
            answers = job.answers()
            if not 0 <= rank < len(answers):
                raise KeyError(rank)
            return job.version, answers[rank] if version != job.version else None

    def leave(self, name: str) -> bool:
        """A job has ended; the others are evened out where that needs few moves."""
        with self._lock:
            if self.jobs.pop(name, None) is None:
                return False
            self._replan([name])
            return True

    def set_avoid(self, links: list[tuple[str, str]]) -> int:
        """Links to avoid from now on; how many flows move for it."""
        with self._lock:
            self.avoid = links
            if self._disk is not None:
                with self._disk:
                    kept = msgspec.msgpack.encode(links)
                    self._disk.execute("INSERT OR REPLACE INTO avoid VALUES (1, ?)", (kept,))
            return self._replan([])

    def overview(self) -> dict[str, Any]:
        """Jobs, flows, and the links by their number of flows."""
        with self._lock:
            demands = {name: job.body.demand for name, job in self.jobs.items()}
            loads = link_loads(demands, {name: job.assignment for name, job in self.jobs.items()})
            jobs = {n: {"flows": len(j.assignment.sides), "version": j.version} for n, j in self.jobs.items()}
            most = sorted(loads.items(), key=lambda item: (-item[1], item[0]))[:100]
            return {"jobs": jobs, "avoid": self.avoid, "links": [[a, b, count] for (a, b), count in most]}

    def _expire(self) -> None:
        gone = [name for name, job in self.jobs.items() if self.clock() - job.seen > self.lease_s]
        for name in gone:
            del self.jobs[name]
        if gone:
            self._write(gone)

    def _replan(self, touched: list[str]) -> int:
        demands = {name: job.body.demand for name, job in self.jobs.items()}
        planned = plan(demands, {name: job.assignment for name, job in self.jobs.items()}, self.avoid)
        self._write(touched + self._take_over(planned.assignments, but=""))
        return sum(planned.moved.values())

    def _take_over(self, assignments: dict[str, Assignment], but: str) -> list[str]:
        changed = [n for n, a in assignments.items() if n != but and a != self.jobs[n].assignment]
        for name in changed:
            job = self.jobs[name]
            self.jobs[name] = Job(job.body, assignments[name], job.version + 1, job.seen)
        return changed

    def _write(self, names: list[str]) -> None:
        if self._disk is None:
            return
        with self._disk:
            for name in names:
                job = self.jobs.get(name)
                if job is None:
                    self._disk.execute("DELETE FROM jobs WHERE name = ?", (name,))
                    continue
                kept = msgspec.msgpack.encode(Kept(job.body, job.assignment, job.version))
                self._disk.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?)", (name, kept))


def _check(name: str, body: Body) -> None:
    pairs = body.demand.pairs
    if len(body.ranks) != len(pairs) or any(not 0 <= rank < len(body.flows) for rank in body.ranks):
        raise BadRequest(f"job {name!r}: each pair needs the rank of its member")
    ways = {(pair, side, top) for pair, side, top, _ in body.ways}
    lists = body.demand.tops
    for index, pair in enumerate(pairs):
        for side, reach in enumerate(pair.reaches):
            if not 0 <= reach.tops < len(lists) or any((index, side, top) not in ways for top in lists[reach.tops]):
                raise BadRequest(f"job {name!r}: {pair.source} to {pair.target} has a top without a way")


def application(planner: Planner) -> Starlette:
    """The HTTP application of a planner."""

    async def put_job(request: Request) -> Response:
        body = await _body(request, Body)
        if isinstance(body, Response):
            return body
        name = request.path_params["name"]
        try:
            job, moved = await run_in_threadpool(planner.register, name, body)
        except BadRequest as error:
            return _json({"error": str(error)}, 400)
        return _json({"version": job.version, "assignment": job.assignment, "moved": moved})

    async def get_member(request: Request) -> Response:
        name, rank = request.path_params["name"], request.path_params["rank"]
        with contextlib.suppress(KeyError, ValueError):
            version, ways = planner.member(name, rank, int(request.query_params.get("version", -1)))
            return _json({"version": version, "ways": ways})
        return _json({"error": f"no job {name!r} with a member {rank}; register it with PUT /jobs/{name}"}, 404)

    async def delete_job(request: Request) -> Response:
        name = request.path_params["name"]
        there = await run_in_threadpool(planner.leave, name)
        return _json({}, 200) if there else _json({"error": f"no job {name!r}"}, 404)

    async def put_avoid(request: Request) -> Response:
        body = await _body(request, Avoid)
        if isinstance(body, Response):
            return body
        return _json({"moved": await run_in_threadpool(planner.set_avoid, body.links)})

    async def overview(_: Request) -> Response:
        return _json(await run_in_threadpool(planner.overview))

    return Starlette(
        routes=[
            Route("/", overview),
            Route("/jobs/{name:path}/members/{rank:int}", get_member),
            Route("/jobs/{name:path}", put_job, methods=["PUT"]),
            Route("/jobs/{name:path}", delete_job, methods=["DELETE"]),
            Route("/avoid", put_avoid, methods=["PUT"]),
        ]
    )


async def _body(request: Request, kind: type[Any]) -> Any:
    """The request's body as a record, or the answer that refuses it."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MOST_BYTES:
            return _json({"error": f"more than {MOST_BYTES} bytes"}, 413)
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        return _json({"error": f"not a {kind.__name__}: {error}"}, 400)


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
