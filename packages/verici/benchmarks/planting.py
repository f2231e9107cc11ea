"""Plant rules into real histories: choose a constant, move it by a seeded walk if need be, label by the rule."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import msgspec

from verici.features import columns_of, values_of
from verici.model import Commit, Constant, History, Key, Predicate, holds

#: Share of labels that are flipped: what the paper found misleading on Travis.
FLIPS = 0.09
#: Values of a walk; chance that a commit moves the constant; other constants that walk as well.
WALK_VALUES, WALK_MOVES, BYSTANDERS = 7, 0.05, 9
#: A stretch of failures counts from this many builds.
STRETCH = 3
#: Share of failures in each half.
SHARES = (0.06, 0.40)


class Planted(msgspec.Struct, frozen=True):
    """A history with a rule: the predicate that fails, its truth and the flipped labels."""

    history: History
    rule: Predicate
    kind: str
    natural: bool
    truth: dict[str, bool]
    labels: dict[str, bool]


def flip(truth: dict[str, bool], seed: str, share: float = FLIPS) -> dict[str, bool]:
    """Return the labels with a share of them turned round."""
    chance = random.Random(f"flip {seed}")
    return {commit: bad != (chance.random() < share) for commit, bad in truth.items()}


def planted(history: History, rule: Predicate, kind: str, natural: bool, seed: str) -> Planted | None:
    """Return the labelled history, or None if the rule does not fail in two stretches of each half."""
    paths = {key.path for key in rule.keys}
    truth = {}
    for one in history.commits:
        small = msgspec.structs.replace(one, files={path: blob for path, blob in one.files.items() if path in paths})
        truth[one.id] = holds(rule, values_of(small, history.constants), set(one.files))
    if not fits(list(truth.values())):
        return None
    return Planted(history, rule, kind, natural, truth, flip(truth, seed))


def fits(bad: list[bool]) -> bool:
    """Return True if there are two stretches of failures, and neither too few nor too many, in each half."""
    middle = len(bad) // 2
    return all(
        _stretches(half) >= 2 and SHARES[0] <= sum(half) / len(half) <= SHARES[1]
        for half in (bad[:middle], bad[middle:])
    )


def _stretches(bad: list[bool]) -> int:
    count = length = 0
    for one in [*bad, False]:
        if one:
            length += 1
            continue
        count += length >= STRETCH
        length = 0
    return count


def steady_keys(history: History) -> list[Key]:
    """Return constants that stand in nine of ten commits."""
    counts: Counter[Key] = Counter()
    for commit in history.commits:
        counts.update(
            Key(path, one.name, one.nth) for path, blob in commit.files.items() for one in history.constants[blob]
        )
    return sorted(
        key for key, count in counts.items() if count >= 0.9 * len(history.commits) and "joined" not in key.name
    )


def natural_rules(history: History, seed: str) -> list[Planted]:
    """Return all rules over the real values of one constant that fit."""
    found = []
    for column in columns_of(history):
        if len(column.texts) < 3 or not column.varies:
            continue
        for code, text in enumerate(column.texts):
            for kind, name, truth in (
                ("is", "bad version", column.codes_N == code),
                ("least", "threshold", column.codes_N >= code),
            ):
                if fits(truth.tolist()):
                    rule = Predicate(kind, (column.key,), text, column.order)
                    found.append(planted(history, rule, name, True, f"{seed} {column.key} {text}"))
    return [one for one in found if one]


def walked_rules(history: History, kind: str, seed: str) -> Iterator[Planted]:
    """Yield rules over constants moved by a seeded walk, without end."""
    keys = steady_keys(history)
    number = 0
    while True:
        number += 1
        chance = random.Random(f"{seed} {kind} {number}")
        if kind == "mismatch":
            one = _mismatch(history, keys, chance, f"{seed} {number}")
        else:
            one = _walked(history, keys, kind, chance, f"{seed} {number}")
        if one:
            yield one


def _bystanders(history: History, keys: list[Key], taken: set[Key], chance: random.Random) -> dict[Key, dict[str, str]]:
    """Walk other constants by the same rule, so that the planted one is not the only one that moves."""
    free = [key for key in keys if key not in taken]
    return {key: _walk(history, _texts(chance), chance) for key in chance.sample(free, min(BYSTANDERS, len(free)))}


def _texts(chance: random.Random) -> list[str]:
    return [f"{1 + step // 4}.{step % 4}.{chance.randrange(9)}" for step in range(WALK_VALUES)]


def _walked(history: History, keys: list[Key], kind: str, chance: random.Random, seed: str) -> Planted | None:
    key = chance.choice(keys)
    texts = _texts(chance)
    values = _walk(history, texts, chance)
    moved = replace(history, {**_bystanders(history, keys, {key}, chance), key: values})
    bad = chance.randrange(1, WALK_VALUES)
    rule = Predicate("is" if kind == "bad version" else "least", (key,), texts[bad])
    return planted(moved, rule, kind, False, seed)


def _mismatch(history: History, keys: list[Key], chance: random.Random, seed: str) -> Planted | None:
    """Two constants in different files that should move together; the second one lags in stretches."""
    one = chance.choice(keys)
    others = [key for key in keys if key.path != one.path]
    same = [key for key in others if key.name == one.name]
    if not others:
        return None
    other = chance.choice(same or others)
    texts = _texts(chance)
    first = _walk(history, texts, chance)
    second: dict[str, str] = {}
    for commit in history.commits:
        parent = _parent(commit, second)
        before, wanted = (second[parent] if parent else first[commit.id]), first[commit.id]
        moves = parent is not None and first[parent] != wanted
        lags = before != wanted and (not moves or chance.random() < 0.5) and chance.random() > 0.12
        second[commit.id] = before if lags else wanted
    moved = replace(history, {**_bystanders(history, keys, {one, other}, chance), one: first, other: second})
    return planted(moved, Predicate("differ", (one, other)), "mismatch", False, seed)


def _parent(commit: Commit, known: dict[str, str]) -> str | None:
    return next((parent for parent in commit.parents if parent in known), next(reversed(known), None))


def _walk(history: History, texts: list[str], chance: random.Random) -> dict[str, str]:
    """Return a value for each commit: its parent's, moved now and then by one or two steps."""
    place: dict[str, str] = {}
    for commit in history.commits:
        parent = _parent(commit, place)
        at = texts.index(place[parent]) if parent else chance.randrange(len(texts))
        if chance.random() < WALK_MOVES:
            at = min(max(at + chance.choice((-2, -1, 1, 2)), 0), len(texts) - 1)
        place[commit.id] = texts[at]
    return place


def replace(history: History, values: dict[Key, dict[str, str]]) -> History:
    """Return the history with other values for some constants."""
    constants = dict(history.constants)
    commits = []
    for commit in history.commits:
        files = dict(commit.files)
        for key, by_commit in values.items():
            if key.path not in files:
                continue
            old, value = files[key.path], by_commit[commit.id]
            new = f"{old} {key.name} {key.nth} {value}"
            if new not in constants:
                constants[new] = tuple(
                    one._replace(value=value) if (one.name, one.nth) == (key.name, key.nth) else one
                    for one in constants[old]
                )
            files[key.path] = new
        commits.append(msgspec.structs.replace(commit, files=files))
    used = {blob for commit in commits for blob in commit.files.values()}
    return History(tuple(commits), {blob: constants[blob] for blob in used})


__all__ = ["Constant", "Planted", "flip", "natural_rules", "planted", "replace", "walked_rules"]
