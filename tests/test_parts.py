"""Parts of other packages: what they tell goes through, and one that fails is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.core import GaugeMetricFamily
from starlette.testclient import TestClient

from eroica import parts
from eroica.agent.loop import Agent
from eroica.archive.store import Store
from eroica.collector.scraping import Scraping
from eroica.collector.service import Collector
from eroica.parts import Parts
from eroica.settings import Settings
from eroica.wire.messages import AgentReport
from eroica.wire.places import Places


class Good:
    """A part of either kind."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self.ticks, self.closed, self.ran = 0, False, False

    async def run(self) -> None:
        self.ran = True

    def take(self) -> bytes:
        return b"news"

    def reported(self, host: str, record: bytes) -> None:
        self.heard.append((host, record))

    def tick(self) -> None:
        self.ticks += 1

    def metrics(self) -> list[GaugeMetricFamily]:
        return [GaugeMetricFamily("of_a_part", "Text.", value=3)]

    async def close(self, patience_s: float) -> None:
        self.closed = True


class Bad:
    """A part that fails in whatever it is asked for."""

    def __getattr__(self, name: str) -> Callable[..., object]:
        raise RuntimeError(f"no {name}")


class Large(Good):
    def take(self) -> bytes:
        return bytes(parts.MOST_BYTES + 1)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Names to what their entry points make; an exception is raised."""
    made: dict[str, Any] = {}

    def load(entry: EntryPoint) -> Callable[[object], Any]:
        def make(host: object) -> Any:
            if isinstance(made[entry.name], Exception):
                raise made[entry.name]
            return made[entry.name]

        return make

    monkeypatch.setattr(EntryPoint, "load", load)
    monkeypatch.setattr(parts, "entry_points", lambda group: [EntryPoint(name, "m:o", group) for name in made])
    return made


def test_a_part_that_fails_is_dropped_with_one_note_and_others_go_on(installed: dict[str, Any]) -> None:
    good, notes = Good(), list[str]()
    installed |= {"bad": Bad(), "good": good, "off": None, "broken": ImportError("no module named x")}
    made = Parts("eroica.collector", object(), notes.append)
    for _ in range(3):
        made.call("tick")
    asyncio.run(made.call_async("close", 1.0))
    assert (good.ticks, good.closed) == (3, True)
    assert notes == ["broken is off: ImportError: no module named x", "bad is off: RuntimeError: no tick"]


def test_an_agents_report_carries_what_its_parts_take_unless_it_is_too_large(
    tmp_path: Path, installed: dict[str, Any]
) -> None:
    installed |= {"good": Good(), "bad": Bad(), "large": Large()}
    agent = Agent(Places("j", "h", tmp_path, tmp_path, tmp_path), Settings(), child_of_run=True, ends_job=False)
    asyncio.run(agent._parts.call_async("run"))
    report = agent._report()
    assert installed["good"].ran and report.parts == {"good": b"news"}
    assert any(note.startswith("bad is off") for note in report.notes)


def test_the_collectors_part_of_this_name_hears_it_and_its_metrics_stand_beside_the_jobs(
    tmp_path: Path, installed: dict[str, Any]
) -> None:
    good, other = Good(), Good()
    installed |= {"good": good, "other": other, "bad": Bad()}
    collector = Collector("j", Store(tmp_path), Settings(), "t" * 20, lambda *_: pytest.fail("no window"))
    report = AgentReport(host="a", pid=1, parts={"good": b"news", "bad": b"", "nobody": b"x"})
    client = TestClient(collector.application(), headers={"Authorization": f"Bearer {'t' * 20}"})
    assert client.post("/v1/report", content=msgspec.msgpack.encode(report)).status_code == 200
    assert (good.heard, other.heard) == ([("a", b"news")], [])
    assert good.ticks == 1
    scrape = Scraping(collector, "a").scrape()
    assert [one.name for one in scrape.more] == ["of_a_part", "of_a_part"]
    assert any(note.startswith("bad is off") for note in collector.windows.ledger.notes)
