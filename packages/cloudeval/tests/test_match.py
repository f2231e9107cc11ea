import itertools

import yaml
from hypothesis import given
from hypothesis import strategies as st

from cloudeval.match import Reference, count_leaves, equal_documents, wildcard_score

leaves = st.one_of(st.integers(0, 3), st.sampled_from(["a", "b"]), st.booleans())
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3), st.dictionaries(st.sampled_from("xzw"), inner, min_size=1, max_size=3)
    ),
    max_leaves=8,
)
documents = st.dictionaries(st.sampled_from("pqr"), trees, min_size=1, max_size=3)


def score(reference, answer):
    return wildcard_score(Reference.parse(yaml.safe_dump(reference)), [answer])


def slow_matched(a, b):
    """The same count by trying every assignment of list items."""
    if isinstance(a, dict) and isinstance(b, dict) and a and b:
        return sum(slow_matched(a[key], b[key]) for key in a if key in b)
    if isinstance(a, list) and isinstance(b, list) and a and b:
        short, long = (a, b) if len(a) <= len(b) else (b, a)
        return max(
            sum(slow_matched(x, y) for x, y in zip(short, order, strict=True))
            for order in itertools.permutations(long, len(short))
        )
    return int(type(a) is type(b) and a == b)


@given(documents, documents)
def test_the_score_is_that_of_the_best_assignment(a, b):
    matched = slow_matched(a, b)
    assert abs(score(a, b) - matched / (count_leaves(a) + count_leaves(b) - matched)) < 1e-9


@given(documents, documents)
def test_the_score_is_symmetric_without_labels(a, b):
    assert abs(score(a, b) - score(b, a)) < 1e-9


@given(documents)
def test_a_tree_equals_itself(a):
    assert score(a, a) == 1.0


@given(documents, leaves)
def test_a_wrong_leaf_more_never_raises_the_score(a, leaf):
    assert score(a, {**a, "unknown": leaf}) < 1.0


def test_labels_decide_leaves():
    reference = Reference.parse("a: 1  # *\nb: x  # in ['x', 'y']\nc: 3\n")
    assert wildcard_score(reference, [{"a": 99, "b": "y", "c": 3}]) == 1.0
    assert wildcard_score(reference, [{"a": 99, "b": "z", "c": 3}]) == 2 / 4
    assert wildcard_score(reference, [{"a": {"q": 1}, "b": "x", "c": 3}]) == 2 / 4


def test_one_leaf_of_the_answer_counts_once():
    reference = Reference.parse("l: [{m: 1}, {m: 1}]")
    assert wildcard_score(reference, [{"l": [{"m": 1}]}]) == 0.5


def test_documents_pair_in_any_order_and_commands_keep_theirs():
    reference = Reference.parse("k: A\nv: 1\n---\nk: B\nv: 2\n")
    assert wildcard_score(reference, [{"k": "B", "v": 2}, {"k": "A", "v": 1}]) == 1.0
    assert wildcard_score(Reference.parse("command: [a, b]"), [{"command": ["b", "a"]}]) == 0.0
    assert wildcard_score(Reference.parse("ports: [1, 2]"), [{"ports": [2, 1]}]) == 1.0


def test_types_count_and_key_order_does_not():
    reference = Reference.parse("a: 1\nb: '2'\n")
    assert equal_documents(reference, [{"b": "2", "a": 1}])
    assert not equal_documents(reference, [{"b": 2, "a": 1}])
    assert not equal_documents(Reference.parse("a: 1"), [{"a": True}])
