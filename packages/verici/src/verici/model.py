"""Records that all modules share: constants, commits, labels, predicates, constraints and findings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Literal, NamedTuple

import msgspec

PASS, FAIL = "pass", "fail"

#: Order of two values: by version parts (3.10 > 3.9), or as decimal numbers (0.1 > 0.05).
Order = Literal["version", "decimal"]


class Key(NamedTuple):
    """Names one constant of a repository: the nth one with this context in this file."""

    path: str
    name: str
    nth: int = 0

    def __str__(self) -> str:
        return self.name + (f" (number {self.nth + 1})" if self.nth else "")


class Constant(NamedTuple):
    """A numeric constant of one file: its line (from 1), context words, number among equal contexts, and text."""

    line: int
    name: str
    nth: int
    value: str


class Commit(msgspec.Struct, frozen=True):
    """One state: commit id or name of a job, parents, seconds since 1970, configuration files as path to blob id."""

    id: str
    parents: tuple[str, ...]
    time: int
    files: dict[str, str]
    author: str = ""
    message: str = ""


class History(msgspec.Struct, frozen=True):
    """Commits in the order in which they are learned, and the constants of each blob that they use."""

    commits: tuple[Commit, ...]
    constants: dict[str, tuple[Constant, ...]]
    notes: tuple[str, ...] = ()


class Label(msgspec.Struct, frozen=True):
    """The result of a commit's build.

    The result is `pass` (tests may fail) or `fail` (error before tests could run). The kind is `ok`, `config`, `test`
    (counts as pass), `unknown` (a failure of unknown kind) or `limit` (no result). The detail names step and run.
    """

    commit: str
    result: str
    kind: str = "ok"
    source: str = ""
    time: str = ""
    detail: str = ""


class Predicate(msgspec.Struct, frozen=True):
    """A statement about one state that is true or false.

    The kind is `file`, `absent`, `is`, `least`, `has`, `differ`, `below`, `disagree`, `product` or `multiple`; `file`
    uses only the path of its key. `is`, `least` and `has` have a value.
    """

    kind: str
    keys: tuple[Key, ...]
    value: str = ""
    order: Order = "version"


class Condition(msgspec.Struct, frozen=True):
    """A predicate on a path of the tree, and the side of it that was taken."""

    predicate: Predicate
    holds: bool
    also: tuple[Predicate, ...] = ()


class Constraint(msgspec.Struct, frozen=True):
    """A path from root to a leaf that fails, with the past builds that taught it.

    A build that meets all conditions is predicted to fail. `failed` are the commits of the leaf whose builds failed,
    `passed` counts the others, `fixed` names the next commit that passed outside of the leaf. Few builds make it weak.
    """

    conditions: tuple[Condition, ...]
    failed: tuple[str, ...]
    passed: int
    fixed: dict[str, str]
    weak: bool = False


class Place(msgspec.Struct, frozen=True):
    """Where a constant stands in the checked commit."""

    path: str
    line: int
    text: str


class Finding(msgspec.Struct, frozen=True):
    """A constraint that the checked commit breaks: its lines, what is wrong there, and who taught it."""

    constraint: Constraint
    places: tuple[Place, ...]
    says: str
    evidence: str
    fingerprint: str
    trusted: bool | None = None

    @property
    def message(self) -> str:
        """Return the whole message."""
        return f"{self.says}; {self.evidence}"


_PART = re.compile(r"\d+|[A-Za-z]+")


def version_key(value: str) -> tuple[tuple[float, int, str], ...]:
    """Return a sort key: number parts by size, letters (3.4.rc1) before the end of the version (3.4)."""
    found = _PART.findall(value)
    return (*((1.0, int(part), "") if part.isdigit() else (0.0, 0, part) for part in found), (0.5, 0, ""))


def value_key(value: str, order: Order) -> Any:
    """Return what values are sorted by in this order; a text that is no number comes last among decimals."""
    if order == "version":
        return version_key(value)
    try:
        return float(value)
    except ValueError:
        return float("inf")


def is_below(one: str, other: str, order: Order) -> bool:
    """Return True if one value is smaller than the other in this order."""
    return bool(value_key(one, order) < value_key(other, order))


#: What a predicate says of its constants' values, if all of them are present.
_RELATIONS: dict[str, Callable[[Predicate, list[str]], bool]] = {
    "is": lambda one, found: found[0] == one.value,
    "least": lambda one, found: not is_below(found[0], one.value, one.order),
    "differ": lambda one, found: found[0] != found[1],
    "below": lambda one, found: is_below(found[0], found[1], one.order),
    "multiple": lambda one, found: 0 not in (numbers := _whole(found)) and numbers[0] % numbers[1] == 0,
    "product": lambda one, found: 0 not in (numbers := _whole(found)) and prod(numbers[:-1]) == numbers[-1],
}


def _whole(found: list[str]) -> list[int]:
    return [int(value) if value.isdigit() else 0 for value in found]


def holds(predicate: Predicate, values: Mapping[Key, str], files: Mapping[str, str] | set[str]) -> bool:
    """Return True if the predicate is true of a state; comparisons with an absent constant are false."""
    kind, keys = predicate.kind, predicate.keys
    if kind == "file":
        return keys[0].path in files
    if kind == "absent":
        return keys[0] not in values
    if kind == "has":
        return predicate.value in (values.get(keys[0]._replace(nth=nth)) for nth in range(HAS_AT_MOST))
    found = [values[key] for key in keys if key in values]
    if kind == "disagree":
        return len(set(found)) > 1
    return len(found) == len(keys) and _RELATIONS[kind](predicate, found)


def breaks(constraint: Constraint, values: Mapping[Key, str], files: Mapping[str, str] | set[str]) -> bool:
    """Return True if a state meets all conditions of a constraint, so that its build is predicted to fail."""
    return all(holds(one.predicate, values, files) == one.holds for one in constraint.conditions)


#: A `has` predicate looks at this many constants with the same context in one file.
HAS_AT_MOST = 64
