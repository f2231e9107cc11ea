"""`eroica status`, `live` and `settings`, which running job a command means, and commands that other packages bring."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner

from eroica import cli
from eroica.cli import group, jobs, status
from eroica.cli.settings import settings
from eroica.cli.status import _text
from eroica.errors import UnavailableError, UsageError
from eroica.model.look import Ending
from eroica.model.worker import Worker
from eroica.settings import Settings
from eroica.wire.address import Address, announce, read_address, withdraw
from eroica.wire.messages import JobStatus, OrderResult, WindowLine, WorkerStatus


def worker(rank: int, **more: object) -> WorkerStatus:
    worker = Worker(global_rank=rank, pid=100 + rank, host="node-1")
    return WorkerStatus(**{"worker": worker, "state": "steady", "iteration": 212, "current_s": 0.018, **more})


def test_silent_ended_and_failed_workers_and_blocked_verdicts_are_shown() -> None:
    killed = Ending(kind="signal", number=9)
    job = JobStatus(
        job="j",
        phase="blocked",
        message="standing still at iteration 212: worker 1 waits for a lock",
        workers=(
            worker(0),
            worker(1, silent=True, silence="no event for 12.0 s, limit 10.0 s"),
            worker(2, ended=True, state="gone", ending=killed),
            worker(3, ended=True, state="gone", ending=Ending(kind="signal", number=9, out_of_memory=True)),
            worker(4, ended=True, state="finished", ending=Ending(kind="signed-off")),
            worker(5, state="failed", result=OrderResult(note="ValueError: odd")),
        ),
        windows=(
            WindowLine(
                window_id=1, purpose="blocked", phase="passed", first_iteration=90, verdict="blocked", summary="x"
            ),
            WindowLine(window_id=2, purpose="blocked", phase="looking", first_iteration=212, last_iteration=212),
        ),
        notes=("worker 1 stood still for 12 s",),
    )
    assert _text(job, Path("/run")).splitlines()[2:] == [
        "  worker 1      node-1 pid 101: steady, SILENT (no event for 12.0 s, limit 10.0 s), 18.0 ms",
        "  worker 2      node-1 pid 102: ENDED by signal 9 at iteration 212",
        "  worker 3      node-1 pid 103: KILLED for want of memory at iteration 212",
        "  worker 4      node-1 pid 104: ended in order at iteration 212",
        "  worker 5      node-1 pid 105: not watched any more, Eroica failed in it: ValueError: odd, 18.0 ms",
        "  worker 0      node-1 pid 100: steady, 18.0 ms",
        "  window 1 (blocked, iteration 90): done, it went on by itself. blocked: x",
        "  window 2 (blocked, iteration 212): looking at stacks.",
        "  note: worker 1 stood still for 12 s",
    ]


def test_of_a_thousand_workers_the_odd_ones_are_shown() -> None:
    workers = (*(worker(rank) for rank in range(999)), worker(999, silent=True))
    text = _text(JobStatus(job="j", phase="", message="", workers=workers), Path("/run"))
    assert "worker 999" in text and "and 960 more workers" in text and len(text.splitlines()) == 43


# ---------------------------------------------------------------------- the link to the live page


LISTENS = Address(url="http://127.0.0.1:4711", token="t" * 20, pid=1, host="h", page="p" * 20 + "&#")
ANSWER = msgspec.json.encode(JobStatus(job="j", phase="watching", message="1 worker, watching"))


def test_the_link_is_printed_alone_and_the_way_to_it_from_elsewhere_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EROICA_HOST", "h")
    monkeypatch.setenv("SSH_CONNECTION", "1.2.3.4 5 6.7.8.9 22")
    announce(tmp_path, LISTENS, "h")
    monkeypatch.setattr(jobs, "call", lambda *_, **__: ANSWER)
    link = f"http://127.0.0.1:4711/?token={'p' * 20}%26%23"
    found = CliRunner().invoke(group, ["live", "--out", str(tmp_path)])
    assert found.exit_code == 0 and found.stdout == f"{link}\n"
    assert "ssh -N -L 4711:127.0.0.1:4711" in found.stderr
    assert link in CliRunner().invoke(group, ["status", "--out", str(tmp_path)]).stdout


def test_a_job_without_a_collector_has_no_link(tmp_path: Path) -> None:
    found = CliRunner().invoke(group, ["live", "--out", str(tmp_path)])
    assert found.exit_code != 0 and "http" not in found.stdout


def test_a_browser_is_given_a_private_file_and_not_the_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its command line is for everybody on the host to see."""
    monkeypatch.setenv("EROICA_HOST", "h")
    announce(tmp_path, LISTENS, "h")
    monkeypatch.setattr(jobs, "call", lambda *_, **__: ANSWER)
    opened: list[str] = []
    monkeypatch.setattr(status.webbrowser, "open", opened.append)
    assert CliRunner().invoke(group, ["live", "--open", "--out", str(tmp_path)]).exit_code == 0
    file = tmp_path / "live.html"
    assert opened == [file.as_uri()] and file.stat().st_mode & 0o777 == 0o600
    assert f"url=http://127.0.0.1:4711/?token={'p' * 20}%26%23" in file.read_text()
    address = read_address(tmp_path, "h")
    assert address is not None
    withdraw(tmp_path, address, "h")
    assert not file.exists()


def test_the_browsers_file_is_not_written_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EROICA_HOST", "h")
    announce(tmp_path, LISTENS, "h")
    monkeypatch.setattr(jobs, "call", lambda *_, **__: ANSWER)
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "live.html").symlink_to(precious)
    found = CliRunner().invoke(group, ["live", "--open", "--out", str(tmp_path)])
    assert found.exit_code != 0 and precious.read_text() == "mine"


# ---------------------------------------------------------------------- which job is meant


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Two jobs: one below the working directory, one elsewhere."""
    here, elsewhere = tmp_path / "here" / "eroica-report" / "mine", tmp_path / "there" / "eroica-report" / "other"
    found = {"mine": here, "other": elsewhere}
    for run in found.values():
        run.mkdir(parents=True)
    monkeypatch.setattr(jobs, "running_jobs", lambda: found)
    return found


def test_of_several_jobs_the_one_that_was_started_here_is_meant(
    watched: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path / "here")
    assert jobs.choose_run(None, None) == watched["mine"]


def test_where_none_was_started_here_the_error_says_where_they_run(
    watched: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(UsageError, match=r"several jobs are being watched: mine in .*here.*; other in .*there.*--job"):
        jobs.choose_run(None, None)
    assert jobs.choose_run("other", None) == watched["other"]


def test_a_command_that_is_nearly_one_gets_a_hint() -> None:
    answer = CliRunner().invoke(group, ["rn", "--", "true"])
    assert answer.exit_code == 2
    assert "Did you mean 'run'?" in answer.output


def test_a_directory_of_runs_is_listed(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name / "windows").mkdir(parents=True)
        (tmp_path / name / "windows" / "1").mkdir()
        (tmp_path / name / "windows" / "1" / "window.json").write_text("{}")
        (tmp_path / name / "verdict.json").write_text("{}")
    answer = CliRunner().invoke(group, ["report", str(tmp_path)], standalone_mode=False)
    assert "holds the runs" in str(answer.exception)
    assert "first" in str(answer.exception) and "second" in str(answer.exception)


def test_usage_calls_the_program_by_its_name_however_it_was_started() -> None:
    command = [sys.executable, "-c", "from eroica.cli import main; main()", "fleet", "jobs", "--nothing"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "Usage: eroica fleet jobs" in done.stderr and "Try 'eroica fleet jobs --help'" in done.stderr


# ---------------------------------------------------------------------- commands of other packages


@click.command()
def extra() -> None:
    """Say hello."""
    click.echo("hello")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("extra", f"{__name__}:extra", "eroica.commands")
    monkeypatch.setattr(cli, "entry_points", lambda group: [entry])


@pytest.mark.usefixtures("installed")
def test_a_command_of_another_package_is_listed_and_runs() -> None:
    assert "extra     Say hello." in CliRunner().invoke(cli.group, ["--help"]).output
    assert CliRunner().invoke(cli.group, ["extra"]).output == "hello\n"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("name", "extra"), [("serve", "fleet"), ("fleet", "fleet"), ("steer", "c4d"), ("ways", "c4d")])
def test_without_its_package_a_command_says_how_to_get_it(name: str, extra: str) -> None:
    refused = CliRunner().invoke(cli.group, [name]).exception
    assert isinstance(refused, UnavailableError)
    assert str(refused) == f"`eroica {name}` comes with eroica-{extra}: pip install 'eroica[{extra}]'"


@pytest.mark.usefixtures("installed")
def test_no_other_command_looks_for_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "entry_points", lambda group: pytest.fail("it looked"))
    assert cli.group.get_command(click.Context(cli.group), "run") is not None


# ---------------------------------------------------------------------- settings that are secrets


@pytest.mark.parametrize("name", ["webhook_url", "metrics_token", "fleet_token"])
def test_a_secret_is_listed_but_not_shown(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"EROICA_{name.upper()}", "https://chat/shhh")
    listed = CliRunner().invoke(settings).output
    assert f"{name} = (set, not shown)" in listed and "shhh" not in listed
    assert "shhh" not in repr(Settings(**{name: "https://chat/shhh"}))
