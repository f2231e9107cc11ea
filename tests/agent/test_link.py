"""The agent's talk with a collector that refuses."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import httpx
import pytest

from eroica.agent.link import CollectorLink


def test_a_refusal_is_logged_once_until_it_is_accepted_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    answers = [401, 401, 401, 204, 401]
    link = CollectorLink(tmp_path)

    async def talk() -> None:
        transport = httpx.MockTransport(lambda _: httpx.Response(answers.pop(0), text="no"))
        link._client = httpx.AsyncClient(base_url="http://127.0.0.1:1", transport=transport)
        while answers:
            await link.deliver(b"")
        await link.close()

    with caplog.at_level(logging.WARNING, logger="eroica.agent"):
        asyncio.run(talk())
    assert [record.getMessage() for record in caplog.records] == ["/v1/patterns refused: no"] * 2
