"""The planner's service: the flows of all jobs, over HTTP, with its state on disk.

| request | answer |
|---|---|
| `PUT /jobs/{name}` | registers a job's members; its assignment, and how many flows of other jobs move |
| `GET /jobs/{name}/members/{rank}?version=v&revision=r` | side and spine of its connections if not of version v |
| `PUT /jobs/{name}/members/{rank}` | a member has learned its paths again |
| `DELETE /jobs/{name}` | the job has ended |
| `PUT /avoid` | links to avoid; how many flows move, which links are taken all the same, which nobody has |
| `GET /` | jobs, flows, the most loaded links |

A member's poll renews its job's lease and says whether the planner has another revision of the member's paths.
State is a SQLite file, written through before an answer is given, so an answer survives the end of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from c4p.demand import Member, demand_of, with_members
from c4p.errors import BadRequest, NoSuchJob
from c4p.planner import Assignment, Demand, check, link_loads, plan, possible_links

LEASE_S = 60.0
MOST_BYTES = 64 * 1024 * 1024
#: Bytes of all bodies that are being received at the same time.
MOST_BYTES_AT_ONCE = 4 * MOST_BYTES
#: Seconds in which a request's body must arrive.
BODY_S = 30.0
#: Polls that all members together send in a second at most; with more members each polls less often.
MAX_POLLS_PER_SECOND = 2000
Kind = TypeVar("Kind")


class Avoid(msgspec.Struct, frozen=True):
    """Links (from, to) to avoid. They replace the earlier ones."""

    links: list[tuple[str, str]]


class Job(msgspec.Struct):
    """A registered job, as on disk; only `seen` changes, so it is read without the planner's lock.

    Attributes:
        demand: The flows of each member, by rank.
        revisions: How often each member has learned its paths again; 0 where a rank is missing.
        assignment: The path of each flow.
        version: Another one where paths are others; never one that an earlier job of this name had.
        seen: When a member asked last.
        first_flows: Number of each member's first flow, by rank, and the number of all flows.
    """

    demand: Demand
    revisions: dict[int, int]
    assignment: Assignment
    version: int
    seen: float
    first_flows: list[int] = []

    def __post_init__(self) -> None:
        self.first_flows = list(itertools.accumulate((pair.flows for pair in self.demand.pairs), initial=0))

    def paths(self, rank: int) -> list[tuple[int, str]]:
        """Return the side and the spine of each of a member's connections; none if it knows no paths."""
        mine = slice(*self.first_flows[rank : rank + 2])
        return list(zip(self.assignment.sides[mine], self.assignment.spines[mine], strict=True))


@dataclass(slots=True)
class Planner:
    """All jobs and their plan. Every change is on disk before it can be read.

    Args:
        path: The SQLite file; None: memory only.
        lease_s: A job that nobody asks for in this time has ended.
        clock: Seconds.

    Attributes:
        poll_after_s: Seconds after which a member polls again.
    """

    path: Path | None = None
    lease_s: float = LEASE_S
    clock: Callable[[], float] = time.time
    jobs: dict[str, Job] = field(default_factory=dict)
    avoid: list[tuple[str, str]] = field(default_factory=list)
    poll_after_s: float = 1.0
    _updates: dict[tuple[str, int], Member] = field(default_factory=dict)
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
            with contextlib.suppress(msgspec.DecodeError):  # of an older version of this package
                self.jobs[name] = msgspec.msgpack.decode(kept, type=Job)
                self.jobs[name].seen = self.clock()
        for (kept,) in self._disk.execute("SELECT kept FROM avoid"):
            self.avoid = msgspec.msgpack.decode(kept, type=list[tuple[str, str]])
        self._set_pace()

    def close(self) -> None:
        """Close the file."""
        if self._disk is not None:
            self._disk.close()

    def register(self, name: str, demand: Demand) -> tuple[Job, int]:
        """Register a job, or replace its demand.

        Returns:
            The job, and how many flows of other jobs move for it.

        Raises:
            BadRequest: Its demand contradicts itself.
        """
        with self._lock:
            gone = [other for other, job in self.jobs.items() if self.clock() - job.seen > self.lease_s]
            moved = self._replan({**dict.fromkeys(gone), name: (demand, {})})
            for key in list(self._updates):  # members of the former registration may have added some until now
                if key[0] == name:
                    self._updates.pop(key, None)
            return self.jobs[name], sum(count for other, count in moved.items() if other != name)

    def member(self, name: str, rank: int, version: int, revision: int = 0) -> tuple[int, list[Any] | None, bool]:
        """Answer a member's poll and renew its job's lease, without waiting for a plan that is being made.

        Args:
            name: The job.
            rank: The member.
            version: Of the paths that it has.
            revision: Of what it knows, see `c4p.demand.Member`.

        Returns:
            The job's version; side and spine of each connection where the version is another one; whether what the
            planner knows of this member is of another revision.

        Raises:
            NoSuchJob: No such job or member.
        """
        job = self._job(name, rank)
        job.seen = self.clock()
        return job.version, job.paths(rank) if version != job.version else None, job.revisions.get(rank, 0) != revision

    def update_member(self, name: str, rank: int, member: Member) -> None:
        """Store the paths that a member has learned again for the next `apply_updates`, without waiting.

        Raises:
            NoSuchJob: No such job or member.
            BadRequest: What it says contradicts itself.
        """
        self._job(name, rank)
        check(name, demand_of([member]))
        self._updates[name, rank] = member

    def apply_updates(self) -> int:
        """Plan all stored updates at once: after a failure thousands of members learn again.

        Returns:
            Flows that move.
        """
        with self._lock:
            told: dict[str, dict[int, Member]] = {}
            while self._updates:
                (name, rank), member = self._updates.popitem()
                job = self.jobs.get(name)
                if job is not None and rank < len(job.demand.pairs):  # else it has ended or was registered again
                    told.setdefault(name, {})[rank] = member
            fresh: dict[str, tuple[Demand, dict[int, int]] | None] = {}
            for name, members in told.items():
                revisions = self.jobs[name].revisions | {rank: member.revision for rank, member in members.items()}
                fresh[name] = with_members(self.jobs[name].demand, members.items()), revisions
            return sum(self._replan(fresh).values()) if fresh else 0

    def _job(self, name: str, rank: int) -> Job:
        job = self.jobs.get(name)
        if job is None or not 0 <= rank < len(job.demand.pairs):
            raise NoSuchJob(name, rank)
        return job

    def leave(self, name: str) -> None:
        """Remove a job; the others are evened out if that needs few moves.

        Raises:
            NoSuchJob: No such job.
        """
        with self._lock:
            if name not in self.jobs:
                raise NoSuchJob(name)
            self._replan({name: None})

    def set_avoid(self, links: list[tuple[str, str]]) -> dict[str, Any]:
        """Replace the links to avoid, and plan anew.

        Returns:
            moved: flows that move for it; taken: links that are taken all the same, with their flows, since no path
            avoids them; unknown: links that no path of a registered job has.
        """
        with self._lock:
            if self._disk is not None:
                with self._disk:
                    kept = msgspec.msgpack.encode(links)
                    self._disk.execute("INSERT OR REPLACE INTO avoid VALUES (1, ?)", (kept,))
            self.avoid = links
            moved = sum(self._replan({}).values())
            loads = self._loads()
            known = possible_links(job.demand for job in self.jobs.values())
            return {
                "moved": moved,
                "taken": [[*link, loads[link]] for link in links if link in loads],
                "unknown": [link for link in links if link not in known],
            }

    def overview(self) -> dict[str, Any]:
        """Return jobs, flows, and the most loaded links."""
        with self._lock:
            loads = self._loads()
            jobs = {n: {"flows": len(j.assignment.sides), "version": j.version} for n, j in self.jobs.items()}
            most = sorted(loads.items(), key=lambda item: (-item[1], item[0]))[:100]
            return {"jobs": jobs, "avoid": self.avoid, "links": [[a, b, count] for (a, b), count in most]}

    def _loads(self) -> dict[tuple[str, str], int]:
        jobs = self.jobs.items()
        return link_loads({name: job.demand for name, job in jobs}, {name: job.assignment for name, job in jobs})

    def _replan(self, fresh: Mapping[str, tuple[Demand, dict[int, int]] | None]) -> dict[str, int]:
        """Plan all jobs, write what is new to disk, then let members read it.

        Args:
            fresh: Demand and revisions of jobs that come or know other paths; None for those that end.

        Returns:
            Flows that move, by job.
        """
        jobs = {name: job for name, job in self.jobs.items() if name not in fresh}
        before = {name: job.assignment for name, job in jobs.items()}
        demands = {name: job.demand for name, job in jobs.items()}
        made = {name: new for name, new in fresh.items() if new is not None}
        for name, (demand, _) in made.items():
            demands[name] = demand
            had = self.jobs.get(name)
            if had is not None and _flows(had.demand) == _flows(demand):
                before[name] = had.assignment
        planned = plan(demands, before, self.avoid)
        result: dict[str, Job | None] = {name: None for name, new in fresh.items() if new is None}
        for name, assignment in planned.assignments.items():
            had, new = self.jobs.get(name), made.get(name)
            if new is not None:
                version = had.version + 1 if had is not None else int(1000 * self.clock())
                result[name] = Job(*new, assignment, version, self.clock())
            elif had is not None and assignment != had.assignment:
                result[name] = msgspec.structs.replace(had, assignment=assignment, version=had.version + 1)
        self._write(result)
        for name, job in result.items():
            if job is None:
                self.jobs.pop(name, None)
            else:
                self.jobs[name] = job
        self._set_pace()
        return planned.moved

    def _set_pace(self) -> None:
        members = sum(len(job.demand.pairs) for job in self.jobs.values())
        self.poll_after_s = max(1.0, members / MAX_POLLS_PER_SECOND)

    def _write(self, jobs: Mapping[str, Job | None]) -> None:
        if self._disk is None:
            return
        with self._disk:
            for name, job in jobs.items():
                if job is None:
                    self._disk.execute("DELETE FROM jobs WHERE name = ?", (name,))
                    continue
                self._disk.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?)", (name, msgspec.msgpack.encode(job)))


def _flows(demand: Demand) -> list[tuple[str, str, int]]:
    """Return what must be equal for flows to keep their paths."""
    return [(pair.source, pair.target, pair.flows) for pair in demand.pairs]


def application(planner: Planner) -> Starlette:
    """Return the HTTP application of a planner."""
    bodies = _Bodies()

    async def not_there(request: Request, _: Exception) -> Response:
        return _json({"error": f"no {request.url.path}; register the job with PUT /jobs/NAME"}, 404)

    async def refused(_: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 400
        return _json({"error": getattr(error, "detail", str(error))}, status)

    async def put_job(request: Request) -> Response:
        demand = await bodies.read(request, Demand)
        job, moved = await run_in_threadpool(planner.register, request.path_params["name"], demand)
        return _json({"version": job.version, "assignment": job.assignment, "moved": moved})

    async def get_member(request: Request) -> Response:
        try:
            known = [int(request.query_params.get(key, default)) for key, default in (("version", -1), ("revision", 0))]
        except ValueError as error:
            raise BadRequest(f"version and revision are numbers: {error}") from error
        version, paths, stale = planner.member(request.path_params["name"], request.path_params["rank"], *known)
        return _json({"version": version, "paths": paths, "stale": stale, "poll_after_s": planner.poll_after_s})

    async def put_member(request: Request) -> Response:
        member = await bodies.read(request, Member)
        planner.update_member(request.path_params["name"], request.path_params["rank"], member)
        return _json({"moved": await run_in_threadpool(planner.apply_updates)})

    async def delete_job(request: Request) -> Response:
        await run_in_threadpool(planner.leave, request.path_params["name"])
        return _json({})

    async def put_avoid(request: Request) -> Response:
        body = await bodies.read(request, Avoid)
        return _json(await run_in_threadpool(planner.set_avoid, body.links))

    async def overview(_: Request) -> Response:
        return _json(await run_in_threadpool(planner.overview))

    return Starlette(
        routes=[
            Route("/", overview),
            Route("/jobs/{name:path}/members/{rank:int}", get_member),
            Route("/jobs/{name:path}/members/{rank:int}", put_member, methods=["PUT"]),
            Route("/jobs/{name:path}", put_job, methods=["PUT"]),
            Route("/jobs/{name:path}", delete_job, methods=["DELETE"]),
            Route("/avoid", put_avoid, methods=["PUT"]),
        ],
        exception_handlers={NoSuchJob: not_there, BadRequest: refused, HTTPException: refused},
    )


class _Bodies:
    """A receiver of requests' bodies in bounded memory and time."""

    def __init__(self) -> None:
        self._held = 0

    async def read(self, request: Request, kind: type[Kind]) -> Kind:
        """Return the request's body as a record.

        Raises:
            HTTPException: It is too long or too late, or no such record.
        """
        data = bytearray()
        try:
            await asyncio.wait_for(self._receive(request, data), BODY_S)
            return msgspec.json.decode(data, type=kind)
        except asyncio.TimeoutError as error:
            raise HTTPException(408, f"the body did not come within {BODY_S:g} s") from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise HTTPException(400, f"not a {kind.__name__}: {error}") from error
        finally:
            self._held -= len(data)

    async def _receive(self, request: Request, data: bytearray) -> None:
        async for part in request.stream():
            if len(data) + len(part) > MOST_BYTES:
                raise HTTPException(413, f"more than {MOST_BYTES} bytes")
            if self._held + len(part) > MOST_BYTES_AT_ONCE:
                raise HTTPException(503, "too many bytes are on their way already: come again")
            self._held += len(part)
            data += part


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
