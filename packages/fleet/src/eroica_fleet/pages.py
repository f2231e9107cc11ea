"""Pages for people: the fleet, a run, its reports; the login, a token for a cookie; and what pages follow."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncGenerator, Sequence
from importlib.resources import files
from urllib.parse import parse_qs

import jinja2
import msgspec
from eroica.model.words import clean
from eroica.views.live_page import REPORT_POLICY
from eroica.views.live_page import asset as live_asset
from starlette.responses import RedirectResponse, Response, StreamingResponse

from eroica_fleet import queries
from eroica_fleet.asking import COOKIE, Ask, Door, Missing, problem
from eroica_fleet.queries import changed_since
from eroica_fleet.tenants import SESSION_S, Caller, Callers, Rates, note

#: Pause between two looks, and at most so long without a sign of life, seconds.
_LOOK_S, _BEAT_S = 2.0, 5.0
MAX_READERS = 200
#: A page asks again after so long, and shows again that it may, seconds.
_LONGEST_S = 60.0


class Events:
    """Readers of one service."""

    def __init__(self) -> None:
        self._readers = 0
        self._closed = asyncio.Event()

    def close(self) -> None:
        """Let the readers go."""
        self._closed.set()

    async def follow(self, ask: Ask) -> Response:
        """Runs that changed after `since`, milliseconds since 1970, and then as they change."""
        if self._readers >= MAX_READERS:
            return problem(503, f"{MAX_READERS} pages follow already", {"retry-after": "10"})
        since = int(ask.number("since", 1000 * time.time(), 0, 1e15))
        return StreamingResponse(self._news(ask, since), media_type="text/event-stream")

    async def _news(self, ask: Ask, since: int) -> AsyncGenerator[bytes, None]:
        self._readers += 1
        began = said = time.monotonic()
        try:
            yield b"event: hello\ndata: {}\n\n"
            while not self._closed.is_set() and time.monotonic() - began < _LONGEST_S:
                lines = await asyncio.to_thread(changed_since, ask, since)
                if lines:
                    since = max(line.changed for line in lines)
                    said = time.monotonic()
                    yield b"event: runs\ndata: " + msgspec.json.encode(lines) + b"\n\n"
                elif time.monotonic() - said >= _BEAT_S:
                    said = time.monotonic()
                    yield b"event: beat\ndata: {}\n\n"
                try:
                    await asyncio.wait_for(self._closed.wait(), _LOOK_S)
                except asyncio.TimeoutError:  # not the same as TimeoutError before Python 3.11
                    continue
        finally:
            self._readers -= 1


_OURS = {
    "fleet.css": "text/css",
    **dict.fromkeys(("fleet.js", "run.js", "jobs.js", "insights.js", "follow.js"), "text/javascript"),
}
#: Parts of the live page that ours are made of, too.
_SHARED = {"live.css": "text/css", "words.js": "text/javascript"}
#: Refused logins, of everybody together; bursts of ten seconds' worth pass.
_GUESSES_PER_S = 1.0
_LOGIN_BYTES = 2000
_HTML = "text/html; charset=utf-8"


@functools.cache
def _asset(name: str) -> bytes:
    return live_asset(name) if name in _SHARED else (files("eroica_fleet.web") / name).read_bytes()


@functools.cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.globals["clean"] = clean
    return environment.from_string((files("eroica_fleet.web") / f"{name}.html.jinja").read_text(encoding="utf-8"))


def _drawn(name: str, status: int = 200, **facts: object) -> Response:
    return Response(_template(name).render(**facts), status_code=status, media_type=_HTML)


class Pages:
    """All pages.

    Args:
        callers: Opens and closes sessions.
    """

    def __init__(self, callers: Callers) -> None:
        self._callers = callers
        self._strangers = Rates()

    def doors(self) -> Sequence[Door]:
        """All there are."""
        return (
            Door("/", "GET", "read", self._fleet, page=True),
            Door("/runs/{run_id:int}", "GET", "read", self._run, page=True),
            Door("/runs/{run_id:int}/windows/{window_id:int}/report", "GET", "read", self._report, page=True),
            Door("/assets/{name}", "GET", None, self._asset),
            Door("/login", "GET", None, lambda ask: _drawn("login", wrong=False)),
            Door("/login", "POST", None, self._login, _LOGIN_BYTES, at_once=True),
            Door("/logout", "POST", "read", self._logout),
        )

    def _fleet(self, ask: Ask) -> Response:
        return _drawn("fleet", who=ask.caller.name)

    def _run(self, ask: Ask) -> Response:
        with ask.engine.connect() as connection:
            row = queries.run_row(ask, connection, ask.path["run_id"])
        return _drawn("run", row=row, who=ask.caller.name, may_ask=ask.caller.may("window"))

    def _report(self, ask: Ask) -> Response:
        """The verdict as its own page, drawn now; without pictures of patterns, which lie with the job."""
        from eroica.views.material import Material
        from eroica.views.page import build_report

        verdict = queries.one_verdict(ask)
        material = Material(verdict=verdict, history=queries.history_of(ask), name=verdict.job)
        return Response(build_report(material), media_type=_HTML, headers={"content-security-policy": REPORT_POLICY})

    def _asset(self, ask: Ask) -> Response:
        name = ask.path["name"]
        kind = (_OURS | _SHARED).get(name)
        if kind is None:
            raise Missing("there is no such file")
        return Response(_asset(name), media_type=kind)

    # ------------------------------------------------------------------ login

    async def _login(self, ask: Ask) -> Response:
        given = parse_qs(ask.body.decode("utf-8", "replace")).get("token", [""])[0].strip()
        caller = await self._callers.by_token(given) if given else None
        if caller is None or not caller.may("read"):
            if self._strangers.admit(None, _GUESSES_PER_S):  # each costs a line of the audit log
                return problem(429, "too many logins were refused; come again", {"retry-after": "10"})
            await asyncio.to_thread(note, ask.engine, caller, "login refused", "", ask.address)
            return _drawn("login", 401, wrong=True)
        return await asyncio.to_thread(self._welcome, ask, caller)

    def _welcome(self, ask: Ask, caller: Caller) -> Response:
        response = RedirectResponse("/", status_code=303)
        response.set_cookie(
            COOKIE,
            self._callers.open_session(caller),
            max_age=int(SESSION_S),
            httponly=True,
            samesite="strict",
            secure=ask.scheme == "https",
            path="/",
        )
        note(ask.engine, caller, "login", "", ask.address)
        return response

    def _logout(self, ask: Ask) -> Response:
        if ask.cookie:
            self._callers.close_session(ask.cookie)
        response = RedirectResponse("/login", status_code=303)
        response.delete_cookie(COOKIE, path="/")
        return response
