"""The client of the planner's HTTP service."""

from __future__ import annotations

import http.client
import os
import time
import urllib.parse
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from c4p.demand import JobDemand, PathReport, member_of, sides_of
from c4p.errors import BadRequest, PlannerError
from c4p.planner import Assignment, Demand

TIMEOUT_S = 10.0
POLL_S = 1.0
MOST_BYTES = 256 * 1024 * 1024
Answer = TypeVar("Answer")


class _NotFound(PlannerError):
    """The planner has no such job or member."""


class _RegisterAnswer(msgspec.Struct, frozen=True):
    """The planner's answer to a registration."""

    version: int
    assignment: Assignment


class _MemberAnswer(msgspec.Struct, frozen=True):
    """The planner's answer to a member's poll."""

    version: int
    paths: list[tuple[int, str]] | None
    stale: bool
    poll_after_s: Annotated[float, msgspec.Meta(ge=0, le=3600)]


def check_url(url: str) -> str:
    """Return the URL.

    Raises:
        BadRequest: It is not a planner's address.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise BadRequest(f"planner {url!r}: an address such as http://planner:7440")
    return url


def register(url: str, job: str, job_demand: JobDemand) -> tuple[int, list[list[str]]]:
    """Register a job.

    Args:
        url: Of the planner, such as "http://planner:7440".
        job: Its name; a job of that name that is there is replaced.
        job_demand: Its flows.

    Returns:
        The plan's version; paths of each member's connections, as text.

    Raises:
        PlannerError: The planner cannot be reached, or refuses.
        BadRequest: The URL cannot be used.
    """
    connection = _Connection(url)
    try:
        registered = connection.request("PUT", _path(job), job_demand.demand, _RegisterAnswer)
        try:
            return registered.version, job_demand.answers(registered.assignment)
        except (KeyError, ValueError) as error:
            raise PlannerError(f"the planner at {url} plans paths that are not there: {error!r}") from error
    finally:
        connection.close()


class Subscription:
    """One member's poll of the planner, which also renews the job's lease.

    If the planner does not have the job, member 0 registers it. If the planner has an older revision of this member's
    paths, the member sends the present ones.

    Args:
        url: Of the planner.
        job: The job's name.
        rank: The member.
        version: Of the plan that the member follows; -1: it was planned without the planner.
        report: What the planner was told of this member.
        sides: See `c4p.demand.sides_of`, over all members.
        demand: The job's, for member 0; None for the others.
    """

    def __init__(
        self,
        url: str,
        job: str,
        rank: int,
        version: int,
        report: PathReport,
        sides: Mapping[str, int],
        demand: Demand | None = None,
    ) -> None:
        self._connection = _Connection(url)
        self._job = _path(job)
        self._rank = rank
        self._version = version
        self._sides = dict(sides)
        self._member, self._choices = member_of(report, sides)
        self._demand = demand
        self._next = time.monotonic() + POLL_S

    def report_paths(self, report: PathReport) -> None:
        """Send the paths that the member has learned again, with the next poll."""
        self._sides = sides_of([report]) | self._sides
        self._member, self._choices = member_of(report, self._sides, self._member.revision + 1)
        self._next = time.monotonic()

    def poll(self) -> list[str] | None:
        """Poll the planner. Return the paths of this member's connections if they have changed, else None.

        Raises:
            PlannerError: The planner cannot be reached, or does not answer as a planner does.
        """
        if time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + POLL_S
        mine = f"{self._job}/members/{self._rank}"
        query = f"?version={self._version}&revision={self._member.revision}"
        try:
            heard = self._connection.request("GET", mine + query, None, _MemberAnswer)
        except _NotFound:
            if self._demand is None:
                raise
            self._connection.request("PUT", self._job, self._demand)
        else:
            if not heard.stale:
                paths = self._paths(heard.paths)
                self._version = heard.version
                self._next = time.monotonic() + heard.poll_after_s
                return paths
            self._connection.request("PUT", mine, self._member)
        self._next = time.monotonic()
        return None

    def _paths(self, said: list[tuple[int, str]] | None) -> list[str] | None:
        if said and len(said) != self._member.flows:
            raise PlannerError(f"the planner has {len(said)} paths for {self._member.flows} connections")
        return [self._choices.get((side, spine), "") for side, spine in said] if said else None

    def leave(self) -> None:
        """Close the connection; member 0 removes the job from the planner first."""
        try:
            if self._rank == 0:
                self._connection.request("DELETE", self._job)
        except PlannerError:
            return  # its place is given up when nobody asks for it any more
        finally:
            self._connection.close()


def _path(job: str) -> str:
    return f"/jobs/{urllib.parse.quote(job, safe='')}"


class _Connection:
    """A persistent HTTP connection to the planner. The token is in C4P_PLANNER_TOKEN."""

    def __init__(self, url: str) -> None:
        self._url = check_url(url).rstrip("/")
        parts = urllib.parse.urlsplit(self._url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._path = parts.path
        token = os.environ.get("C4P_PLANNER_TOKEN", "")
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._http = kind(parts.netloc, timeout=TIMEOUT_S)

    def request(self, method: str, path: str, body: Any = None, kind: type[Answer] = dict) -> Answer:  # type: ignore[assignment]
        """Send a request and return its answer as a record.

        Args:
            method: Of HTTP.
            path: Below the planner's URL.
            body: Sent as JSON.
            kind: Of the answer.

        Raises:
            PlannerError: The planner cannot be reached, refuses, or does not answer as a planner does.
        """
        data = None if body is None else msgspec.json.encode(body)
        try:
            status, text = self._exchange(method, self._path + path, data)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            where = f"the planner at {self._url} cannot be reached"
            raise PlannerError(f"{where}: {error!r}; is `c4p serve` running?") from error
        if status >= http.client.BAD_REQUEST:
            why = text[:4096].decode(errors="replace")
            refused = _NotFound if status == http.client.NOT_FOUND else PlannerError
            raise refused(f"the planner at {self._url} refused: {status} {why}")
        try:
            return msgspec.json.decode(text or b"{}", type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise PlannerError(f"{self._url} is no planner: {error}") from error

    def _exchange(self, method: str, path: str, data: bytes | None) -> tuple[int, bytes]:
        kept = self._http.sock is not None
        try:
            return self._once(method, path, data)
        except (ConnectionError, http.client.BadStatusLine):
            if not kept:
                raise
            self._http.close()  # the planner has ended the connection, or itself, since the last request
            return self._once(method, path, data)

    def _once(self, method: str, path: str, data: bytes | None) -> tuple[int, bytes]:
        self._http.request(method, path, data, self._headers)
        answer = self._http.getresponse()
        return answer.status, answer.read(MOST_BYTES)

    def close(self) -> None:
        """End the connection."""
        self._http.close()
