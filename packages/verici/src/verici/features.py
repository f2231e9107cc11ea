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
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from verici.model import HAS_AT_MOST, Commit, Constant, History, Key, Order, Predicate, decimal_key, version_key
from verici.tokens import JOINED

Bools = NDArray[np.bool_]
Ints = NDArray[np.int32]

COARSE, VALUES, PAIRS, PRODUCTS = range(4)

#: Pairs and products that are tried at most; those of constants that vary come first.
MOST_PAIRS = 4_000
MOST_PRODUCTS = 4_000
#: Constants of launch files that take part in products.
MOST_FACTORS = 14
#: Equal predicates that are remembered beside the one that names a column.
MOST_ALIKE = 8


class Column(msgspec.Struct, frozen=True):
    """A constant over all commits.

    Args:
        key: Its name.
        texts: Its distinct values, ascending.
        codes_N: Index into `texts`; -1 where the constant is absent.
        order: Decimal if a value is in exponential form or has a fraction that begins with zero.
    """

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
        predicates: For each column the predicates that have it, the one that names it first.
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
    return {
        Key(path, one.name, one.nth): one.value
        for path, blob in commit.files.items()
        for one in constants.get(blob, ())
    }


def summaries(history: History) -> dict[str, int]:
    """Return for each commit a number that is equal exactly for commits with equal constants."""
    sets: dict[tuple[Constant, ...], int] = {}
    by_blob = {
        blob: sets.setdefault(tuple(one._replace(line=0) for one in found), len(sets))
        for blob, found in history.constants.items()
    }
    states: dict[frozenset[tuple[str, int]], int] = {}
    return {
        commit.id: states.setdefault(
            frozenset((path, by_blob.get(blob, -1)) for path, blob in commit.files.items()), len(states)
        )
        for commit in history.commits
    }


def columns_of(history: History, *, steady: bool = False) -> list[Column]:
    """Return the constants that vary over the history; with `steady`, the others too."""
    blobs: dict[str, list[str]] = defaultdict(lambda: [""] * len(history.commits))
    for row, commit in enumerate(history.commits):
        for path, blob in commit.files.items():
            blobs[path][row] = blob
    columns: list[Column] = []
    for path in sorted(blobs):
        distinct = sorted(set(blobs[path]))
        where = {blob: index for index, blob in enumerate(distinct)}
        rows = np.array([where[blob] for blob in blobs[path]], dtype=np.int32)
        values: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
        for blob, index in where.items():
            for one in history.constants.get(blob, ()):
                values[one.name, one.nth][index] = one.value
        for (name, nth), by_blob in values.items():
            if not steady and len(by_blob) == len(distinct) and len(set(by_blob.values())) == 1:
                continue
            columns.append(_column(Key(path, name, nth), by_blob, rows, len(distinct)))
    return [column for column in columns if steady or column.varies]


def _column(key: Key, by_blob: Mapping[int, str], rows_N: Ints, blobs: int) -> Column:
    texts = set(by_blob.values())
    order: Order = "decimal" if _is_decimal(texts) else "version"
    ranked = sorted(texts, key=decimal_key) if order == "decimal" else sorted(texts, key=version_key)
    rank = {text: index for index, text in enumerate(ranked)}
    codes = np.full(blobs, -1, dtype=np.int32)
    for index, text in by_blob.items():
        codes[index] = rank[text]
    return Column(key, tuple(ranked), codes[rows_N], order)


def _is_decimal(texts: Iterable[str]) -> bool:
    fractions = [text.partition(".")[2] for text in texts if text.count(".") <= 1]
    exponents = any("e" in text and text[0].isdigit() and text.split("e")[0].isdigit() for text in texts)
    return exponents or any(len(fraction) > 1 and fraction[0] == "0" and fraction.isdigit() for fraction in fractions)


def candidates(history: History, levels: Iterable[int] = (COARSE, VALUES, PAIRS)) -> Candidates:
    """Return the distinct predicates of these templates over a history, coarse ones first."""
    columns = columns_of(history)
    makers: dict[int, Callable[[], Iterator[_Row]]] = {
        COARSE: lambda: _coarse(history, columns),
        VALUES: lambda: _values(columns),
        PAIRS: lambda: _pairs(columns),
        PRODUCTS: lambda: _products(columns_of(history, steady=True)),
    }
    merged: dict[bytes, tuple[int, int, Bools, list[Predicate]]] = {}
    for level in sorted(levels):
        for predicate, truth_N, known in makers[level]():
            if truth_N.all() or not truth_N.any():
                continue
            name = truth_N.tobytes()
            if name not in merged:
                merged[name] = (level, known, truth_N, [predicate])
            elif len(merged[name][3]) < MOST_ALIKE:
                old_level, old_known, _, alike = merged[name]
                earlier = known < old_known
                alike.insert(0 if earlier else len(alike), predicate)
                merged[name] = (level if earlier else old_level, min(known, old_known), truth_N, alike)
    found = sorted(merged.values(), key=lambda one: one[0])
    truth = np.array([one[2] for one in found], dtype=np.bool_).reshape(len(found), len(history.commits))
    return Candidates(
        tuple(tuple(one[3]) for one in found),
        np.ascontiguousarray(truth.T),
        np.array([one[1] for one in found], dtype=np.int32),
        np.array([one[0] for one in found], dtype=np.int32),
    )


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
    lists: dict[tuple[str, str], list[Column]] = defaultdict(list)
    for column in columns:
        lists[column.key.path, column.key.name].append(column)
        first = [_first(column.codes_N == code) for code in range(len(column.texts))]
        for code, text in enumerate(column.texts):
            yield Predicate("is", (column.key,), text), column.codes_N == code, first[code]
        for code, text in enumerate(column.texts):
            yield Predicate("least", (column.key,), text, column.order), column.codes_N >= code, first[code]
    for (path, name), group in lists.items():
        if len(group) < 2 or max(column.key.nth for column in group) >= HAS_AT_MOST:
            continue
        for text in sorted({text for column in group for text in column.texts}):
            hits = [column.codes_N == column.texts.index(text) for column in group if text in column.texts]
            anywhere = np.logical_or.reduce(hits)
            yield Predicate("has", (Key(path, name),), text), anywhere, _first(anywhere)


def _pairs(columns: Sequence[Column]) -> Iterator[_Row]:
    """Yield relations of constants in different files: the same name, or values that both have taken."""
    vocabulary = {
        text: code for code, text in enumerate(sorted({t for c in columns for t in c.texts}, key=version_key))
    }
    shared = [_shared_codes(column, vocabulary) for column in columns]
    for one, other in itertools.islice(_partners(columns), MOST_PAIRS):
        first, second = shared[one], shared[other]
        both = (first >= 0) & (second >= 0)
        keys = (columns[one].key, columns[other].key)
        named = keys[0].name == keys[1].name
        known = _first(both) if named else _alike_since(columns[one], columns[other])
        yield Predicate("differ", keys), both & (first != second), known
        yield Predicate("below", keys), both & (first < second), known
        yield Predicate("below", keys[::-1]), both & (second < first), known
    yield from _disagreements(columns, shared)


def _alike_since(one: Column, other: Column) -> int:
    """Return the row at which two constants with different names have had two values in common."""
    common = set(one.texts) & set(other.texts)
    seen = [max(_first(column.codes_N == column.texts.index(text)) for column in (one, other)) for text in common]
    return sorted(seen)[1]


def _shared_codes(column: Column, vocabulary: Mapping[str, int]) -> Ints:
    table = np.array([*(vocabulary[text] for text in column.texts), -1], dtype=np.int32)
    return table[column.codes_N]


def _partners(columns: Sequence[Column]) -> Iterator[tuple[int, int]]:
    """Yield pairs of columns in different files: joined versions first, then equal names, then equal values."""
    by_name: dict[tuple[str, int], list[int]] = defaultdict(list)
    by_value: dict[str, list[int]] = defaultdict(list)
    for index, column in enumerate(columns):
        by_name[column.key.name, column.key.nth].append(index)
        if column.key.nth == 0:
            for text in column.texts:
                if text.count(".") >= 2:
                    by_value[text].append(index)
    common: dict[tuple[int, int], int] = defaultdict(int)
    for group in by_value.values():
        for pair in itertools.combinations(group[:40], 2):
            common[pair] += 1
    joined = [pair for pair in common if any(columns[index].key.name == JOINED for index in pair)]
    named = (pair for group in by_name.values() for pair in itertools.combinations(group, 2))
    valued = (pair for pair, times in sorted(common.items(), key=lambda item: -item[1]) if times > 1)
    seen: set[tuple[int, int]] = set()
    for pair in itertools.chain((pair for pair in joined if common[pair] > 1), named, valued):
        if pair not in seen and columns[pair[0]].key.path != columns[pair[1]].key.path:
            seen.add(pair)
            yield pair


def _disagreements(columns: Sequence[Column], shared: Sequence[Ints]) -> Iterator[_Row]:
    """Yield, for each name that stands in several files, whether those that state it disagree."""
    groups: dict[str, dict[int, None]] = defaultdict(dict)
    for index, column in enumerate(columns):
        if column.key.nth == 0 and column.key.name != JOINED:
            groups[column.key.name][index] = None
    versions = [index for index, column in enumerate(columns) if column.key.name == JOINED]
    for own in versions:
        for members in groups.values():
            if any(_alike(columns[own], columns[index]) for index in members):
                members[own] = None
    for members in groups.values():
        if len({columns[index].key.path for index in members}) < 2:
            continue
        stacked = np.array([shared[index] for index in members])
        high = stacked.max(axis=0)
        low = np.where(stacked < 0, high, stacked).min(axis=0)
        joined = [columns[index] for index in members if index in versions]
        known = (
            max(
                (min(_alike_since(own, columns[index]) for index in members if _alike(own, columns[index])))
                for own in joined
            )
            if joined
            else 0
        )
        yield Predicate("disagree", tuple(columns[index].key for index in members)), high != low, known


def _alike(one: Column, other: Column) -> bool:
    """Return True if two different constants have had two values in common."""
    return one is not other and len(set(one.texts) & set(other.texts)) > 1


def _products(columns: Sequence[Column]) -> Iterator[_Row]:
    """Yield bounded products and divisibility of whole numbers of launch files."""
    whole = [column for column in columns if all(text.isdigit() and 0 < len(text) < 7 for text in column.texts)]
    whole = sorted(whole, key=lambda column: (column.codes_N < 0).sum())[:MOST_FACTORS]
    numbers = [np.array([*map(int, column.texts), 0], dtype=np.int64)[column.codes_N] for column in whole]
    made = 0
    for size, result in itertools.product((2, 3), range(len(whole))):
        others = [index for index in range(len(whole)) if index != result]
        for factors in itertools.combinations(others, size):
            used = [numbers[index] for index in (*factors, result)]
            present = np.logical_and.reduce([values > 0 for values in used])
            holds = present & (np.multiply.reduce(used[:-1]) == used[-1])
            keys = tuple(whole[index].key for index in (*factors, result))
            yield Predicate("product", keys), holds, _first(present)
            made += 1
            if made >= MOST_PRODUCTS:
                return
    for one, other in itertools.permutations(range(len(whole)), 2):
        present = (numbers[one] > 0) & (numbers[other] > 0)
        divides = present & (numbers[one] % np.maximum(numbers[other], 1) == 0)
        yield Predicate("multiple", (whole[one].key, whole[other].key)), divides, _first(present)
