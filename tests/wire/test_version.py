"""Agents and collectors one version apart work together; others say in one sentence who is to be upgraded."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from eroica.agent.home import CollectorLink
from eroica.archive.store import Store
from eroica.collector.service import Collector
from eroica.settings import Settings
from eroica.wire.messages import PROTOCOL, AgentReport, CollectorReply, refusal, spoken_in

APART = "more than one release apart: upgrade "


def answer_to(tmp_path: Path, report: dict[str, Any]) -> tuple[httpx.Response, list[str]]:
    """What a collector answers, and its notes."""
    collector = Collector("j", Store(tmp_path), Settings(), "token", lambda *_: None)  # type: ignore[arg-type,return-value]

    async def ask() -> httpx.Response:
        headers = {"Authorization": "Bearer token"}
        transport = httpx.ASGITransport(app=collector.application())
        async with httpx.AsyncClient(transport=transport, base_url="http://c", headers=headers) as client:
            return await client.post("/v1/report", content=msgspec.msgpack.encode(report))

    return asyncio.run(ask()), list(collector.windows.ledger.notes)


@pytest.mark.parametrize("protocol", [None, PROTOCOL, PROTOCOL + 1])
def test_agents_of_this_release_and_those_beside_it_are_heard(tmp_path: Path, protocol: int | None) -> None:
    told = {} if protocol is None else {"protocol": protocol}
    answer, notes = answer_to(tmp_path, {"host": "h", "pid": 1, "of a later release": [1], **told})
    assert answer.status_code == 200 and not notes
    assert msgspec.msgpack.decode(answer.content, type=CollectorReply).protocol == PROTOCOL


def test_an_agent_two_releases_later_is_told_and_so_are_people_whatever_it_sends(tmp_path: Path) -> None:
    answer, notes = answer_to(tmp_path, {"host": {"renamed": True}, "protocol": PROTOCOL + 2})
    said = answer.json()["error"]
    assert answer.status_code == 426 and said.endswith(APART + "the job's collector") and notes == [said]
    assert refusal(PROTOCOL - 2, "an agent", "the job's collector").endswith(APART + "an agent")


def test_an_agent_follows_no_collector_that_is_two_releases_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    link = CollectorLink(tmp_path, "h")
    versions = [PROTOCOL + 2, PROTOCOL + 2, PROTOCOL + 1]

    async def talk() -> list[CollectorReply | None]:
        content = (msgspec.msgpack.encode({"protocol": each, "stop": True}) for each in versions)
        transport = httpx.MockTransport(lambda _: httpx.Response(200, content=next(content)))
        link._client = httpx.AsyncClient(base_url="http://127.0.0.1:1", transport=transport)
        replies = [await link.report(AgentReport(host="h", pid=1)) for _ in versions]
        await link.close()
        return replies

    with caplog.at_level(logging.WARNING, logger="eroica.agent"):
        replies = asyncio.run(talk())
    assert replies[:2] == [None, None] and replies[2] is not None and replies[2].stop
    assert [record.getMessage().endswith(APART + "this agent") for record in caplog.records] == [True]


def test_what_is_no_message_is_left_to_who_decodes_it() -> None:
    assert spoken_in(b"\xff") == spoken_in(b"") == PROTOCOL
