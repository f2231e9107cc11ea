"""The simulation of downtime agrees with its formula, and orders that are not given cost a time-out."""

from __future__ import annotations

import importlib.util
import math
import random
import statistics
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "downtime.py"


@pytest.fixture(scope="module")
def downtime() -> ModuleType:
    specification = importlib.util.spec_from_file_location("downtime", BENCHMARK)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["downtime"] = module
    specification.loader.exec_module(module)
    return module


def repair(downtime: ModuleType, act_from: float = 0.95) -> Any:
    hangs = [downtime.Hang(3.0, 0.97), downtime.Hang(4.0, 0.9), downtime.Hang(math.inf, 0.0)]
    return downtime.Repair(hangs, [30.0, 40.0], act_from, 1800.0)


def test_simulated_months_have_the_mean_that_the_formula_says(downtime: ModuleType) -> None:
    draw = random.Random(1)
    months = [downtime.simulate(repair(downtime), 3 * 3600.0, 600.0, 30 * 86400.0, draw) for _ in range(100)]
    formula = downtime.expected(repair(downtime), 3 * 3600.0, 600.0)
    assert statistics.fmean(month.standing for month in months) == pytest.approx(formula.standing, rel=0.03)
    assert statistics.fmean(month.repeated for month in months) == pytest.approx(formula.repeated, rel=0.03)
    assert formula.repeated == pytest.approx(300 / 3 / 3600, rel=0.15), "half a checkpoint's distance a fault"


def test_who_is_not_sure_enough_waits_for_the_time_out(downtime: ModuleType) -> None:
    start = 35.0
    assert repair(downtime, 0.95).mean_s == pytest.approx((3 + 1800 + 1800) / 3 + start)
    assert repair(downtime, 0.8).mean_s == pytest.approx((3 + 4 + 1800) / 3 + start)
    assert repair(downtime, 2.0).mean_s == pytest.approx(1800 + start)


def test_wrong_verdicts_and_none_count_as_no_verdict(downtime: ModuleType) -> None:
    def line(right: bool, after_s: float | None, kind: str = "communication-hang") -> dict[str, Any]:
        return {
            "kind": "run", "truth_kind": kind, "after_s": after_s, "right": {"class": True, "place": right},
            "findings": [{"confidence": 0.97}],
        }  # fmt: skip

    lines = [line(True, 2.5), line(False, 2.5), line(True, None), line(True, 9.0, "communication-slow")]
    hangs = downtime.measured_hangs(lines)
    assert [hang.verdict_s for hang in hangs] == [2.5, math.inf, math.inf]
    assert [hang.confidence for hang in hangs] == [0.97, 0.0, 0.0]
