"""Label commits by building them in worktrees of their own, within limits; the working tree is not touched."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

import msgspec
import pygit2
from pygit2.enums import SortMode

from verici.errors import BadInput, RepositoryError
from verici.history import Repository, run_git
from verici.model import FAIL, PASS, Label
from verici.sandbox import Limits, run

_PREFIX = "verici-build-"


class Plan(msgspec.Struct, frozen=True):
    """How commits are built: `command` must succeed for a pass, `tests` may fail; `env` names variables passed on."""

    command: str
    tests: str = ""
    limits: Limits = Limits()
    sandbox: bool = True
    network: bool = False
    env: tuple[str, ...] = ()


def commits_between(repository: Repository, span: str) -> list[str]:
    """Return the commits of `A..B`, or of one name, parents first."""
    first, dots, last = span.partition("..")
    if not dots:
        return [repository.resolve(span)]
    walker = repository.git.walk(repository.resolve(last or "HEAD"), SortMode.TOPOLOGICAL | SortMode.TIME)
    walker.hide(pygit2.Oid(hex=repository.resolve(first)))
    found = [str(commit.id) for commit in walker][::-1]
    if not found:
        raise BadInput(f"{span} holds no commit")
    return found


def label_commits(repository: Repository, commits: Sequence[str], plan: Plan, done: Callable[[Label], None]) -> None:
    """Build each commit and hand its label over at once, so that an interruption keeps what is finished.

    Raises:
        KeyboardInterrupt: After Ctrl-C or SIGTERM, when worktree and processes are gone.
    """
    remove_leftovers(repository)
    with _handled(signal.default_int_handler, signal.SIGTERM):
        for commit in commits:
            with worktree(repository, commit) as folder:
                label = _build(repository, commit, folder, plan)
            done(label)


def _build(repository: Repository, commit: str, folder: Path, plan: Plan) -> Label:
    for command, name, result, kind in ((plan.command, "build", FAIL, "config"), (plan.tests, "test", PASS, "test")):
        if not command:
            continue
        outcome = run(
            command, folder, _environment(folder.parent, plan.env), plan.limits,
            sandbox=plan.sandbox, network=plan.network, read_only=repository.root.resolve(),
        )  # fmt: skip
        if outcome.limit:
            return Label(commit, FAIL, "limit", "build", "", f"{name}: {outcome.limit}")
        if outcome.status:
            detail = f"{name}: exit {outcome.status}: {_reason(outcome.output)[:160]}"
            return Label(commit, result, kind, "build", "", detail)
    return Label(commit, PASS, "ok", "build", "", "exit 0")


def _reason(output: str) -> str:
    """Return the last line that speaks of an error; make's own lines only say that there was one."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith("make")]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [""])[-1]


def _environment(place: Path, names: Sequence[str]) -> dict[str, str]:
    """Return the variables of a build: few, so that results do not depend on who runs it."""
    for folder in ("home", "tmp"):
        (place / folder).mkdir(exist_ok=True)
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", *names) if name in os.environ}
    return {**kept, "HOME": str(place / "home"), "TMPDIR": str(place / "tmp"), "CI": "true"}


@contextlib.contextmanager
def worktree(repository: Repository, commit: str) -> Iterator[Path]:
    """Check a commit out in a worktree of its own, and remove it again whatever happens."""
    place = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        (place / "pid").write_text(str(os.getpid()))
        _worktree(repository, "add", "--detach", "--force", "--quiet", str(place / "tree"), commit)
        yield place / "tree"
    finally:
        with _handled(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM):  # a second Ctrl-C must not stop the cleaning up
            _discard(repository, place)


def _worktree(repository: Repository, *arguments: str) -> str:
    """Run `git worktree` without the repository's hooks."""
    return run_git(repository, "-c", "core.hooksPath=/dev/null", "worktree", *arguments)


def _discard(repository: Repository, place: Path) -> None:
    with contextlib.suppress(RepositoryError):
        _worktree(repository, "remove", "--force", "--force", str(place / "tree"))
    shutil.rmtree(place, onerror=_make_writable)
    with contextlib.suppress(RepositoryError):
        _worktree(repository, "prune")


def _make_writable(function: Callable[[str], object], path: str, _: object) -> None:
    with contextlib.suppress(OSError):
        Path(path).parent.chmod(0o700)
        Path(path).chmod(0o700)
        function(path)


def remove_leftovers(repository: Repository) -> None:
    """Remove worktrees of builds whose process was killed."""
    for line in _worktree(repository, "list", "--porcelain").splitlines():
        place = Path(line.removeprefix("worktree ")).parent
        if line.startswith("worktree ") and place.name.startswith(_PREFIX) and not _is_alive(place / "pid"):
            _discard(repository, place)


def _is_alive(note: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        os.kill(int(note.read_text()), 0)
        return True
    return False


@contextlib.contextmanager
def _handled(handler: Callable[[int, FrameType | None], object] | signal.Handlers, *numbers: int) -> Iterator[None]:
    """Handle these signals in another way for a while."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
