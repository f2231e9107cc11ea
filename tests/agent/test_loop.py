"""The agent's loop around its parts: what it does when the collector asks for a look, and when a worker ends."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from eroica.agent import loop
from eroica.agent.loop import Agent
from eroica.model.look import HostLooks
from eroica.settings import Settings
from eroica.wire import beat
from eroica.wire.messages import AgentReport, CollectorReply, OrderMessage
from eroica.wire.places import Places


def worker(place: Path) -> tuple[subprocess.Popen[bytes], beat.BeatWriter]:
    """A process that sleeps, and a beat file that says it has come to iteration 3."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    writer = beat.BeatWriter.create(place, {"global_rank": 0, "pid": process.pid, "host": "h"})
    writer.path = writer.path.rename(place / f"{process.pid}.beat")
    writer.beat(3, 3, 1, beat.STEADY, 0)
    return process, writer


class Link:
    """A collector that asks for look 4 in every answer, and takes looks at the second attempt."""

    def __init__(self) -> None:
        self.reports: list[AgentReport] = []
        self.handed: list[HostLooks] = []
        self.attempts = 0

    async def report(self, report: AgentReport) -> CollectorReply:
        self.reports.append(report)
        return CollectorReply(look=4 if report.workers else 0)

    async def hand_in(self, looks: bytes) -> bool:
        self.attempts += 1
        if self.attempts > 1:
            self.handed.append(msgspec.msgpack.decode(looks, type=HostLooks))
        return self.attempts > 1

    async def close(self) -> None:
        pass


def test_a_look_is_taken_once_and_handed_in_and_a_death_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SECOND_LOOK_S", 0.3)
    monkeypatch.setattr(loop, "_SCAN_S", 60.0)  # so that only the kernel can tell of the end
    process, _ = worker(tmp_path)
    link = Link()

    async def live() -> None:
        agent = Agent(Places("j", "h", tmp_path, tmp_path, tmp_path), Settings(), child_of_run=True, ends_job=False)
        agent._link = link  # type: ignore[assignment]
        running = asyncio.create_task(agent.run())
        end = time.monotonic() + 20
        while not link.handed and time.monotonic() < end:
            await asyncio.sleep(0.02)
        process.kill()
        while not link.reports[-1].workers[0].ended and time.monotonic() < end:
            await asyncio.sleep(0.02)
        agent.stop()
        await running

    asyncio.run(live())
    (looks,) = link.handed
    assert link.attempts == 2 and looks.look_id == 4 and looks.host == "h"
    assert [look.worker.pid for look in looks.first] == [look.worker.pid for look in looks.second] == [process.pid]
    assert looks.first[0].process.state and not looks.first[0].answered
    (last,) = link.reports[-1].workers
    assert last.ended and last.ending is not None and last.ending.number == 9 and last.ending.ago_s < 10
    process.wait()
    process.stdin.close()
    assert not (tmp_path / f"{process.pid}.beat").exists() and os.getpid()


class Steered(Link):
    """Answers in a collector's place: orders that nobody could follow, then one for a window."""

    ABSURD = (
        {"window_id": 2**63, "first_iteration": 5, "last_iteration": 9},
        {"window_id": 4, "first_iteration": -(2**63), "last_iteration": 2**64 - 1},
        {"window_id": -3, "first_iteration": 9, "last_iteration": 5},
        {"window_id": 6, "first_iteration": 5, "last_iteration": 9, "max_events": -1},
    )

    async def regret(self, *_: object) -> None:
        pass

    async def report(self, report: AgentReport) -> CollectorReply:
        self.reports.append(report)
        number = len(self.reports)
        wanted = self.ABSURD[number - 1] if number <= len(self.ABSURD) else None
        wanted = wanted or {"window_id": 7, "first_iteration": 20, "last_iteration": 24}
        serial = min(number, len(self.ABSURD) + 1)
        return CollectorReply(order=OrderMessage(serial=serial, kind="window", purpose="slow", **wanted))


def test_orders_that_nobody_could_follow_cost_the_agent_nothing(tmp_path: Path) -> None:
    process, writer = worker(tmp_path)
    link = Steered()

    async def live() -> None:
        settings = Settings(sampler="none")
        agent = Agent(Places("j", "h", tmp_path, tmp_path, tmp_path), settings, child_of_run=True, ends_job=False)
        agent._link = link  # type: ignore[assignment]
        running = asyncio.create_task(agent.run())
        end = time.monotonic() + 20
        while len(link.reports) < len(Steered.ABSURD) + 4 and time.monotonic() < end and not running.done():
            await asyncio.sleep(0.02)
        orders.append(writer.new_order())
        process.kill()  # a window is awaited as long as its worker may close it
        process.wait()
        agent.stop()
        await running

    orders: list[beat.Order | None] = []
    asyncio.run(live())
    (order,) = orders
    process.stdin.close()
    assert order is not None and (order.window_id, order.first_iteration, order.last_iteration) == (7, 20, 24)
    assert any("could not be prepared" in note for note in link.reports[-1].notes)
    assert not [path for path in tmp_path.parent.iterdir() if path != tmp_path and path.name.startswith("window-")]


@pytest.mark.parametrize(
    ("answers", "is_over", "tries"),
    [
        (["unanswered"] * 12 + ["taken"], False, 13),  # a collector that is started again
        (["refused"] * 12, False, 4),
        (["unanswered"] * 12, True, 4),  # none will be
    ],
)
def test_a_pattern_is_handed_over_again_while_a_collector_may_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[str], is_over: bool, tries: int
) -> None:
    monkeypatch.setattr(loop, "_RETRY_S", (0.0, 0.0, 0.0, 0.01))
    process, _ = worker(tmp_path)
    told: list[str] = []
    left = list(answers)

    class Deaf(Link):
        async def deliver(self, pattern: bytes) -> str:
            return left.pop(0)

        async def regret(self, window_id: int, global_rank: int, note: str) -> None:
            told.append(note)

    async def live() -> None:
        agent = Agent(Places("j", "h", tmp_path, tmp_path, tmp_path), Settings(), child_of_run=True, ends_job=False)
        agent._link = Deaf()  # type: ignore[assignment]
        agent.roster.scan()
        if is_over:
            agent.stop()
        await agent._deliver(1, 0, b"p")

    asyncio.run(live())
    process.communicate()
    assert len(answers) - len(left) == tries
    assert told == ([] if answers[-1] == "taken" else ["its pattern could not be delivered"])
