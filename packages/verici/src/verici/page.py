"""Show the history: lines for a terminal, or one page with the timeline and what each constraint would have caught."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from verici.explain import constraint_words, evidence_words, fingerprint, short
from verici.features import values_of
from verici.model import FAIL, Commit, History, Label, breaks
from verici.store import Model


def _broken(commit: Commit, history: History, model: Model | None) -> list[int]:
    values = values_of(commit, history.constants)
    constraints = model.constraints if model else ()
    return [number for number, one in enumerate(constraints) if breaks(one, values, commit.files)]


def text_timeline(history: History, labels: Mapping[str, Label], model: Model | None) -> str:
    """Return one line for each labelled build; labels have full commit ids."""
    names = [fingerprint(one) for one in model.constraints] if model else []
    lines = []
    for commit in (commit for commit in history.commits if commit.id in labels):
        label = labels[commit.id]
        broken = "".join(f" breaks {names[number]}" for number in _broken(commit, history, model))
        lines.append(f"{short(commit.id)} {label.result} {label.kind:8} {commit.message[:60]}{broken}")
    return "\n".join(lines) or "no labelled builds; see `verici import` and `verici label`"


def write_page(path: Path, history: History, labels: Mapping[str, Label], model: Model | None) -> None:
    """Write the page as one file that needs no network."""
    builds: list[dict[str, Any]] = []
    marks: dict[int, list[int]] = defaultdict(list)
    for at, commit in enumerate(commit for commit in history.commits if commit.id in labels):
        failed = labels[commit.id].result == FAIL
        title = f"{short(commit.id)} {'failed' if failed else 'passed'}: {commit.message}"
        builds.append({"failed": failed, "title": title, "commit": commit, "label": labels[commit.id]})
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
