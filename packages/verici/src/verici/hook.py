"""Git hooks: the pushed tips, or the next commit, are checked; our own failure never stops a push."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from verici.errors import BadInput
from verici.history import Repository, run_git

_MARK = "# Written by `verici hook install`; `verici hook remove` removes it."


def pushed_tips(lines: Iterable[str]) -> list[str]:
    """Return the commits that a push would send, from what git hands to a pre-push hook.

    Each line holds local ref, local id, remote ref, remote id. A deletion has a local id of zeros; tags are left out.
    """
    tips: dict[str, None] = {}
    for line in lines:
        fields = line.split()
        if len(fields) == 4 and set(fields[1]) != {"0"} and not fields[2].startswith("refs/tags/"):
            tips[fields[1]] = None
    return list(tips)


def folder_of_hooks(repository: Repository) -> Path:
    """Return the folder that git names for hooks, in linked worktrees and with core.hooksPath, too."""
    return repository.root / run_git(repository, "rev-parse", "--git-path", "hooks").rstrip("\n")


def install(repository: Repository, name: str) -> Path:
    """Write a hook.

    Raises:
        BadInput: There is a hook of somebody else.
    """
    path = folder_of_hooks(repository) / name
    python = shlex.quote(sys.executable)
    if path.exists() and not _is_ours(path):
        raise BadInput(f"{path} exists and is not verici's; add this line to it: {python} -m verici hook run {name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"#!/bin/sh\n{_MARK}\n"
        f"if ! test -x {python}; then echo 'verici: its Python is gone, nothing was checked' >&2; exit 0; fi\n"
        f"exec {python} -m verici hook run {name}\n"
    )
    path.chmod(0o755)
    return path


def remove(repository: Repository, name: str) -> Path:
    """Remove a hook that `install` wrote."""
    path = folder_of_hooks(repository) / name
    if not path.exists() or not _is_ours(path):
        raise BadInput(f"{path} is no hook of verici's; in a hook of yours, remove the line with `verici hook run`")
    path.unlink()
    return path


def _is_ours(path: Path) -> bool:
    return _MARK in path.read_text(errors="replace")
