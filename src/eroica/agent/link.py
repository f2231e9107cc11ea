"""The agent's side of the talk with the collector: HTTP, never waiting long, never giving up."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Literal

import httpx
import msgspec

from eroica.errors import InputError
from eroica.wire.address import read_address
from eroica.wire.codec import decode_message
from eroica.wire.messages import AgentReport, CollectorReply, SummaryFailure, refusal, spoken_in

log = logging.getLogger("eroica.agent")
_MOST_BYTES = 4_000_000
_PATIENCE_S = 15.0
_NO_CONTENT, _STRANGER = 204, 401
Delivery = Literal["taken", "refused", "unanswered"]
_REPLY = "the collector's reply"


class CollectorLink:
    """Finds the collector and talks to it.

    The address comes from `EROICA_COLLECTOR` and `EROICA_TOKEN`, else from the run directory.

    Args:
        run: The run directory.
        host: This host's name, for who belongs to it. Default: any collector that can be reached; see
            `eroica.wire.address.read_address`.
    """

    def __init__(self, run: Path, host: str = "") -> None:
        self._run = run
        self._host = host
        self._client: httpx.AsyncClient | None = None
        self._refused: set[str] = set()

    async def report(self, report: AgentReport) -> CollectorReply | None:
        """Tell the collector; None if it could not be reached."""
        answer = await self._post("/v1/report", msgspec.msgpack.encode(report))
        if answer is None:
            return None
        if why := refusal(spoken_in(answer.content), "the job's collector", "this agent"):
            self._complain(_REPLY, f"is refused: {why}")
            return None
        try:
            reply = decode_message(answer.content, CollectorReply)
        except InputError as error:
            self._complain(_REPLY, f"is none: {error}")
            return None
        self._refused.discard(_REPLY)
        return reply

    async def deliver(self, pattern: bytes) -> Delivery:
        """Hand over a pattern as `encode_record` makes it."""
        answer = await self._send("/v1/patterns", pattern)
        if answer is None:
            return "unanswered"
        return "taken" if answer.is_success else "refused"

    async def hand_in(self, looks: bytes) -> bool:
        """Hand over what was seen of blocked workers; False if it could not be."""
        return await self._post("/v1/looks", looks) is not None

    async def regret(self, window_id: int, global_rank: int, note: str) -> None:
        """Say that a worker's pattern will not come."""
        failure = SummaryFailure(global_rank=global_rank, note=note)
        await self._post(f"/v1/windows/{window_id}/failures", msgspec.msgpack.encode(failure))

    async def finish(self) -> None:
        """Say that the job is over."""
        await self._post("/v1/finish", b"")

    async def close(self) -> None:
        """Drop the connection."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _post(self, path: str, body: bytes) -> httpx.Response | None:
        """The collector's answer; None if there is none, or it refuses."""
        answer = await self._send(path, body)
        return answer if answer is not None and answer.is_success else None

    async def _send(self, path: str, body: bytes) -> httpx.Response | None:
        """The collector's answer, a refusal among them; None if there is none, or somebody else gives it."""
        client = self._client = self._client or self._connect()
        if client is None:
            return None
        try:
            answer = await asyncio.wait_for(client.post(path, content=body), _PATIENCE_S)
        # not only errors of HTTP: another task may just have closed it, and an answer may be built to break a parser
        except (httpx.HTTPError, httpx.InvalidURL, asyncio.TimeoutError, RuntimeError, ValueError, LookupError):
            await self.close()  # look its address up again next time
            return None
        if answer.is_success:
            self._refused.discard(path)
            return answer
        self._complain(path, f"refused: {answer.text[:300]}")
        if answer.status_code == _STRANGER:  # one that was started again listens where the old one did
            await self.close()
            return None
        return answer

    def _complain(self, path: str, why: str) -> None:
        """Once, until it is accepted again: reports go out several times a second."""
        if path not in self._refused:
            self._refused.add(path)
            log.warning("%s %s", path, why)

    def _connect(self) -> httpx.AsyncClient | None:
        url, token = os.environ.get("EROICA_COLLECTOR", ""), os.environ.get("EROICA_TOKEN", "")
        if not url:
            address = read_address(self._run, self._host)
            if address is None:
                return None
            url, token = address.url, address.token
        return client_for(url, token)


def client_for(url: str, token: str) -> httpx.AsyncClient:
    """A client that trusts the collector with the token, but not to be short: it may be somebody else by now."""
    # the host's proxy settings are the user's, not ours
    return httpx.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"},
        timeout=5.0,
        trust_env=False,
        event_hooks={"response": [_refuse_long]},
    )


async def _refuse_long(answer: httpx.Response) -> None:
    """Before an answer is read: it must say how long it is, and that must be little."""
    length = answer.headers.get("content-length", "0" if answer.status_code == _NO_CONTENT else "")
    coded = "content-encoding" in answer.headers or "transfer-encoding" in answer.headers
    if coded or not length.isdigit() or len(length) > 9 or int(length) > _MOST_BYTES:
        raise httpx.RemoteProtocolError("the collector's answer is too long", request=answer.request)
