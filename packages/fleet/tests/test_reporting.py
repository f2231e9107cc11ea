"""From a run directory into the service: real processes, and whoever is killed, nothing is lost or doubled."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from eroica.archive.forget import forget
from eroica.fleet.reporting import reporter as reporter_module
from eroica.fleet.reporting import spool as spool_module
from eroica.fleet.reporting.reporter import Reporter, close_run
from eroica.fleet.reporting.spool import Spool
from eroica.settings import load_settings
from eroica.wire.places import write_whole
from support.run_directories import RunDirectory, a_verdict

from serving import EROICA, Serving, command, reporter

ENOUGH_S = 60.0


def report(service: Serving, directory: RunDirectory, project: str = "main", **more: str) -> None:
    """Report what lies there, to the end."""
    process = reporter(service.environ(project, **more), directory.path, directory.job)
    assert process.wait(ENOUGH_S) == 0


def only_run(service: Serving, job: str) -> dict:
    found = service.ask("GET", "/v1/runs", job=job)["runs"]
    assert len(found) == 1, found
    return service.ask("GET", f"/v1/runs/{found[0]['id']}")


def test_a_run_arrives_whole(service: Serving, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run", "whole")
    directory.course(*[100.0] * 30, *[140.0] * 20)
    directory.window(1, None)
    directory.window(2, a_verdict("whole"))
    directory.end(a_verdict("whole", summary="In the end: read_block."))
    report(service, directory, EROICA_FLEET_COMMIT="abc123")
    course = only_run(service, "whole")
    run = course["run"]
    assert (run["state"], run["verdict"], run["cause"]) == ("over", "slow", "slow-data-loading")
    assert run["summary"] == "In the end: read_block."
    assert (run["commit"], run["workers"], run["hosts"], run["iteration"]) == ("abc123", 8, 2, 50)
    assert course["times"]["mean_ms"] == directory.means
    assert run["spark"] == directory.means[-60:]
    assert [line["window_id"] for line in course["verdicts"]] in ([0, 2], [2, 0])
    assert course["pattern_workers"] == {"1": 8, "2": 8}
    assert course["names"] == ["node0", "node1"]
    whole = service.ask("GET", f"/v1/runs/{run['id']}/windows/2")
    assert whole["findings"][0]["function"]["name"] == "read_block"
    assert Spool(directory.path).is_empty()


def test_what_was_handed_over_is_not_sent_again(service: Serving, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run", "again")
    directory.course(100.0, 101.0)
    directory.window(1, a_verdict("again"))
    report(service, directory)
    before = only_run(service, "again")
    report(service, directory)  # the run is not over: another collector may come
    directory.course(102.0)
    directory.end(a_verdict("again"))
    report(service, directory)
    after = only_run(service, "again")
    assert before["times"]["at_s"] == [1.0, 2.0]
    assert after["times"]["at_s"] == [1.0, 2.0, 3.0]
    assert len(after["verdicts"]) == 2


def test_without_a_service_everything_waits_and_is_handed_over_later(service: Serving, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run", "later")
    directory.course(*[100.0] * 20, 103.0)
    directory.window(1, a_verdict("later"))
    directory.end(a_verdict("later"))
    long_ago(directory)
    nobody = {**service.environ(), "EROICA_FLEET": "http://127.0.0.1:9"}
    assert reporter(nobody, directory.path, "later").wait(ENOUGH_S) == 1
    assert not Spool(directory.path).is_empty()
    close_run(directory.path)  # the next job of this name begins, and what the collector kept is forgotten
    forget(directory.store.run)
    said = command(service.environ(), "fleet", "send", str(tmp_path))
    assert "1 runs handed over" in said
    course = only_run(service, "later")
    assert sorted(line["window_id"] for line in course["verdicts"]) == [0, 1]
    assert course["pattern_workers"] == {"1": 8}
    assert_told_to_its_end(course, directory)
    directory.window(1, a_verdict("later", function="another"))
    report(service, directory)
    assert len(service.ask("GET", "/v1/runs", job="later")["runs"]) == 2


def long_ago(directory: RunDirectory) -> None:
    """As if its collector had written all of it an hour ago."""
    for name in ("status.json", "history.json", "verdict.json"):
        with contextlib.suppress(FileNotFoundError):
            os.utime(directory.path / name, (time.time() - 3600,) * 2)


def assert_told_to_its_end(course: dict, directory: RunDirectory) -> None:
    run = course["run"]
    assert course["times"]["mean_ms"] == directory.means
    assert course["names"] == ["node0", "node1"]
    assert (run["workers"], run["hosts"], run["best_ms"]) == (8, 2, 100.0)
    assert 3500 < time.time() - run["heard_at"] < 3700


@pytest.mark.parametrize("is_over", [True, False], ids=["over", "killed"])
def test_another_jobs_reporter_hands_over_times_hosts_and_the_end_too(
    service: Serving, tmp_path: Path, is_over: bool
) -> None:
    name = f"away-{is_over}"
    away, beside = RunDirectory(tmp_path / "away", name), RunDirectory(tmp_path / "beside", f"{name}-beside")
    away.course(*[100.0] * 20)
    away.window(1, a_verdict(name))
    if is_over:
        away.end(a_verdict(name))
    long_ago(away)
    nobody = {**service.environ(), "EROICA_FLEET": "http://127.0.0.1:9"}
    assert reporter(nobody, away.path, name).wait(ENOUGH_S) == 1
    (away.path / "fleet" / "whose").unlink()  # it tried another address
    beside.end(a_verdict(beside.job))
    report(service, beside)
    course = only_run(service, name)
    assert_told_to_its_end(course, away)
    assert course["run"]["state"] == ("over" if is_over else "lost")
    report(service, beside)  # nothing is new
    assert only_run(service, name)["run"]["heard_at"] == course["run"]["heard_at"]


def test_a_second_run_in_a_directory_that_nobody_closed_is_another_one(service: Serving, tmp_path: Path) -> None:
    first = RunDirectory(tmp_path / "run", "same", began=time.time() - 500)
    first.course(*[100.0] * 20)
    first.window(1, a_verdict("same", function="first"))
    first.end(a_verdict("same", function="first"))
    report(service, first)
    second = RunDirectory(tmp_path / "run", "same", began=time.time())
    second.course(*[50.0] * 20)
    guardian = subprocess.Popen(["sleep", "600"])
    try:
        reporting = reporter(service.environ(), second.path, "same", guardian.pid)
        deadline = time.monotonic() + 20
        while len(service.ask("GET", "/v1/runs", job="same")["runs"]) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        second.window(1, a_verdict("same", function="second"))
        second.end(a_verdict("same", function="second"))
        assert reporting.wait(ENOUGH_S) == 0
    finally:
        guardian.kill()
        guardian.wait()
    found = service.ask("GET", "/v1/runs", job="same")["runs"]
    courses = [service.ask("GET", f"/v1/runs/{run['id']}") for run in sorted(found, key=lambda run: run["began_at"])]
    assert [course["times"]["mean_ms"] for course in courses] == [[100.0] * 20, [50.0] * 20]
    for course, word in zip(courses, ("first", "second"), strict=True):
        assert course["run"]["state"] == "over"
        assert {line["window_id"]: line["function"] for line in course["verdicts"]} == {0: word, 1: word}


def test_a_disk_that_is_full_for_a_while_costs_rounds_and_not_the_report(
    service: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDirectory(tmp_path / "run", "full")
    directory.course(*[100.0] * 20)
    directory.window(1, a_verdict("full"))
    for name, value in service.environ().items():
        monkeypatch.setenv(name, value)
    guardian = subprocess.Popen(["sleep", "600"])
    begun, full = Spool(directory.path), threading.Event()
    full.set()

    def written(path: Path, data: bytes, *, on_disk: bool = False) -> None:
        if full.is_set():
            refused.append(path.name)
            raise OSError(errno.ENOSPC, "No space left on device")
        write_whole(path, data, on_disk=on_disk)

    refused: list[str] = []
    monkeypatch.setattr(spool_module, "write_whole", written)
    monkeypatch.setattr(reporter_module, "_POLL_S", 0.05)
    try:
        with ThreadPoolExecutor(1) as threads:
            working = threads.submit(Reporter(directory.path, "full", "node0", load_settings(), guardian.pid).work)
            wait_for(lambda: len(refused) > 2)
            full.clear()
            wait_for(lambda: bool(service.ask("GET", "/v1/runs", job="full")["runs"]))
            full.set()
            at = len(refused)
            directory.course(*[100.0] * 20)
            directory.end(a_verdict("full"))
            wait_for(lambda: len(refused) > at + 2)
            full.clear()
            assert working.result(ENOUGH_S)
    finally:
        full.clear()
        guardian.kill()
        guardian.wait()
    course = only_run(service, "full")
    assert course["run"]["state"] == "over"
    assert course["times"]["mean_ms"] == directory.means
    assert {line["window_id"] for line in course["verdicts"]} == {0, 1}
    assert begun.is_empty()


def test_what_could_not_be_packed_is_waited_for_though_all_else_is_told(
    service: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full while the last verdict is packed, and has room again when the end is told."""
    directory = RunDirectory(tmp_path / "run", "late")
    directory.course(*[100.0] * 20)
    directory.end(a_verdict("late"))
    for name, value in service.environ().items():
        monkeypatch.setenv(name, value)
    packed, left = reporter_module.Packer.pack, [3]

    def pack(self: reporter_module.Packer, *rest: object, **named: object) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        packed(self, *rest, **named)

    monkeypatch.setattr(reporter_module.Packer, "pack", pack)
    monkeypatch.setattr(reporter_module, "_POLL_S", 0.05)
    guardian = subprocess.Popen(["sleep", "600"])
    try:
        assert Reporter(directory.path, "late", "node0", load_settings(), guardian.pid).work()
    finally:
        guardian.kill()
        guardian.wait()
    assert {line["window_id"] for line in only_run(service, "late")["verdicts"]} == {0}


@pytest.mark.parametrize("is_by_hand", [True, False])
def test_whoever_leaves_with_something_unpacked_says_that_it_waits(
    service: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_by_hand: bool
) -> None:
    directory = RunDirectory(tmp_path / "run", "kept")
    directory.course(*[100.0] * 20)
    directory.end(a_verdict("kept"))
    for name, value in (service.environ() | {"EROICA_FLEET_PATIENCE_S": "0"}).items():
        monkeypatch.setenv(name, value)

    def pack(*rest: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(reporter_module.Packer, "pack", pack)
    ended = subprocess.Popen(["true"])
    ended.wait()
    reporter = Reporter(directory.path, "kept", "node0", load_settings(), 0 if is_by_hand else ended.pid)
    assert not reporter.work()


def test_a_reporter_without_a_collector_does_not_wait_for_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDirectory(tmp_path / "run", "full")
    directory.course(100.0)
    monkeypatch.setenv("EROICA_FLEET", "http://127.0.0.1:9")
    monkeypatch.setattr(reporter_module, "_POLL_S", 0.01)
    looks: list[Path] = []

    def refused(path: Path, *_: object, **__: object) -> None:
        looks.append(path)
        assert len(looks) < 10, "it goes on"
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(spool_module, "write_whole", refused)
    assert not Reporter(directory.path, "full", "node0", load_settings(), 0).work()
    assert len(looks) == 1


def wait_for(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ENOUGH_S
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("windows", [4, pytest.param(24, marks=pytest.mark.thorough)])
def test_nothing_is_lost_or_doubled_whoever_is_killed(tmp_path: Path, windows: int) -> None:
    """Reporter and service are killed at random moments while a run fills its directory, window by window."""
    chance = random.Random(7)
    service = Serving(tmp_path / "data")
    directory = RunDirectory(tmp_path / "run", "killed")
    environ = {**service.environ(), "EROICA_FLEET_REPORT_S": "0.3"}
    guardian = subprocess.Popen(["sleep", "600"])  # in the collector's place
    reporting, kills = None, [0, 0]
    try:
        for window_id in range(1, windows + 1):
            directory.course(*[100.0 + window_id] * 5)
            directory.window(window_id, a_verdict("killed", function=f"f{window_id}"), workers=80)
            if reporting is None or reporting.poll() is not None:
                reporting = reporter(environ, directory.path, "killed", guardian.pid)
            time.sleep(chance.uniform(0.1, 1.2))
            if window_id % 2 == 0:
                reporting.send_signal(signal.SIGKILL)
                reporting.wait()
                kills[0] += 1
            if window_id % 3 == 0:
                service.kill()
                service.start()
                kills[1] += 1
        directory.end(a_verdict("killed"))
        reporting = reporter(environ, directory.path, "killed", guardian.pid)
        assert reporting.wait(ENOUGH_S) == 0
        course = only_run(service, "killed")
        assert sorted(line["window_id"] for line in course["verdicts"]) == list(range(windows + 1))
        assert course["pattern_workers"] == {str(window_id): 80 for window_id in range(1, windows + 1)}
        assert course["times"]["mean_ms"] == directory.means
        assert kills == [windows // 2, windows // 3]
        assert rows_in_files(tmp_path / "data") == windows * 80 * 5
    finally:
        guardian.kill()
        guardian.wait()
        service.stop()


def rows_in_files(data: Path) -> int:
    """Rows of all files that the database names."""
    import pyarrow.parquet as pq
    import sqlalchemy as sa

    engine = sa.create_engine(f"sqlite:///{data / 'fleet.db'}")
    with engine.connect() as connection:
        paths = connection.execute(sa.text("select path from pattern_files")).scalars().all()
    engine.dispose()
    return sum(pq.read_metadata(data / "patterns" / path).num_rows for path in paths)


def test_a_reporter_makes_room_for_that_of_a_newer_collector(service: Serving, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run", "two")
    directory.course(100.0)
    collectors = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    try:
        first = reporter(service.environ(), directory.path, "two", collectors[0].pid)
        deadline = time.monotonic() + 20
        while not service.ask("GET", "/v1/runs", job="two")["runs"] and time.monotonic() < deadline:
            time.sleep(0.1)
        second = reporter(service.environ(), directory.path, "two", collectors[1].pid)
        assert first.wait(ENOUGH_S) == 0
        assert second.poll() is None
        directory.end(a_verdict("two"))
        assert second.wait(ENOUGH_S) == 0
        assert only_run(service, "two")["run"]["state"] == "over"
    finally:
        for collector in collectors:
            collector.kill()
            collector.wait()


def test_a_damaged_file_costs_itself_only(service: Serving, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run", "damaged")
    directory.course(100.0)
    directory.window(1, a_verdict("damaged"))
    directory.window(2, a_verdict("damaged"))
    (directory.path / "windows" / "1" / "verdict.json").write_bytes(b'{"verdict": "slo')
    (directory.path / "windows" / "2" / "patterns" / "3.pattern").write_bytes(os.urandom(500))
    report(service, directory)
    course = only_run(service, "damaged")
    assert [line["window_id"] for line in course["verdicts"]] == [2]
    assert course["pattern_workers"] == {"1": 8, "2": 7}


def test_a_file_that_cannot_be_read_costs_no_other_and_the_next_run_is_another_one(
    service: Serving, tmp_path: Path
) -> None:
    directory = RunDirectory(tmp_path / "run", "odd")
    directory.course(100.0)
    for window_id in (1, 2):
        directory.window(window_id, a_verdict("odd"))
    verdict = directory.path / "windows" / "1" / "verdict.json"
    verdict.unlink()
    verdict.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    assert reporter({**service.environ(), "EROICA_FLEET": "http://127.0.0.1:9"}, directory.path, "odd").wait(ENOUGH_S)
    with contextlib.suppress(OSError):
        close_run(directory.path)
    assert Spool(directory.path).known_facts() is None
    command(service.environ(), "fleet", "send", str(tmp_path))
    assert [line["window_id"] for line in only_run(service, "odd")["verdicts"]] == [2]


def test_what_is_for_another_project_is_not_handed_over_with_ones_own(service: Serving, tmp_path: Path) -> None:
    theirs, mine = (RunDirectory(tmp_path / name, name) for name in ("theirs", "mine"))
    for directory in (theirs, mine):
        directory.course(100.0)
        directory.window(1, a_verdict(directory.path.name))
    elsewhere = {**service.environ(), "EROICA_FLEET": "http://127.0.0.1:9", "EROICA_FLEET_TOKEN": "another"}
    assert reporter(elsewhere, theirs.path, "theirs").wait(ENOUGH_S) == 1
    mine.end(a_verdict("mine"))
    report(service, mine)
    assert only_run(service, "mine")
    assert not Spool(theirs.path).is_empty()
    assert not service.ask("GET", "/v1/runs", job="theirs")["runs"]


def test_reports_do_not_leave_the_host_in_clear(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run", "clear")
    environ = {**os.environ, "EROICA_FLEET": "http://fleet.example:8470", "EROICA_FLEET_TOKEN": "x" * 20}
    assert reporter(environ, directory.path, "clear").wait(ENOUGH_S) == 1
    assert "in clear" in (directory.path / "log" / "fleet.log").read_text()
    asked = subprocess.run([*EROICA, "fleet", "jobs"], env=environ, capture_output=True, check=False)
    assert asked.returncode == 2 and b"in clear" in asked.stderr
