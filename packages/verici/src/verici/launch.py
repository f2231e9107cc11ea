"""Pre-flight for training jobs: the learner over a folder of launch files, with results of past jobs as labels.

A job is a subfolder with launch files, or one file. Its result comes from a table (`job,exit_code` or `job,result`),
else from `verdict.json` (Eroica's) or `exit_code` in its folder. Meets Eroica only through that file.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgspec

from verici.check import Report, check, state_of
from verici.errors import BadInput
from verici.history import MOST_FILES, Files
from verici.labels import read_text, table_of
from verici.learner import LAUNCH_LEVELS, learn
from verici.model import Commit, Constant, History
from verici.store import Model
from verici.tokens import MOST_BYTES, constants_of, decode

#: Launch files; results are none.
FILES = Files(
    ("*.yaml", "*.yml", "*.toml", "*.sbatch", "*.slurm", "*.sh", "*.json", "*.env", "*.cfg", "*.ini"), ("verdict.json",)
)


def learn_jobs(folder: Path, table: Path | None = None) -> Model:
    """Return what the past jobs of a folder teach; jobs are in the order of their names, or of the table's rows."""
    results = read_table(table) if table else {}
    visible = [place for place in sorted(folder.iterdir()) if not place.name.startswith(".") and place != table]
    places = {place.name: place for place in visible}
    names = [name for name in results if name in places] + [name for name in places if name not in results]
    history = _history([(name, places[name]) for name in names])
    failed = {name: found for name in names if (found := results.get(name, _result(places[name]))) is not None}
    return learn(history, failed, FILES, levels=LAUNCH_LEVELS)


def check_job(job: Path, model: Model) -> Report:
    """Return the constraints that a job's launch files break."""
    texts = launch_files(job)
    return check(state_of(texts, texts), model, job.name)


def _history(jobs: list[tuple[str, Path]]) -> History:
    """Return one state for each job; the job before it counts as its parent."""
    commits, constants, parents = [], dict[str, tuple[Constant, ...]](), tuple[str, ...]()
    for number, (name, place) in enumerate(jobs):
        texts = launch_files(place)
        constants.update({f"{name}/{path}": constants_of(path, text) for path, text in texts.items()})
        commits.append(Commit(name, parents, number, {path: f"{name}/{path}" for path in texts}))
        parents = (name,)
    return History(tuple(commits), constants)


def launch_files(place: Path) -> dict[str, str]:
    """Return the text of a job's launch files by path; a job that is one file has it under a name that all share."""
    alone = place.is_file()
    paths = [place] if alone else sorted(path for path in place.rglob("*") if path.is_file() and not path.is_symlink())
    texts: dict[str, str] = {}
    for path in paths[:MOST_FILES]:
        inside = f"launch{path.suffix}" if alone else path.relative_to(place).as_posix()
        if (alone or FILES.take(inside)) and path.stat().st_size <= MOST_BYTES:
            texts[inside] = decode(path.read_bytes()) or ""
    return texts


def read_table(path: Path) -> dict[str, bool]:
    """Return whether each job of a table failed before its first iteration."""
    found = {}
    for number, row in enumerate(table_of(read_text(path)), 2):
        result = (row.get("exit_code") or row.get("result") or "").lower()
        if not row.get("job") or not result:
            raise BadInput(f"{path}, line {number}: a job table needs the columns job and exit_code, or job and result")
        found[row["job"]] = result not in ("0", "pass", "ok", "success")
    return found


def _result(place: Path) -> bool | None:
    """Return whether a job's own folder says that it failed before its first iteration; None if it says nothing."""
    code: bool | None = None
    began: bool | None = None
    with contextlib.suppress(OSError, ValueError):
        code = int((place / "exit_code").read_text()) != 0
    with contextlib.suppress(OSError, msgspec.DecodeError):
        began = has_begun(msgspec.json.decode((place / "verdict.json").read_bytes()))
    return code if began is None else not began


def has_begun(verdict: Any) -> bool | None:
    """Return whether Eroica's verdict says that a job iterated; None if it says nothing.

    A slow job has begun: its configuration worked. A job that stands still without an iteration has not.
    """
    if not isinstance(verdict, dict):
        return None
    window, times = verdict.get("window") or {}, verdict.get("iteration") or {}
    if (
        verdict.get("verdict") in ("healthy", "slow")
        or window.get("first_iteration") is not None
        or any(times.values())
        or (verdict.get("verdict") == "undetermined" and (verdict.get("coverage") or {}).get("workers_reported"))
    ):
        return True
    return False if verdict.get("verdict") == "blocked" else None
