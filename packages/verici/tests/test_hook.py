"""Hooks in real pushes and commits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Repo, pinned


@pytest.fixture
def pushing(learned: Repo, tmp_path: Path) -> Repo:
    subprocess.run(["git", "init", "-q", "--bare", str(tmp_path / "remote.git")], check=True)
    learned.git("remote", "add", "origin", str(tmp_path / "remote.git"))
    assert learned.verici("hook", "install").exit_code == 0
    return learned


def push(repo: Repo, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", "push", "-q", *arguments], cwd=cwd or repo.root, capture_output=True, text=True, check=False
    )


def test_a_good_tip_is_pushed_in_silence_and_a_bad_one_is_refused(pushing: Repo) -> None:
    done = push(pushing, "origin", "main")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    pushing.commit(pinned("3.0.0", "2.1.1"))
    done = push(pushing, "origin", "main")
    assert done.returncode == 1
    assert "requirements.txt:2" in done.stderr
    assert "--no-verify" in done.stderr
    assert push(pushing, "--no-verify", "origin", "main").returncode == 0


def test_deleting_a_branch_is_not_checked(pushing: Repo) -> None:
    push(pushing, "origin", "main:old")
    pushing.commit(pinned("3.0.0", "2.1.1"))
    done = push(pushing, "origin", "--delete", "old")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_first_push_of_a_branch_is_checked_also_beside_a_deletion(pushing: Repo) -> None:
    push(pushing, "origin", "main:old")
    pushing.git("checkout", "-q", "-b", "new")
    pushing.commit(pinned("3.0.0", "2.1.1"))
    assert push(pushing, "origin", "new").returncode == 1
    assert push(pushing, "origin", "new", ":old").returncode == 1


def test_tags_are_not_checked(pushing: Repo) -> None:
    pushing.commit(pinned("3.0.0", "2.1.1"))
    pushing.git("tag", "v1")
    assert push(pushing, "origin", "v1").returncode == 0


def test_a_hook_of_a_linked_worktree_lands_where_git_looks(learned: Repo, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", "--bare", str(tmp_path / "remote.git")], check=True)
    learned.git("remote", "add", "origin", str(tmp_path / "remote.git"))
    linked = tmp_path / "linked"
    learned.git("worktree", "add", "-q", "-b", "side", str(linked))
    assert learned.verici("hook", "install", "--repo", str(linked)).exit_code == 0
    assert (learned.root / ".git/hooks/pre-push").exists()
    index = (learned.root / ".git/index").read_bytes()
    (linked / "requirements.txt").write_text("libalpha==3.0.0\n")
    subprocess.run(["git", "commit", "-qam", "bad"], cwd=linked, check=True)
    assert push(learned, "origin", "side", cwd=linked).returncode == 1
    assert push(learned, "origin", "main").returncode == 0
    assert (learned.root / ".git/index").read_bytes() == index


def test_a_folder_of_hooks_that_is_configured_is_used(learned: Repo, tmp_path: Path) -> None:
    learned.git("config", "core.hooksPath", str(tmp_path / "hooks"))
    assert learned.verici("hook", "install").exit_code == 0
    assert (tmp_path / "hooks/pre-push").exists()


def test_pre_commit_reads_the_index_that_git_names(learned: Repo) -> None:
    assert learned.verici("hook", "install", "pre-commit").exit_code == 0
    (learned.root / "requirements.txt").write_text("libalpha==3.0.0\n")
    done = subprocess.run(
        ["git", "commit", "-qam", "bad"], cwd=learned.root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "libalpha" in done.stderr


def test_a_foreign_hook_is_left_alone(learned: Repo) -> None:
    path = learned.root / ".git/hooks/pre-push"
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\n")
    result = learned.verici("hook", "install")
    assert result.exit_code == 2
    assert "-m verici hook run pre-push" in result.output
    assert learned.verici("hook", "remove").exit_code == 2
    assert path.read_text() == "#!/bin/sh\n"


def test_a_hook_may_pass_on_what_git_gives_it(pushing: Repo) -> None:
    path = pushing.root / ".git/hooks/pre-push"
    path.write_text(f'#!/bin/sh\n{sys.executable} -m verici hook run pre-push "$@"\n')
    assert push(pushing, "origin", "main").returncode == 0
    pushing.commit(pinned("3.0.0", "2.1.1"))
    done = push(pushing, "origin", "main")
    assert done.returncode == 1
    assert "requirements.txt:2" in done.stderr


def test_a_hook_is_removed(pushing: Repo) -> None:
    assert pushing.verici("hook", "remove").exit_code == 0
    assert not (pushing.root / ".git/hooks/pre-push").exists()
    assert pushing.verici("hook", "remove").exit_code == 2


def test_a_hook_never_blocks_on_its_own_error_or_without_history(pushing: Repo) -> None:
    pushing.commit(pinned("3.0.0", "2.1.1"))
    model = pushing.root / ".git/verici/model.json"
    model.write_text("{")
    done = push(pushing, "origin", "main")
    assert done.returncode == 0
    assert "the check itself failed" in done.stderr
    model.unlink()
    pushing.commit({}, "more")
    done = push(pushing, "origin", "main")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_hook_whose_python_is_gone_lets_the_push_pass(pushing: Repo) -> None:
    path = pushing.root / ".git/hooks/pre-push"
    path.write_text(path.read_text().replace(sys.executable, "/nowhere/python"))
    pushing.commit(pinned("3.0.0", "2.1.1"))
    done = push(pushing, "origin", "main")
    assert done.returncode == 0
    assert "nothing was checked" in done.stderr
    assert os.access(path, os.X_OK)
