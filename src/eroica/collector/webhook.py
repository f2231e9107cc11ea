"""Verdicts sent to an address of the user's choice as they come.

A verdict is told when its word is one of those asked for and it says something new: another cause, other workers, or
that it is getting worse. There are at most `MOST_PER_JOB` of them a job and `MOST_PER_HOUR` an hour; the last one of a
job says that it is the last. What names of the job could do in a chat is undone: Slack's control characters are
escaped, and mentions and links get a space of no width.

The address is a secret: whoever knows it may write into somebody's chat. It is in no log, note or error text, and what
a server answers is quoted only if it is one plain word. Sending happens beside the collector's work: a queue of a few
messages, each tried a few times with growing pauses, and given up for good when the collector ends.
"""

from __future__ import annotations

import asyncio
import email.utils
import html
import logging
import random
import re
import ssl
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from eroica import __version__
from eroica.model.shares import percent
from eroica.model.verdict import Verdict
from eroica.model.words import clean, line, sentence, worker_list
from eroica.settings import Settings

MOST_PER_JOB = 20
MOST_PER_HOUR = 10
_HOUR_S = 3600.0
#: Breaks what chats turn into mentions and links, and is not to be seen.
_NO_WIDTH = "\u200b"
_NAMED_WORKERS = 32

_Said = tuple[str, str, str, tuple[int, ...], bool]
log = logging.getLogger("eroica.collector")
#: Pauses between two tries of one message, before jitter; one more try than there are pauses.
PAUSES_S = (1.0, 4.0, 15.0, 60.0)
#: One try, from connecting to the answer's status: a chat that takes longer is taken for dead.
TRY_S = 10.0
#: A server may ask for so long a pause; beyond it, its wish is not respected.
LONGEST_PAUSE_S = 300.0
#: Messages that wait; of verdicts that come faster than they can be sent, the newest are left out.
MOST_WAITING = 8
_BUSY = (408, 425, 429)
_MOST_ANSWER_BYTES = 200
_PLAIN_WORD = re.compile(r"[a-z]+(_[a-z]+){0,5}")
#: Longest address that is used: a longer one is a mistake.
_LONGEST_URL = 4_000


class Notices:
    """Decides for one job.

    Args:
        job: Its name.
        words: Verdicts that are told.
    """

    def __init__(self, job: str, words: frozenset[str]) -> None:
        self._job = job
        self._words = words
        self._last: _Said | None = None
        self._told: set[_Said] = set()
        self._count = 0
        self._times: deque[float] = deque(maxlen=MOST_PER_HOUR)

    def resume(self, verdicts: Mapping[int, Verdict]) -> None:
        """A collector before this one has told these."""
        for window_id, verdict in sorted(verdicts.items()):
            if self._is_news(window_id, verdict):
                self._count = min(self._count + 1, MOST_PER_JOB)

    def judged(self, now: float, window_id: int, verdict: Verdict) -> Mapping[str, Any] | str | None:
        """A verdict stands.

        Args:
            now: Seconds.
            window_id: Of its window; 0 for the whole job's, at its end.
            verdict: The verdict.

        Returns:
            The message in the form of the setting "json"; why one is withheld; None if there is nothing to tell.
        """
        if not self._is_news(window_id, verdict):
            return None
        if self._count >= MOST_PER_JOB:
            return f"the webhook was told of {MOST_PER_JOB} verdicts of this job; later ones only stand in its windows"
        if len(self._times) == MOST_PER_HOUR and now - self._times[0] < _HOUR_S:
            return f"the webhook was told of {MOST_PER_HOUR} verdicts within an hour; the others are left out"
        self._count += 1
        self._times.append(now)
        return self._message(window_id, verdict)

    def _is_news(self, window_id: int, verdict: Verdict) -> bool:
        """Return whether a verdict is to be told, and remember it; one that shows that what was told is over, too."""
        if verdict.verdict not in self._words:
            self._last = self._last if verdict.verdict == "undetermined" else None
            return False
        said = _said(verdict)
        if said == self._last if window_id else self._told == {said}:
            return False
        self._last = said
        if len(self._told) <= MOST_PER_JOB:
            self._told.add(said)
        return True

    def _message(self, window_id: int, verdict: Verdict) -> Mapping[str, Any]:
        lines = _lines(self._job, window_id, verdict)
        if self._count == MOST_PER_JOB:
            lines.append("This is the last message about this job; what comes later stands in its run directory.")
        cause = verdict.cause
        return {
            "text": escaped("\n".join(lines)),
            "event": "verdict" if window_id else "final",
            "job": line(self._job),
            "window_id": window_id or None,
            "gain": None if cause is None else cause.gain,
            "confidence": None if cause is None else cause.confidence,
            "next_step": "" if cause is None else line(cause.next_step),
            "verdict": msgspec.to_builtins(msgspec.structs.replace(verdict, waits=None)),
        }


def escaped(text: str) -> str:
    """Text that a chat shows as it is: no link, no mention, no markup of Slack's."""
    return html.escape(text, quote=False).replace("@", f"@{_NO_WIDTH}").replace("://", f":{_NO_WIDTH}//")


def _said(verdict: Verdict) -> _Said:
    """Key of a verdict's message: two verdicts with equal keys say the same to their readers."""
    cause = verdict.cause
    if cause is None:
        return verdict.verdict, "", "", (), False
    worsening = cause.recurrence is not None and cause.recurrence.kind == "worsening"
    return verdict.verdict, cause.cause, cause.function.name, tuple(sorted(cause.workers)), worsening


def _lines(job: str, window_id: int, verdict: Verdict) -> list[str]:
    """The message, a line each: what is the matter, how sure, what to do."""
    said = {"slow": "is slow", "blocked": "stands still", "healthy": "is healthy"}
    now = said.get(verdict.verdict, "was looked at, and the verdict is undetermined")
    ended = f"has ended. Over all its windows: {verdict.verdict}"
    lines = [f"Job {clean(job)} {now if window_id else ended}.", sentence(verdict.summary)]
    cause = verdict.cause
    if cause is not None:
        gain = "gain not known" if cause.gain is None else f"gain {percent(cause.gain)} of the iteration"
        who = worker_list(cause.workers[:_NAMED_WORKERS]) if cause.workers else f"{cause.scope} workers"
        more = len(cause.workers) - _NAMED_WORKERS
        who += f" and {more} more" if more > 0 else ""
        how_sure = f"confidence {percent(cause.confidence)}{f', window {window_id}' if window_id else ''}"
        lines.append(f"Cause {clean(cause.cause, 60)}, {who}; {gain}, {how_sure}.")
        if cause.next_step:
            lines.append(f"Next step: {sentence(cause.next_step)}")
    return lines


class Webhook:
    """Tells one address of one job's verdicts.

    Args:
        job: Name of the job.
        settings: Tunables.
        note: Where to say what people should know.
        counts: Counts messages "sent", "failed" and "withheld" (over the caps).
        pause: Waits so many seconds.

    Attributes:
        notices: What is worth telling.
    """

    def __init__(
        self,
        job: str,
        settings: Settings,
        note: Callable[[str], object],
        counts: Counter[str],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._url = usable_address(settings.webhook_url)
        self._whole = settings.webhook_format == "json"
        self.notices = Notices(job, frozenset(word.strip().lower() for word in settings.webhook_on.split(",")))
        self._note = note
        self._counts = counts
        self._pause = pause
        self._waiting: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(MOST_WAITING)
        self._sender: asyncio.Task[None] | None = None
        if not self._url:
            note("webhook_url is no http or https address; nobody is told of verdicts")

    def judged(self, window_id: int, verdict: Verdict) -> None:
        """A verdict stands (window 0: that of the whole job): tell it, if it is worth it. Never waits."""
        if not self._url:
            return
        message = self.notices.judged(time.monotonic(), window_id, verdict)
        if message is None:
            return
        if isinstance(message, str):
            self._counts["withheld"] += 1
            self._note(message)
            return
        what = f"the verdict of window {window_id}" if window_id else "the job's final verdict"
        # Slack might refuse other fields than the two that it documents for plain text
        body = msgspec.json.encode(message if self._whole else {"text": message["text"], "mrkdwn": False})
        try:
            self._waiting.put_nowait((what, body))
        except asyncio.QueueFull:
            self._failed(what, "too many wait to be sent")
            return
        if self._sender is None or self._sender.done():
            self._sender = asyncio.get_running_loop().create_task(self._send_all())

    async def close(self, patience_s: float) -> None:
        """Send what waits, for so long at most; the rest is given up."""
        if self._sender is None:
            return
        told = asyncio.ensure_future(self._waiting.join())
        await asyncio.wait({told, self._sender}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        for task in (told, self._sender):
            task.cancel()
        await asyncio.gather(told, self._sender, return_exceptions=True)
        while not self._waiting.empty():
            self._failed(self._waiting.get_nowait()[0], "the job ended before it could be sent")

    # ------------------------------------------------------------------ sending

    async def _send_all(self) -> None:
        try:
            trust = await asyncio.to_thread(ssl.create_default_context)  # reads files for tens of milliseconds
            async with httpx.AsyncClient(verify=trust, timeout=TRY_S, follow_redirects=False) as client:
                while True:
                    what, body = await self._waiting.get()
                    try:
                        await self._send(client, what, body)
                    finally:
                        self._waiting.task_done()
        except Exception as error:  # noqa: BLE001 - the collector outlives it; its text may hold the address
            log.error("the webhook failed: %s", type(error).__name__)
            self._failed("a verdict", "it failed; see log/collector.log")

    async def _send(self, client: httpx.AsyncClient, what: str, body: bytes) -> None:
        """One message, tried until it is taken, refused for good, or tried often enough."""
        problem = "the job ended before there was an answer"
        try:
            for pause_s in (*PAUSES_S, None):
                problem, wanted_s = await try_to_send(client, self._url, body)
                if not problem:
                    self._counts["sent"] += 1
                    return
                if wanted_s is None or pause_s is None:
                    break
                await self._pause(max(pause_s * random.uniform(0.5, 1.5), wanted_s))
        except asyncio.CancelledError:
            self._failed(what, problem)
            raise
        self._failed(what, problem)

    def _failed(self, what: str, why: str) -> None:
        self._counts["failed"] += 1
        log.warning("the webhook was not told of %s: %s", what, why)
        self._note(f"the webhook was not told of {what}: {why}")


async def try_to_send(client: httpx.AsyncClient, url: str, body: bytes) -> tuple[str, float | None]:
    """Post JSON to an address that is a secret, once.

    Returns:
        What is wrong, "" if nothing; the pause that the server wants before the next try, None if there is no use.
    """
    try:
        return await asyncio.wait_for(_post(client, url, body), TRY_S)
    except (asyncio.TimeoutError, httpx.TimeoutException):
        return f"no answer within {TRY_S:.0f} s", 0.0
    except httpx.TransportError as error:  # its text may hold the address
        return f"no connection ({type(error).__name__})", 0.0
    except httpx.HTTPError as error:
        return f"it is no HTTP ({type(error).__name__})", None


async def _post(client: httpx.AsyncClient, url: str, body: bytes) -> tuple[str, float | None]:
    headers = {"User-Agent": f"eroica/{__version__}", "Content-Type": "application/json"}
    async with client.stream("POST", url, content=body, headers=headers) as response:
        status = response.status_code
        if response.is_success:
            return "", None
        if response.is_redirect:
            return f"it answers {status} and points elsewhere, which is not followed", None
        if status in _BUSY or status >= 500:
            return f"it answers {status}", _asked_pause_s(response.headers.get("retry-after", ""))
        return f"it answers {status}{await _plain_word(response, url)}", None


async def _plain_word(response: httpx.Response, url: str) -> str:
    """Slack says in one word what it does not like; anything else could hold the address."""
    data = b""
    async for chunk in response.aiter_raw():
        data += chunk
        if len(data) > _MOST_ANSWER_BYTES:
            return ""
    word = data.decode("ascii", "replace").strip()
    return f" ({word})" if _PLAIN_WORD.fullmatch(word) and word not in url else ""


def usable_address(url: str) -> str:
    """The address, if it can be one; else ""."""
    url = url.strip()
    try:
        parts = urlsplit(url)
        named = bool(parts.hostname) and (parts.port is None or parts.port > 0)
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        return ""
    return url if named and parts.scheme in ("http", "https") and len(url) <= _LONGEST_URL else ""


def _asked_pause_s(retry_after: str) -> float:
    """Seconds that a `Retry-After` header asks for, as a number or as a date, at most `LONGEST_PAUSE_S`; else 0."""
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), LONGEST_PAUSE_S)
    try:
        wanted_s = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(max(wanted_s, 0.0), LONGEST_PAUSE_S)
