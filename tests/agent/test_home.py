"""Which collector is the job's: decided from identity pages, found through the job's store, followed when it moves."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from eroica.agent import home
from eroica.agent import home as module
from eroica.agent.home import CollectorLink, Member, decide, member_of
from eroica.agent.rendezvous import KEY, MOST_BYTES, Answer, Errand, run_errand
from eroica.model.worker import Worker
from eroica.wire.address import Address, announce, read_address
from eroica.wire.messages import JobStatus, OpenReply, WorkerStatus
from eroica.wire.places import host_name, places

FAR = {"master_addr": "10.0.0.1", "master_port": 29500}


def workers(*ranks: int, world: int = 4, local: int = 2, **more: Any) -> list[Member]:
    return [Member(global_rank=rank, world_size=world, local_world_size=local, **{**FAR, **more}) for rank in ranks]


@pytest.mark.parametrize(
    ("members", "seen_s", "role"),
    [
        ([], 99, "undecided"),
        (workers(0, world=1, local=0), 0, "alone"),
        (workers(1, world=2), 0, "alone"),  # torchrun says that all are here
        (workers(0, 1, world=2, local=0), 0, "alone"),
        (workers(0), 0, "home"),
        (workers(2), 0, "undecided"),
        (workers(2, 3), 0, "away"),
        (workers(2), 11, "away"),
        (workers(0, local=0), 0, "undecided"),  # nobody knows how many are still to come
        (workers(0, local=0), 11, "home"),
        (workers(1, local=0), 11, "away"),
        (workers(0, local=0, master_addr="127.0.0.1"), 0, "alone"),
    ],
)
def test_a_host_is_home_away_or_alone(members: list[Member], seen_s: float, role: str) -> None:
    assert decide(members, seen_s) == role


@pytest.mark.parametrize("wrong", [{"master_port": 70000}, {"master_addr": "x" * 254}, {"world_size": "many"}])
def test_an_identity_that_makes_no_sense_says_nothing(wrong: dict[str, Any]) -> None:
    assert member_of({"global_rank": 0, **FAR}) == Member(global_rank=0, **FAR)  # type: ignore[arg-type]
    assert member_of({"global_rank": 0, **FAR, **wrong}) is None


class Store:
    """A TCPStore's few methods."""

    def __init__(self, **words: bytes) -> None:
        self.words: dict[str, bytes] = dict(words)

    def set(self, key: str, word: str) -> None:
        self.words[key] = word.encode()

    def get(self, key: str) -> bytes:
        return self.words[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.words for key in keys)


def errand(store: Store, done: Errand) -> Answer:
    now = [0.0]
    return run_errand(done, lambda *_: store, lambda: now[0], lambda pause: now.__setitem__(0, now[0] + pause))


def test_a_word_that_was_left_is_found_by_the_others() -> None:
    store = Store()
    nothing = errand(store, Errand(what="look_up", host="h", port=1))
    assert nothing.problem and not nothing.word
    assert errand(store, Errand(what="leave", host="h", port=1, word="here")).word == "here"
    assert errand(store, Errand(what="look_up", host="h", port=1)).word == "here"
    assert errand(store, Errand(what="look_up", host="h", port=1, not_this="here")).problem


def test_a_huge_word_is_not_taken() -> None:
    store = Store()
    store.words[KEY] = b"x" * (MOST_BYTES + 1)
    assert "bytes" in errand(store, Errand(what="look_up", host="h", port=1)).problem


class Scene:
    """A host's finder, its own collector, the job's store and the collectors that can be reached, all in memory."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
        for name in ("EROICA_COLLECTOR", "EROICA_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        self.now = 0.0
        self.where = places({"EROICA_JOB": "j", "EROICA_HOST": host, "EROICA_RUN_DIR": str(tmp_path)})
        self.where = self.where._replace(runtime=tmp_path / "runtime")
        self.where.runtime.mkdir(exist_ok=True)
        self.store = Store()
        self.errands: list[Errand] = []
        self.asked: list[tuple[str, str]] = []
        self.reachable: set[str] = set()
        self.reconnects = 0
        self.door = ""
        self.start_collector(pid=1)
        monkeypatch.setattr(home, "_ask", self._ask)
        monkeypatch.setattr(home, "outside_address", lambda _: "10.0.0.1")
        self.finder = home.HomeFinder(self.where, self._reconnect, self._errand, lambda: self.now)

    def start_collector(self, pid: int) -> None:
        self.own = Address(url=f"http://127.0.0.1:{pid}", token="t" * 20, pid=pid, host=self.where.host)
        announce(self.where.run, self.own, self.where.host)
        self.reachable.add(self.own.url)

    async def _reconnect(self) -> None:
        self.reconnects += 1

    async def _errand(self, done: Errand) -> Answer:
        self.errands.append(done)
        return errand(self.store, done)

    async def _ask(self, collector: Address, method: str, path: str, body: bytes = b"") -> bytes:
        self.asked.append((collector.url, path))
        if collector.url not in self.reachable:
            raise httpx.ConnectError("refused")
        if path == "/v1/open":
            return msgspec.msgpack.encode(OpenReply(url=self.door or f"http://10.0.0.1:{4000 + collector.pid}"))
        seen = tuple(WorkerStatus(worker=Worker(global_rank=rank), state="steady") for rank in range(4))
        return msgspec.json.encode(JobStatus(job="j", phase="", message="", workers=seen))

    def step(self, *members: Member, seconds: float = 0.5, heard: bool = True) -> None:
        self.now += seconds
        self.finder.see([msgspec.to_builtins(member) for member in members], heard)
        asyncio.run(self.finder.step())

    def leave_word(self, url: str = "http://10.0.0.9:4000") -> None:
        address = Address(url=url, token="s" * 20, pid=5, host="home")
        self.store.set(KEY, msgspec.json.encode(address).decode())


Make = Callable[[str], Scene]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    return lambda host: Scene(tmp_path, monkeypatch, host)


def test_home_opens_its_collector_leaves_word_and_waits_for_the_others(make: Make) -> None:
    scene = make("home")
    scene.step(*workers(0, 1))
    assert scene.finder.role == "home" and ("http://127.0.0.1:1", "/v1/open") in scene.asked
    word = msgspec.json.decode(scene.store.words[KEY], type=Address)
    assert (word.url, word.token, word.host) == ("http://10.0.0.1:4001", "t" * 20, "home")
    assert not scene.finder.waiting  # all four workers of the job are there
    scene.step(*workers(0, 1))
    assert len(scene.errands) == 1


def test_an_away_host_waits_then_moves_home_and_lets_its_own_collector_end(make: Make) -> None:
    scene = make("b")
    scene.step(*workers(2, 3))
    assert scene.finder.role == "away" and scene.finder.waiting and not scene.finder.away
    assert (scene.where.runtime / "away").exists()
    scene.leave_word()
    scene.reachable.add("http://10.0.0.9:4000")
    scene.step(*workers(2, 3), seconds=3)
    assert scene.finder.away and not scene.finder.waiting and scene.reconnects == 1
    assert scene.asked[-1] == ("http://127.0.0.1:1", "/v1/elsewhere")
    found = read_address(scene.where.run, "b")
    assert found is not None and found.host == "home"
    scene.finder.close()
    assert read_address(scene.where.run, "b") is None


def test_a_host_with_the_name_of_home_stays_alone_and_says_what_to_do(make: Make) -> None:
    scene = make("home")
    scene.leave_word()
    scene.reachable.add("http://10.0.0.9:4000")
    scene.step(*workers(2, 3))
    assert scene.finder.role == "alone" and not scene.finder.waiting and "EROICA_HOST" in scene.finder.notes[0]
    assert read_address(scene.where.run, "home") == scene.own


@pytest.mark.parametrize(
    "word",
    ["", "[]", '{"url": "http://10.0.0.9:1/x", "token": "ssssssssssssssssssss", "pid": 1, "host": "h"}',
     '{"url": "http://10.0.0.9:1", "token": "short", "pid": 1, "host": "h"}'],
)  # fmt: skip
def test_a_word_that_is_no_address_is_refused(make: Make, word: str) -> None:
    scene = make("b")
    scene.store.set(KEY, word)
    scene.step(*workers(2, 3))
    assert scene.finder.waiting and not scene.asked


def test_after_minutes_without_word_a_host_goes_on_alone_and_says_so(make: Make) -> None:
    scene = make("b")
    for _ in range(20):
        scene.step(*workers(2, 3), seconds=31)
    assert scene.finder.role == "alone" and not scene.finder.waiting and "EROICA_COLLECTOR" in scene.finder.notes[0]
    assert not (scene.where.runtime / "away").exists()
    assert len(scene.errands) < 15


def test_a_home_that_is_lost_is_looked_up_again_but_not_all_the_time(make: Make) -> None:
    scene = make("b")
    scene.leave_word()
    scene.reachable.add("http://10.0.0.9:4000")
    scene.step(*workers(2, 3))
    scene.step(*workers(2, 3))
    before = len(scene.errands)
    for _ in range(40):
        scene.step(*workers(2, 3), heard=False)
    assert before == 1 and 2 <= len(scene.errands) <= 6
    scene.leave_word("http://10.0.0.9:4001")
    scene.reachable.add("http://10.0.0.9:4001")
    scene.step(*workers(2, 3), seconds=31, heard=False)
    found = read_address(scene.where.run, "b")
    assert found is not None and found.url == "http://10.0.0.9:4001" and scene.reconnects == 2


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
