"""Scores, baselines, planted faults beside linters, and the demo."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Repo
from test_learn import bad_lib, walk
from verici.errors import NotEnoughHistory
from verici.evaluate import evaluate, majority, score, table_of
from verici.learner import Options, Teacher, prepare, walk_forward

BIN = Path(sys.executable).parent


def test_scores_add_up_and_baselines_stand_beside() -> None:
    history = walk(80)
    rows = evaluate(history, bad_lib(history))
    assert {row.name.split(",")[0].split(":")[0] for row in rows} == {
        "chosen by the past",
        "evidence",
        "paper",
        "majority",
        "metadata",
    }
    for row in rows:
        assert row.tp + row.fp + row.tn + row.fn == 40
        assert row.first_found <= row.first
    best = rows[0]
    assert best.rates == (1.0, 1.0, 1.0, 1.0)
    table = table_of(rows)
    assert "PR-AUC" in table
    assert "majority" in table


def test_the_majority_never_alarms_where_most_builds_pass() -> None:
    history = walk(60)
    builds = prepare(history, bad_lib(history))
    row = score("majority", builds, majority(builds))
    assert row.tp + row.fp == 0 or row.rates[2] == 1.0
    assert math.isnan(row.hits)


def test_hits_are_counted_against_random_constants() -> None:
    history = walk(80)
    builds = prepare(history, bad_lib(history))
    row = score("evidence", builds, walk_forward(Teacher(builds), Options()))
    assert row.hits == 1.0
    assert 0 <= row.chance <= 1


def test_too_few_builds_are_refused() -> None:
    history = walk(8)
    with pytest.raises(NotEnoughHistory):
        evaluate(history, bad_lib(history))


def test_the_command_prints_a_table_or_json(learned: Repo) -> None:
    assert "accuracy" in learned.verici("eval").output
    assert json.loads(learned.verici("eval", "--json").output)[0]["tp"] >= 0


def test_linters_and_constraints_see_different_faults(learned: Repo) -> None:
    tools = [name for name in ("zizmor", "yamllint") if (BIN / name).exists() or shutil.which(name)]
    if not tools:
        pytest.skip("neither zizmor nor yamllint is installed")
    result = learned.verici("eval", "--beside", ",".join(tools), "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.output)
    history = [row for row in rows if row["kind"] == "history"]
    assert history
    assert all(row["seen"]["verici"] for row in history)
    others = [row for row in rows if row["kind"] != "history"]
    assert not any(row["seen"]["verici"] for row in others)
    if "zizmor" in tools:
        assert next(row for row in others if row["fault"] == "title in a shell line")["seen"]["zizmor"]
    if "yamllint" in tools:
        assert next(row for row in others if row["fault"] == "key twice")["seen"]["yamllint"]
    assert "history" in learned.verici("eval", "--beside", ",".join(tools)).output


def test_unknown_and_missing_linters_are_said(learned: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    result = learned.verici("eval", "--beside", "flint")
    assert result.exit_code == 2
    assert "actionlint, zizmor, yamllint" in result.output
    monkeypatch.setenv("PATH", "/nowhere")
    result = learned.verici("eval", "--beside", "actionlint")
    if not (BIN / "actionlint").exists():
        assert result.exit_code == 2
        assert "actionlint is not installed" in result.output


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_the_demo_stops_a_bad_push() -> None:
    demo = Path(__file__).parents[1] / "demo" / "repository.py"
    done = subprocess.run([sys.executable, demo], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "predicted failure" in done.stderr + done.stdout
    assert "the mended commit is pushed" in done.stdout
