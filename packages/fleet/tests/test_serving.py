"""The service as a process: TLS, a PostgreSQL that dies and comes back, a real S3 server, alerts, its commands."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
from click.testing import CliRunner
from eroica.errors import InputError, UsageError
from support.run_directories import RunDirectory, a_verdict

from postgres import Postgres
from serving import EROICA, Serving, reporter

ENOUGH_S = 60.0


def a_run(path: Path, job: str, windows: int = 1) -> RunDirectory:
    directory = RunDirectory(path, job)
    directory.course(*[100.0] * 5)
    for window_id in range(1, windows + 1):
        directory.window(window_id, a_verdict(job, function=f"f{window_id}"))
    return directory


def verdicts(service: Serving, job: str) -> list[int]:
    run = service.ask("GET", "/v1/runs", job=job)["runs"][0]
    return sorted(line["window_id"] for line in service.ask("GET", f"/v1/runs/{run['id']}")["verdicts"])


def test_reports_travel_over_tls_and_only_to_whom_the_authority_knows(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme", reason="makes certificates: pip install trustme")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    certificate, key, ca = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(ca)
    service = Serving(tmp_path / "data", "--tls-cert", str(certificate), "--tls-key", str(key), ca=ca)
    try:
        assert service.url.startswith("https://")
        knowing = {**service.environ(), "EROICA_FLEET_CA": str(ca)}
        directory = a_run(tmp_path / "run", "tls")
        strange = {name: value for name, value in knowing.items() if name != "EROICA_FLEET_CA"}
        assert reporter(strange, directory.path, "tls").wait(ENOUGH_S) == 1
        assert "no connection" in (directory.path / "log" / "fleet.log").read_text()
        assert reporter(knowing, directory.path, "tls").wait(ENOUGH_S) == 0
    finally:
        assert service.stop() == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--listen", "0.0.0.0:0"), "in clear"),
        (("--tls-cert", "nowhere.pem"), "go together"),
        (("--tls-cert", "nowhere.pem", "--tls-key", "nowhere.pem"), "cannot be used"),
        (("--listen", "nonsense"), "HOST:PORT"),
        (("--database", "mysql://x"), "sqlite:///"),
    ],
)
def test_what_cannot_be_served_is_said_before_anything_is_made(
    tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    from eroica_fleet.serve_command import serve

    listen = () if "--listen" in options else ("--listen", "127.0.0.1:0")
    refused = CliRunner().invoke(serve, ["--data", str(tmp_path / "data"), *listen, *options]).exception
    assert isinstance(refused, UsageError)
    assert words in str(refused)


@pytest.mark.thorough
def test_a_database_that_dies_costs_time_and_nothing_else(postgres: Postgres, tmp_path: Path) -> None:
    environ = {"EROICA_FLEET_DATABASE": postgres.new_database()}
    service = Serving(tmp_path / "data", environ=environ)
    guardian = subprocess.Popen(["sleep", "600"])
    try:
        directory = a_run(tmp_path / "run", "outage")
        reporting = reporter(service.environ(), directory.path, "outage", guardian.pid)
        for window_id in range(2, 5):
            postgres.kill()
            directory.window(window_id, a_verdict("outage", function=f"f{window_id}"))
            time.sleep(1.0)
            postgres.start()
            time.sleep(0.5)
        assert httpx.get(f"{service.url}/healthz").status_code == 200
        directory.end(a_verdict("outage"))
        assert reporting.wait(ENOUGH_S) == 0
        assert verdicts(service, "outage") == [0, 1, 2, 3, 4]
    finally:
        guardian.kill()
        guardian.wait()
        service.stop()


@pytest.fixture
def s3() -> Iterator[str]:
    """The URL of an S3 server in a process of its own."""
    for name in ("s3fs", "moto.server"):
        pytest.importorskip(name, reason="no S3 server here: pip install s3fs 'moto[s3,server]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    end = time.monotonic() + ENOUGH_S
    while True:
        try:
            httpx.put(f"{url}/patterns")
            break
        except httpx.HTTPError:
            assert time.monotonic() < end
            time.sleep(0.2)
    yield url
    server.terminate()
    server.wait()


@pytest.mark.thorough
def test_patterns_go_to_s3(s3: str, tmp_path: Path) -> None:
    environ = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_ENDPOINT_URL": s3}
    service = Serving(tmp_path / "data", "--patterns", "s3://patterns/eroica", environ=environ)
    try:
        directory = a_run(tmp_path / "run", "cloud", windows=2)
        assert reporter(service.environ(), directory.path, "cloud").wait(ENOUGH_S) == 0
        listed = httpx.get(f"{s3}/patterns?list-type=2&prefix=eroica/").text
        assert listed.count(".parquet</Key>") == 2
        from eroica_fleet.pieces import PatternStore

        with pytest.MonkeyPatch.context() as patch:
            for name, value in environ.items():
                patch.setenv(name, value)
            store = PatternStore("s3://patterns/eroica")
            found = dict(store.all())
            assert len(found) == 2
            assert all(time.time() - written < 300 for written in found.values())
            assert store.read(next(iter(found))).num_rows == 8 * 5
            store.remove(next(iter(found)))
            assert len(dict(store.all())) == 1
    finally:
        service.stop()


class Chat(BaseHTTPRequestHandler):
    heard: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.heard.append(json.loads(self.rfile.read(int(self.headers["content-length"])))["text"])
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


def test_an_alert_is_sent_once_and_shown_in_metrics(tmp_path: Path) -> None:
    from eroica_fleet.database import open_database
    from eroica_fleet.fleet_command import fleet
    from eroica_fleet.pieces import PatternStore
    from filling import Filling

    chat = HTTPServer(("127.0.0.1", 0), Chat)
    threading.Thread(target=chat.serve_forever, daemon=True).start()
    service = Serving(tmp_path / "data", "--alerts-s", "0.3")
    try:
        wish = {"webhook_url": f"http://127.0.0.1:{chat.server_port}/hook"}
        service.ask("PUT", "/v1/projects/1", service.operator, wish)
        engine = open_database(f"sqlite:///{tmp_path / 'data' / 'fleet.db'}")
        filling, now = Filling(engine, PatternStore(str(tmp_path / "data" / "patterns"))), time.time()
        for number in range(3):
            filling.run(f"job{number}", now - 900, now, ["node0", "node1"], ["node1"], function="f1")
        engine.dispose()
        end = time.monotonic() + ENOUGH_S
        while not Chat.heard and time.monotonic() < end:
            time.sleep(0.2)
        time.sleep(1.5)
        assert [text for text in Chat.heard if "f1 (slow-data-loading) is slow in 3 of 3 jobs" in text] == Chat.heard[
            :1
        ]
        assert len(Chat.heard) == 1
        headers = {"Authorization": f"Bearer {service.token('read')}"}
        shown = httpx.get(f"{service.url}/metrics", headers=headers).text
        assert 'eroica_fleet_alerts{kind="function"} 1.0' in shown
        assert 'eroica_fleet_runs{state="running",verdict="slow"} 3.0' in shown
        environ = {"EROICA_FLEET": service.url, "EROICA_FLEET_TOKEN": service.token("read")}
        said = {
            name: CliRunner().invoke(fleet, [name], env=environ).output
            for name in ("alerts", "functions", "jobs", "hosts", "trends")
        }
        assert "slow in 3 of 3 jobs" in said["alerts"]
        assert "f1" in said["functions"] and "job2" in said["jobs"] and "node1" in said["hosts"]
        listed = CliRunner().invoke(fleet, ["functions", "--json"], env=environ).output
        assert json.loads(listed)["functions"][0]["jobs"] == 3
    finally:
        chat.shutdown()
        chat.server_close()
        service.stop()


def test_what_is_changed_by_hand_is_changed_by_commands(service: Serving, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    from eroica_fleet.fleet_command import fleet

    directory = a_run(tmp_path / "run", "by-hand")
    assert reporter(service.environ(), directory.path, "by-hand").wait(ENOUGH_S) == 0
    environ = {"EROICA_FLEET": service.url, "EROICA_FLEET_TOKEN": service.operator}

    def said(*words: str) -> str:
        done = CliRunner().invoke(fleet, words, env=environ, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    def listed(*words: str) -> Any:
        return json.loads(said(*words, "--json"))

    run_id = service.ask("GET", "/v1/runs", job="by-hand")["runs"][0]["id"]
    only = said("token", "watcher", "--scopes", "read").strip()
    assert service.ask("GET", "/v1/runs", only)["all"] >= 1
    assert "node7 counts anew" in said("repaired", "node7", "--note", "x")
    assert "project another is there" in said("project", "another")
    with pytest.raises(InputError, match="there are several projects: name one"):
        said("token", "nobody", "--scopes", "read")
    sees_all = said("token", "all", "--project", "*", "--scopes", "read").strip()
    assert service.ask("GET", "/v1/runs", sees_all)["all"] >= 1
    assert {one["name"]: one["project"] for one in listed("tokens")}.items() >= {"watcher": "main", "all": None}.items()
    made = said("token", "guest", "--project", "another", "--scopes", "read, report", "--days", "2").strip()
    assert service.ask("GET", "/v1/runs", made)["all"] == 0
    guest = next(one for one in listed("tokens") if one["name"] == "guest")
    assert (guest["scopes"], guest["revoked_at"]) == ("read,report", None)
    said("revoke", str(guest["id"]))
    assert "error" in service.ask("GET", "/v1/runs", made, check=False)
    said("repaired", "node1", "--project", "main", "--note", "a new fan")
    repaired = [(one["host"], one["note"]) for one in service.ask("GET", "/v1/repairs")]
    assert sorted(repaired) == [("node1", "a new fan"), ("node7", "x")]
    said("profile", str(run_id), "--seconds", "3", "--reason", "why?")
    with pytest.raises(InputError, match="asked for already"):
        said("profile", str(run_id))
    assert {"runs", "files", "orphans", "joined"} == set(listed("sweep"))
    done = {line["action"] for line in listed("audit")}
    assert done >= {"project added", "token added", "token revoked", "host repaired", "window asked for", "swept"}
    file = tmp_path / "verdicts.parquet"
    said("table", "verdicts", "--days", "2", "--out", str(file))
    assert ("f1", "slow-data-loading") in {
        (row["function"], row["cause"]) for row in pq.read_table(file).to_pylist() if row["run_id"] == run_id
    }
    environ["EROICA_FLEET_TOKEN"] = service.token("read")
    with pytest.raises(InputError, match="may not administer"):
        said("audit")
    environ["EROICA_FLEET_TOKEN"] = ""
    with pytest.raises(UsageError, match="EROICA_FLEET_TOKEN"):
        said("jobs")


@pytest.mark.jobs
@pytest.mark.thorough
def test_a_real_job_reports_its_verdict_and_trains_as_ever(service: Serving, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = Path(__file__).parents[3] / "tests" / "worker" / "programs" / "plain.py"
    training = [sys.executable, str(script), "--iterations", "900", "--pause", "0.01"]
    settings = ("expected_iteration_s=0.002", "window_s=2", "baseline_window=false", "cooldown_s=600")
    options = [word for pair in settings for word in ("--set", pair)]
    watched = [*EROICA, "run", "--job", "real", "--out", str(tmp_path / "run"), "--fleet", service.url, *options, "--"]
    environ = service.environ(EROICA_FLEET_COMMIT="abc", OMP_NUM_THREADS="1")
    environ.pop("EROICA_FLEET")
    alone = subprocess.run(training, env=environ, capture_output=True, check=True, timeout=100)
    done = subprocess.run([*watched, *training], env=environ, capture_output=True, check=True, timeout=100)
    assert done.stdout == alone.stdout, "losses differ by a bit"
    end = time.monotonic() + ENOUGH_S
    while not (found := service.ask("GET", "/v1/runs", job="real", state="over")["runs"]) and time.monotonic() < end:
        time.sleep(0.3)
    final = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert [(run["commit"], run["verdict"], run["workers"]) for run in found] == [("abc", final["verdict"], 1)]
    course = service.ask("GET", f"/v1/runs/{found[0]['id']}")
    assert len(course["times"]["at_s"]) > 5
    windows = [path.parent.name for path in (tmp_path / "run" / "windows").glob("*/verdict.json")]
    assert sorted(str(line["window_id"]) for line in course["verdicts"]) == sorted(["0", *windows])
    assert set(windows) <= set(course["pattern_workers"])
