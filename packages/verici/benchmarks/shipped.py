"""Read the constants of 14 real histories from `shared/data/verici` as histories of this package."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

from pyarrow import parquet

from verici.model import Commit, Constant, History
from verici.tokens import join_versions

ROOT = Path(__file__).resolve().parents[3]
DATA = Path(os.environ.get("VERICI_DATA", ROOT.parent / "shared" / "data" / "verici"))


def read() -> dict[str, tuple[History, list[dict[str, str]]]]:
    """Return each repository's history and its rows of `commits.parquet`."""
    constants: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
    for row in parquet.read_table(DATA / "constants.parquet").to_pylist():
        constants[row["blob"]].append((row["line"], row["context"], row["value"]))
    blobs = {blob: _numbered(found) for blob, found in constants.items()}
    trees: dict[tuple[str, int], dict[str, str]] = defaultdict(dict)
    for row in parquet.read_table(DATA / "trees.parquet").to_pylist():
        trees[row["repo"], row["seq"]][row["path"]] = row["blob"]
    commits: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in parquet.read_table(DATA / "commits.parquet").to_pylist():
        commits[row["repo"]].append(row)
    return {repo: (_history(repo, rows, trees, blobs), rows) for repo, rows in sorted(commits.items())}


def _numbered(found: list[tuple[int, str, str]]) -> tuple[Constant, ...]:
    counts: dict[str, int] = defaultdict(int)
    result = []
    for line, name, value in found:
        result.append(Constant(line, name, counts[name], value))
        counts[name] += 1
    return (*result, *join_versions(result))


def _history(repo, rows, trees, blobs) -> History:
    commits = tuple(
        Commit(row["commit"], (row["parent"],) if row["parent"] else (), row["time"], trees[repo, row["seq"]])
        for row in sorted(rows, key=lambda row: row["seq"])
    )
    used = {blob for commit in commits for blob in commit.files.values()}
    return History(commits, {blob: blobs.get(blob, ()) for blob in used})
