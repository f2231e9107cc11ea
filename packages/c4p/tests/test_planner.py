from __future__ import annotations

import random
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c4p.demand import PathReport, combine
from c4p.errors import BadRequest
from c4p.planner import Assignment, Demand, LeafPair, Pair, color_evenly, link_loads, plan, possible_links


def job(hosts: list[int], n_spines: int, flows: int = 4, per_leaf: int = 4) -> Demand:
    """A ring of hosts with two ports; hosts below one leaf leaf_pair each other over it alone."""
    spines = [[f"s{k}" for k in range(n_spines)]]
    pairs = []
    for a, b in zip(hosts, hosts[1:] + hosts[:1], strict=True):
        leaf_pairs = []
        for side in "LR":
            entry, exit_ = f"l{a // per_leaf}{side}", f"l{b // per_leaf}{side}"
            if entry == exit_:
                spines.append([entry])
                leaf_pairs.append(LeafPair(f"h{a}", f"h{b}", len(spines) - 1))
            else:
                leaf_pairs.append(LeafPair(entry, exit_, 0))
        pairs.append(Pair(f"h{a}", f"h{b}", flows, leaf_pairs))
    return Demand(pairs, spines)


def worst(loads: dict[tuple[str, str], int], spines: int) -> None:
    """Slow check: no link between a leaf and a spine has more than its even share, rounded up."""
    for leaf in {name for link in loads for name in link if name[0] == "l"}:
        up = [loads.get((leaf, f"s{k}"), 0) for k in range(spines)]
        down = [loads.get((f"s{k}", leaf), 0) for k in range(spines)]
        assert max(up) <= -(-sum(up) // spines), (leaf, up)
        assert max(down) <= -(-sum(down) // spines), (leaf, down)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), jobs=st.integers(1, 6), spines=st.integers(1, 9), flows=st.integers(1, 9))
def test_links_carry_even_counts_over_all_jobs_and_sides_stay_apart(
    seed: int, jobs: int, spines: int, flows: int
) -> None:
    chance = random.Random(seed)
    demands = {f"j{k}": job(chance.sample(range(24), chance.randint(2, 12)), spines, flows) for k in range(jobs)}
    planned = plan(demands, {})
    loads = link_loads(demands, planned.assignments)
    worst(loads, spines)
    assert not any(planned.moved.values())
    for name, demand in demands.items():
        assert len(planned.assignments[name].sides) == flows * len(demand.pairs)
        for index in range(len(demand.pairs)):
            sides = planned.assignments[name].sides[index * flows : (index + 1) * flows]
            assert abs(sides.count(0) - sides.count(1)) <= 1
    again = plan(demands, planned.assignments)
    assert not any(again.moved.values())


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), spines=st.integers(2, 8))
def test_when_a_job_goes_or_comes_only_flows_over_the_even_share_move(seed: int, spines: int) -> None:
    chance = random.Random(seed)
    demands = {f"j{k}": job(chance.sample(range(24), 8), spines) for k in range(4)}
    planned = plan(demands, {})
    stayed = {name: demand for name, demand in demands.items() if name != "j0"}
    gone = plan(stayed, {name: planned.assignments[name] for name in stayed})
    most = max(link_loads(demands, planned.assignments).values())
    assert max(link_loads(stayed, gone.assignments).values()) <= most
    assert sum(gone.moved.values()) <= sum(pair.flows for demand in stayed.values() for pair in demand.pairs) // 2
    back = plan(demands, gone.assignments)
    worst(link_loads(demands, back.assignments), spines)
    assert sum(back.moved.values()) <= 4 * 8 * 4 // 2
    assert back.moved["j0"] == 0


def test_links_to_avoid_are_left_and_taken_where_there_is_no_other() -> None:
    demands = {"a": job([0, 4], 4)}
    planned = plan(demands, {}, avoid=[("l0L", "s1"), ("s1", "l1L"), ("s2", "l1R")])
    loads = link_loads(demands, planned.assignments)
    assert not {("l0L", "s1"), ("s1", "l1L"), ("s2", "l1R")} & set(loads)
    only = {"a": job([0, 4], 1)}
    every = [("l0L", "s0"), ("l0R", "s0")]
    assert len(plan(only, {}, avoid=every).assignments["a"].sides) == 8


@pytest.mark.parametrize("link", [("h0", "l0L"), ("l1R", "h4")], ids=["from a host", "to a host"])
def test_a_hosts_link_to_avoid_is_left_over_its_other_port(link: tuple[str, str]) -> None:
    demands = {"a": job([0, 4, 8], 4)}
    before = plan(demands, {})
    assert link in link_loads(demands, before.assignments)
    planned = plan(demands, before.assignments, avoid=[link])
    loads = link_loads(demands, planned.assignments)
    assert link not in loads
    assert link in possible_links(demands.values())
    assert sum(planned.moved.values()) >= 2
    side = "LR".index("R" if link[1] == "l0L" else "L")
    first = slice(0, 4)  # of the pair whose link it is
    assert planned.assignments["a"].sides[first] == [side] * 4
    others = planned.assignments["a"].sides[4:]
    assert {others[:4].count(0), others[4:].count(0)} <= {1, 2, 3}


def test_a_side_that_nobody_has_any_more_is_forgotten() -> None:
    two = Demand([Pair("a", "b", 4, [LeafPair("l0L", "l1L", 0), LeafPair("l0R", "l1R", 0)])], [["s0", "s1"]])
    one = Demand([Pair("a", "b", 4, [LeafPair("l0L", "l1L", 0)])], [["s0", "s1"]])
    had = plan({"x": two}, {}).assignments
    again = plan({"x": one}, had)
    assert again.assignments["x"].sides == [0, 0, 0, 0]
    assert again.moved == {"x": 2}


def test_a_side_without_paths_carries_nothing() -> None:
    spines = [["s0", "s1"], []]
    demand = Demand([Pair("a", "b", 4, [LeafPair("l0L", "l1L", 1), LeafPair("l0R", "l1R", 0)])], spines)
    assert plan({"x": demand}, {}).assignments["x"].sides == [1, 1, 1, 1]


@pytest.mark.parametrize("flows", [4, 8])
def test_where_one_spine_is_missing_shares_are_rounded_to_the_nearer_number(flows: int) -> None:
    spines = [["s0", "s1", "s2"], ["s0", "s1", "s2", "s3"]]
    for left in (0, 1):
        demand = Demand(
            [Pair("a", "b", flows, [LeafPair("l0L", "l1L", left), LeafPair("l0R", "l1R", 1 - left)])], spines
        )
        sides = plan({"x": demand}, {}).assignments["x"].sides
        assert sides.count(left) == {4: 2, 8: 3}[flows]  # of fair shares of 1.7 and 3.4


def test_a_demand_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(BadRequest, match="not there"):
        plan({"x": Demand([Pair("a", "b", 1, [LeafPair("l", "m", 3)])], [["s"]])}, {})
    with pytest.raises(BadRequest, match="no path"):
        plan({"x": Demand([Pair("a", "b", 1, [])], [["s"]])}, {})
    with pytest.raises(BadRequest, match="new name"):
        plan({"x": job([0, 4], 2)}, {"x": Assignment([0], ["s0"])})
    assert plan({}, {}).assignments == {}


def test_weights_decide_the_shares() -> None:
    rows = columns = np.zeros(1, dtype=np.int64)
    weights = np.array([[1.0, 1.0, 2.0, 0.0]])
    colored = color_evenly(rows, columns, np.array([40]), weights, np.zeros((1, 4), dtype=np.int64))
    assert colored.tolist() == [[10, 10, 20, 0]]


def test_left_goes_to_left_and_the_answer_is_the_members_own_paths() -> None:
    across = [f"L{a}|s{k}|{b}1" for a in (0,) for k in range(2) for b in "LR"] + [
        f"R0|s{k}|{b}1" for k in range(2) for b in "LR"
    ]
    back = [path.replace("0", "x").replace("1", "0").replace("x", "1") for path in across]
    reports = [
        PathReport("h0", "h1", 4, across, ["L0", "R0"]),
        PathReport("h1", "h0", 4, back, ["L1", "R1"]),
        PathReport("h2", "h2", 2, [""], []),
    ]  # fmt: skip
    job_demand = combine(reports)
    answers = job_demand.answers(plan({"a": job_demand.demand}, {}).assignments["a"])
    assert answers[2] == ["", ""]
    for answer, report in zip(answers[:2], reports[:2], strict=True):
        assert set(answer) <= set(report.paths)
        assert all(path.split("|")[0][0] == path.split("|")[2][0] for path in answer)
        assert len(set(answer)) == 4
    parallel = [PathReport("h0", "h1", 4, ["s0", "s1", "s3"], ["s0", "s1", "s2", "s3"])]
    job_demand = combine(parallel)
    [answer] = job_demand.answers(plan({"a": job_demand.demand}, {}).assignments["a"])
    assert sorted(set(answer)) == ["s0", "s1", "s3"]


def test_a_thousand_hosts_are_planned_at_once() -> None:
    hosts = list(range(1000))
    random.Random(1).shuffle(hosts)
    demand = {"a": job(hosts, 16, flows=8, per_leaf=32)}
    began = time.process_time()
    planned = plan(demand, {})
    assert time.process_time() - began < 0.5  # the figure is in docs/figures.md; this is a guard
    worst(link_loads(demand, planned.assignments), 16)
