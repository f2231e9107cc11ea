"""The agent's talk with a collector that refuses."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import httpx
import pytest

from eroica.agent import home as module
from eroica.agent.home import CollectorLink
from eroica.wire.address import Address, announce
from eroica.wire.places import host_name


def test_a_collector_that_knows_another_token_is_looked_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was started again listens where the old one did, so the connection alone does not tell."""
    shown: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        shown.append(request.headers["authorization"])
        return httpx.Response(200 if shown[-1] == "Bearer new" else 401)

    def client_for(url: str, token: str) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.AsyncClient(base_url=url, headers=headers, transport=httpx.MockTransport(answer))

    async def talk() -> None:
        host = host_name(os.environ)
        link = CollectorLink(tmp_path, host)
        for token, taken in (("old", "unanswered"), ("new", "taken")):
            announce(tmp_path, Address(url="http://127.0.0.1:1", token=token, pid=1, host=host), host)
            assert await link.deliver(b"") == taken
        await link.close()

    monkeypatch.setattr(module, "client_for", client_for)
    asyncio.run(talk())
    assert shown == ["Bearer old", "Bearer new"]
