"""Show the history: lines for a terminal, or one page with the timeline and what each constraint would have caught."""

from __future__ import annotations

from collections import defaultdict
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
    built = [commit for commit in history.commits if commit.id in failed]
    return [(one, labels.get(one.id) or fallback.get(one.id[:7]) or Label(one.id, "pass")) for one in built]


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
    names = [fingerprint(one) for one in model.constraints] if model else []
    lines = []
    for commit, label in _builds(history, failed, labels):
        broken = "".join(f" breaks {names[number]}" for number in _broken(commit, history, model))
        result = "fail" if failed[commit.id] else "pass"
        lines.append(f"{short(commit.id)} {result} {label.kind:8} {commit.message[:60]}{broken}")
    return "\n".join(lines) or "no labelled builds; see `verici import` and `verici label`"


def write_page(
    path: Path, history: History, failed: Mapping[str, bool], labels: Mapping[str, Label], model: Model | None
) -> None:
    """Write the page as one file that needs no network."""
    builds: list[dict[str, Any]] = []
    marks: dict[int, list[int]] = defaultdict(list)
    for at, (commit, label) in enumerate(_builds(history, failed, labels)):
        title = f"{short(commit.id)} {'failed' if failed[commit.id] else 'passed'}: {commit.message}"
        builds.append({"failed": failed[commit.id], "title": title, "commit": commit, "label": label})
        for number in _broken(commit, history, model):
            marks[number].append(at)
    rules = []
    for number, one in enumerate(model.constraints if model else ()):
        caught = sum(builds[at]["failed"] for at in marks[number])
        words, evidence = constraint_words(one), evidence_words(one)
        rules.append({
            "words": words, "name": fingerprint(one), "weak": one.weak, "evidence": evidence, "marks": marks[number],
            "caught": caught, "wrong": len(marks[number]) - caught,
        })  # fmt: skip
    template = Environment(autoescape=True, loader=PackageLoader("verici")).get_template("history.html")
    count = sum(build["failed"] for build in builds)
    page = template.render(builds=builds, rules=rules, failed=count, commits=len(history.commits))
    path.write_text(page, encoding="utf-8")
