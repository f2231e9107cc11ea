"""Where a collector listens: loopback, the network when asked from its own host, nowhere without a token."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import msgspec
import pytest

from eroica.archive.store import Store
from eroica.collector.listening_sockets import Doors, former_door, named_door
from eroica.collector.service import Collector
from eroica.errors import InputError, UsageError
from eroica.model.verdict import Verdict
from eroica.settings import Settings
from eroica.wire.address import Address, Endpoint, announce_to_all, listening, outside_address, read_address
from eroica.wire.messages import OpenReply, OpenRequest

TOKEN = "t" * 20
HOME = Address(url="http://10.0.0.1:5", token="s" * 20, pid=5, host="home")


def never(*_: object) -> Verdict:
    raise AssertionError


def with_doors(
    run: Path, work: Callable[[Doors, Collector, str], Awaitable[None]], door: Endpoint | None = None
) -> None:
    async def together() -> None:
        collector = Collector("j", Store(run), Settings(), TOKEN, never)
        doors = Doors(collector, "a")
        await doors.open(door)
        address = read_address(run, "a")
        assert address is not None
        try:
            await work(doors, collector, address.url)
        finally:
            await doors.close()

    asyncio.run(together())


async def ask(url: str, path: str, body: msgspec.Struct | None = None, token: str = TOKEN) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, headers={"Authorization": f"Bearer {token}"}) as client:
        if body is None:
            return await client.get(url + path)
        return await client.post(url + path, content=msgspec.msgpack.encode(body))


def test_it_listens_on_loopback_until_it_closes(tmp_path: Path) -> None:
    async def work(doors: Doors, collector: Collector, url: str) -> None:
        assert url.startswith("http://127.0.0.1:")
        assert (await ask(url, "/v1/status")).status_code == 200

    with_doors(tmp_path, work)
    assert read_address(tmp_path, "a") is None


def test_asked_from_its_own_host_it_opens_a_second_door_once_and_says_where(tmp_path: Path) -> None:
    async def work(doors: Doors, collector: Collector, url: str) -> None:
        answers = [await ask(url, "/v1/open", OpenRequest(host="127.0.0.2")) for _ in range(2)]
        opened = [msgspec.msgpack.decode(answer.content, type=OpenReply).url for answer in answers]
        assert opened[0] == opened[1] and opened[0].startswith("http://127.0.0.2:")
        assert (await ask(opened[0], "/v1/status")).status_code == 200
        assert f'"{opened[0]}"' in (tmp_path / "collector.json").read_text()
        assert (await ask(opened[0], "/v1/status", token="wrong" * 5)).status_code == 401

    with_doors(tmp_path, work)


@pytest.mark.parametrize("path", ["/v1/open", "/v1/elsewhere"])
def test_without_the_token_no_door_moves(tmp_path: Path, path: str) -> None:
    async def work(doors: Doors, collector: Collector, url: str) -> None:
        for token in ("t", "x" * 20):
            assert (await ask(url, path, OpenRequest(host="127.0.0.2"), token)).status_code == 401
        assert not collector.finished.is_set()

    with_doors(tmp_path, work)


@pytest.mark.parametrize("body", [OpenRequest(host="192.0.2.7"), OpenRequest(host="x" * 5000), HOME])
def test_an_address_that_is_none_of_ours_is_refused(tmp_path: Path, body: msgspec.Struct) -> None:
    async def work(doors: Doors, collector: Collector, url: str) -> None:
        assert (await ask(url, "/v1/open", body)).status_code == 400

    with_doors(tmp_path, work)


def test_sent_elsewhere_it_ends_without_a_verdict_and_points_there(tmp_path: Path) -> None:
    async def work(doors: Doors, collector: Collector, url: str) -> None:
        assert (await ask(url, "/v1/elsewhere", HOME)).status_code == 204
        assert doors.elsewhere.is_set() and collector.final is None and not collector.finished.is_set()

    with_doors(tmp_path, work)
    assert read_address(tmp_path, "a") == HOME and not (tmp_path / "verdict.json").exists()


def test_a_named_door_is_open_from_the_start(tmp_path: Path) -> None:
    with listening(Endpoint("127.0.0.2", 0)) as free:
        door = Endpoint("127.0.0.2", free.getsockname()[1])

    async def work(doors: Doors, collector: Collector, url: str) -> None:
        assert (await ask(door.url, "/v1/status")).status_code == 200
        known = msgspec.json.decode((tmp_path / "collector.json").read_bytes(), type=Address)
        assert known.url == door.url and read_address(tmp_path, "a") != known

    with_doors(tmp_path, work, door)


def test_after_a_death_the_next_one_listens_where_other_hosts_knew_it(tmp_path: Path) -> None:
    with listening(Endpoint("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    died = Address(url=f"http://{outside_address()}:{port}", token=TOKEN, pid=1, host="a")
    announce_to_all(tmp_path, died)
    assert former_door(tmp_path, "a") == (Endpoint(outside_address(), port), TOKEN)
    assert former_door(tmp_path, "b") is None
    announce_to_all(tmp_path, Address(url=f"http://127.0.0.1:{port}", token=TOKEN, pid=1, host="a"))
    assert former_door(tmp_path, "a") is None


def test_variables_name_a_door_only_with_a_token() -> None:
    assert named_door({}) is None
    assert named_door({"EROICA_COLLECTOR": "http://n0:5", "EROICA_TOKEN": TOKEN}) == (Endpoint("n0", 5), TOKEN)
    with pytest.raises(UsageError, match="EROICA_TOKEN"):
        named_door({"EROICA_COLLECTOR": "http://n0:5"})
    with pytest.raises(InputError):
        named_door({"EROICA_COLLECTOR": "n0", "EROICA_TOKEN": TOKEN})
