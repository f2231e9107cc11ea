"""A member's side of the planner's service."""

from __future__ import annotations

import http.client
import os
import time
import urllib.parse
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from c4p.demand import Question, Report, sides_of, tell
from c4p.errors import BadRequest, PlannerError
from c4p.planner import Assignment, Demand

TIMEOUT_S = 10.0
POLL_S = 1.0
MOST_BYTES = 256 * 1024 * 1024
_NOT_FOUND = 404
Answer = TypeVar("Answer")


class _Registered(msgspec.Struct, frozen=True):
    """What a job hears that registers."""

    version: int
    assignment: Assignment


class _Heard(msgspec.Struct, frozen=True):
    """What a member hears that asks."""

    version: int
    ways: list[tuple[int, str]] | None
    stale: bool
    again_s: Annotated[float, msgspec.Meta(ge=0, le=3600)]


def check_url(url: str) -> str:
    """Itself.

    Raises:
        BadRequest: It is no address of a planner.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise BadRequest(f"planner {url!r}: an address such as http://planner:7440")
    return url


def register(url: str, job: str, question: Question) -> tuple[int, list[list[str]]]:
    """Register a job.

    Args:
        url: Of the planner, such as "http://planner:7440".
        job: Its name; a job of that name that is there is replaced.
        question: Its flows.

    Returns:
        The plan's version; ways of each member's connections, as text.

    Raises:
        PlannerError: The planner cannot be reached, or refuses.
        BadRequest: The URL cannot be used.
    """
    line = _Line(url)
    try:
        _, answer = line.ask("PUT", _path(job), question.demand)
        registered = line.read(answer, _Registered)
        try:
            return registered.version, question.answers(registered.assignment)
        except (KeyError, ValueError) as error:
            raise PlannerError(f"the planner at {url} plans ways that are not there: {error!r}") from error
    finally:
        line.close()


class Subscription:
    """The planner's word for one member: asks once a second, or as often as it is told to; that keeps the job's place.

    Where the planner has given up the job, or never had it, member 0 registers it; where the planner does not know
    what a member has learned, the member tells it.

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
        report: Report,
        sides: Mapping[str, int],
        demand: Demand | None = None,
    ) -> None:
        self._line = _Line(url)
        self._job = _path(job)
        self._rank = rank
        self._version = version
        self._sides = dict(sides)
        self._member, self._choices = tell(report, sides)
        self._demand = demand
        self._next = time.monotonic() + POLL_S

    def learned(self, report: Report) -> None:
        """The member has learned its ways again; the planner is told when it is asked next."""
        self._sides = sides_of([report]) | self._sides
        self._member, self._choices = tell(report, self._sides, self._member.edition + 1)
        self._next = time.monotonic()

    def news(self) -> list[str] | None:
        """Ways of this member's connections, where they differ from what was said last; None: nothing new.

        Raises:
            PlannerError: The planner cannot be reached, or does not answer as a planner does.
        """
        if time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + POLL_S
        mine = f"{self._job}/members/{self._rank}"
        query = f"?version={self._version}&edition={self._member.edition}"
        status, answer = self._line.ask("GET", mine + query, may_lack=self._demand is not None)
        if status == _NOT_FOUND:
            self._line.ask("PUT", self._job, self._demand)
        elif (heard := self._line.read(answer, _Heard)).stale:
            self._line.ask("PUT", mine, self._member)
        else:
            ways = self._ways(heard.ways)
            self._version = heard.version
            self._next = time.monotonic() + heard.again_s
            return ways
        self._next = time.monotonic()
        return None

    def _ways(self, said: list[tuple[int, str]] | None) -> list[str] | None:
        if said and len(said) != self._member.flows:
            raise PlannerError(f"the planner has {len(said)} ways for {self._member.flows} connections")
        return [self._choices.get((side, top), "") for side, top in said] if said else None

    def leave(self) -> None:
        """The job ends: member 0 says so."""
        try:
            if self._rank == 0:
                self._line.ask("DELETE", self._job)
        except PlannerError:
            return  # its place is given up when nobody asks for it any more
        finally:
            self._line.close()


def _path(job: str) -> str:
    return f"/jobs/{urllib.parse.quote(job, safe='')}"


class _Line:
    """A connection to the planner, kept from one question to the next. The token is in C4P_PLANNER_TOKEN."""

    def __init__(self, url: str) -> None:
        self._url = check_url(url).rstrip("/")
        parts = urllib.parse.urlsplit(self._url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._path = parts.path
        token = os.environ.get("C4P_PLANNER_TOKEN", "")
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._connection = kind(parts.netloc, timeout=TIMEOUT_S)

    def ask(self, method: str, path: str, body: Any = None, may_lack: bool = False) -> tuple[int, dict[str, Any]]:
        """Status and answer of one request.

        Args:
            method: Of HTTP.
            path: Below the planner's URL.
            body: Sent as JSON.
            may_lack: Whether "not found" is an answer too.

        Raises:
            PlannerError: The planner cannot be reached, or refuses.
        """
        data = None if body is None else msgspec.json.encode(body)
        try:
            status, text = self._exchange(method, self._path + path, data)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            where = f"the planner at {self._url} cannot be reached"
            raise PlannerError(f"{where}: {error!r}; is `c4p serve` running?") from error
        if status >= http.client.BAD_REQUEST and not (may_lack and status == _NOT_FOUND):
            why = text[:4096].decode(errors="replace")
            raise PlannerError(f"the planner at {self._url} refused: {status} {why}")
        try:
            return status, msgspec.json.decode(text or b"{}", type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise PlannerError(f"{self._url} is no planner: {error}") from error

    def read(self, answer: dict[str, Any], kind: type[Answer]) -> Answer:
        """An answer as a record.

        Raises:
            PlannerError: It is none.
        """
        try:
            return msgspec.convert(answer, kind)
        except msgspec.ValidationError as error:
            raise PlannerError(f"{self._url} is no planner: {error}") from error

    def _exchange(self, method: str, path: str, data: bytes | None) -> tuple[int, bytes]:
        kept = self._connection.sock is not None
        try:
            return self._once(method, path, data)
        except (ConnectionError, http.client.BadStatusLine):
            if not kept:
                raise
            self._connection.close()  # the planner has ended the connection, or itself, since the last question
            return self._once(method, path, data)

    def _once(self, method: str, path: str, data: bytes | None) -> tuple[int, bytes]:
        self._connection.request(method, path, data, self._headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read(MOST_BYTES)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()
