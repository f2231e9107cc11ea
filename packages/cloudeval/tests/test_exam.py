"""Admission and controllers against the kept answers of the real control plane."""

import importlib
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))  # exam.py imports its neighbour controlplane.py
exam = importlib.import_module("exam")
KEPT = json.loads((BENCHMARKS / "results" / "exam.json").read_text())
#: Where the package differs on purpose; docs/admission.md gives the reasons.
DIFFERENT = {"job spec.ttlSecondsAfterFinished -5"}


def test_the_exam_is_large_enough():
    assert len(KEPT["admission"]) >= 150
    assert len(KEPT["controllers"]) >= 40


@pytest.mark.parametrize("item", KEPT["admission"], ids=lambda item: item["fact"])
def test_admission_agrees_with_the_real_server(item):
    faults = exam.our_admission(dict(exam.facts())[item["fact"]])
    assert (not faults) == item["admitted"] or item["fact"] in DIFFERENT, (item, faults)


def test_controllers_agree_with_the_real_ones():
    ours = json.loads(json.dumps(exam.scenarios(exam.Ours())))
    different = {key: (value, ours.get(key)) for key, value in KEPT["controllers"].items() if value != ours.get(key)}
    assert len(different) <= 0.02 * len(KEPT["controllers"]), different


@pytest.mark.thorough
def test_the_control_plane_still_answers_so():
    from controlplane import missing, running

    if reason := missing():
        pytest.skip(reason)
    with running() as config:
        kubectl = exam.Kubectl(config)
        for item in KEPT["admission"][::10]:
            manifest = dict(exam.facts())[item["fact"]]
            done = kubectl.run("apply", "--dry-run=server", "-f", "-", text=exam.for_1_20(manifest))
            assert (done.returncode == 0) == item["admitted"], item


@pytest.mark.thorough
def test_the_cluster_backend_judges_in_a_real_cluster(monkeypatch):
    from cloudeval import problems
    from cloudeval.runners import kubectl
    from controlplane import missing, running

    if reason := missing():
        pytest.skip(reason)
    variant = problems.draw(problems.load_one(problems.built_in() / "pod-web"))
    with running(controllers=True) as config:
        monkeypatch.setenv("KUBECONFIG", str(config))
        refused = kubectl.judge(variant, variant.answer.replace("containerPort: 8080", "containerPort: 80800"))
        assert (refused.outcome, refused.how) == ("wrong", "admission")
        waiting = kubectl.RealCluster("default")
        waiting.patience_s = 2
        monkeypatch.setattr(kubectl.RealCluster, "patience_s", 2.0)
        verdict = kubectl.judge(variant, variant.answer)
        assert (verdict.outcome, verdict.how) == ("unjudged", "not covered")
        assert "no node" in verdict.reason
        left = waiting.kubectl("get", "namespaces", "-o", "name").stdout
        assert "cloudeval-" not in left or "Terminating" in waiting.kubectl("get", "namespaces").stdout
