"""The tree, the choice of a learner, constraints and forecasts."""

from __future__ import annotations

import random

import numpy as np
import pytest
from sklearn.tree import DecisionTreeClassifier

import verici
from test_features import history_of
from verici.errors import NotEnoughHistory
from verici.filter import train
from verici.learner import Options, Teacher, choose, learn, noise_of, prepare, walk_forward
from verici.model import History
from verici.tree import fit, leaf_of, leaves


def walk(count: int, seed: int = 0) -> History:
    chance = random.Random(seed)
    rows, lib, other = [], 1, 1
    for number in range(count):
        lib = chance.choice((1, 2, 3)) if chance.random() < 0.3 else lib
        other = chance.choice((1, 2, 3)) if chance.random() < 0.3 else other
        rows.append({"a.txt": {"lib": f"{lib}.0", "other": f"{other}.0", "count": str(number // 9)}})
    return history_of(rows)


def bad_lib(history: History) -> dict[str, bool]:
    return {one.id: "('lib', '2.0')" in one.files["a.txt"] for one in history.commits}


def test_both_learners_find_a_bad_version() -> None:
    history = walk(60)
    for learner in ("evidence", "paper"):
        model = learn(history, bad_lib(history), options=Options(learner))
        [constraint] = model.constraints
        [condition] = constraint.conditions
        assert (condition.predicate.kind, condition.predicate.value, condition.holds) == ("is", "2.0", True)
        assert constraint.passed == 0
        assert set(constraint.fixed) <= set(constraint.failed)


def test_learning_is_deterministic() -> None:
    history = walk(80)
    assert learn(history, bad_lib(history)) == learn(history, bad_lib(history))


def test_the_first_gini_split_equals_scikit_learns() -> None:
    history = walk(80, 3)
    chance = random.Random(1)
    failed = {name: bad != (chance.random() < 0.1) for name, bad in bad_lib(history).items()}
    builds = prepare(history, failed)
    found = Teacher(builds).candidates(Options())
    root = fit(found, builds.rows, builds.failed_N, learner="paper")
    twin = DecisionTreeClassifier(max_depth=1, random_state=0).fit(found.truth_NP, builds.failed_N)
    side = found.truth_NP[:, root.column]
    assert (twin.apply(found.truth_NP) == twin.apply(found.truth_NP)[0]).tolist() in (
        (side == side[0]).tolist(),
        (side != side[0]).tolist(),
    )


def test_a_mixed_leaf_of_the_papers_tree_passes() -> None:
    history = history_of([{"a.txt": {"lib": "1"}}] * 4 + [{"a.txt": {"lib": "2"}}] * 4)
    failed = {one.id: one.id in "4567"[:3] for one in history.commits}
    builds = prepare(history, failed)
    root = fit(Teacher(builds).candidates(Options()), builds.rows, builds.failed_N, learner="paper")
    assert not any(leaf.fails for leaf, _ in leaves(root))


def test_flipped_labels_alone_teach_the_evidence_learner_nothing() -> None:
    history = walk(200, 5)
    alarms = 0
    for seed in range(5):
        chance = random.Random(seed)
        model = learn(history, {one.id: chance.random() < 0.09 for one in history.commits}, options=Options("evidence"))
        alarms += len(model.constraints)
    assert alarms == 0


def test_noise_is_estimated_from_contradictions_and_decides_the_learner() -> None:
    history = walk(300, 2)
    clean = bad_lib(history)
    chance = random.Random(0)
    noisy = {name: bad != (chance.random() < 0.15) for name, bad in clean.items()}
    assert noise_of(prepare(history, clean)) < 0.01
    assert 0.1 < noise_of(prepare(history, noisy)) < 0.2
    assert choose(Teacher(prepare(history, clean))).learner == "paper"
    assert choose(Teacher(prepare(history, noisy))).learner == "evidence"


def test_walk_forward_uses_only_the_past() -> None:
    """A forecast does not change when the labels and values after it do."""
    history = walk(60)
    failed = bad_lib(history)
    whole = walk_forward(Teacher(prepare(history, failed)), Options("paper"))
    cut = History(history.commits[:45], history.constants)
    part = walk_forward(
        Teacher(prepare(cut, {one.id: failed[one.id] for one in cut.commits})), Options("paper"), start=0.667
    )
    assert [(one.row, one.fails) for one in part] == [(one.row, one.fails) for one in whole if 30 <= one.row < 45]


def test_too_little_history_is_said_and_not_guessed() -> None:
    history = walk(8)
    with pytest.raises(NotEnoughHistory, match="8 labelled builds"):
        learn(history, bad_lib(history))
    with pytest.raises(NotEnoughHistory, match="0 failed"):
        learn(walk(40), dict.fromkeys([one.id for one in walk(40).commits], False))


def test_unlabelled_commits_teach_nothing() -> None:
    history = walk(60)
    half = {name: bad for name, bad in bad_lib(history).items() if int(name) % 2}
    model = learn(history, half)
    assert model.builds == 30
    assert all(int(name) % 2 for one in model.constraints for name in one.failed)


@pytest.mark.parametrize("message", ["`good` is 1", "`bad` is 1"])
def test_the_filter_learns_from_past_messages(message: str) -> None:
    weights = train(["`good` is 1", "`bad` is 1"] * 10, [True, False] * 10)
    assert weights
    assert weights.trusts(message) is ("good" in message)
    assert train(["one"] * 9, [True] * 9) is None


def test_the_leaf_of_a_training_row_holds_it() -> None:
    history = walk(60, 7)
    builds = prepare(history, bad_lib(history))
    teacher = Teacher(builds)
    root = teacher.tree(builds.rows, Options("paper"))
    for row in builds.rows:
        leaf, path = leaf_of(root, teacher.candidates(Options()).truth_NP[row])
        assert row in leaf.rows
        assert all(bool(teacher.candidates(Options()).truth_NP[row, column]) == side for column, side in path)
    assert np.array_equal(np.sort(np.concatenate([leaf.rows for leaf, _ in leaves(root)])), builds.rows)


def test_the_public_names_stay_functions_whatever_was_imported_before() -> None:
    assert all(callable(getattr(verici, name)) for name in verici.__all__)
    assert verici.learn is learn
