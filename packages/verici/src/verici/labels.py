"""Read the results of past builds from what CI services export.

A failing test is no configuration error: such a build counts as passed, with kind `test`. A failure whose step is not
known has kind `unknown`. Cancelled and skipped runs give no label.
"""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from verici.errors import BadInput
from verici.history import write_whole
from verici.model import FAIL, PASS, Label

#: Steps whose failure says that tests failed; all others count as configuration.
TEST_STEP = re.compile(r"\b(?:r?spec|unit|e2e|integration|pytest|tests?|testing|cucumber|jest|ctest)\b", re.I)
#: Steps that set up, although their name speaks of tests ("install test dependencies").
SETUP_STEP = re.compile(
    r"\b(?:install|set[ -]?up|build|compile|bundle|checkout|restore|cache|configure|prepare)\b", re.I
)

_FIELDS = tuple(Label.__struct_fields__)
_SEVERITY = ("config", "unknown", "limit", "test", "ok")
Jobs = Mapping[str, str]


class Run(msgspec.Struct, frozen=True):
    """One run of one workflow on a commit; a run of higher order replaces others of the same workflow.

    The outcome is `pass`, `fail`, or empty for a run without a result; kind, time and detail are those of a label.
    """

    commit: str
    workflow: str
    order: tuple[str, int]
    outcome: str
    kind: str = "ok"
    time: str = ""
    detail: str = ""


def reduce_runs(runs: Iterable[Run], source: str) -> list[Label]:
    """Return one label a commit: a repeated run replaces earlier ones, and one failed workflow fails the commit."""
    newest: dict[tuple[str, str], Run] = {}
    for run in runs:
        name = (run.commit, run.workflow)
        if run.commit and run.outcome and (name not in newest or run.order >= newest[name].order):
            newest[name] = run
    commits: dict[str, list[Run]] = defaultdict(list)
    for run in newest.values():
        commits[run.commit].append(run)
    labels = []
    for commit, found in commits.items():
        worst = min(found, key=lambda run: (run.outcome != FAIL, _SEVERITY.index(run.kind)))
        labels.append(Label(commit, worst.outcome, worst.kind, source, worst.time, worst.detail))
    return sorted(labels, key=lambda label: (label.time, label.commit))


def step_kind(names: Sequence[str]) -> str:
    """Return the kind of a failure by its failed steps; `unknown` if none is known."""
    tests = [bool(TEST_STEP.search(name)) and not SETUP_STEP.search(name) for name in names]
    return "unknown" if not names else "test" if all(tests) else "config"


def _run(
    row: Mapping[str, Any], commit: object, name: str, when: object, outcome: str, steps: Sequence[str],
    workflow: object = "", attempt: int = 0,
) -> Run:  # fmt: skip
    """Return a run; a failure takes its kind from the failed steps, and one in tests counts as a pass."""
    number = str(row.get("databaseId") or row.get("id") or row.get("number") or "")
    time = str(when or "")
    order = (time, attempt or (int(number) if number.isdigit() else 0))
    detail = f"{name} {number}" + (f": {', '.join(steps[:3])}" if steps else "")
    kind = "ok" if outcome != FAIL else step_kind(steps)
    return Run(str(commit or ""), str(workflow or ""), order, PASS if kind == "test" else outcome, kind, time, detail)


def _rows(text: str, what: str) -> list[dict[str, Any]]:
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise BadInput(f"this is not the JSON of {what}: {error}") from error
    if isinstance(found, dict):
        found = found.get("builds", [found])
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise BadInput(f"{what} are a JSON list of objects; this is another shape")
    return found


def _named(rows: Iterable[Mapping[str, Any]], key: str, bad: Sequence[str], *names: str) -> list[str]:
    """Return the names of the rows whose state is a failed one and that may not fail."""
    failed = [
        row for row in rows if row.get(key) in bad and not row.get("allow_failure") and not row.get("soft_failed")
    ]
    return [" ".join(str(row[name]) for name in names if row.get(name)) for row in failed]


def github(text: str, jobs: Jobs) -> list[Run]:
    """Read `gh run list --json databaseId,headSha,conclusion,event,workflowName,attempt,createdAt`.

    `jobs` are the outputs of `gh run view ID --json jobs` by ID; runs without one have unknown kinds.
    """
    outcomes = {"success": PASS, "failure": FAIL, "startup_failure": FAIL, "timed_out": FAIL}
    runs = []
    for row in _rows(text, "GitHub Actions runs"):
        commit = row.get("headSha")
        if not commit:
            raise BadInput("a GitHub Actions run has no headSha; list runs with --json databaseId,headSha,conclusion,…")
        details = [
            job
            for one in _rows(jobs.get(str(row.get("databaseId")), "[]"), "a run's jobs")
            for job in one.get("jobs", [one])
        ]
        failed = [_named(job.get("steps", ()), "conclusion", ("failure", "timed_out"), "name") for job in details]
        steps = [names[0] for names in failed if names]
        if row.get("conclusion") == "startup_failure":
            steps = ["workflow file"]  # the service could not read the workflow: configuration by definition
        outcome, attempt = outcomes.get(str(row.get("conclusion")), ""), int(row.get("attempt") or 1)
        runs.append(_run(row, commit, "run", row.get("createdAt"), outcome, steps, row.get("workflowName"), attempt))
    return runs


def gitlab(text: str, jobs: Jobs) -> list[Run]:
    """Read GitLab's list of pipelines; `jobs` are the lists of their jobs by pipeline id."""
    runs = []
    for row in _rows(text, "GitLab pipelines"):
        steps = _named(_rows(jobs.get(str(row.get("id")), "[]"), "GitLab jobs"), "status", ("failed",), "stage", "name")
        outcome = {"success": PASS, "failed": FAIL}.get(str(row.get("status")), "")
        if row.get("yaml_errors"):
            outcome, steps = FAIL, [".gitlab-ci.yml"]
        runs.append(_run(row, row.get("sha"), "pipeline", row.get("created_at"), outcome, steps))
    return runs


def jenkins(text: str, jobs: Jobs) -> list[Run]:
    """Read Jenkins' `api/json?tree=builds[number,result,timestamp,actions[lastBuiltRevision[SHA1]]]`.

    UNSTABLE means that tests failed. `jobs` are `wfapi/describe` answers by build number: their failed stages.
    """
    runs = []
    for row in _rows(text, "Jenkins builds"):
        revisions = [(action or {}).get("lastBuiltRevision", {}).get("SHA1") for action in row.get("actions", ())]
        details = _rows(jobs.get(str(row.get("number")), "[]"), "stages")
        stages = [stage for one in details for stage in one.get("stages", ())]
        steps = ["tests"] if row.get("result") == "UNSTABLE" else _named(stages, "status", ("FAILED",), "name")
        outcome = {"SUCCESS": PASS, "UNSTABLE": FAIL, "FAILURE": FAIL}.get(str(row.get("result")), "")
        when = int(row.get("timestamp") or 0) // 1000
        runs.append(_run(row, next(filter(None, revisions), ""), "build", when, outcome, steps))
    return runs


def buildkite(text: str, jobs: Jobs) -> list[Run]:
    """Read Buildkite's list of builds; the failed jobs' names give the kind."""
    runs = []
    for row in _rows(text, "Buildkite builds"):
        steps = _named(row.get("jobs") or (), "state", ("failed", "timed_out"), "name")
        pipeline = (row.get("pipeline") or {}).get("slug")
        outcome = {"passed": PASS, "failed": FAIL}.get(str(row.get("state")), "")
        runs.append(_run(row, row.get("commit"), "build", row.get("created_at"), outcome, steps, pipeline))
    return runs


def travis(text: str, jobs: Jobs) -> list[Run]:
    """Read TravisTorrent's columns, or a table with build_id, commit and status."""
    outcomes = {"passed": (PASS, "ok"), "failed": (PASS, "test"), "errored": (FAIL, "config")}
    runs = []
    for row in table_of(text):
        commit, status = row.get("git_trigger_commit") or row.get("commit"), row.get("tr_status") or row.get("status")
        number = row.get("tr_build_id") or row.get("build_id") or ""
        if not commit or not status:
            raise BadInput("a Travis table needs git_trigger_commit and tr_status, or commit and status")
        outcome, kind = outcomes.get(status.lower(), ("", "ok"))
        when = row.get("started_at") or row.get("gh_build_started_at") or ""
        order = (when, int(number) if number.isdigit() else 0)
        runs.append(Run(commit, row.get("event_type") or "", order, outcome, kind, when, f"build {number}"))
    return runs


_PLAIN = {
    **dict.fromkeys((PASS, "passed", "success", "ok", "0"), (PASS, "ok")), "test": (PASS, "test"),
    **dict.fromkeys((FAIL, "failed", "failure"), (FAIL, "unknown")),
    **dict.fromkeys(("error", "errored"), (FAIL, "config")),
}  # fmt: skip


def plain(text: str, jobs: Jobs) -> list[Run]:
    """Read a table with the columns commit and result, and kind, time and detail if there are any."""
    runs = []
    for number, row in enumerate(table_of(text), 2):
        commit, result, kind = row.get("commit", ""), row.get("result", "").lower(), row.get("kind", "")
        if not commit or result not in _PLAIN or kind not in ("", *_SEVERITY):
            known = ", ".join(sorted(_PLAIN))
            raise BadInput(
                f"line {number}: a label needs a commit and a result out of {known}; got {commit!r}, {result!r} {kind}"
            )
        outcome, guessed = _PLAIN[result]
        when, outcome = row.get("time", ""), PASS if kind == "test" else outcome
        runs.append(Run(commit, "", (when, number), outcome, kind or guessed, when, row.get("detail", "")))
    return runs


def table_of(text: str) -> list[dict[str, str]]:
    """Return the rows of a table with a head, without blanks around cells."""
    rows = csv.DictReader(io.StringIO(text.lstrip("\ufeff")))
    return [{(n or "").strip(): value.strip() for n, value in row.items() if isinstance(value, str)} for row in rows]


READERS: dict[str, Callable[[str, Jobs], list[Run]]] = {
    "github": github, "gitlab": gitlab, "jenkins": jenkins, "buildkite": buildkite, "travis": travis, "csv": plain,
}  # fmt: skip


def read_export(path: Path, service: str, jobs: Path | None = None) -> list[Label]:
    """Return the labels of a service's export; `jobs` is a folder of ID.json files."""
    details = {one.stem: read_text(one) for one in sorted(jobs.glob("*.json"))} if jobs else {}
    return reduce_runs(READERS[service](read_text(path), details), service)


def read_text(path: Path) -> str:
    """Return the text of a file from the caller."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error


def load(path: Path) -> dict[str, Label]:
    """Return the kept labels by commit; none if there is no file."""
    rows = table_of(read_text(path)) if path.exists() else []
    return {row["commit"]: Label(**{name: row.get(name, "") for name in _FIELDS}) for row in rows if row.get("commit")}


def save(path: Path, labels: Iterable[Label]) -> None:
    """Write labels as a table, replacing the file as a whole."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_FIELDS)
    writer.writerows([getattr(label, name) for name in _FIELDS] for label in labels)
    write_whole(path, text.getvalue().encode())


def match(
    labels: Mapping[str, Label], ids: Sequence[str], *, known_kinds: bool = False
) -> tuple[dict[str, Label], int]:
    """Return the label of each commit by full id, and how many labels name none; labels may be abbreviated.

    Builds that hit a limit are left out, with `known_kinds` failures of unknown kind, too.
    """
    whole = set(ids)
    short = {name[:length]: name for length in sorted({len(one) for one in labels if len(one) < 40}) for name in ids}
    found: dict[str, Label] = {}
    unmatched = 0
    for name, label in labels.items():
        commit = name if name in whole else short.get(name)
        if commit is None:
            unmatched += 1
        elif label.kind != "limit" and not (known_kinds and label.kind == "unknown"):
            found[commit] = label
    return found, unmatched
