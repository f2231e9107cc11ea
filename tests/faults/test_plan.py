from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica.errors import UsageError
from support.faults import FaultPlan, plans_from_environment, read_plans

numbers = st.none() | st.integers(0, 10**9)
plans = st.builds(
    FaultPlan,
    name=st.sampled_from(["slow-loader", "gc-pause"]),
    worker=numbers,
    from_iteration=st.integers(0, 10**9),
    until=numbers,
    options=st.dictionaries(st.sampled_from(["seconds", "entries"]), st.floats(0, 1e9)),
)


@given(plans)
def test_a_plan_survives_the_way_through_json(plan: FaultPlan) -> None:
    assert read_plans(plan.to_json()) == (plan,)


def test_the_short_form_says_the_same_as_json() -> None:
    short = read_plans("slow-loader:worker=2,from_iteration=150,seconds=0.01")
    assert short == (FaultPlan("slow-loader", worker=2, from_iteration=150, options={"seconds": 0.01}),)


def test_several_plans_are_a_list() -> None:
    found = read_plans('[{"name": "gc-pause"}, {"name": "slow-python", "until": 9}]')
    assert [plan.name for plan in found] == ["gc-pause", "slow-python"]


@pytest.mark.parametrize("text", ["", "  ", "none"])
def test_no_text_and_none_are_no_plan(text: str) -> None:
    assert plans_from_environment({"EROICA_FAULT": text}) == ()
    assert plans_from_environment({}) == ()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{oops", "oops"),
        ("[1]", "1"),
        ('{"worker": 2}', "name"),
        ('{"name": "slow-loader", "worker": -1}', "-1"),
        ('{"name": "slow-loader", "worker": true}', "True"),
        ('{"name": "slow-loader", "from_iteration": null}', "None"),
        ('{"name": "slow-loader", "until": 2.5}', "2.5"),
        ('{"name": "slow-loader", "seconds": "long"}', "long"),
        ('{"name": "slow-loader", "seconds": NaN}', "nan"),
        ("slow-loader:worker", "worker"),
        ("slow-loader:worker=two", "two"),
    ],
)
def test_a_bad_plan_is_refused_with_the_value_that_is_wrong(text: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        read_plans(text)


@pytest.mark.parametrize(
    ("iteration", "until", "active"),
    [(149, None, False), (150, None, True), (10**9, None, True), (199, 200, True), (200, 200, False)],
)
def test_a_fault_is_active_from_its_first_iteration_until_its_end(
    iteration: int, until: int | None, active: bool
) -> None:
    assert FaultPlan("slow-loader", from_iteration=150, until=until).is_active(iteration) is active


def test_a_plan_hits_its_worker_or_all() -> None:
    assert [FaultPlan("gc-pause", worker=1).hits(worker) for worker in range(3)] == [False, True, False]
    assert all(FaultPlan("gc-pause").hits(worker) for worker in range(3))
