"""Several `eroica run` on one host, one after the other and at once: none takes another's report or workers away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eroica.cli.nodes import Claim
from eroica.wire.places import places, runtime_root

UNTIL = "while [ ! -e {0} ]; do sleep 0.02; done; exit 5"


def environment(**more: str) -> dict[str, str]:
    ours = ("EROICA_", "SLURM_", "TORCHELASTIC_", "MASTER_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | more


def eroica_run(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "eroica", "run", "--quiet", *arguments]


def once(directory: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        eroica_run(*arguments), cwd=directory, env=environment(**variables), capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip


@pytest.fixture
def first(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A job that is being watched and ends with status 5 once a file `end` appears."""
    job = ["--job", tmp_path.name, "--out", str(tmp_path / "out")]
    command = eroica_run(*job, "--", "/bin/sh", "-c", UNTIL.format(tmp_path / "end"))
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 20
    while not (tmp_path / "out" / "collector.json").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


@pytest.mark.parametrize("same", ["job", "out"])
def test_a_second_one_of_the_same_name_or_directory_runs_unwatched_and_says_what_to_do(
    tmp_path: Path, first: subprocess.Popen[str], same: str
) -> None:
    address = (tmp_path / "out" / "collector.json").read_bytes()
    options = ["--job", tmp_path.name] if same == "job" else ["--out", str(tmp_path / "out" / ".." / "out")]
    code = "import os, sys; print(os.environ['EROICA_DISABLE']); sys.stderr.write('begun'); raise SystemExit(7)"
    second = once(tmp_path, *options, "--json", str(tmp_path / "json"), "--", sys.executable, "-c", code)
    assert (second.returncode, second.stdout) == (7, "1\n")
    told_at_once, told_at_the_end = second.stderr.split("begun")
    assert f"another `eroica run`, process {first.pid}, which still runs" in told_at_once
    assert "give each job its own --job and --out" in told_at_once
    assert not told_at_the_end.strip()  # one line in all
    assert "unwatched" in json.loads((tmp_path / "json").read_text())["coverage"]["notes"][0]
    assert (tmp_path / "out" / "collector.json").read_bytes() == address
    (tmp_path / "end").touch()
    assert first.wait(30) == 5 and (tmp_path / "out" / "verdict.json").exists()
    assert once(tmp_path, *options, "--", "/bin/sh", "-c", "exit 3").returncode == 3
    assert not [*runtime_root(os.environ).glob(f"{tmp_path.name}@*")]


def test_who_was_killed_keeps_nobody_out(tmp_path: Path, first: subprocess.Popen[str]) -> None:
    where = places(environment(EROICA_JOB=tmp_path.name, EROICA_RUN_DIR=str(tmp_path / "out")))
    assert Claim(where).take() == (
        f"the job {tmp_path.name} is that of another `eroica run`, process {first.pid}, which still runs"
    )
    first.send_signal(signal.SIGKILL)
    first.wait(10)
    (tmp_path / "end").touch()
    claim = Claim(where)
    assert claim.take() == ""
    claim.release()
    assert not [*where.runtime.parent.glob(f"{tmp_path.name}@*.claim")]


def test_another_host_of_the_same_job_has_a_claim_of_its_own(tmp_path: Path) -> None:
    claims = [
        Claim(
            places(
                {"EROICA_JOB": "j", "EROICA_HOST": host, "EROICA_RUN_DIR": "/r", "EROICA_RUNTIME_DIR": str(tmp_path)}
            )
        )
        for host in ("a", "b", "a")
    ]
    assert [bool(claim.take()) for claim in claims] == [False, False, True]
    claims[0].release()
    assert claims[2].take() == ""
    for claim in claims:
        claim.release()
    assert not [*tmp_path.glob("*/*.claim")]


def test_one_after_the_other_in_one_slurm_allocation_each_keeps_its_report(tmp_path: Path) -> None:
    for status in (3, 4):
        allocation = {"SLURM_JOB_ID": "4711", "SLURM_NTASKS": "8", "SLURM_NNODES": "1", "SLURM_PROCID": "0"}
        assert once(tmp_path, "--", "/bin/sh", "-c", f"exit {status}", **allocation).returncode == status
    reports = sorted((tmp_path / "eroica-report").iterdir())
    assert len(reports) == 2 and all(report.name.startswith("4711-") for report in reports)
    assert all((report / "verdict.json").exists() for report in reports)


def test_the_command_finds_the_settings_file_of_where_it_was_started(tmp_path: Path) -> None:
    (tmp_path / "eroica.toml").write_text("window_s = 6\n")
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "eroica.toml").write_text("window_s = 9\n")
    code = "import os; os.chdir('outputs'); from eroica.settings import load_settings; print(load_settings().window_s)"
    assert once(tmp_path, "--", sys.executable, "-c", code).stdout == "6.0\n"
