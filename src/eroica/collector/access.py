"""Admit callers with the token to the collector.

Everybody on the host can open a connection, and beyond localhost everybody on the network. So a request without the
token (of a browser: the cookie made from it) is answered before it is routed or its body read. What connections cost
that have not shown one of them is bounded in `eroica.wire.guarded_server`.

Visitors of the live page are let in as a notebook server does: by its link, and by a cookie from then on. Agents and
commands show the collector's token. The link carries something else, and so does the cookie that it is exchanged for:
links end up in histories and logs, and browsers send the cookies of one port to every other port of a host. Both open
the page and windows, and nothing that agents may do.

Three more walls stand behind it. The Host header must name us, so that no foreign name that leads here (DNS rebinding)
is answered. What changes anything must come from our own page (Origin). And nothing of ours may be framed, cached, told
to other sites or load anything from them.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from eroica.wire.address import is_loopback, page_pass
from eroica.wire.guarded_server import admit, header_in

#: Also for Chromium's `trusted types`: no script of ours writes HTML from text.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_HEADERS = {
    "content-security-policy": PAGE_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_LOCKED_STYLE = (
    "body{max-width:36rem;margin:4rem auto;padding:0 1.25rem;font:1rem/1.55 system-ui,sans-serif}"
    "pre,code{font-family:ui-monospace,monospace}pre{padding:.6rem .9rem;border:1px solid #8884;border-radius:6px}"
)
_LOCKED_POLICY = (
    "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; style-src 'sha256-"
    + base64.b64encode(hashlib.sha256(_LOCKED_STYLE.encode()).digest()).decode()
    + "'"
)
_LOCKED = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,"><title>Eroica: link needed</title>
<style>{style}</style>
<main><h1>This page needs its link</h1>
<p>It shows a training job and can open windows on it, so it asks for a token. <strong>{why}</strong></p>
<p>On the host of the job, run</p><pre>eroica live</pre>
<p>or <code>eroica status</code>, and open the link that it prints. A link is good until the job ends.</p></main></html>
"""

_SMALL_BYTES = 4096
_LONGEST_PATH = 1_000
_NOTHING_THERE = JSONResponse({"error": "there is no such path"}, status_code=404)
_NEEDS_TOKEN = JSONResponse(
    {"error": "a token is needed; it stands in collector.json"}, status_code=401, headers={"connection": "close"}
)


def with_headers(response: Response) -> Response:
    """The response with all that keeps others out; a policy that it has already stays."""
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response


class Visitors:
    """Judges requests for pages by who does not show the token: browsers.

    Args:
        token: What agents show; a link with it is good, too.
        names: Host names beside loopback under which we may be called.
        page: What the link carries and the cookie holds; default: made from the token.

    Attributes:
        names: The same; a door that opens later adds its own.
        page: The same.
        cookie: Its name; jobs of one host have different ones.
    """

    def __init__(self, token: str, names: frozenset[str] = frozenset(), page: str = "") -> None:
        self.names = {name.lower() for name in names}
        self.page = page or page_pass(token)
        self.cookie = f"eroica-{hashlib.sha256(self.page.encode()).hexdigest()[:12]}"
        self._links = (self.page.encode(), page_pass(token).encode(), token.encode())

    def answer(self, request: Request) -> Response | None:
        """Answer instead of the page with a refusal, or with the cookie for a visitor with the link; None: go on."""
        if not self._names_us(request.headers.get("host", "")):
            return _refuse(request, 421, "That is not a name of this host.")
        if "token" in request.query_params:
            return self._welcome(request)
        if not self._has_cookie(request.headers):
            return _refuse(request, 401, "There was no valid token.")
        if request.method not in ("GET", "HEAD") and not _from_our_page(request.headers):
            return _refuse(request, 403, "This may only be asked for by the page itself, or with the token.")
        return None

    def _welcome(self, request: Request) -> Response:
        given = request.query_params["token"].encode()
        if not any([hmac.compare_digest(given, each) for each in self._links]):  # noqa: C419 - all, in constant time
            return _refuse(request, 401, "The token in this link is not (or no longer) that of the job.")
        if request.headers.get("sec-fetch-site") == "cross-site":  # a strict cookie does not survive a redirect then
            response: Response = HTMLResponse(headers={"refresh": "0; url=/"})
        else:
            response = RedirectResponse("/", status_code=303)
        response.set_cookie(self.cookie, self.page, httponly=True, samesite="strict", path="/")
        return with_headers(response)

    def _has_cookie(self, headers: Mapping[str, str]) -> bool:
        """Read by hand: programs on other ports may have set cookies that a strict parser ends at, or is slow at."""
        pairs = (pair.strip().partition("=") for pair in headers.get("cookie", "").split(";"))
        given = next((value for name, _, value in pairs if name == self.cookie), "")
        return hmac.compare_digest(given.encode(), self.page.encode())

    def _names_us(self, host: str) -> bool:
        """Whatever the port: it may be another one at the near end of a tunnel."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return is_loopback(name) or name.lower() in self.names


def _from_our_page(headers: Mapping[str, str]) -> bool:
    host = headers.get("host", "")
    ours = headers.get("origin", "").lower() in (f"http://{host}".lower(), f"https://{host}".lower())
    return ours and headers.get("sec-fetch-site", "same-origin") == "same-origin"


def _refuse(request: Request, status: int, why: str) -> Response:
    if request.url.path.startswith("/v1/"):
        return with_headers(JSONResponse({"error": why}, status_code=status))
    page = _LOCKED.format(why=why, style=_LOCKED_STYLE)
    return with_headers(HTMLResponse(page, status, headers={"content-security-policy": _LOCKED_POLICY}))


class TokenGate:
    """Lets requests with the token through to `application`, and visitors to its pages; answers all others with 401.

    Args:
        application: What is behind the gate.
        token: What every request must carry, except for pages.
        visitors: Who judges requests for pages without it.
        pages: Routes of the application that visitors may see.
    """

    def __init__(self, application: ASGIApp, token: str, visitors: Visitors, pages: Sequence[Route] = ()) -> None:
        self._application = application
        self._wanted = b"Bearer " + token.encode()
        self._visitors = visitors
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI; an odd path or a caller that leaves makes no noise in the log."""
        if scope["type"] != "http":
            return
        path = scope["path"]
        is_odd = len(path) > _LONGEST_PATH or not path.isprintable()
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        answer: ASGIApp | None = None
        if not hmac.compare_digest(given[0] if len(given) == 1 else b"", self._wanted):
            is_page = not is_odd and any(route.matches(scope)[0] is not Match.NONE for route in self._pages)
            answer = self._visitors.answer(Request(scope)) if is_page else _NEEDS_TOKEN
        if answer is None:
            admit(scope)
            answer = _NOTHING_THERE if is_odd else self._application
        with contextlib.suppress(ClientDisconnect):
            await answer(scope, receive, send)


def shows_token(token: str, words: bytes) -> bool:
    """Return whether the first words of a connection carry the token. Each request is checked again for its rights."""
    return hmac.compare_digest(header_in(words, b"authorization"), b"Bearer " + token.encode())


class Refused(ValueError):
    """A request that is answered with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


async def body_of(request: Request, most_bytes: int = _SMALL_BYTES) -> bytes:
    """A request's body.

    Raises:
        Refused: As soon as it is longer than that.
    """
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > most_bytes:
            raise Refused(413, f"more than {most_bytes} bytes")
    return bytes(data)
