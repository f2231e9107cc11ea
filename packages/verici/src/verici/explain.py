"""Say constraints and findings in words."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from verici.model import Condition, Constraint, Key

#: Commits that a sentence names at most.
_MOST_COMMITS = 3
#: Clause of each kind of predicate, if it holds and if it does not. `a` and `b` are constants, `v` the value.
_CLAUSES = {
    "file": ("the file {path} is present", "the file {path} is absent"),
    "absent": ("{a} is absent", "{a} is present"),
    "is": ("{a} is {v}", "{a} is not {v}"),
    "least": ("{a} is at least {v}", "{a} is absent or below {v}"),
    "has": ("{a} lists {v}", "{a} does not list {v}"),
    "differ": ("{a} differs from {b}", "{a} does not differ from {b}"),
    "below": ("{a} is below {b}", "{a} is not below {b}"),
    "disagree": ("files disagree on {names}", "files do not disagree on {names}"),
    "product": ("{product} is {b}", "{product} is not {b}"),
    "multiple": ("{a} is a multiple of {b}", "{a} is no multiple of {b}"),
}


def short(commit: str) -> str:
    """Return an abbreviated commit id; the name of a job stays whole."""
    return commit[:7] if len(commit) == 40 else commit


def condition_words(condition: Condition, values: Mapping[Key, str] | None = None) -> str:
    """Return a condition as a clause; with the values of a state, the clause states those that it does not name."""
    predicate, keys = condition.predicate, condition.predicate.keys
    clause = _CLAUSES[predicate.kind][0 if condition.holds else 1].format(
        path=keys[0].path,
        a=_constant(keys[0]),
        b=_constant(keys[-1]),
        v=predicate.value,
        names=" and ".join(dict.fromkeys(f"`{key.name}`" for key in keys)),
        product=" × ".join(f"`{key}`" for key in keys[:-1]),
    )
    return clause + _now(condition, values or {})


def _constant(key: Key) -> str:
    return f"`{key}` in {key.path}"


def _now(condition: Condition, values: Mapping[Key, str]) -> str:
    """Return the present values in brackets, where the clause does not say them."""
    predicate = condition.predicate
    found = {key: values[key] for key in predicate.keys if key in values}
    if not found or predicate.kind in ("file", "absent", "has") or list(found.values()) == [predicate.value]:
        return ""
    if predicate.kind == "disagree":
        return f" ({', '.join(f'{key.path} {value}' for key, value in list(found.items())[:4])})"
    return f" ({', '.join(found.values())})"


def constraint_words(constraint: Constraint, values: Mapping[Key, str] | None = None) -> str:
    """Return when a build is predicted to fail, as one clause."""
    return " and ".join(condition_words(one, values) for one in constraint.conditions)


def evidence_words(constraint: Constraint) -> str:
    """Return which builds taught a constraint, and which commits fixed them."""
    failed, count = constraint.failed[-_MOST_COMMITS:], len(constraint.failed)
    names = ", ".join(short(commit) for commit in failed)
    more = f" and {count - len(failed)} more" if count > len(failed) else ""
    fixes = list(dict.fromkeys(constraint.fixed[commit] for commit in failed if commit in constraint.fixed))
    fixed = f", fixed by {', '.join(map(short, fixes[-_MOST_COMMITS:]))}" if fixes else ", not fixed since"
    passed = f"; {constraint.passed} passed" if constraint.passed else ""
    which = "the build" if count == 1 else f"{count} builds"
    return f"{which} with this failed: {names}{more}{fixed}{passed}"


def fingerprint(constraint: Constraint) -> str:
    """Return a name for the constraint that does not depend on lines."""
    parts = sorted(
        f"{one.predicate.kind} {one.holds} {one.predicate.value} {[tuple(key) for key in one.predicate.keys]}"
        for one in constraint.conditions
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def paths_of(constraints: Iterable[Constraint]) -> set[str]:
    """Return the files that these constraints speak of."""
    return {key.path for one in constraints for condition in one.conditions for key in condition.predicate.keys}
