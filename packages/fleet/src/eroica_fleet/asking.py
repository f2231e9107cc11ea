"""One way in for all requests: who asks, whether they may, how much and how often; then the handler, in a thread.

Handlers never see a request without a caller, and a caller never sees rows but through `Caller.sees`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec
import sqlalchemy as sa
from eroica.errors import EroicaError, InputError, UsageError
from eroica.fleet.records import MAX_BATCH_BYTES, OURS
from eroica.wire.guarded_server import admit
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from eroica_fleet.tenants import Caller, Callers, Rates, Scope

log = logging.getLogger("eroica_fleet")

COOKIE = "eroica-fleet"
_SMALL_BYTES = 65_536
_CHANGING = ("POST", "PUT", "DELETE")
#: Requests that are worked on at the same time, and of those whose caller nobody knows; more wait.
_AT_ONCE, _STRANGERS_AT_ONCE = 16, 4
#: Bytes of bodies that are being received or worked on, in all and of one project, and bodies of one project.
_BODY_BYTES, _BODY_BYTES_OF_ONE, _BODIES_OF_ONE = 16 * MAX_BATCH_BYTES, 4 * MAX_BATCH_BYTES, 256
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
#: A body that has not come by then is not waited for, seconds: whoever sends slowly keeps others out.
_BODY_S = 30.0
_HEADERS = {
    OURS: "1",
    "content-security-policy": PAGE_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with less, browsers hide where a form was sent from
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
Record = TypeVar("Record")


class Forbidden(EroicaError):
    """The caller may come in, but not do that."""


class NoRoom(EroicaError):
    """Too much is being received already."""


class TooSlow(EroicaError):
    """A body did not come in time."""


class Missing(EroicaError):
    """There is nothing of this name that the caller sees."""


@dataclass(frozen=True)
class Ask:
    """A request whose caller is known.

    Attributes:
        caller: Who asks.
        engine: The database.
        path: Parameters of the path.
        query: Parameters after the question mark.
        body: What was sent, bounded.
        address: Where they ask from.
        scheme: "http" or "https", as the browser sees it.
    """

    caller: Caller
    engine: sa.Engine
    path: Mapping[str, Any] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    address: str = ""
    scheme: str = "http"
    cookie: str = ""

    def text(self, name: str, default: str = "", most: int = 300) -> str:
        """A parameter, shortened."""
        return self.query.get(name, default)[:most]

    def number(self, name: str, default: float, least: float, most: float) -> float:
        """A parameter that is a number.

        Raises:
            InputError: It is none, or outside its limits.
        """
        given = self.query.get(name, "")
        try:
            value = float(given) if given else default
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise InputError(f"{name} is a number from {least:g} to {most:g}")
        return value

    def record(self, kind: type[Record]) -> Record:
        """The body as a JSON record.

        Raises:
            InputError: It is none.
        """
        try:
            return msgspec.json.decode(self.body or b"{}", type=kind)
        except (ValueError, RecursionError) as error:
            raise InputError(f"the body is not what is wanted here: {error}") from error


Handler = Callable[[Ask], Response]


class Door(NamedTuple):
    """A path and who may come in.

    Attributes:
        scope: What callers must be granted; None only for pages without anything of a project in them.
        most_bytes: Longest body.
        page: Browsers that nobody knows are sent to the login instead of being told a status.
        at_once: Answered by the event loop itself: the handler is a coroutine function that waits for others.
    """

    path: str
    method: str
    scope: Scope | None
    handler: Callable[..., Any]
    most_bytes: int = _SMALL_BYTES
    page: bool = False
    at_once: bool = False


def answer(record: object, status: int = 200) -> Response:
    """A record as JSON."""
    return Response(msgspec.json.encode(record), status_code=status, media_type="application/json")


def problem(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error, in one sentence."""
    return JSONResponse({"error": text}, status_code=status, headers=dict(headers or {}))


class Bodies:
    """Memory for requests' bodies: bounded in all and for each project, so one that sends slowly delays no other."""

    def __init__(self) -> None:
        self._all = 0
        self._bytes: Counter[int | None] = Counter()
        self._count: Counter[int | None] = Counter()

    @contextlib.asynccontextmanager
    async def received(self, request: Request, most: int, project_id: int | None) -> AsyncIterator[bytes | None]:
        """Receive a body, and hold its room while it is worked on. It is None as soon as it is longer than allowed.

        Raises:
            NoRoom: Too much is being received already.
            TooSlow: It did not come within `_BODY_S`.
        """
        if self._count[project_id] >= _BODIES_OF_ONE:
            raise NoRoom(f"{_BODIES_OF_ONE} requests of this project are on their way already")
        self._count[project_id] += 1
        chunks: list[bytes] = []
        try:
            receiving = self._receive(request, most, project_id, chunks)
            try:
                is_whole = await asyncio.wait_for(receiving, _BODY_S)
            except asyncio.TimeoutError:
                raise TooSlow(f"the request's body did not come within {_BODY_S:g} s") from None
            yield b"".join(chunks) if is_whole else None
        finally:
            size = sum(map(len, chunks))
            self._all -= size
            self._bytes[project_id] -= size
            self._count[project_id] -= 1
            for counter in (self._bytes, self._count):
                if not counter[project_id]:
                    del counter[project_id]

    async def _receive(self, request: Request, most: int, project_id: int | None, chunks: list[bytes]) -> bool:
        left = most
        async for chunk in request.stream():
            left -= len(chunk)
            if left < 0:
                return False
            of_one = self._bytes[project_id] + len(chunk)
            if self._all + len(chunk) > _BODY_BYTES or of_one > _BODY_BYTES_OF_ONE:
                raise NoRoom("too many bytes of reports are on their way already")
            self._all += len(chunk)
            self._bytes[project_id] = of_one
            chunks.append(chunk)
        return True


class Gate:
    """Turns doors into routes.

    Args:
        engine: The database.
        callers: Who is who.
    """

    def __init__(self, engine: sa.Engine, callers: Callers) -> None:
        self._engine = engine
        self._callers = callers
        self._rates = Rates()
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._bodies = Bodies()
        self._strangers = asyncio.Semaphore(_STRANGERS_AT_ONCE)

    def route(self, door: Door) -> Route:
        """The route of a door."""

        async def endpoint(request: Request) -> Response:
            try:
                response = await self._answer(door, request)
            except Missing as error:
                response = problem(404, str(error))
            except Forbidden as error:
                response = problem(403, str(error))
            except NoRoom as error:
                response = problem(503, str(error), {"retry-after": "2"})
            except TooSlow as error:
                response = problem(408, str(error))
            except (InputError, UsageError) as error:
                response = problem(400, str(error))
            except ClientDisconnect:
                response = problem(400, "the request broke off")
            except (sa.exc.DBAPIError, sa.exc.TimeoutError, OSError) as error:
                log.error("%s %s: %s", door.method, door.path, " ".join(str(error).split())[:300])
                response = problem(503, "the service's store cannot be reached; come again", {"retry-after": "5"})
            for name, value in _HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        endpoint.door = door  # type: ignore[attr-defined]  # for tests that walk over all routes
        return Route(door.path, endpoint, methods=[door.method])

    async def _answer(self, door: Door, request: Request) -> Response:
        cookie = request.cookies.get(COOKIE, "")
        caller = await self._caller(request, cookie)
        if caller is not None:
            admit(request.scope)
        if door.scope is not None:
            if caller is None:
                return RedirectResponse("/login", 303) if door.page else problem(401, "a valid token is needed")
            if not caller.may(door.scope):
                return problem(403, f"this token may not {_WORDS[door.scope]}")
            wait_s = self._rates.admit(caller.project_id, caller.requests_per_s)
            if wait_s:
                after = {"retry-after": str(math.ceil(wait_s))}
                return problem(429, "more requests than the project is granted", after)
        if door.method in _CHANGING and "authorization" not in request.headers and not _from_our_page(request):
            return problem(403, "this may only be asked for by our own page, or with a token")
        ask = Ask(
            caller=caller or NOBODY,
            engine=self._engine,
            path=request.path_params,
            query=request.query_params,
            address=request.client.host if request.client else "",
            scheme=urlsplit(request.headers.get("origin", "")).scheme or request.url.scheme,
            cookie=cookie,
        )
        if door.method not in _CHANGING:
            return await self._handled(door, ask)
        async with self._bodies.received(request, door.most_bytes, ask.caller.project_id) as body:
            if body is None:
                return problem(413, f"more than {door.most_bytes} bytes")
            async with self._strangers if door.scope is None else contextlib.nullcontext():
                return await self._handled(door, replace(ask, body=body))

    async def _handled(self, door: Door, ask: Ask) -> Response:
        if not door.at_once:
            return await self._in_thread(door.handler, ask)
        response = await door.handler(ask)
        assert isinstance(response, Response)
        return response

    async def _in_thread(self, handler: Handler, ask: Ask) -> Response:
        async with self._at_once:
            return await asyncio.to_thread(handler, ask)

    async def _caller(self, request: Request, cookie: str) -> Caller | None:
        given = request.headers.get("authorization", "")
        if given:
            kind, _, token = given.partition(" ")
            return await self._callers.by_token(token) if kind.lower() == "bearer" else None
        return await self._callers.by_session(cookie) if cookie else None


#: Who has shown nothing: sees nothing.
NOBODY = Caller(0, "", -1, frozenset(), 0.0)
_WORDS: dict[Scope, str] = {
    "report": "report",
    "read": "read",
    "window": "open windows",
    "administer": "administer",
    "operate": "operate the service",
}


def _from_our_page(request: Request) -> bool:
    """What a browser says of where a request comes from."""
    origin, host = request.headers.get("origin", ""), request.headers.get("host", "")
    return bool(origin) and urlsplit(origin).netloc.lower() == host.lower()


REPORT_BYTES = MAX_BATCH_BYTES
