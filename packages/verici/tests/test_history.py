"""Reading real repositories, also such as nobody expects."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Repo
from verici.errors import RepositoryError
from verici.features import columns_of, values_of
from verici.history import Files, Repository
from verici.model import Key


def last_values(repo: Repo, **more: object) -> dict[tuple[str, str], str]:
    history = Repository(repo.root).read(**more)
    values = values_of(history.commits[-1], history.constants)
    return {(key.path, key.name): value for key, value in values.items()}


def test_commits_come_parents_first_with_their_constants(repo: Repo) -> None:
    ids = [repo.commit({"requirements.txt": f"lib=={number}\n"}) for number in range(3)]
    history = Repository(repo.root).read()
    assert [one.id for one in history.commits] == ids
    assert [column.texts for column in columns_of(history)] == [("0", "1", "2")]


def test_the_cache_changes_nothing(repo: Repo) -> None:
    repo.commit({"requirements.txt": "lib==1\n"})
    first = Repository(repo.root).read()
    assert (Repository(repo.root).state / "constants.msgpack").exists()
    assert Repository(repo.root).read() == first
    (Repository(repo.root).state / "constants.msgpack").write_bytes(b"broken")
    assert Repository(repo.root).read() == first


def test_a_renamed_file_keeps_its_constants(repo: Repo) -> None:
    repo.commit({"requirements-old.txt": "lib==1\n"})
    repo.git("mv", "requirements-old.txt", "requirements-new.txt")
    repo.commit({})
    history = Repository(repo.root).read()
    assert [set(one.files) for one in history.commits] == [{"requirements-new.txt"}] * 2


def test_merges_have_both_parents(repo: Repo) -> None:
    repo.commit({"requirements.txt": "lib==1\n"})
    repo.git("checkout", "-q", "-b", "side")
    side = repo.commit({"tox.ini": "a = 1\n"})
    repo.git("checkout", "-q", "main")
    main = repo.commit({"requirements.txt": "lib==2\n"})
    repo.git("merge", "-q", "--no-edit", "side")
    merge = Repository(repo.root).read().commits[-1]
    assert merge.parents == (main, side)
    assert set(merge.files) == {"requirements.txt", "tox.ini"}


def test_symbolic_links_and_submodules_are_no_files(repo: Repo) -> None:
    (repo.root / "requirements.txt").symlink_to("/etc/passwd")
    repo.git("add", "requirements.txt")
    repo.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},Gemfile")
    repo.git("commit", "-qm", "x")
    assert Repository(repo.root).read().commits[-1].files == {}


def test_binary_huge_and_badly_encoded_files_are_bounded(repo: Repo) -> None:
    repo.commit({
        "requirements.txt": b"lib==1\0\n", "tox.ini": "x" * (3 << 20) + " 1\n",
        "setup.cfg": "größe = 3\n".encode("latin-1"),
        "Makefile": "a " * 5_000_000,
    })  # fmt: skip
    began = time.monotonic()
    found = last_values(repo)
    assert time.monotonic() - began < 30
    assert {path for path, _ in found} == {"setup.cfg"}


def test_a_path_that_is_not_utf8_is_shown_escaped(repo: Repo) -> None:
    name = "größe".encode("latin-1") + b".gemspec"
    Path(os.fsdecode(os.fsencode(repo.root) + b"/" + name)).write_text("lib 1\n")
    subprocess.run([b"git", b"add", name], cwd=repo.root, check=True)
    repo.commit({})
    assert last_values(repo) == {("gr\\xf6\\xdfe.gemspec", "lib"): "1"}


def test_a_shallow_clone_is_said(repo: Repo, tmp_path: Path) -> None:
    for number in range(4):
        repo.commit({"requirements.txt": f"lib=={number}\n"})
    subprocess.run(["git", "clone", "-q", "--depth", "2", f"file://{repo.root}", str(tmp_path / "clone")], check=True)
    history = Repository(tmp_path / "clone").read()
    assert len(history.commits) == 2
    assert any("shallow" in note for note in history.notes)


def test_labels_of_force_pushed_commits_are_counted(repo: Repo) -> None:
    lost = repo.commit({"requirements.txt": "lib==1\n"})
    repo.git("commit", "-q", "--amend", "-m", "other")
    (repo.root / "labels.csv").write_text(f"commit,result\n{lost},fail\n")
    repo.verici("import", "csv", str(repo.root / "labels.csv"))
    result = repo.verici("history")
    assert result.exit_code == 0
    assert "1 of 1 labels name no commit" in result.output


def test_only_the_newest_commits_are_read(repo: Repo) -> None:
    ids = [repo.commit({"requirements.txt": f"lib=={number}\n"}) for number in range(5)]
    assert [one.id for one in Repository(repo.root).read(most=2).commits] == ids[3:]


def test_a_linked_worktree_and_foreign_variables_read_the_right_repository(
    repo: Repo, make_repo: Callable[[str], Repo], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    repo.commit({"requirements.txt": "lib==1\n"})
    other = make_repo("other")
    other.commit({"requirements.txt": "lib==9\n"})
    repo.git("worktree", "add", "-q", str(tmp_path / "linked"))
    monkeypatch.setenv("GIT_DIR", str(other.root / ".git"))
    linked = Repository(tmp_path / "linked")
    history = linked.read()
    assert values_of(history.commits[-1], history.constants) == {Key("requirements.txt", "lib"): "1"}
    assert linked.state == Repository(repo.root).state


def test_nothing_of_the_repository_is_executed(repo: Repo, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    (repo.root / ".gitattributes").write_text("* filter=evil\n")
    repo.git("config", "filter.evil.smudge", f"touch {mark}; cat")
    repo.git("config", "core.fsmonitor", f"touch {mark}")
    repo.git("add", ".gitattributes")
    for name in ("post-checkout", "post-index-change", "reference-transaction"):
        (repo.root / ".git/hooks").mkdir(exist_ok=True)
        (repo.root / ".git/hooks" / name).write_text(f"#!/bin/sh\ntouch {mark}\n")
    (repo.root / "requirements.txt").write_text("lib==1\n")
    repo.git("-c", "core.fsmonitor=false", "-c", "filter.evil.smudge=cat", "-c", "core.hooksPath=/dev/null", "add", ".")
    repo.git("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "commit", "-qm", "x")
    mark.unlink(missing_ok=True)
    assert last_values(repo)
    for arguments in (["learn", "--unlabelled", "pass"], ["check"], ["history"]):
        repo.verici(*arguments)
    assert not mark.exists()


def test_folders_without_a_repository_and_unknown_commits_are_said(repo: Repo, tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="is in no git repository"):
        Repository(tmp_path)
    with pytest.raises(RepositoryError, match="names no commit"):
        Repository(repo.root).read("nowhere")


def test_files_are_chosen_by_name_or_by_path() -> None:
    files = Files(without=("vendor/*",))
    taken = [
        ".github/workflows/ci.yml",
        "Gemfile.lock",
        "a/b/Dockerfile.gpu",
        "lib/x/version.rb",
        "requirements-dev.txt",
    ]
    assert all(files.take(path) for path in taken)
    assert not any(files.take(path) for path in ["README.md", "data/x.csv", "vendor/Gemfile", "src/ci.yml", "pic.png"])
