"""Candidate predicates against `holds`, which evaluates one predicate on one state."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as some

from verici.features import COARSE, PAIRS, PRODUCTS, VALUES, candidates, summaries, values_of
from verici.model import Commit, Constant, History, Key, Predicate, holds

NAMES = ("lib", "other")


def history_of(states: list[dict[str, dict[str, str]]]) -> History:
    """Build a history from path to name to value, one a commit."""
    commits, constants = [], {}
    for number, state in enumerate(states):
        files = {}
        for path, values in state.items():
            blob = f"{path} {sorted(values.items())}"
            files[path] = blob
            constants[blob] = tuple(
                Constant(line, name, 0, value) for line, (name, value) in enumerate(sorted(values.items()), 1)
            )
        commits.append(Commit(str(number), (str(number - 1),) if number else (), number, files))
    return History(tuple(commits), constants)


values = some.sampled_from(["1.0.0", "1.2.0", "2", "4", "8"])
states = some.dictionaries(
    some.sampled_from(["a.txt", "b.txt"]), some.dictionaries(some.sampled_from(NAMES), values), max_size=2
)


@given(some.lists(states, min_size=2, max_size=8))
@settings(max_examples=60, deadline=None)
def test_every_column_equals_its_predicate_on_every_state(rows: list[dict[str, dict[str, str]]]) -> None:
    history = history_of(rows)
    found = candidates(history, (COARSE, VALUES, PAIRS, PRODUCTS))
    for column, predicates in enumerate(found.predicates):
        for predicate in predicates:
            twin = [holds(predicate, values_of(one, history.constants), one.files) for one in history.commits]
            assert found.truth_NP[:, column].tolist() == twin, predicate


@given(some.lists(states, min_size=2, max_size=8))
@settings(max_examples=60, deadline=None)
def test_no_two_columns_are_equal_and_none_is_constant(rows: list[dict[str, dict[str, str]]]) -> None:
    truth = candidates(history_of(rows)).truth_NP
    columns = [tuple(column) for column in truth.T]
    assert len(set(columns)) == len(columns)
    assert all(0 < sum(column) < len(column) for column in columns)


def test_a_list_counts_constants_that_never_change() -> None:
    def blob(*texts: str) -> tuple[Constant, ...]:
        return tuple(Constant(1, "python", number, text) for number, text in enumerate(texts))

    commits = tuple(Commit(name, (), 0, {"ci.yml": name}) for name in "abc")
    history = History(commits, {"a": blob("3.8", "3.9"), "b": blob("3.8", "3.10"), "c": blob("3.8")})
    found = candidates(history)
    for column, predicates in enumerate(found.predicates):
        for predicate in predicates:
            twin = [holds(predicate, values_of(one, history.constants), one.files) for one in commits]
            assert found.truth_NP[:, column].tolist() == twin, predicate


def test_absent_is_a_value_of_its_own() -> None:
    found = candidates(history_of([{"a.txt": {"lib": "1"}}, {"a.txt": {"other": "1"}}, {"a.txt": {"lib": "0"}}]))
    kinds = {predicate.kind for predicates in found.predicates for predicate in predicates}
    assert "absent" in kinds
    below = Predicate("least", (Key("a.txt", "lib"),), "1")
    assert not holds(below, {}, {"a.txt"})


def test_a_threshold_cannot_be_used_before_its_value_has_been_seen() -> None:
    found = candidates(history_of([{"a.txt": {"lib": text}} for text in ("1", "2", "9", "2")]))
    known = {
        p.value: known for ps, known in zip(found.predicates, found.known_P, strict=True) for p in ps if p.kind == "is"
    }
    assert known == {"1": 0, "2": 1, "9": 2}


def test_pairs_compare_joined_versions_with_equal_values_elsewhere() -> None:
    rows = [{"version.rb": {"version joined from its parts": v}, "x.lock": {"app": w}} for v, w in
            (("1.0.0", "1.0.0"), ("1.2.0", "1.2.0"), ("1.3.0", "1.2.0"), ("1.3.0", "1.3.0"))]  # fmt: skip
    found = candidates(history_of(rows))
    differ = [c for c, ps in enumerate(found.predicates) if any(p.kind in ("differ", "disagree") for p in ps)]
    assert [False, False, True, False] in found.truth_NP[:, differ].T.tolist()


def test_pairs_compare_lines_that_a_file_repeats() -> None:
    commits, constants = [], {}
    for number, (one, other) in enumerate((("1.0.0", "1.0.0"), ("1.2.0", "1.2.0"), ("1.3.0", "1.2.0"))):
        blobs = {
            "a.lock": (Constant(1, "ver", 0, "7.7.7"), Constant(2, "ver", 1, one)),
            "b.rb": (Constant(1, "x", 0, other),),
        }
        constants |= {f"{path} {number}": found for path, found in blobs.items()}
        commits.append(Commit(str(number), (), number, {path: f"{path} {number}" for path in blobs}))
    found = candidates(History(tuple(commits), constants))
    keys = {Key("a.lock", "ver", 1), Key("b.rb", "x", 0)}
    assert any(p.kind == "differ" and set(p.keys) == keys for ps in found.predicates for p in ps)


def test_products_of_launch_files() -> None:
    rows = [
        {"job.yaml": {"tp": tp, "pp": "2", "world": world}}
        for tp, world in (("2", "4"), ("4", "8"), ("4", "4"), ("2", "8"))
    ]
    found = candidates(history_of(rows), (PRODUCTS,))
    product = [c for c, ps in enumerate(found.predicates) if any(p.kind == "product" for p in ps)]
    assert [True, True, False, False] in found.truth_NP[:, product].T.tolist()


def test_summaries_ignore_lines_and_see_values() -> None:
    history = history_of([{"a.txt": {"lib": "1"}}, {"a.txt": {"lib": "2"}}, {"a.txt": {"lib": "1"}}])
    moved = {blob: tuple(one._replace(line=9) for one in found) for blob, found in history.constants.items()}
    changed = History(history.commits, history.constants | dict(list(moved.items())[:1]))
    first, second, third = summaries(changed)
    assert first == third != second


def test_decimals_are_compared_as_numbers() -> None:
    found = candidates(history_of([{"a.yaml": {"lr": text}} for text in ("0.05", "0.1", "0.5")]), (VALUES,))
    least = {
        p.value: found.truth_NP[:, c].tolist() for c, ps in enumerate(found.predicates) for p in ps if p.kind == "least"
    }
    assert least["0.1"] == [False, True, True]
    assert np.all(found.known_P < 3)
