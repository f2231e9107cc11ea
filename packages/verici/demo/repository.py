"""Make a repository whose builds really fail, label it by building, learn from it, and stop a bad push.

    python demo/repository.py [FOLDER]

The small project pins a library in two files. pip refuses pins that contradict each other, and whoever raises one
of them forgets the other now and then. No network is used: the library's wheels are made here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PYTHON = sys.executable
VERSIONS = [f"2.{minor}.{patch}" for minor in range(4) for patch in range(3)]
MAKEFILE = f"""\
build:
\t{PYTHON} -m pip install --quiet --disable-pip-version-check --no-cache-dir --dry-run --ignore-installed \\
\t  --no-index --find-links wheels -r requirements.txt -c constraints.txt
test:
\t{PYTHON} -m pytest -q -p no:cacheprovider test_app.py
"""
#: What each commit writes: pin in requirements.txt, pin in constraints.txt, answer that the test expects.
STEPS = [
    ("2.0.0", "2.0.0", 42), ("2.0.1", "2.0.0", 42), ("2.0.1", "2.0.1", 42), ("2.0.2", "2.0.2", 42),
    ("2.0.2", "2.0.2", 41), ("2.0.2", "2.0.2", 42), ("2.1.0", "2.1.0", 42), ("2.1.0", "2.1.1", 42),
    ("2.1.1", "2.1.1", 42), ("2.1.2", "2.1.2", 42), ("2.2.0", "2.1.2", 42), ("2.2.0", "2.1.2", 42),
    ("2.2.0", "2.2.0", 42), ("2.2.1", "2.2.1", 42), ("2.2.2", "2.2.2", 42), ("2.3.0", "2.2.2", 42),
    ("2.3.0", "2.3.0", 42),
]  # fmt: skip


def main() -> None:
    """Run the demo in the given folder, or in one that is removed afterwards."""
    if len(sys.argv) > 1:
        show(Path(sys.argv[1]).resolve())
        return
    with tempfile.TemporaryDirectory() as folder:
        show(Path(folder))


def show(folder: Path) -> None:
    """Make the repository, learn, and push a good and a bad commit."""
    make_repository(folder)
    work = folder / "work"
    first = git(work, "rev-list", "--max-parents=0", "HEAD")
    say(f"a repository of {len(STEPS) + 1} commits; each one is built with pip and tested with pytest, no network")
    run(work, "verici", "label", "--command", "make build", "--test", "make test", "--commits", f"{first}..HEAD")
    say("learn what the failed builds have in common")
    run(work, "verici", "learn")
    run(work, "verici", "explain")
    run(work, "verici", "hook", "install")
    say("push a commit that raises only one of the two pins, to a version that no build has seen")
    commit(work, "2.3.1", "2.3.0", 42, "raise libalpha")
    refused = run(work, "git", "push", "origin", "main", check=False)
    say("refused" if refused else "NOT refused: this is a fault of the demo")
    commit(work, "2.3.1", "2.3.1", 42, "raise libalpha's constraint, too")
    passed = run(work, "git", "push", "origin", "main", check=False) == 0
    say("the mended commit is pushed" if passed else "the mended commit is refused: this is a fault of the demo")
    run(work, "verici", "history", "--html", str(folder / "history.html"))
    if not (refused and passed):
        sys.exit(1)


def make_repository(folder: Path) -> None:
    """Make a bare remote and a clone with the history."""
    work = folder / "work"
    (work / "wheels").mkdir(parents=True)
    for version in VERSIONS:
        wheel(work / "wheels", "libalpha", version)
    git(folder, "init", "--quiet", "--bare", "--initial-branch=main", "remote.git")
    git(work, "init", "--quiet", "--initial-branch=main")
    git(work, "remote", "add", "origin", str(folder / "remote.git"))
    (work / "Makefile").write_text(MAKEFILE)
    (work / "app.py").write_text("import os\n\n\ndef answer():\n    return int(open('answer').read())\n")
    git(work, "add", ".")
    git(work, "commit", "--quiet", "-m", "begin")
    for number, (pin, constraint, answer) in enumerate(STEPS):
        commit(work, pin, constraint, answer, f"step {number}")


def commit(work: Path, pin: str, constraint: str, answer: int, message: str) -> None:
    """Commit one state of the small project."""
    (work / "requirements.txt").write_text(f"libalpha=={pin}\n")
    (work / "constraints.txt").write_text(f"libalpha=={constraint}\n")
    (work / "answer").write_text("42")
    (work / "test_app.py").write_text(
        f"from app import answer\n\n\ndef test_answer():\n    assert answer() == {answer}\n"
    )
    (work / "notes.md").write_text(message)
    git(work, "add", ".")
    git(work, "commit", "--quiet", "-m", message)


def wheel(folder: Path, name: str, version: str) -> None:
    """Write a wheel with one empty module."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", "")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: demo\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


def environment() -> dict[str, str]:
    """Return the variables of git and verici: no other repository, an author, this environment's commands."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    author = {f"GIT_{who}_{what}": "demo@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return {**kept, **author, "PATH": f"{Path(PYTHON).parent}:{kept['PATH']}"}


def git(folder: Path, *arguments: str) -> str:
    """Return the output of a git command."""
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=environment(), capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def run(folder: Path, *command: str, check: bool = True) -> int:
    """Show a command and what it prints."""
    print(f"$ {' '.join(command)}", flush=True)
    return subprocess.run(command, cwd=folder, env=environment(), check=check).returncode


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    main()
