"""Where a collector listens, never without a token; who may read the metrics, and what Prometheus finds."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from eroica.archive.store import Store
from eroica.collector.listening_sockets import Doors, former_door, named_door
from eroica.collector.service import Collector
from eroica.errors import InputError, UsageError
from eroica.model.verdict import Verdict, VerdictWord
from eroica.model.window import Window
from eroica.model.worker import Worker
from eroica.settings import Settings
from eroica.wire.address import Address, Endpoint, announce_to_all, listening, outside_address, read_address
from eroica.wire.messages import AgentReport, OpenReply, OpenRequest, WorkerStatus
from support.verdicts import plain

TOKEN = "t" * 32
OWN = "m" * 20
ELSEWHERE = Address(url="http://10.0.0.1:5", token="h" * 20, pid=5, host="home")
Script = Callable[["Scene"], Awaitable[None]]


class Scene:
    """A collector with open doors."""

    def __init__(self, run: Path, **settings: Any) -> None:
        self.run = run
        chosen = Settings(baseline_window=False, **settings)
        self.collector = Collector("train", Store(run), chosen, TOKEN, lambda *_: verdict("slow"))
        self.doors = Doors(self.collector, "a")
        self.metrics = self.doors.metrics

    @property
    def inside(self) -> str:
        return msgspec.json.decode((self.run / "hosts" / "a.json").read_bytes(), type=Address).url

    @property
    def target(self) -> dict[str, Any]:
        [target] = json.loads((self.run / "prometheus.json").read_bytes())
        return target

    async def ask(self, token: str, path: str = "/metrics", url: str = "", method: str = "GET") -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False) as client:
            headers = {"Authorization": f"Bearer {token}".encode()} if token else {}
            return await client.request(method, (url or self.inside) + path, headers=headers)

    async def order(self, path: str, body: msgspec.Struct, token: str = TOKEN) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False, headers={"Authorization": f"Bearer {token}"}) as client:
            return await client.post(self.inside + path, content=msgspec.msgpack.encode(body))

    def show(self, window_id: int, phase: str, judged: Verdict | None) -> None:
        window = Window(window_id=window_id, purpose="slow", reason="", first_iteration=1, last_iteration=2)
        self.collector.windows.ledger.show(window, phase, judged)


def verdict(word: VerdictWord) -> Verdict:
    return plain(word, job="train")


def play(run: Path, script: Script, door: Endpoint | None = None, **settings: Any) -> Scene:
    async def go() -> Scene:
        scene = Scene(run, **settings)
        await scene.doors.open(door)
        try:
            await script(scene)
        finally:
            await scene.doors.close()
        return scene

    return asyncio.run(go())


def test_prometheus_finds_address_and_token_until_the_collector_ends(tmp_path: Path) -> None:
    async def script(scene: Scene) -> None:
        assert scene.target == {"targets": [scene.inside.removeprefix("http://")], "labels": {"run": "train"}}
        token = (tmp_path / "metrics.token").read_text()
        answer = await scene.ask(token, url=f"http://{scene.target['targets'][0]}")
        assert answer.status_code == 200 and 'eroica_job_info{run="train"' in answer.text
        assert stat.S_IMODE((tmp_path / "metrics.token").stat().st_mode) == 0o600 and token != TOKEN

    play(tmp_path, script)
    assert not (tmp_path / "prometheus.json").exists() and not (tmp_path / "metrics.token").exists()


def test_its_token_opens_the_metrics_and_nothing_else(tmp_path: Path) -> None:
    async def script(scene: Scene) -> None:
        for path in ("/v1/status", "/v1/report", "/metrics/", "/"):
            assert (await scene.ask(OWN, path)).status_code in (401, 404)
        assert [(await scene.ask(token)).status_code for token in (OWN, TOKEN)] == [200, 200]
        assert (await scene.ask(OWN, method="POST")).status_code == 405
        for token in ("", OWN[:-1], f"{OWN}x", "é" * 20):
            assert (await scene.ask(token)).status_code == 401
        assert (await scene.ask("")).text == (await scene.ask("", "/v1/report")).text

    play(tmp_path, script, metrics_token=OWN)


def test_an_address_of_its_own_answers_metrics_only(tmp_path: Path) -> None:
    async def script(scene: Scene) -> None:
        url = f"http://{scene.target['targets'][0]}"
        assert url.startswith("http://127.0.0.2:") and url != scene.inside
        assert (await scene.ask(OWN, url=url)).status_code == 200
        for token in (TOKEN, OWN, ""):
            assert (await scene.ask(token, "/v1/status", url)).status_code == 401
        assert (await scene.ask("", url=url)).status_code == 401

    play(tmp_path, script, metrics_listen="127.0.0.2:0", metrics_token=OWN)


@pytest.mark.parametrize("where", ["192.0.2.7:0", "nonsense", "127.0.0.1:99999", "a b:1", "127.0.0.1:taken"])
def test_an_address_that_cannot_be_had_is_a_note(tmp_path: Path, where: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        where = where.replace("taken", str(other.getsockname()[1]))

        async def script(scene: Scene) -> None:
            assert any("metrics are not to be had" in note for note in scene.collector.windows.ledger.notes)
            assert scene.target["targets"] == [scene.inside.removeprefix("http://")]

        play(tmp_path, script, metrics_listen=where)


def test_a_door_for_other_hosts_is_the_better_target(tmp_path: Path) -> None:
    async def script(scene: Scene) -> None:
        assert (await scene.order("/v1/open", OpenRequest(host="127.0.0.3"))).status_code == 200
        assert scene.target["targets"][0].startswith("127.0.0.3:")

    play(tmp_path, script)


def test_targets_of_many_jobs_lie_in_one_directory_for_everybody_to_read(tmp_path: Path) -> None:
    targets = tmp_path / "targets"
    targets.mkdir()

    async def script(scene: Scene) -> None:
        [path] = targets.iterdir()
        assert path.name == "train@a.json" and path.read_bytes() == (scene.run / "prometheus.json").read_bytes()
        assert stat.S_IMODE(path.stat().st_mode) == 0o644

    play(tmp_path / "run", script, metrics_targets=str(targets))
    assert list(targets.iterdir()) == []


def test_where_hosts_share_the_directory_only_the_jobs_collector_is_a_target(tmp_path: Path) -> None:
    announce_to_all(tmp_path, ELSEWHERE)

    async def script(scene: Scene) -> None:
        assert not (tmp_path / "prometheus.json").exists()

    play(tmp_path, script)


def test_the_newest_verdict_that_holds_is_shown_and_at_last_the_final_one(tmp_path: Path) -> None:
    async def script(scene: Scene) -> None:
        def shown() -> str | None:
            judged = scene.metrics.scrape().verdict
            return None if judged is None else judged.verdict

        report = AgentReport(
            host="a", pid=1, workers=(WorkerStatus(worker=Worker(global_rank=0, pid=7), state="steady", iteration=9),)
        )
        scene.collector.windows.take(0.0, report)
        assert shown() is None and scene.metrics.scrape().report_ages_s.keys() == {"a"}
        scene.show(1, "done", verdict("slow"))
        scene.metrics.judged(1, verdict("slow"))
        assert shown() == "slow" and scene.metrics.scrape().verdict_at
        scene.show(2, "done", verdict("blocked"))
        assert shown() == "blocked"
        scene.show(2, "passed", verdict("blocked"))
        assert shown() == "slow"
        scene.collector.end_job()
        await asyncio.wait_for(scene.collector.run(0.01), 5)
        assert scene.collector.final is not None and scene.metrics.scrape().verdict is scene.collector.final

    play(tmp_path, script)


def test_it_listens_on_loopback_until_it_closes(tmp_path: Path) -> None:
    async def script(scene: Scene) -> None:
        assert scene.inside.startswith("http://127.0.0.1:")
        assert (await scene.ask(TOKEN, "/v1/status")).status_code == 200

    play(tmp_path, script)
    assert read_address(tmp_path, "a") is None


def test_asked_from_its_own_host_it_opens_a_second_door_once_and_says_where(tmp_path: Path) -> None:
    async def script(scene: Scene) -> None:
        answers = [await scene.order("/v1/open", OpenRequest(host="127.0.0.2")) for _ in range(2)]
        opened = [msgspec.msgpack.decode(answer.content, type=OpenReply).url for answer in answers]
        assert opened[0] == opened[1] and opened[0].startswith("http://127.0.0.2:")
        assert (await scene.ask(TOKEN, "/v1/status", opened[0])).status_code == 200
        assert f'"{opened[0]}"' in (tmp_path / "collector.json").read_text()
        assert (await scene.ask("wrong" * 5, "/v1/status", opened[0])).status_code == 401

    play(tmp_path, script)


@pytest.mark.parametrize("path", ["/v1/open", "/v1/elsewhere"])
def test_without_the_token_no_door_moves(tmp_path: Path, path: str) -> None:
    async def script(scene: Scene) -> None:
        for token in ("t", "x" * 20):
            assert (await scene.order(path, OpenRequest(host="127.0.0.2"), token)).status_code == 401
        assert not scene.collector.finished.is_set()

    play(tmp_path, script)


@pytest.mark.parametrize("body", [OpenRequest(host="192.0.2.7"), OpenRequest(host="x" * 5000), ELSEWHERE])
def test_an_address_that_is_none_of_ours_is_refused(tmp_path: Path, body: msgspec.Struct) -> None:
    async def script(scene: Scene) -> None:
        assert (await scene.order("/v1/open", body)).status_code == 400

    play(tmp_path, script)


def test_sent_elsewhere_it_ends_without_a_verdict_and_points_there(tmp_path: Path) -> None:
    async def script(scene: Scene) -> None:
        assert (await scene.order("/v1/elsewhere", ELSEWHERE)).status_code == 204
        assert (
            scene.doors.elsewhere.is_set() and scene.collector.final is None and not scene.collector.finished.is_set()
        )

    play(tmp_path, script)
    assert read_address(tmp_path, "a") == ELSEWHERE and not (tmp_path / "verdict.json").exists()


def test_a_named_door_is_open_from_the_start(tmp_path: Path) -> None:
    with listening(Endpoint("127.0.0.2", 0)) as free:
        door = Endpoint("127.0.0.2", free.getsockname()[1])

    async def script(scene: Scene) -> None:
        assert (await scene.ask(TOKEN, "/v1/status", door.url)).status_code == 200
        known = msgspec.json.decode((tmp_path / "collector.json").read_bytes(), type=Address)
        assert known.url == door.url and read_address(tmp_path, "a") != known

    play(tmp_path, script, door)


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
