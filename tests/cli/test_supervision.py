"""`eroica run` while its own processes die, stop or cannot write: real processes around a trivial command."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from eroica.cli.helper import Helper
from eroica.wire.places import runtime_root

EROICA = [sys.executable, "-m", "eroica"]
PATIENCE_S = 25.0


class Watched:
    """A command under `eroica run` that ends with status 5 once a file appears."""

    def __init__(self, directory: Path, run: Path | None = None, environment: dict[str, str] | None = None) -> None:
        self.run = run or directory / "out"
        self.verdict = directory / "verdict.json"
        self._end = directory / "end"
        self._log = directory / "stderr"
        code = (
            "import pathlib, sys, time\n"
            f"end = pathlib.Path({str(self._end)!r})\n"
            "while not end.exists(): time.sleep(0.02)\n"
            "print('trained'); sys.exit(5)"
        )
        arguments = [*EROICA, "run", "--quiet", "--job", directory.name, "--out", str(self.run)]
        arguments += ["--json", str(self.verdict), "--", sys.executable, "-c", code]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                arguments, stdout=subprocess.PIPE, stderr=log, env={**os.environ, **(environment or {})}
            )

    def helper(self, name: str, other_than: int = 0) -> int:
        """Process id of the collector or the agent, once it is there."""

        def find() -> int:
            for child in psutil.Process(self.process.pid).children():
                with contextlib.suppress(psutil.NoSuchProcess):  # killed a moment ago, and not yet reaped
                    if f"eroica.{name}" in child.cmdline() and child.pid != other_than:
                        return child.pid
            return 0

        return wait_for(find)

    def wait_until_up(self, other_than: int = 0) -> None:
        def up() -> bool:
            try:
                return json.loads((self.run / "collector.json").read_bytes())["pid"] != other_than
            except (OSError, ValueError):
                return False

        wait_for(up)

    def finish(self) -> tuple[float, str]:
        """Let the command end; seconds until `eroica run` ended, and what it said."""
        self._end.write_text("now")
        began = time.monotonic()
        out, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 5 and out == b"trained\n"
        return time.monotonic() - began, self._log.read_text()

    def status(self) -> dict[str, object]:
        return dict(json.loads((self.run / "status.json").read_bytes()))


def wait_for(found: Callable[[], object]) -> int:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        answer = found()
        if answer:
            return int(answer)  # type: ignore[call-overload,no-any-return]
        time.sleep(0.02)
    raise AssertionError("it never came")


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    started: list[Watched] = []

    def begin(**more: object) -> Watched:
        started.append(Watched(tmp_path, **more))  # type: ignore[arg-type]
        return started[-1]

    yield begin
    for watched in started:
        helpers = psutil.Process(watched.process.pid).children(True) if watched.process.poll() is None else []
        for process in (*helpers, watched.process):
            process.kill()
        watched.process.communicate()


def test_a_killed_agent_and_a_killed_collector_come_back_and_the_verdict_comes(watch: Callable[..., Watched]) -> None:
    job = watch()
    job.wait_until_up()
    agent, collector = job.helper("agent"), job.helper("collector")
    scores = [int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (agent, collector)]
    assert scores == [1000, 1000]  # where memory runs out they go before the job
    os.kill(agent, signal.SIGKILL)
    os.kill(collector, signal.SIGKILL)
    assert job.helper("agent", agent) != job.helper("collector", collector)
    job.wait_until_up(collector)
    wait_for(lambda: "was started again" in str(job.status()["notes"]))
    took_s, said = job.finish()
    assert took_s < 15 and "the collector was ended by SIGKILL, and was started again" in said
    assert "No worker was seen" in json.loads(job.verdict.read_text())["summary"]


def test_a_collector_that_is_killed_at_its_start_or_when_the_command_ends_still_concludes(
    watch: Callable[..., Watched],
) -> None:
    job = watch()
    first = job.helper("collector")
    os.kill(first, signal.SIGKILL)
    job.wait_until_up()
    second = job.helper("collector", first)
    os.kill(second, signal.SIGKILL)
    took_s, _ = job.finish()
    assert took_s < 20 and "No worker was seen" in json.loads(job.verdict.read_text())["summary"]


def test_a_helper_that_somebody_asked_to_end_too_early_comes_back(watch: Callable[..., Watched]) -> None:
    job = watch()
    job.wait_until_up()
    collector = job.helper("collector")
    os.kill(collector, signal.SIGTERM)
    job.wait_until_up(collector)
    job.finish()
    assert "No worker was seen" in json.loads(job.verdict.read_text())["summary"]


def test_stopped_helpers_hold_nobody_up_and_are_gone_afterwards(watch: Callable[..., Watched], tmp_path: Path) -> None:
    job = watch()
    job.wait_until_up()
    helpers = [job.helper("collector"), job.helper("agent")]
    for pid in helpers:
        os.kill(pid, signal.SIGSTOP)
    took_s, said = job.finish()
    assert took_s < 10 and "the collector is stopped" in said
    assert json.loads(job.verdict.read_text())["verdict"] == "undetermined"
    assert not any(psutil.pid_exists(pid) for pid in helpers)
    assert not list(runtime_root(os.environ).glob(f"{tmp_path.name}@*"))
    assert not [*job.run.glob("collector.json"), *job.run.glob("hosts/*.json")]  # they listen nowhere any more


@pytest.mark.parametrize(("killed", "keep"), [(False, False), (True, False), (True, True)])
def test_raw_traces_go_with_the_job_also_where_the_agent_could_not_tidy_up_unless_they_shall_be_kept(
    watch: Callable[..., Watched], tmp_path: Path, killed: bool, keep: bool
) -> None:
    variables = {"EROICA_SCRATCH_DIR": str(tmp_path / "scratch"), "EROICA_KEEP_TRACES": str(keep).lower()}
    job = watch(environment=variables)
    job.wait_until_up()
    wait_for(lambda: any((tmp_path / "scratch").glob("*/*")))
    (scratch,) = (tmp_path / "scratch").glob("*/*")
    (scratch / "window-1").mkdir()
    (scratch / "window-1" / "trace.json").write_text("[]")
    if killed:
        os.kill(job.helper("agent"), signal.SIGSTOP)  # so that `eroica run` has to kill it
    job.finish()
    assert scratch.exists() == keep == (scratch / "window-1").exists()


def test_a_run_directory_that_cannot_be_written_leaves_the_command_alone(watch: Callable[..., Watched]) -> None:
    job = watch(run=Path("/proc/eroica-cannot-be"))
    took_s, said = job.finish()
    assert took_s < 5 and "unwatched" in said
    assert "unwatched" in str(json.loads(job.verdict.read_text())["coverage"]["notes"])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a small file system needs root")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip(f"no small file system: {made.stderr.decode()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.root
def test_a_disk_that_is_full_at_the_start_leaves_the_command_alone(
    watch: Callable[..., Watched], small_disk: Path
) -> None:
    fill(small_disk / "data")
    took_s, said = watch(run=small_disk / "out").finish()
    assert took_s < 5 and "unwatched" in said and "No space left" in said


@pytest.mark.root
def test_a_disk_that_fills_up_costs_the_verdict_but_neither_status_nor_time(
    watch: Callable[..., Watched], small_disk: Path
) -> None:
    job = watch(run=small_disk / "out")
    job.wait_until_up()
    job.helper("agent")
    fill(small_disk / "data")
    took_s, said = job.finish()
    assert took_s < 20 and "no final verdict" in said
    assert json.loads(job.verdict.read_text())["verdict"] == "undetermined"


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


def test_a_helper_that_is_killed_at_once_is_started_six_times_with_growing_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eroica.cli.helper.isolated", lambda *_, **__: ["/bin/sh", "-c", "kill -9 $$"])
    helper = Helper("agent", {}, ())
    helper.start()
    now, pauses = 0.0, []
    for _ in range(6):
        wait_for(lambda: not helper.running)
        helper.tend(now)
        if helper.due is not None:
            pauses.append(helper.due - now)
            now = helper.due
            helper.tend(now)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0] and helper.due is None
    assert "was started 6 times and is left alone" in helper.problems[-1] and len(helper.problems) == 1


def test_a_helper_that_fails_by_itself_is_started_once_more_and_then_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eroica.cli.helper.isolated", lambda *_, **__: ["/bin/false"])
    helper = Helper("agent", {}, ())
    helper.start()
    for now in (0.0, 1.0, 2.0, 3.0):
        wait_for(lambda: not helper.running)
        helper.tend(now)
    assert helper.problems == ["the agent ended with status 1; it was started 2 times and is left alone now"]
