import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudeval import problems
from cloudeval.match import Reference
from cloudeval.metrics import bleu, classify, edit_score, measure, pass_at_k

words = st.lists(st.sampled_from(["a", "b", "c", "d:"]), min_size=4, max_size=12).map(" ".join)
texts = st.lists(st.sampled_from(["a: 1", "b: 2", "  c: 3"]), min_size=1, max_size=8).map("\n".join)


def slow_bleu(reference, answer):
    """BLEU-4 as its paper defines it, with smoothing method 3 of Chen and Cherry."""
    wanted, got = reference.split(), answer.split()
    logs, zeros = 0.0, 0
    for n in range(1, 5):
        ours, theirs = (
            Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)) for tokens in (got, wanted)
        )
        matched, total = sum(min(count, theirs[gram]) for gram, count in ours.items()), max(1, sum(ours.values()))
        if n == 1 and not matched:
            return 0.0
        zeros += not matched
        logs += math.log(Fraction(matched, total) if matched else Fraction(1, 2**zeros * total)) / 4
    penalty = 1.0 if len(got) > len(wanted) else math.exp(1 - len(wanted) / len(got))
    return penalty * math.exp(logs)


def slow_edit(a, b):
    """1 − changed lines / lines, by the longest common subsequence."""
    rows = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            rows[i + 1][j + 1] = rows[i][j] + 1 if x == y else max(rows[i][j + 1], rows[i + 1][j])
    return max(0.0, 1 - (len(a) + len(b) - 2 * rows[-1][-1]) / len(a))


@given(words, words)
def test_bleu_is_that_of_its_definition(a, b):
    assert bleu(a, b) == pytest.approx(slow_bleu(a, b), abs=1e-9)


@given(texts, texts)
def test_edit_is_by_the_shortest_diff(a, b):
    assert edit_score(a, b) == pytest.approx(slow_edit(a.splitlines(), b.splitlines()), abs=1e-9)


def test_parity_on_the_package_s_own_pairs():
    count = 0
    for problem in problems.load(only="deployment,job")[:14]:
        variant = problems.draw(problem)
        for _, _, text in problems.answers_of(variant):
            assert bleu(variant.answer, text) == pytest.approx(slow_bleu(variant.answer, text), abs=1e-9)
            assert edit_score(variant.answer, text) == pytest.approx(
                slow_edit(variant.answer.strip().splitlines(), text.strip().splitlines()), abs=1e-9
            )
            count += 1
    assert count >= 100


def test_a_reference_scores_one_everywhere():
    for problem in problems.load():
        variant = problems.draw(problem, 3)
        metrics = measure(Reference.parse(variant.reference), variant.answer)
        assert all(value == pytest.approx(1) for value in metrics.values()), (problem.id, metrics)


def test_pass_at_k_is_the_share_of_draws_that_hold_a_success():
    from itertools import combinations

    outcomes = [True, False, False, True, False]
    draws = list(combinations(outcomes, 3))
    assert pass_at_k(5, 2, 3) == pytest.approx(sum(map(any, draws)) / len(draws))
    with pytest.raises(ValueError, match="needs at least"):
        pass_at_k(2, 1, 3)


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("", 1),
        ("I cannot\nhelp", 1),
        ("a: 1\nb: 2\nc: 3", 2),
        ("apiVersion: v1\nkind: Pod\nmetadata:\n  name: [a", 3),
        ("apiVersion: v1\nkind: Pod\n", 1),
        ("apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {}", 4),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {}", 5),
        ('{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}', 5),
    ],
)
def test_the_classes(answer, number):
    reference = Reference.parse("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n")
    assert classify(answer, "cluster", reference, passed=False) == number
    assert classify(answer, "cluster", reference, passed=True) == 6
