"""Check one state against the model: which constraints it breaks, and at which lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import pygit2

from verici.errors import BadInput, RepositoryError
from verici.explain import constraint_words, evidence_words, fingerprint, paths_of
from verici.history import Repository, write_whole
from verici.model import Constraint, Finding, Key, Place, breaks
from verici.store import Model
from verici.tokens import constants_of

PASSED, PREDICTED_FAILURE, TOO_LITTLE = 0, 3, 4
_IGNORE = re.compile(r"(?:#|//|<!--|;)\s*verici:\s*ignore\b")


class Report(msgspec.Struct, frozen=True):
    """The result of a check: status 0, 3 or 4, new findings, those of the baseline, those that a comment ignores."""

    commit: str
    status: int
    findings: tuple[Finding, ...]
    known: tuple[Finding, ...] = ()
    ignored: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    def trusted(self) -> Report:
        """Return the report without findings whose message the filter does not trust; the status stays."""
        return msgspec.structs.replace(self, findings=tuple(one for one in self.findings if one.trusted))


class State(msgspec.Struct, frozen=True):
    """What a check looks at: paths, constants, and the text of the files that constraints speak of."""

    files: set[str]
    values: dict[Key, str]
    lines: dict[Key, int]
    texts: dict[str, list[str]]


def state_of_commit(repository: Repository, name: str, model: Model) -> State:
    """Return the state of a commit, as far as the model speaks of it."""
    return _state(repository, repository.files(repository.commit(name), model.files.take), model)


def state_of_index(repository: Repository, model: Model, index: Path | None = None) -> State:
    """Return the state that the next commit will have; git names another index file while it commits."""
    try:
        read = pygit2.Index(str(index)) if index else repository.git.index
        read.read(False)
    except (OSError, pygit2.GitError) as error:
        raise RepositoryError(f"the index cannot be read: {error}") from error
    modes = (pygit2.enums.FileMode.BLOB, pygit2.enums.FileMode.BLOB_EXECUTABLE)
    files = {entry.path: str(entry.id) for entry in read if entry.mode in modes and model.files.take(entry.path)}
    return _state(repository, files, model)


def _state(repository: Repository, files: Mapping[str, str], model: Model) -> State:
    texts = {path: repository.text(files[path]) for path in sorted(paths_of(model.constraints)) if path in files}
    return state_of(files, {path: text for path, text in texts.items() if text is not None})


def state_of(files: Iterable[str], texts: Mapping[str, str]) -> State:
    """Return the state that has these files; only those whose text is given have constants."""
    found = {Key(path, one.name, one.nth): one for path, text in texts.items() for one in constants_of(path, text)}
    values, lines = {key: one.value for key, one in found.items()}, {key: one.line for key, one in found.items()}
    return State(set(files), values, lines, {path: text.splitlines() for path, text in texts.items()})


def check(state: State, model: Model, commit: str, known: Iterable[str] = (), notes: Iterable[str] = ()) -> Report:
    """Return the constraints that a state breaks; `known` are the fingerprints of the baseline."""
    findings, old, ignored = [], [], []
    baseline = set(known)
    for constraint in model.constraints:
        if not breaks(constraint, state.values, state.files):
            continue
        places = _places(constraint, state)
        trusted = model.filter.trusts(constraint_words(constraint)) if model.filter else None
        says, evidence = constraint_words(constraint, state.values), evidence_words(constraint)
        finding = Finding(constraint, places, says, evidence, fingerprint(constraint), trusted)
        if finding.fingerprint in baseline:
            old.append(finding)
        elif any(_ignores(state.texts.get(place.path, []), place.line) for place in places):
            ignored.append(finding)
        else:
            findings.append(finding)
    status = PREDICTED_FAILURE if findings else PASSED
    return Report(commit, status, tuple(findings), tuple(old), tuple(ignored), tuple(notes))


def _places(constraint: Constraint, state: State) -> tuple[Place, ...]:
    """Return the lines of a constraint's constants; if none is present, line 1 of a file that the state has."""
    found: dict[tuple[str, int], Place] = {}
    conditions = sorted(constraint.conditions, key=lambda one: not one.holds)
    for condition in conditions:
        keys = condition.predicate.keys
        if condition.predicate.kind == "has":
            keys = tuple(
                key for key, value in state.values.items()
                if key[:2] == keys[0][:2] and (value == condition.predicate.value or not condition.holds)
            )[:1]  # fmt: skip
        for key in keys:
            if key in state.lines:
                place = _place(key.path, state.lines[key], state.texts)
                found.setdefault((place.path, place.line), place)
    if not found:
        named = [key.path for one in conditions for key in one.predicate.keys if key.path in state.files]
        for path in (*named, *sorted(state.files))[:1]:
            found[path, 1] = _place(path, 1, state.texts)
    return tuple(found.values())


def _place(path: str, line: int, texts: Mapping[str, list[str]]) -> Place:
    text = texts.get(path, [])
    return Place(path, line, text[line - 1].strip()[:200] if line <= len(text) else "")


def _ignores(text: list[str], line: int) -> bool:
    """Return True if the line, or a comment line directly above it, says `verici: ignore`."""
    own = text[line - 1] if line <= len(text) else ""
    above = text[line - 2] if 2 <= line <= len(text) + 1 else ""
    return bool(_IGNORE.search(own) or (_IGNORE.search(above) and _IGNORE.match(above.strip())))


def load_baseline(path: Path) -> set[str]:
    """Return the fingerprints of a baseline file; an empty set if there is none."""
    try:
        return set(msgspec.json.decode(path.read_bytes(), type=dict[str, str]))
    except FileNotFoundError:
        return set()
    except (OSError, msgspec.DecodeError) as error:
        raise BadInput(f"{path} is no baseline of verici: {error}") from error


def save_baseline(path: Path, findings: Iterable[Finding]) -> None:
    """Write a baseline: fingerprints and, for people, what each one says."""
    known = {one.fingerprint: constraint_words(one.constraint) for one in findings}
    write_whole(path, msgspec.json.format(msgspec.json.encode(dict(sorted(known.items()))), indent=1) + b"\n")
