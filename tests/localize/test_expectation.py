"""EROICA, equations 6 and 7, against the literal rule."""

from __future__ import annotations

import numpy as np
import pytest

from eroica.localize.rule import distance_from_expectation, expected_beta
from eroica.model.pattern import FunctionKey
from eroica.settings import Settings

PYTHON = FunctionKey(kind="python", name="f", phase="forward")


def literal_distance(kind: str, beta: np.ndarray) -> np.ndarray:
    return np.maximum(beta - {"python": 0.01, "collective": 0.30, "compute": 1.0}[kind], 0)


@pytest.mark.parametrize("kind", ["python", "collective", "compute"])
def test_with_an_accelerator_the_distance_is_the_papers(kind: str) -> None:
    beta = np.array([0.0, 0.005, 0.06, 0.2, 0.5, 1.0])
    key = FunctionKey(kind=kind, name="f")
    ours = distance_from_expectation(key, beta, np.full(6, np.nan), True, Settings())
    np.testing.assert_allclose(ours, literal_distance(kind, beta))


def test_a_healthy_cpu_jobs_python_is_far_from_the_papers_expectation_but_not_from_ours() -> None:
    beta, peers = np.array([0.06, 0.05, 0.055]), np.array([0.0525, 0.0575, 0.055])
    assert (literal_distance("python", beta) > 0.03).all()
    assert (distance_from_expectation(PYTHON, beta, peers, False, Settings()) == 0).all()


def test_python_that_exceeds_the_baseline_is_far_without_an_accelerator_too() -> None:
    ours = distance_from_expectation(PYTHON, np.array([0.20]), np.array([0.05]), False, Settings())
    assert ours[0] == pytest.approx(0.14)


def test_without_any_reference_a_cpu_worker_is_never_far() -> None:
    assert distance_from_expectation(PYTHON, np.array([0.9]), np.array([np.nan]), False, Settings())[0] == 0


def test_what_the_paper_leaves_open_has_an_expectation() -> None:
    settings = Settings()
    assert expected_beta(FunctionKey(kind="memory", name="memcpy"), settings) == 0.05
    assert expected_beta(FunctionKey(kind="gc", name="collection"), settings) == 0.01
    assert expected_beta(FunctionKey(kind="compute", name="aten::stack", phase="input"), settings) == 0.01
