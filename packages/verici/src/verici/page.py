"""Show the history: lines for a terminal, or one page with the timeline and what each constraint would have caught."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from verici.explain import constraint_words, evidence_words, fingerprint, short
from verici.features import values_of
from verici.model import Commit, History, Label, holds
from verici.store import Model


def _builds(history: History, failed: Mapping[str, bool], labels: Mapping[str, Label]) -> list[tuple[Commit, Label]]:
    fallback = {label.commit[:7]: label for label in labels.values()}
    return [
        (commit, labels.get(commit.id) or fallback.get(commit.id[:7]) or Label(commit.id, "pass"))
        for commit in history.commits
        if commit.id in failed
    ]


def _broken(commit: Commit, history: History, model: Model | None) -> list[int]:
    values = values_of(commit, history.constants)
    return [
        number
        for number, constraint in enumerate(model.constraints if model else ())
        if all(holds(one.predicate, values, commit.files) == one.holds for one in constraint.conditions)
    ]


def text_timeline(
    history: History, failed: Mapping[str, bool], labels: Mapping[str, Label], model: Model | None
) -> str:
    """Return one line for each labelled build."""
    lines = []
    for commit, label in _builds(history, failed, labels):
        broken = (
            [f"breaks {fingerprint(model.constraints[number])}" for number in _broken(commit, history, model)]
            if model
            else []
        )
        result = "fail" if failed[commit.id] else "pass"
        lines.append(
            " ".join(filter(None, [short(commit.id), result, f"{label.kind:8}", commit.message[:60], *broken]))
        )
    return "\n".join(lines) or "no labelled builds; see `verici import` and `verici label`"


def write_page(
    path: Path, history: History, failed: Mapping[str, bool], labels: Mapping[str, Label], model: Model | None
) -> None:
    """Write the page as one file that needs no network."""
    builds: list[dict[str, Any]] = []
    marks: dict[int, list[int]] = {}
    for at, (commit, label) in enumerate(_builds(history, failed, labels)):
        bad = failed[commit.id]
        message = commit.message
        title = f"{short(commit.id)} {'failed' if bad else 'passed'}: {message}"
        builds.append({
            "failed": bad, "title": title, "short": short(commit.id), "message": message, "kind": label.kind,
            "detail": label.detail,
        })  # fmt: skip
        for number in _broken(commit, history, model):
            marks.setdefault(number, []).append(at)
    rules = [
        {
            "words": constraint_words(one), "name": fingerprint(one), "weak": one.weak,
            "evidence": evidence_words(one),
            "marks": marks.get(number, []), "caught": sum(builds[at]["failed"] for at in marks.get(number, [])),
            "wrong": sum(not builds[at]["failed"] for at in marks.get(number, [])),
        }
        for number, one in enumerate(model.constraints if model else ())
    ]  # fmt: skip
    template = Environment(autoescape=True, loader=PackageLoader("verici")).get_template("history.html")
    count = sum(build["failed"] for build in builds)
    page = template.render(builds=builds, rules=rules, failed=count, commits=len(history.commits))
    path.write_text(page, encoding="utf-8")
