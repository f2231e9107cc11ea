"""The paper's example B and planted rules on real histories; needs shared/data/verici beside the repository."""

from __future__ import annotations

from functools import cache

import pytest

import shipped
from planting import flip, walked_rules
from verici.explain import constraint_words
from verici.learner import Options, Teacher, choose, conditions_of, learn, prepare, walk_forward
from verici.model import Constraint, History
from verici.relabel import relabel
from verici.tree import leaf_of

pytest.importorskip("pyarrow")
pytestmark = pytest.mark.skipif(not (shipped.DATA / "commits.parquet").exists(), reason=f"there is no {shipped.DATA}")


@cache
def data() -> dict[str, tuple[History, list[dict[str, str]]]]:
    return shipped.read()


def test_example_b_is_predicted_and_patch_named() -> None:
    history, rows = data()["activescaffold/active_scaffold"]
    failed = {row["commit"]: row["label"] == "fail" for row in rows}
    builds = prepare(history, failed)
    [at] = [number for number, row in enumerate(rows) if row["commit"].startswith("bce9420")]
    teacher = Teacher(builds)
    options = choose(teacher, at)
    leaf, path = leaf_of(teacher.tree(builds.rows[:at], options), teacher.candidates(options).truth_NP[at])
    assert leaf.fails
    words = constraint_words(Constraint(conditions_of(teacher.candidates(options), path), (), 0, {}))
    assert "`PATCH` in lib/active_scaffold/version.rb" in words


def test_relabelling_only_removes_failures_on_real_histories() -> None:
    for history, rows in data().values():
        failed = {row["commit"]: row["label"] == "fail" for row in rows}
        builds = prepare(history, failed)
        before = dict(enumerate(builds.failed_N.tolist()))
        renewed = relabel(before, builds.edges, builds.summaries)
        assert all(before[row] for row, bad in renewed.items() if bad)


@pytest.mark.parametrize("kind", ["bad version", "threshold"])
def test_a_planted_rule_is_found_and_named(kind: str) -> None:
    history, _ = data()["RolifyCommunity/rolify"]
    rule = next(walked_rules(history, kind, "test"))
    teacher = Teacher(prepare(rule.history, rule.labels))
    alarms = [one for one in walk_forward(teacher, Options(), refit=5) if one.fails]
    true = [one for one in alarms if rule.truth[rule.history.commits[one.row].id]]
    assert len(true) >= 0.8 * len(alarms) > 0
    named = [one for one in true if rule.rule.keys[0] in {key for c in one.conditions for key in c.predicate.keys}]
    assert len(named) >= 0.75 * len(true)


def test_flipped_labels_without_a_rule_raise_few_alarms() -> None:
    history, _ = data()["sferik/rails_admin"]
    labels = flip({commit.id: False for commit in history.commits}, "none")
    forecasts = walk_forward(Teacher(prepare(history, labels)), Options(), refit=5)
    assert sum(one.fails for one in forecasts) <= 0.02 * len(forecasts)


def test_a_real_history_gives_a_model() -> None:
    history, rows = data()["activescaffold/active_scaffold"]
    model = learn(history, {row["commit"]: row["label"] == "fail" for row in rows})
    assert model.constraints
