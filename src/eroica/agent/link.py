"""The agent's side of the talk with the collector: HTTP, never waiting long, never giving up."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Literal

import httpx
import msgspec

from eroica.agent.numbering import Numbering
from eroica.errors import InputError
from eroica.model.pattern import WorkerPattern
from eroica.wire.address import read_address
from eroica.wire.codec import UNDECODABLE, decode_message, decode_record
from eroica.wire.messages import (
    AgentReport,
    CollectorReply,
    NumberedPattern,
    PartsReply,
    PartsRequest,
    PatternReply,
    SummaryFailure,
)
from eroica.wire.parcels import Parcel, pack_numbers, to_parcel
from eroica.wire.version import PARCELS, refusal, spoken_in

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
        self._spoken = 1
        self._numbering = Numbering(self._ask_for_numbers)

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
        self._spoken = reply.protocol
        return reply

    async def deliver(self, pattern: bytes) -> Delivery:
        """Hand over a pattern as `encode_record` makes it.

        What the collector knows of it stays here, unless it is one of an earlier version, or the pattern has numbers
        that make none.
        """
        if self._spoken >= PARCELS:
            try:
                parcel = to_parcel(decode_record(pattern, WorkerPattern))
            except (InputError, *UNDECODABLE) as error:
                log.warning("a pattern travels whole: %s", error)
            else:
                return await self._deliver(parcel)
        return _delivery(await self._send("/v1/patterns", pattern))

    async def _deliver(self, parcel: Parcel) -> Delivery:
        """Hand over a parcel; a second time with new numbers if the collector does not know the old ones any more."""
        delivery: Delivery = "unanswered"
        for _ in range(2):
            try:
                numbers = await self._numbering.numbers(parcel.parts)
                if numbers is None:
                    continue
                message = NumberedPattern(
                    book=self._numbering.book, parts=len(numbers), numbers=pack_numbers(numbers), own=parcel.own
                )
                answer = await self._send("/v1/parcels", msgspec.msgpack.encode(message))
                delivery = _delivery(answer)
                if answer is None or not answer.is_success:
                    return delivery
                if not decode_message(answer.content, PatternReply).unknown:
                    return delivery
                self._numbering.forget()
                delivery = "refused"
            except InputError as error:
                self._complain("/v1/parcels", f"cannot be used: {error}")
                delivery = "refused"
        return delivery

    async def _ask_for_numbers(self, request: PartsRequest) -> PartsReply | None:
        answer = await self._send("/v1/parts", msgspec.msgpack.encode(request))
        if answer is not None and not answer.is_success:
            raise InputError(f"parts are refused: {answer.text[:100]}")
        return None if answer is None else decode_message(answer.content, PartsReply)

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


def _delivery(answer: httpx.Response | None) -> Delivery:
    if answer is None:
        return "unanswered"
    return "taken" if answer.is_success else "refused"


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
