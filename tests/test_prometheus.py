"""A real Prometheus finds a real collector, reads it, and its alerts fire; dashboard and rules know what exists."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from eroica.archive.store import Store
from eroica.collector.listening_sockets import Doors
from eroica.collector.scraping import Scraping
from eroica.collector.service import Collector
from eroica.model.verdict import (
    Coverage,
    Finding,
    FindingFunction,
    IterationTimes,
    Verdict,
    Waits,
)
from eroica.model.window import Window
from eroica.model.worker import Worker
from eroica.settings import Settings
from eroica.views.metrics import exposition
from eroica.wire.messages import AgentReport, WorkerStatus

MONITORING = Path(__file__).parents[1] / "docs" / "monitoring"
TOKEN = "t" * 32
NASTY = 'load "fast"\\n{x="1"}'
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="prometheus and promtool (Debian: prometheus) are not installed",
)


def slow() -> Verdict:
    cause = Finding(
        order=1, role="cause", cause="slow-data-loading", function=FindingFunction(name=NASTY, kind="python"),
        workers=(1,), scope="some", hosts=("node-1",), gain=0.38, confidence=0.97, next_step="Add loader workers.",
    )  # fmt: skip
    return Verdict(
        eroica_version="0", job="train", verdict="slow", summary="Worker 1 reads too slowly.", window=None,
        iteration=IterationTimes(baseline_ms=100.0, current_ms=138.0), findings=(cause,),
        coverage=Coverage(workers_expected=2, workers_reported=2),
        waits=Waits(total_ms=40.0, withheld_ms=2.0, blamed_ms={1: 38.0}, workers=2),
    )  # fmt: skip


def report() -> AgentReport:
    workers = tuple(
        WorkerStatus(
            worker=Worker(global_rank=rank, world_size=2, host="node-1", pid=10 + rank), state="steady", iteration=500,
            current_s=0.138, baseline_s=0.1, silent=rank == 1, silent_s=30.0 * rank,
        )
        for rank in range(2)
    )  # fmt: skip
    return AgentReport(host="node-1", pid=1, workers=workers)


@contextlib.asynccontextmanager
async def watched_job(run: Path, targets: Path) -> AsyncIterator[Scraping]:
    """A collector that has been told of a slow job, on a port of loopback."""
    settings = Settings(baseline_window=False, metrics_targets=str(targets))
    collector = Collector("train", Store(run), settings, TOKEN, lambda *_: slow())
    doors = Doors(collector, "node-1")
    collector.messages["sent"] = 1
    collector.windows.take(time.monotonic(), report())
    window = Window(window_id=1, purpose="slow", reason="slower", first_iteration=400, last_iteration=420)
    collector.windows.ledger.show(window, "done", slow())
    doors.metrics.judged(1, slow())
    await doors.open()
    try:
        yield doors.metrics
    finally:
        await doors.close()


def configuration(where: Path, run: Path, targets: Path) -> Path:
    """The example, with this test's paths and shorter pauses."""
    text = (MONITORING / "prometheus.yml").read_text()
    text = re.sub(r"(scrape_interval|evaluation_interval): \S+", r"\1: 250ms", text)
    text = text.replace("/srv/eroica/targets/*.json", f"{targets}/*.json")
    text = text.replace("credentials_file: metrics.token", f"credentials_file: {run}/metrics.token")
    assert text.count(str(where)) == 2, "the example has changed"
    path = where / "prometheus.yml"
    path.write_text(text)
    shutil.copy(MONITORING / "alerts.yml", where)
    return path


@contextlib.contextmanager
def prometheus(where: Path, config: Path) -> Iterator[str]:
    """A server with an empty store; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        "prometheus", f"--config.file={config}", f"--storage.tsdb.path={where / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn", "--scrape.discovery-reload-interval=100ms",
    ]  # fmt: skip
    with (where / "prometheus.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=where)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()
            server.wait(10)


async def until(client: httpx.AsyncClient, path: str, found: Any, **query: str) -> Any:
    """Ask until the answer is what it should be."""
    data: Any = None
    for _ in range(400):
        with contextlib.suppress(httpx.TransportError, ValueError):  # it says "Service Unavailable" while it starts
            data = (await client.get(f"/api/v1/{path}", params=query)).json().get("data")
            if data and found(data):
                return data
        await asyncio.sleep(0.05)
    raise AssertionError(f"{path} {query}: {json.dumps(data)[:2000]}")


@needs_prometheus
def test_prometheus_reads_a_collector_and_its_alerts_fire(tmp_path: Path) -> None:
    run, targets = tmp_path / "run", tmp_path / "targets"
    targets.mkdir()

    async def go(url: str) -> None:
        async with watched_job(run, targets), httpx.AsyncClient(base_url=url, trust_env=False) as client:
            alerts = await until(
                client,
                "alerts",
                lambda data: (
                    {"EroicaJobSlow"} <= {a["labels"]["alertname"] for a in data["alerts"] if a["state"] == "firing"}
                ),
            )
            [alert] = [each for each in alerts["alerts"] if each["labels"]["alertname"] == "EroicaJobSlow"]
            assert alert["annotations"]["summary"] == "train is slow: slow-data-loading on worker 1"
            assert alert["labels"]["function"] == NASTY and alert["labels"]["run"] == "train"
            seen = await until(client, "query", lambda data: data["result"], query='{run="train", worker!=""}')
            assert {each["metric"]["worker"]: each["value"][1] for each in seen["result"]} == {
                "1": "0.038",
                "other": "0",
            }
            for expression in expressions():
                await until(client, "query", lambda data: data["result"], query=expression)
            [target] = (await client.get("/api/v1/targets")).json()["data"]["activeTargets"]
            assert (target["health"], target["lastError"], target["labels"]["run"]) == ("up", "", "train")

    with prometheus(tmp_path, configuration(tmp_path, run, targets)) as url:
        asyncio.run(go(url))


@needs_prometheus
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "alerts.yml"),
        ("check", "config", "--syntax-only", "prometheus.yml"),
        ("test", "rules", "alerts_test.yml"),
        ("check", "rules", "fleet-alerts.yml"),
        ("test", "rules", "fleet-alerts_test.yml"),
    ],
)
def test_promtool_accepts_what_the_documentation_offers(arguments: tuple[str, ...]) -> None:
    checked = subprocess.run(
        ["promtool", *arguments], cwd=MONITORING, capture_output=True, text=True, timeout=60, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def dashboard() -> dict[str, Any]:
    return json.loads((MONITORING / "grafana-dashboard.json").read_bytes())


def expressions() -> list[str]:
    """Every query of the dashboard, as Grafana would send it."""
    found = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    return [each.replace("$run", "train").replace("$__rate_interval", "1m") for each in found]


def test_rules_and_dashboard_ask_only_for_what_there_is(tmp_path: Path) -> None:
    async def go() -> str:
        async with watched_job(tmp_path, tmp_path) as metrics:
            return exposition(metrics.scrape())[0].decode()

    known = set(re.findall(r"^(\w+)", asyncio.run(go()), re.MULTILINE))
    asked = " ".join((*expressions(), (MONITORING / "alerts.yml").read_text(), json.dumps(dashboard()["templating"])))
    named = set(re.findall(r"\b(?:eroica|process)_[a-z_]+\b", asked)) - {"eroica_report"}
    assert len(named) > 15 and named - known == set()
    documented = (MONITORING.parent / "metrics.md").read_text()
    ours = {name for name in known if name.startswith("eroica_")}
    assert {name for name in ours if f"`{name}`" not in documented} == set()
