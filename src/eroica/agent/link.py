"""The agent's side of the talk with the collector: HTTP, never waiting long, never giving up."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import httpx
import msgspec

from eroica.wire.messages import AgentReport, CollectorReply, SummaryFailure

log = logging.getLogger("eroica.agent")


class CollectorLink:
    """Finds the collector and talks to it.

    The address comes from `EROICA_COLLECTOR` and `EROICA_TOKEN`, else from `collector.json` in the run directory.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._client: httpx.AsyncClient | None = None

    async def report(self, report: AgentReport) -> CollectorReply | None:
        """Tell the collector; None if it could not be reached."""
        answer = await self._post("/v1/report", msgspec.msgpack.encode(report))
        if answer is None:
            return None
        try:
            return msgspec.msgpack.decode(answer.content, type=CollectorReply)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            log.warning("the collector's answer is no reply: %s", error)
            return None

    async def deliver(self, pattern: bytes) -> bool:
        """Hand over a pattern; False if it could not be."""
        return await self._post("/v1/patterns", pattern) is not None

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
        client = self._client = self._client or self._connect()
        if client is None:
            return None
        try:
            answer = await client.post(path, content=body)
            answer.raise_for_status()
        except httpx.HTTPStatusError as error:
            log.warning("%s refused: %s", path, error.response.text[:300])
            return None
        except httpx.HTTPError:
            await self.close()  # look its address up again next time
            return None
        return answer

    def _connect(self) -> httpx.AsyncClient | None:
        url, token = os.environ.get("EROICA_COLLECTOR", ""), os.environ.get("EROICA_TOKEN", "")
        if not url:
            try:
                address = msgspec.json.decode((self._run / "collector.json").read_bytes(), type=dict[str, str | int])
                url, token = str(address["url"]), str(address["token"])
            except (OSError, KeyError, msgspec.DecodeError, msgspec.ValidationError):
                return None
        # the host's proxy settings are the user's, not ours
        return httpx.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=5.0, trust_env=False
        )
