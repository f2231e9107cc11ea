"""`verici label`: real commands in real worktrees, within limits."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from conftest import Repo
from verici.history import Repository
from verici.labels import load
from verici.sandbox import Limits, is_possible, run

needs_namespaces = pytest.mark.skipif(not is_possible(), reason="namespaces (unshare) are not allowed here")
BUILD = 'test "$(cat good)" = yes'


def labels(repo: Repo) -> dict[str, tuple[str, str]]:
    found = load(Repository(repo.root).state / "labels.csv")
    return {commit: (label.result, label.kind) for commit, label in found.items()}


@pytest.fixture(autouse=True)
def _no_leftovers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))


@needs_namespaces
def test_commits_are_built_and_the_working_tree_is_not_touched(repo: Repo, tmp_path: Path) -> None:
    first = repo.commit({"good": "yes", "tests": "yes"})
    bad = repo.commit({"good": "no"})
    tests = repo.commit({"good": "yes", "tests": "no"})
    (repo.root / "good").write_text("changed, not committed")
    index, status = (repo.root / ".git/index").read_bytes(), repo.git("status", "--porcelain")
    result = repo.verici(
        "label", "--command", BUILD, "--test", 'test "$(cat tests)" = yes', "--commits", f"{first}..HEAD"
    )
    assert result.exit_code == 0, result.output
    assert labels(repo) == {bad: ("fail", "config"), tests: ("pass", "test")}
    assert (repo.root / ".git/index").read_bytes() == index
    assert repo.git("status", "--porcelain") == status
    assert len(repo.git("worktree", "list").splitlines()) == 1
    assert list((tmp_path / "temporary").iterdir()) == []
    repo.verici("label", "--command", "true", "--commits", f"{first}..HEAD")
    assert labels(repo)[bad] == ("fail", "config"), "a built commit is not built again"


@needs_namespaces
def test_foreign_variables_do_not_reach_the_build(repo: Repo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commit = repo.commit({"good": "yes"})
    index = tmp_path / "index"
    index.write_bytes(b"mine")
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    monkeypatch.setenv("GIT_INDEX_FILE", str(index))
    monkeypatch.setenv("SECRET", "x")
    result = repo.verici("label", "--command", 'test -z "$SECRET$GIT_DIR" && git log -1')
    assert result.exit_code == 0, result.output
    assert labels(repo) == {commit: ("pass", "ok")}
    assert index.read_bytes() == b"mine"


@needs_namespaces
def test_hooks_of_the_repository_do_not_run(repo: Repo, tmp_path: Path) -> None:
    repo.commit({"good": "yes"})
    hook = repo.root / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path / 'mark'}\n")
    hook.chmod(0o755)
    repo.verici("label", "--command", "true")
    assert not (tmp_path / "mark").exists()


def limited(tmp_path: Path, command: str, **limits: float) -> tuple[int, str, str]:
    place = tmp_path / "place" / "tree"
    place.mkdir(parents=True)
    env = {"PATH": os.environ["PATH"]}
    bounds = Limits(**{"seconds": 60.0, **limits})
    outcome = run(command, place, env, bounds, sandbox=True, network=False, read_only=tmp_path / "repo")
    return outcome.status, outcome.limit, outcome.output


@needs_namespaces
def test_the_deadline_ends_the_command_and_its_children(tmp_path: Path) -> None:
    _, limit, _ = limited(tmp_path, "(setsid sleep 77123 &) ; sleep 77123", seconds=1.5)
    assert "time limit" in limit
    assert "sleep 77123" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


@needs_namespaces
def test_background_processes_do_not_hold_a_build_up(tmp_path: Path) -> None:
    began = time.monotonic()
    status, limit, _ = limited(tmp_path, "sleep 77124 & true")
    assert (status, limit) == (0, "")
    assert time.monotonic() - began < 30


@needs_namespaces
def test_there_is_no_network_but_loopback(tmp_path: Path) -> None:
    (tmp_path / "talk.py").write_text(
        "import socket\ns = socket.create_server(('127.0.0.1', 0))\nsocket.create_connection(s.getsockname())\n"
    )
    outcome = limited(tmp_path, f"{sys.executable} {tmp_path / 'talk.py'} && cat /proc/net/dev | grep -c :")
    assert outcome[2].strip() == "1"


@needs_namespaces
def test_memory_output_and_disk_are_limited(tmp_path: Path) -> None:
    status, limit, _ = limited(
        tmp_path / "1", f"{sys.executable} -c 'x = bytearray(900 << 20)'", memory_bytes=200 << 20
    )
    assert status != 0 or limit
    assert "output limit" in limited(tmp_path / "2", "yes", output_bytes=1 << 20)[1]
    status, limit, _ = limited(
        tmp_path / "3", "for i in 1 2 3; do head -c 3000000 /dev/zero > f$i; done; sleep 30", disk_bytes=4 << 20
    )
    assert "disk limit" in limit


@needs_namespaces
def test_the_repository_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    assert limited(tmp_path, f"touch {tmp_path / 'repo' / 'x'}")[0] != 0
    assert not (tmp_path / "repo" / "x").exists()


def test_without_namespaces_builds_are_refused(repo: Repo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commit = repo.commit({"good": "yes"})
    git = Path(shutil.which("git") or "").parent
    (tmp_path / "bin").mkdir()
    for name in ("sh", "git", "cat", "test"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or git / name)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    is_possible.cache_clear()
    try:
        result = repo.verici("label", "--command", BUILD)
        assert result.exit_code == 1
        assert "--no-sandbox" in result.output
        assert repo.verici("label", "--command", BUILD, "--no-sandbox").exit_code == 0
    finally:
        is_possible.cache_clear()
    assert labels(repo) == {commit: ("pass", "ok")}


@pytest.mark.parametrize("sandbox", [pytest.param([], marks=needs_namespaces), ["--no-sandbox"]])
def test_two_interrupts_leave_nothing_and_keep_finished_labels(repo: Repo, sandbox: list[str], tmp_path: Path) -> None:
    first = repo.commit({"good": "yes"})
    done = repo.commit({"good": "quick"})
    repo.commit({"good": "slow"})
    command = "test $(cat good) = quick || sleep 77125"
    process = subprocess.Popen(
        [sys.executable, "-m", "verici", "label", "--command", command, "--commits", f"{first}..HEAD", *sandbox],
        cwd=repo.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout
    assert done[:7] in process.stdout.readline()
    wait_for(lambda: "sleep 77125" in processes())
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    assert labels(repo) == {done: ("pass", "ok")}
    assert len(repo.git("worktree", "list").splitlines()) == 1
    wait_for(lambda: "sleep 77125" not in processes())
    assert list((tmp_path / "temporary").iterdir()) == []


def processes() -> str:
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def wait_for(condition: object, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def test_worktrees_of_a_killed_process_are_removed_at_the_next_start(repo: Repo, tmp_path: Path) -> None:
    commit = repo.commit({"good": "yes"})
    place = tmp_path / "temporary" / "verici-build-gone"
    place.mkdir()
    (place / "pid").write_text("999999999")
    repo.git("worktree", "add", "--detach", "-q", str(place / "tree"), commit)
    assert repo.verici("label", "--command", "true", "--no-sandbox").exit_code == 0
    assert not place.exists()
    assert len(repo.git("worktree", "list").splitlines()) == 1


def test_an_empty_span_is_said(repo: Repo) -> None:
    repo.commit({"good": "yes"})
    result = repo.verici("label", "--command", "true", "--commits", "HEAD..HEAD")
    assert result.exit_code == 2
    assert "holds no commit" in result.output
