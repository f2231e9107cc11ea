"""A member's side of the planner's service."""

from __future__ import annotations

import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import msgspec

from c4p.demand import Question
from c4p.errors import BadRequest, PlannerError
from c4p.planner import Assignment

TIMEOUT_S = 10.0
POLL_S = 1.0
MOST_BYTES = 256 * 1024 * 1024


def register(url: str, job: str, question: Question) -> list[list[str]]:
    """Register a job.

    Args:
        url: Of the planner, such as "http://planner:7440".
        job: Its name; a job of that name that is there is replaced.
        question: Its flows.

    Returns:
        Ways of each member's connections, as text.

    Raises:
        PlannerError: The planner cannot be reached, or refuses.
        BadRequest: The URL cannot be used.
    """
    names = [[pair, side, top, way] for (pair, side, top), way in question.ways.items()]
    body = {"demand": question.demand, "ranks": question.ranks, "ways": names, "flows": question.flows}
    answer = _call("PUT", f"{_base(url)}/jobs/{urllib.parse.quote(job, safe='')}", msgspec.json.encode(body))
    return question.answers(msgspec.convert(answer["assignment"], Assignment))


class Subscription:
    """The planner's word for one member: asks once a second, which also keeps the job's place at the planner.

    Args:
        url: Of the planner.
        job: The job's name.
        rank: The member.
    """

    def __init__(self, url: str, job: str, rank: int) -> None:
        self._job = f"{_base(url)}/jobs/{urllib.parse.quote(job, safe='')}"
        self._rank = rank
        self._version = -1
        self._next = time.monotonic() + POLL_S

    def news(self) -> list[str] | None:
        """Ways of this member's connections, where they differ from what was said last; None: nothing new.

        Raises:
            PlannerError: The planner cannot be reached.
        """
        if time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + POLL_S
        answer = _call("GET", f"{self._job}/members/{self._rank}?version={self._version}")
        first = self._version < 0
        self._version = answer["version"]
        ways = answer.get("ways")
        return None if first or ways is None else [str(way) for way in ways]

    def leave(self) -> None:
        """The job ends: member 0 says so."""
        if self._rank == 0:
            try:
                _call("DELETE", self._job)
            except PlannerError:
                return  # its place is given up when nobody asks for it any more


def _base(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise BadRequest(f"planner {url!r}: an address such as http://planner:7440")
    return url.rstrip("/")


def _call(method: str, url: str, body: bytes | None = None) -> dict[str, Any]:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            decoded: dict[str, Any] = msgspec.json.decode(answer.read(MOST_BYTES) or b"{}")
            return decoded
    except urllib.error.HTTPError as error:
        text = error.read(4096).decode(errors="replace")
        raise PlannerError(f"the planner at {url} refused: {error.code} {text}") from error
    except (OSError, msgspec.DecodeError) as error:
        raise PlannerError(f"the planner at {url} cannot be reached: {error}; is `c4p serve` running?") from error
