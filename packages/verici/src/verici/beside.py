"""Plant faults and ask linters and the learned constraints about each: which of them sees what.

History faults set constants so that a learned constraint is broken. Syntax and security faults go into a workflow of
their own. A tool sees a fault if it says something that it does not say of the file without the fault.
"""

from __future__ import annotations

import functools
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from verici.check import check, state_of
from verici.errors import BadInput
from verici.explain import constraint_words, paths_of
from verici.history import Repository
from verici.model import Condition, Constraint, Key
from verici.store import Model
from verici.tokens import constants_of

_COMMANDS = {
    "actionlint": (["actionlint", "-no-color", "-oneline"], ".github/workflows/"),
    "zizmor": (["zizmor", "--offline", "--no-progress", "--format=plain", "--persona=regular"], ".github/"),
    "yamllint": (["yamllint", "-f", "parsable", "-d", "relaxed"], ""),
}
_TEMPLATES = Path(__file__).with_name("templates")
_PLACE = ".github/workflows/verici-planted.yml"


class Row(msgspec.Struct, frozen=True):
    """One planted fault and who saw it; a tool that does not read the file has no entry."""

    kind: str
    fault: str
    path: str
    seen: dict[str, bool]


def compare(repository: Repository, model: Model, tools: Sequence[str]) -> list[Row]:
    """Return who sees which fault, planted into the files of HEAD."""
    runners = {name.partition("=")[0]: _runner(name) for name in tools}
    files = repository.files(repository.commit("HEAD"), model.files.take)
    wanted = paths_of(model.constraints) & set(files)

    def broken(texts: Mapping[str, str]) -> set[str]:
        report = check(state_of(files.keys() | texts.keys(), texts), model, "planted")
        return {finding.fingerprint for finding in report.findings}

    def row(kind: str, fault: str, path: str, before: Mapping[str, str], after: Mapping[str, str]) -> Row:
        seen = {"verici": bool(broken(after) - broken(before))}
        for name, runner in runners.items():
            old, new = runner(path, before[path]), runner(path, after[path])
            if old is not None and new is not None:
                seen[name] = bool(new - old)
        return Row(kind, fault, path, seen)

    texts = {path: repository.text(files[path]) or "" for path in sorted(wanted)}
    rows = []
    for constraint in model.constraints:
        changed = plant(constraint, texts)
        if changed is not None:
            path = next(path for path in changed if changed[path] != texts[path])
            rows.append(row("history", constraint_words(constraint), path, texts, changed))
    workflow = (_TEMPLATES / "workflow.yml").read_text()
    for kind, name, old, new in msgspec.json.decode((_TEMPLATES / "faults.json").read_bytes(), type=list[list[str]]):
        before, after = {**texts, _PLACE: workflow}, {**texts, _PLACE: workflow.replace(old, new, 1)}
        rows.append(row(kind, name, _PLACE, before, after))
    return rows


def plant(constraint: Constraint, texts: Mapping[str, str]) -> dict[str, str] | None:
    """Return the files with constants set so that every condition holds; None if this cannot be done by a value."""
    changed = dict(texts)
    for condition in constraint.conditions:
        for key, value in _wanted(condition, changed).items():
            every = constants_of(key.path, changed.get(key.path, ""))
            found = [one for one in every if (one.name, one.nth) == (key.name, key.nth)]
            if not found:
                return None
            changed[key.path] = _set(changed[key.path], found[0].line, found[0].value, value)
    return changed if changed != dict(texts) else None


def _wanted(condition: Condition, texts: Mapping[str, str]) -> dict[Key, str]:
    predicate, keys = condition.predicate, condition.predicate.keys
    if predicate.kind in ("is", "least"):
        return {keys[0]: predicate.value if condition.holds else "0"}
    if predicate.kind in ("differ", "disagree") and condition.holds:
        own = next((key for key in keys if key.path in texts and "joined" not in key.name), keys[0])
        return {own: "99.9.9"}
    return {}


def _set(text: str, line: int, old: str, new: str) -> str:
    lines = text.splitlines(keepends=True)
    lines[line - 1] = re.sub(rf"(?<![\d.]){re.escape(old)}(?![\d.])", new, lines[line - 1], count=1)
    return "".join(lines)


def _runner(tool: str) -> Callable[[str, str], set[str] | None]:
    """Return a function from path and text to what the tool says; `name=command` names another program."""
    name, _, command = tool.partition("=")
    if name not in _COMMANDS:
        raise BadInput(f"no linter {name!r}; there are {', '.join(_COMMANDS)}")
    arguments, reads = _COMMANDS[name]
    here = Path(sys.executable).with_name(arguments[0])
    program = shlex.split(command) or [shutil.which(arguments[0]) or (str(here) if here.exists() else "")]
    if not program[0]:
        raise BadInput(f"{name} is not installed; install it, or name it as {name}=COMMAND")

    @functools.cache
    def say(path: str, text: str) -> set[str] | None:
        if not path.startswith(reads) or not path.endswith((".yml", ".yaml")):
            return None
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / path
            file.parent.mkdir(parents=True)
            file.write_text(text)
            done = subprocess.run(
                [*program, *arguments[1:], path], cwd=folder, capture_output=True, text=True, check=False, timeout=120
            )
        said = re.sub(r":?\d+:\d+|\bline \d+|\d+ findings?.*", "", done.stdout).splitlines()
        return {line.strip() for line in said if re.search(r"error|warning|\[|help", line)}

    return say


def table(rows: Sequence[Row]) -> str:
    """Return the faults as a table: seen, not seen, or not read by the tool."""
    tools = list(dict.fromkeys(name for row in rows for name in row.seen))
    words = {True: "seen", False: "no", None: "not read"}
    lines = [" | ".join(["kind", "fault", *tools])]
    lines += [" | ".join([row.kind, row.fault, *(words[row.seen.get(name)] for name in tools)]) for row in rows]
    return "\n".join(lines)
