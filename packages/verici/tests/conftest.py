"""Real git repositories for the tests."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from verici.cli import main

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may start tests in the background with it ignored


class Repo:
    """A repository in a temporary folder, written with the command `git`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str, check: bool = True, **more: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=self.root, check=check, capture_output=True, text=True, env={**os.environ, **more}
        )
        return done.stdout.strip()

    def commit(self, files: dict[str, str | bytes | None], message: str = "change") -> str:
        for name, content in files.items():
            path = self.root / name
            if content is None:
                self.git("rm", "--quiet", "--cached", name)
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
            self.git("add", "--force", name)
        self.git("commit", "--quiet", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def verici(self, *arguments: str, **more: object) -> Result:
        return CliRunner().invoke(
            main, [*arguments, *(() if "--repo" in arguments else ("--repo", str(self.root)))], **more
        )


@pytest.fixture(autouse=True)
def _author(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "somebody")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "somebody@example.org")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    yield


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "repo")


@pytest.fixture
def make_repo(tmp_path: Path) -> Callable[[str], Repo]:
    return lambda name: Repo(tmp_path / name)


#: Pins of two files; builds fail where they differ.
PINS = [
    ("2.0.0", "2.0.0"),
    ("2.0.1", "2.0.0"),
    ("2.0.1", "2.0.1"),
    ("2.1.0", "2.1.0"),
    ("2.1.0", "2.0.1"),
    ("2.1.1", "2.1.1"),
]


def pinned(pin: str, other: str) -> dict[str, str | bytes | None]:
    return {"requirements.txt": f"# pins\nlibalpha=={pin}\n", "constraints.txt": f"libalpha=={other}\n"}


@pytest.fixture
def learned(repo: Repo) -> Repo:
    """A repository whose model knows that two pins must be equal."""
    lines = ["commit,result,kind"]
    for _ in range(3):
        for pin, other in PINS:
            lines.append(f"{repo.commit(pinned(pin, other))},{'pass' if pin == other else 'fail'},")
    (repo.root / "labels.csv").write_text("\n".join(lines) + "\n")
    assert repo.verici("import", "csv", str(repo.root / "labels.csv")).exit_code == 0
    result = repo.verici("learn")
    assert result.exit_code == 0, result.output
    assert "`libalpha` in constraints.txt differs from `libalpha` in requirements.txt" in result.output
    return repo
