"""What each of two faults costs, from the paces of jobs with both, each and neither."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def benchmark(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("mixed_faults")


def test_faults_that_add_up_each_cost_what_goes_with_them(benchmark: ModuleType) -> None:
    gains = benchmark.true_gains(50.0, {"slow-loader": 80.0, "gc-pause": 70.0}, 100.0)
    assert gains == {"slow-loader": pytest.approx(0.3), "gc-pause": pytest.approx(0.2)}


def test_faults_that_hide_each_other_each_cost_what_they_add_alone(benchmark: ModuleType) -> None:
    gains = benchmark.true_gains(50.0, {"slow-loader": 100.0, "slow-compute": 100.0}, 100.0)
    assert gains == {"slow-loader": pytest.approx(0.5), "slow-compute": pytest.approx(0.5)}


def test_a_line_says_what_is_missing_and_what_is_too_much(benchmark: ModuleType) -> None:
    line = benchmark.line("loader-and-compute", 1, None, {"slow-loader": True, "slow-compute": False}, ("slow-link",))
    assert (line["right"], line["wrong"]) == (False, ["slow-compute not told", "slow-link told"])
    assert benchmark.line("loader-and-compute", 1, None, {"slow-loader": True}, ())["right"]
