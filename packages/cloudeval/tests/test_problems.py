import subprocess
import sys

import pytest

from cloudeval import problems
from cloudeval.errors import ProblemError
from cloudeval.reading import read
from cloudeval.strength import validate_problems

ALL = problems.load()
CLOUDEVAL = [sys.executable, "-m", "cloudeval.cli"]


def test_there_are_120_with_their_parts():
    assert len(ALL) == 120
    assert sum(len(problem.mutants) for problem in ALL) >= 600
    assert sum(len(problem.alternatives) for problem in ALL) >= 240
    for problem in ALL:
        assert len(problem.mutants) >= 5, problem.id
        assert len(problem.alternatives) >= 2, problem.id
        assert set(problem.questions) == set(problems.STYLES)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_variant_can_be_drawn_and_its_texts_differ(seed):
    for problem in ALL:
        variant = problems.draw(problem, seed)
        texts = [text for _, _, text in problems.answers_of(variant)]
        assert len(set(texts)) == len(texts), (problem.id, seed)
        assert "{{" not in "".join([*variant.questions.values(), variant.reference]).replace("{{{", ""), problem.id
        read(variant.reference, labels=True)
        problems.check_function(variant)


def test_each_problem_carries_the_canary():
    for problem in ALL:
        for name in ("problem.yaml", "check.py", "mutants.yaml"):
            assert "Canary" in (problems.built_in() / problem.id / name).read_text().splitlines()[0]


def test_problems_that_are_read_are_strong():
    found = validate_problems([problem for problem in ALL if problem.runner == "semantics"])
    assert not found.exceptions


@pytest.mark.root
def test_one_problem_of_each_group_that_runs_is_strong():
    chosen = {"pod-args", "deploy-service", "job-basic", "sts-parallel", "svc-multiport", "envoy-prefix"}
    found = validate_problems([problem for problem in ALL if problem.id in chosen], seed=5, workers=2)
    assert not found.exceptions


@pytest.mark.root
@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_every_reference_passes_with_other_variables():
    from cloudeval.workers import run_all

    variants = [problems.draw(problem, 11) for problem in ALL]
    verdicts = run_all([(variant, variant.answer) for variant in variants], workers=2)
    assert not [(v.id, verdict) for v, verdict in zip(variants, verdicts, strict=True) if not verdict.passed]


def test_a_broken_folder_is_explained(tmp_path):
    (tmp_path / "problem.yaml").write_text("id: a\nquestion: b\n")
    with pytest.raises(ProblemError, match=r"docs/problems.md"):
        problems.load(tmp_path)
    with pytest.raises(ProblemError, match="cloudeval new"):
        problems.load(tmp_path / "empty")


def test_edits_must_fit():
    assert problems.edit("a: 1\nb: 1", "1 => 2", "x") == "a: 2\nb: 1"
    assert problems.edit("a: 1\nb: 1", "1 =>> 2", "x") == "a: 2\nb: 2"
    assert problems.edit("a: 1\nb: 1", "a: 1\\n => ", "x") == "b: 1"
    with pytest.raises(ProblemError, match="does not contain"):
        problems.edit("a: 1", "c => d", "x")


@pytest.mark.root
def test_a_new_problem_works_as_it_is_made(tmp_path):
    folder = tmp_path / "mine"
    assert subprocess.run([*CLOUDEVAL, "new", str(folder)], check=False).returncode == 0
    done = subprocess.run([*CLOUDEVAL, "validate", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "5/5 killed" in done.stdout
