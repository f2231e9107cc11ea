"""Turn a history into candidate predicates: one column of truth values a predicate, equal columns merged.

Templates, from coarse to fine:

0. a file is present; a constant is absent
1. a constant is a value, is at least a value, or stands in a list
2. pairs in different files: values differ, are ordered, or all files that state a name disagree
3. launch files: a product of two or three constants is another one; a constant is a multiple of another

Letters: N commits, P predicates.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from verici.model import HAS_AT_MOST, Commit, Constant, History, Key, Order, Predicate, value_key, version_key
from verici.tokens import JOINED

Bools = NDArray[np.bool_]
Ints = NDArray[np.int32]

COARSE, VALUES, PAIRS, PRODUCTS = range(4)

#: Pairs and products that are tried at most; those of constants that vary come first.
MOST_PAIRS, MOST_PRODUCTS = 4_000, 4_000
#: Constants with one value that are paired with each other.
MOST_SHARING = 40
#: Constants of launch files that take part in products.
MOST_FACTORS = 14
#: Equal predicates that are remembered beside the one that names a column.
MOST_ALIKE = 8


class Column(msgspec.Struct, frozen=True):
    """A constant over all commits: distinct values, ascending, and for each commit an index into them, -1 if absent."""

    key: Key
    texts: tuple[str, ...]
    codes_N: Ints
    order: Order

    @property
    def varies(self) -> bool:
        """Return True if the constant takes more than one value, or comes and goes."""
        return bool((self.codes_N != self.codes_N[0]).any())


class Candidates(msgspec.Struct, frozen=True):
    """Predicates with different columns.

    Args:
        predicates: For each column the predicates that have it; the first one, which can be stated first, names it.
        truth_NP: Value of each predicate at each commit.
        known_P: First row at which the predicate's reference values have been seen; earlier rows cannot state it.
        level_P: Template of each predicate.
    """

    predicates: tuple[tuple[Predicate, ...], ...]
    truth_NP: Bools
    known_P: Ints
    level_P: Ints


def values_of(commit: Commit, constants: Mapping[str, Sequence[Constant]]) -> dict[Key, str]:
    """Return the value of each constant of a commit."""
    found = ((path, one) for path, blob in commit.files.items() for one in constants.get(blob, ()))
    return {Key(path, one.name, one.nth): one.value for path, one in found}


def summaries(history: History) -> list[int]:
    """Return for each commit a number that is equal exactly for commits with equal constants."""
    sets: dict[object, int] = {}
    texts = {blob: tuple(one[1:] for one in found) for blob, found in history.constants.items()}
    blobs = {blob: sets.setdefault(text, len(sets)) for blob, text in texts.items()}
    states = [frozenset((path, blobs.get(blob)) for path, blob in one.files.items()) for one in history.commits]
    return [sets.setdefault(state, len(sets)) for state in states]


def columns_of(history: History) -> list[Column]:
    """Return all constants over the history."""
    blobs: dict[str, list[str]] = defaultdict(lambda: [""] * len(history.commits))
    for row, commit in enumerate(history.commits):
        for path, blob in commit.files.items():
            blobs[path][row] = blob
    columns: list[Column] = []
    for path in sorted(blobs):
        where = {blob: index for index, blob in enumerate(sorted(set(blobs[path])))}
        rows = np.array([where[blob] for blob in blobs[path]], dtype=np.int32)
        values: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
        for blob, index in where.items():
            for one in history.constants.get(blob, ()):
                values[one.name, one.nth][index] = one.value
        columns += [_column(Key(path, *name), by_blob, rows, len(where)) for name, by_blob in values.items()]
    return columns


def _column(key: Key, by_blob: Mapping[int, str], rows_N: Ints, blobs: int) -> Column:
    texts = set(by_blob.values())
    order: Order = "decimal" if len(texts) > 1 and any(map(_DECIMAL.fullmatch, texts)) else "version"
    ranked = sorted(texts, key=lambda text: value_key(text, order))
    rank = {text: index for index, text in enumerate(ranked)}
    codes = np.array([rank[by_blob[blob]] if blob in by_blob else -1 for blob in range(blobs)], dtype=np.int32)
    return Column(key, tuple(ranked), codes[rows_N], order)


_DECIMAL = re.compile(r"\d+(?:\.\d+)?e[+-]?\d+|\d+\.0\d+")


def candidates(history: History, levels: Iterable[int] = (COARSE, VALUES, PAIRS)) -> Candidates:
    """Return the distinct predicates of these templates over a history, coarse ones first."""
    every = columns_of(history)
    columns = [column for column in every if column.varies]
    makers: dict[int, Callable[[], Iterator[_Row]]] = {
        COARSE: lambda: _coarse(history, columns),
        VALUES: lambda: itertools.chain(_values(columns), _lists(every)),
        PAIRS: lambda: itertools.chain(_pairs(columns), _disagreements(columns)),
        PRODUCTS: lambda: _products(every),
    }
    merged: dict[bytes, list[tuple[int, int, Predicate]]] = defaultdict(list)
    for level in sorted(levels):
        for predicate, truth_N, known in makers[level]():
            if truth_N.any() and not truth_N.all():
                merged[truth_N.tobytes()].append((known, level, predicate))
    alike = {column: sorted(group, key=lambda one: one[0]) for column, group in merged.items()}
    found = sorted(alike, key=lambda column: alike[column][0][1])
    truth = np.frombuffer(b"".join(found), dtype=np.bool_).reshape(len(found), len(history.commits))
    since = np.array([alike[column][0][:2] for column in found], dtype=np.int32).reshape(-1, 2)
    predicates = tuple(tuple(one for *_, one in alike[column][:MOST_ALIKE]) for column in found)
    return Candidates(predicates, np.ascontiguousarray(truth.T), since[:, 0], since[:, 1])


_Row = tuple[Predicate, Bools, int]


def _first(truth_N: Bools) -> int:
    return int(truth_N.argmax())


def _coarse(history: History, columns: Sequence[Column]) -> Iterator[_Row]:
    for path in sorted({path for commit in history.commits for path in commit.files}):
        present = np.array([path in commit.files for commit in history.commits])
        yield Predicate("file", (Key(path, ""),)), present, _first(present)
    for column in columns:
        yield Predicate("absent", (column.key,)), column.codes_N < 0, _first(column.codes_N >= 0)


def _values(columns: Sequence[Column]) -> Iterator[_Row]:
    for column in columns:
        key, codes = column.key, column.codes_N
        first = [_first(codes == code) for code in range(len(column.texts))]
        for code, text in enumerate(column.texts):
            yield Predicate("is", (key,), text), codes == code, first[code]
        for code, text in enumerate(column.texts):
            yield Predicate("least", (key,), text, column.order), codes >= code, first[code]


def _lists(columns: Sequence[Column]) -> Iterator[_Row]:
    """Yield which values a list holds: constants with equal contexts, at whatever place."""
    lists: dict[tuple[str, str], list[Column]] = defaultdict(list)
    for column in columns:
        lists[column.key.path, column.key.name].append(column)
    for (path, name), group in lists.items():
        if not 1 < len(group) <= HAS_AT_MOST or not any(column.varies for column in group):
            continue
        for text in sorted({text for column in group for text in column.texts}):
            hits = [column.codes_N == column.texts.index(text) for column in group if text in column.texts]
            anywhere = np.logical_or.reduce(hits)
            yield Predicate("has", (Key(path, name),), text), anywhere, _first(anywhere)


def _pairs(columns: Sequence[Column]) -> Iterator[_Row]:
    """Yield relations of constants in different files: the same name, or values that both have taken."""
    shared = _shared_codes(columns)
    for one, other, known in itertools.islice(_partners(columns), MOST_PAIRS):
        first, second = shared[one], shared[other]
        both = (first >= 0) & (second >= 0)
        keys = (columns[one].key, columns[other].key)
        yield Predicate("differ", keys), both & (first != second), known
        yield Predicate("below", keys), both & (first < second), known
        yield Predicate("below", keys[::-1]), both & (second < first), known


def _shared_codes(columns: Sequence[Column]) -> list[Ints]:
    """Return the columns with codes that mean the same value in all of them, ascending by version."""
    texts = sorted({text for column in columns for text in column.texts}, key=version_key)
    code = {text: index for index, text in enumerate(texts)}
    tables = [np.array([*(code[text] for text in one.texts), -1], dtype=np.int32) for one in columns]
    return [table[column.codes_N] for table, column in zip(tables, columns, strict=True)]


def _alike_since(one: Column, other: Column) -> int | None:
    """Return the row at which two constants have had two values in common; None if they never have."""
    common = set(one.texts) & set(other.texts) if one is not other else set()
    seen = [max(_first(column.codes_N == column.texts.index(text)) for column in (one, other)) for text in common]
    return sorted(seen)[1] if len(seen) > 1 else None


def _partners(columns: Sequence[Column]) -> Iterator[tuple[int, int, int]]:
    """Yield pairs of columns in different files and since when they can be compared.

    Joined versions come first, then in turn constants with versions in common, most first, and equal names.
    """
    by_name: dict[tuple[str, int], list[int]] = defaultdict(list)
    by_value: dict[str, list[int]] = defaultdict(list)
    for index, column in enumerate(columns):
        by_name[column.key.name, column.key.nth].append(index)
        for text in column.texts:
            if text.count(".") >= 2:
                by_value[text].append(index)
    common = Counter(pair for group in by_value.values() for pair in itertools.combinations(group[:MOST_SHARING], 2))
    valued = [pair for pair, times in common.most_common() if times > 1]
    joined = [pair for pair in valued if any(columns[index].key.name == JOINED for index in pair)]
    named = (pair for group in by_name.values() for pair in itertools.combinations(group, 2))
    seen: set[tuple[int, int]] = set()
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(valued, named))  # neither kind uses up MOST_PAIRS
    for pair in itertools.chain(joined, in_turn):
        if pair is None or pair in seen:
            continue
        one, other = columns[pair[0]], columns[pair[1]]
        if one.key.path == other.key.path:
            continue
        seen.add(pair)
        same = one.key.name == other.key.name
        known = _first((one.codes_N >= 0) & (other.codes_N >= 0)) if same else _alike_since(one, other)
        if known is not None:
            yield (*pair, known)


def _disagreements(columns: Sequence[Column]) -> Iterator[_Row]:
    """Yield, for each name that stands in several files, whether those that state it disagree.

    A version that is joined from its parts takes part where it has had values in common with the name's constants.
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for index, column in enumerate(columns):
        if column.key.nth == 0 and column.key.name != JOINED:
            groups[column.key.name].append(index)
    versions = [index for index, column in enumerate(columns) if column.key.name == JOINED]
    shared = _shared_codes(columns)
    for members in groups.values():
        own = {index: [_alike_since(columns[index], columns[one]) for one in members] for index in versions}
        seen = {index: [row for row in rows if row is not None] for index, rows in own.items()}
        known = {index: min(rows) for index, rows in seen.items() if rows}
        chosen = [*members, *known]
        if len({columns[index].key.path for index in chosen}) < 2:
            continue
        stacked = np.array([shared[index] for index in chosen])
        high = stacked.max(axis=0)
        low = np.where(stacked < 0, high, stacked).min(axis=0)
        keys = tuple(columns[index].key for index in chosen)
        yield Predicate("disagree", keys), high != low, max(known.values(), default=0)


def _products(columns: Sequence[Column]) -> Iterator[_Row]:
    """Yield bounded products and divisibility of whole numbers of launch files."""
    whole = [column for column in columns if all(text.isdigit() and 0 < len(text) < 7 for text in column.texts)]
    whole = sorted(whole, key=lambda column: (column.codes_N < 0).sum())[:MOST_FACTORS]
    numbers = [np.array([*map(int, column.texts), 0], dtype=np.int64)[column.codes_N] for column in whole]
    groups = (
        (*factors, result)
        for size, result in itertools.product((2, 3), range(len(whole)))
        for factors in itertools.combinations([index for index in range(len(whole)) if index != result], size)
    )
    for group in itertools.islice(groups, MOST_PRODUCTS):
        used = [numbers[index] for index in group]
        present = np.logical_and.reduce([values > 0 for values in used])
        holds = present & (np.multiply.reduce(used[:-1]) == used[-1])
        yield Predicate("product", tuple(whole[index].key for index in group)), holds, _first(present)
    for one, other in itertools.permutations(range(len(whole)), 2):
        present = (numbers[one] > 0) & (numbers[other] > 0)
        divides = present & (numbers[one] % np.maximum(numbers[other], 1) == 0)
        yield Predicate("multiple", (whole[one].key, whole[other].key)), divides, _first(present)
