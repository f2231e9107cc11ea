"""Source lines of functions that stacks name, only from directories that the user allows.

A frame's path comes from the job and is never opened: it only chooses among Python files under these directories.
Links are not followed.
"""

from __future__ import annotations

import ast
import os
import re
import stat
import warnings
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

#: "name (path:line)", as stacks are kept.
_FRAME = re.compile(r"^(?P<name>\S.{0,400}?) \((?P<file>.{1,1000}?\.py):(?P<line>\d{1,7})\)$")
#: Directories of installed packages.
_FOREIGN = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})
_MOST_ENTRIES = 20_000
_MOST_BYTES = 1_000_000
#: Lines by which a function may have moved.
_MOST_SHIFT = 30
_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)


@dataclass(frozen=True)
class SourceLines:
    """A function: path under the source directory, qualified name, first line number and lines."""

    place: str
    name: str
    first_line: int
    lines: tuple[str, ...]


@dataclass
class SourceTree:
    """Python files under some directories: at most 20,000 entries, nearest first, listed at the first question."""

    roots: Sequence[Path]
    _files: dict[str, list[tuple[Path, Path]]] | None = field(default=None, repr=False)

    def find(self, frame: str) -> SourceLines | None:
        """Return the function of a stack entry, None where no file holds it for certain.

        Of several files of that name it takes the one whose path has most in common with the frame's. The file must
        hold a function of that name at that line or, if the directory matches too, near it.
        """
        match = _FRAME.match(frame)
        if match is None or match["name"].endswith("<module>"):
            return None
        parts = [part for part in match["file"].replace("\\", "/").split("/") if part]
        line = int(match["line"])
        ranked = sorted(
            ((_common(parts, path), root, path) for root, path in self._named(parts[-1])), key=lambda one: -one[0]
        )
        for common, root, path in ranked[:20]:
            found = _function(path, match["name"], line, 0 if common < 2 <= len(parts) else _MOST_SHIFT)
            if found is not None:
                name, first, lines = found
                return SourceLines(str(path.relative_to(root)), name, first, lines)
        return None

    def _named(self, name: str) -> list[tuple[Path, Path]]:
        if self._files is None:
            self._files = defaultdict(list)
            for root in dict.fromkeys(root.resolve() for root in self.roots):
                for path in _python_files(root):
                    self._files[path.name].append((root, path))
        return self._files.get(name, [])


def _python_files(root: Path) -> Iterator[Path]:
    """Yield files breadth first, without links, hidden directories and installed packages."""
    waiting, seen = deque([root]), 0
    while waiting and seen < _MOST_ENTRIES:
        try:
            with os.scandir(waiting.popleft()) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue
        if any(entry.name == "pyvenv.cfg" for entry in found):
            continue
        seen += len(found)
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith(".") and entry.name not in _FOREIGN:
                    waiting.append(Path(entry.path))
            elif entry.name.endswith(".py") and entry.is_file(follow_symlinks=False):
                yield Path(entry.path)


def _common(parts: Sequence[str], path: Path) -> int:
    """Return how many names two paths share at their end."""
    number = 0
    for one, other in zip(reversed(parts), reversed(path.parts), strict=False):
        if one != other:
            break
        number += 1
    return number


def _function(path: Path, name: str, line: int, most_shift: int) -> tuple[str, int, tuple[str, ...]] | None:
    """Return qualified name, first line and text of a function."""
    text = _read(path)
    if text is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the job's code
            functions = list(_functions(ast.parse(text), ""))
    except _ERRORS:
        return None
    own = re.sub(r"(\.<locals>)?\.?<\w+>", "", name)  # a comprehension's or lambda's code is its function's
    inside = own != name
    fitting = [
        (abs(first - line), qualified, first, last)
        for qualified, first, last in functions
        if qualified.rpartition(".")[2] == own.rpartition(".")[2]
        and (first <= line <= last if inside else abs(first - line) <= most_shift)
    ]
    if not fitting:
        return None
    _, qualified, first, last = min(fitting, key=lambda one: (one[1] != own, one[0]))
    return qualified, first, tuple(text.splitlines()[first - 1 : last])


def _read(path: Path) -> str | None:
    """Return the text of a regular file of at most 1 MB."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode) or about.st_size > _MOST_BYTES:
                return None
            return file.read(_MOST_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _functions(tree: ast.AST, prefix: str) -> Iterator[tuple[str, int, int]]:
    """Yield qualified name, first line (decorators included) and last line of every function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            yield f"{prefix}{node.name}", first, node.end_lineno or node.lineno
            yield from _functions(node, f"{prefix}{node.name}.<locals>.")
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
        else:
            yield from _functions(node, prefix)
