"""Read a repository's history from its object database: nothing is checked out and nothing of it is executed."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import subprocess
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import cast

import msgspec
import pygit2
from pygit2.enums import FileMode, SortMode

from verici.errors import RepositoryError
from verici.model import Commit, Constant, History
from verici.tokens import MOST_BYTES, constants_of, decode, suffix_of

#: Files that say how a project is built, by name or by path.
PATTERNS = tuple(Path(__file__).with_name("patterns.txt").read_text(encoding="utf-8").split())
#: Configuration files of one commit that are read at most; the first ones by path.
MOST_FILES = 2_000
_CACHE_FORMAT = 1


class Files(msgspec.Struct, frozen=True):
    """Which files are read, as globs; one without a slash matches the file's name in every folder."""

    patterns: tuple[str, ...] = PATTERNS
    without: tuple[str, ...] = ()

    def take(self, path: str) -> bool:
        """Return True if the file is read."""
        return _matches(path, self.patterns) and not _matches(path, self.without)


def _matches(path: str, patterns: Iterable[str]) -> bool:
    name = path.rpartition("/")[2]
    return any(fnmatchcase(path if "/" in pattern else name, pattern) for pattern in patterns)


class Repository:
    """A git repository, opened by a path in it; variables such as GIT_DIR have no effect."""

    def __init__(self, path: Path) -> None:
        try:
            found = pygit2.discover_repository(str(path))
            if not found:
                raise RepositoryError(f"{path} is in no git repository; name one with --repo")
            self.git = pygit2.Repository(found)
        except pygit2.GitError as error:
            raise RepositoryError(f"the repository of {path} cannot be read: {error}") from error
        self.notes: list[str] = []
        self._trees: dict[str, list[tuple[str, str]]] = {}  # regular files of the trees that have been read

    @property
    def root(self) -> Path:
        """Return the root of the working tree; the git directory of a bare repository."""
        return Path(self.git.workdir or self.git.path)

    @property
    def state(self) -> Path:
        """Return the folder for labels, model and cache: it is shared by all worktrees."""
        common = Path(self.git.path)
        pointer = common / "commondir"
        if pointer.is_file():
            common = (common / pointer.read_text().strip()).resolve()
        return common / "verici"

    def resolve(self, name: str) -> str:
        """Return the full id of the commit with this name."""
        try:
            found = self.git.revparse_single(name)
            return str(found.peel(pygit2.Commit).id)
        except (KeyError, ValueError, pygit2.GitError) as error:
            raise RepositoryError(f"{name!r} names no commit of {self.root}") from error

    def commit(self, name: str) -> pygit2.Commit:
        """Return the commit with this name."""
        return cast(pygit2.Commit, self.git[self.resolve(name)])

    def files(self, commit: pygit2.Commit, take: Callable[[str], bool]) -> dict[str, str]:
        """Return the chosen files of a commit: path to blob id. Symbolic links and submodules are no files."""
        found = self._tree(commit.tree, "")
        return dict(itertools.islice(((path, blob) for path, blob in found if take(path)), MOST_FILES))

    def _tree(self, tree: pygit2.Tree, prefix: str) -> list[tuple[str, str]]:
        """Return path and blob id of all regular files of a tree; subtrees that were seen are not read again."""
        name = f"{tree.id} {prefix}"
        if name in self._trees:
            return self._trees[name]
        result: list[tuple[str, str]] = []
        for entry in tree:
            path = prefix + _text(entry.raw_name or b"")
            if entry.filemode == FileMode.TREE:
                try:
                    result += self._tree(entry, path + "/")  # type: ignore[arg-type]
                except (KeyError, pygit2.GitError):
                    self._note(f"{path}/ cannot be read; its files count as absent")
            elif entry.filemode in (FileMode.BLOB, FileMode.BLOB_EXECUTABLE):
                result.append((path, str(entry.id)))
        self._trees[name] = result
        return result

    def text(self, blob: str) -> str | None:
        """Return a blob's text; None for a binary, oversized or missing one."""
        try:
            found = self.git[blob]
        except (KeyError, pygit2.GitError):
            self._note("some files are not in this clone (partial clone?); their constants count as absent")
            return None
        if not isinstance(found, pygit2.Blob) or found.size > MOST_BYTES:
            return None
        return decode(found.data)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def walk(self, tip: str, most: int) -> list[pygit2.Commit]:
        """Return the newest commits that lead to this one, parents before children."""
        order = SortMode.TOPOLOGICAL | SortMode.TIME
        found: list[pygit2.Commit] = []
        try:
            for commit in self.git.walk(self.resolve(tip), order):
                found.append(commit)
                if len(found) == most:
                    break
        except (KeyError, pygit2.GitError):
            self._note("the history is cut off (shallow clone?); older commits are not known")
        if self.git.is_shallow:
            self._note("this clone is shallow: older commits are not known")
        return found[::-1]

    def read(self, tip: str = "HEAD", most: int = 400, files: Files | None = None) -> History:
        """Return the newest commits that lead to `tip`, with the constants of their configuration files."""
        files = files or Files()
        take = functools.cache(files.take)
        commits = follow_renames([_commit(one, self.files(one, take)) for one in self.walk(tip, most)])
        constants = self._constants({(blob, path) for one in commits for path, blob in one.files.items()})
        return History(tuple(commits), constants, tuple(self.notes))

    def _constants(self, wanted: set[tuple[str, str]]) -> dict[str, tuple[Constant, ...]]:
        """Return the constants of each blob; a blob that has been read before comes from the cache."""
        place = self.state / "constants.msgpack"
        cache = _read_cache(place)
        before, result = len(cache), {}
        for blob, path in sorted(wanted):
            name = f"{blob} {suffix_of(path)}"
            if name not in cache:
                text = self.text(blob)
                cache[name] = constants_of(path, text) if text else ()
            result[blob] = cache[name]
        if len(cache) > before:
            with contextlib.suppress(OSError):  # a cache that cannot be written costs time, nothing else
                write_whole(place, msgspec.msgpack.encode((_CACHE_FORMAT, cache)))
        return result


def run_git(repository: Repository, *arguments: str) -> str:
    """Run git on this repository, without variables that name another one, and return what it prints."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env["GIT_LFS_SKIP_SMUDGE"] = "1"
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=repository.root, env=env, capture_output=True, check=True,
            encoding="utf-8", errors="replace",
        )  # fmt: skip
    except FileNotFoundError as error:
        raise RepositoryError("the command `git` is needed for this and is not installed") from error
    except subprocess.CalledProcessError as error:
        raise RepositoryError(f"git {' '.join(arguments)} failed: {error.stderr.strip()}") from error
    return done.stdout


def follow_renames(commits: list[Commit]) -> list[Commit]:
    """Return the commits with each file that was moved unchanged under its newest path, if the old one is gone."""
    by_id = {commit.id: commit for commit in commits}
    last = set(commits[-1].files) if commits else set()
    moved: dict[str, str] = {}
    for commit in commits:
        parent = by_id.get(commit.parents[0]) if commit.parents else None
        if parent is None or parent.files.keys() == commit.files.keys():
            continue
        gone = {blob: path for path, blob in parent.files.items() if path not in commit.files and path not in last}
        for path, blob in commit.files.items():
            if path not in parent.files and blob in gone:
                moved[gone.pop(blob)] = path

    def newest(path: str) -> str:
        for _ in moved:  # a file may move away and back, so that a loop without an end is possible
            if path not in moved:
                break
            path = moved[path]
        return path

    files = [{newest(path): blob for path, blob in commit.files.items()} for commit in commits]
    return [msgspec.structs.replace(one, files=found) for one, found in zip(commits, files, strict=True)]


def _commit(commit: pygit2.Commit, files: dict[str, str]) -> Commit:
    message = _text((commit.raw_message or b"").split(b"\n", 1)[0])[:120]
    parents, author = tuple(str(parent) for parent in commit.parent_ids), commit.author.email if commit.author else ""
    return Commit(str(commit.id), parents, commit.commit_time, files, author, message)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="backslashreplace")


def _read_cache(path: Path) -> dict[str, tuple[Constant, ...]]:
    """Return the constants by blob of earlier runs; a cache that cannot be read is made anew."""
    try:
        number, found = msgspec.msgpack.decode(path.read_bytes(), type=tuple[int, dict[str, tuple[Constant, ...]]])
    except (OSError, msgspec.DecodeError):
        return {}
    return found if number == _CACHE_FORMAT else {}


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old or the new content, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(data)
    part.replace(path)
