from __future__ import annotations

import random

import msgspec
import pytest

from cora.errors import BadInput, NoPlan
from cora.functions import FUNCTIONS, load
from cora.machine import Limits, load_costs, load_limits, shipped
from cora.model import Choice, predict, queue
from cora.placement import why_illegal
from cora.plan import (
    Instance,
    Node,
    Problem,
    placement_of,
    search,
    simple_plans,
)
from cora.profile import SPLITS, Profile, make_profile
from cora.traffic import Shape, make_traffic

COSTS = msgspec.structs.replace(load_costs(shipped("reference-costs")), network={"fast": 300.0, "slow": 900.0})


def made_instance(seed: int, tables: int, splits: int = 3) -> Instance:
    """Return a random problem: packets walk over random tables, some of which may be split."""
    chooser = random.Random(seed)
    names = [f"t{i}" for i in range(tables)]
    choices, sizes = {}, {}
    for name in names:
        found = [Choice("slow"), Choice("fast")]
        if chooser.random() < 0.6:
            found += [Choice("split", room) for room in chooser.sample(SPLITS, splits - 2)]
        choices[name] = found
        sizes[name] = [0, 1 << chooser.randint(10, 22), *[c.entries * 64 for c in found[2:]]]
    nodes: list[Node] = []
    for _ in range(max(8, tables)):
        parent, weight = -1, chooser.random() / tables
        for name in [n for n in names if chooser.random() < min(1.0, 6 / tables)]:
            fast = chooser.uniform(20, 200)
            by_home = {"fast": fast, "split": fast + 45, "both": fast, "miss": 30.0}
            nodes.append(
                Node(parent, name, chooser.randrange(len(SPLITS) + 1), weight, by_home, chooser.uniform(20, 300))
            )
            parent = len(nodes) - 1
    before = sorted({(a, b) for a in names for b in names if a < b and chooser.random() < 0.2})
    return Instance(
        choices, sizes, {n: [0] * len(c) for n, c in choices.items()}, nodes, 100.0, 20.0, 1500.0, before, [],
        Limits(bytes=sum(max(s) for s in sizes.values()) // 3), {"": 100, **dict.fromkeys(names, 50)}, 1e9, 1e9, 0.1,
    )  # fmt: skip


def walk(instance: Instance, chosen: dict[str, Choice]) -> tuple[float, float, float]:
    """The slow twin of `Instance.cost`: walk down the trie, one node after the other."""
    slow_from: list[bool] = []
    fast, slow, cross = instance.base_fast_ns, 0.0, 0.0
    for node in instance.nodes:
        choice = chosen[node.table]
        before = node.parent >= 0 and slow_from[node.parent]
        here = before or not choice.holds(node.rank_bracket)
        slow_from.append(here)
        if not before:
            fast += node.share * node.fast_part(choice)
        if here:
            slow += node.share * node.slow_ns
        if here and not before:
            cross += node.share
    return fast + cross * instance.crossing_fast_ns, slow + cross * instance.crossing_slow_ns, cross


@pytest.mark.parametrize("seed", range(5))
def test_many_plans_are_priced_as_one_by_one(seed: int) -> None:
    instance, chooser = made_instance(seed, tables=12), random.Random(seed)
    for _ in range(50):
        chosen = {name: chooser.choice(found) for name, found in instance.choices.items()}
        assert instance.cost(chosen)[1:] == pytest.approx(walk(instance, chosen))


@pytest.mark.parametrize("seed", range(12))
def test_cp_sat_equals_exhaustive_search(seed: int) -> None:
    instance = made_instance(seed, tables=7)
    exact, slow = search(instance, "exact"), search(instance, "exhaustive")
    assert exact.optimal
    assert not instance.broken_rule(exact.chosen)
    assert exact.cost.cost_ns == pytest.approx(slow.cost.cost_ns, abs=0.1)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_cp_sat_equals_exhaustive_search_on_ten_tables(seed: int) -> None:
    instance = made_instance(100 + seed, tables=10)
    assert search(instance, "exact").cost.cost_ns == pytest.approx(search(instance, "exhaustive").cost.cost_ns, abs=0.1)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_simple_plan_beats_the_planner(name: str) -> None:
    program = load(name)
    profile = make_profile(program, make_traffic(name, Shape(packets=3000, keys=500)))
    for memory in (1 << 15, 1 << 18, 1 << 26):
        instance = Problem(program, profile, COSTS, Limits(bytes=memory)).instance
        plan = search(instance)
        assert not why_illegal(program, placement_of(plan.chosen))
        assert plan.cost.cost_ns == pytest.approx(search(instance, "exhaustive").cost.cost_ns, abs=0.1)
        assert search(instance, "greedy").cost.cost_ns <= 1.05 * plan.cost.cost_ns
        for label, chosen in simple_plans(program, instance).items():
            if not instance.broken_rule(chosen):
                assert plan.cost.cost_ns <= instance.cost(chosen).cost_ns + 0.1, label


def test_the_instance_and_the_model_agree() -> None:
    program = load("monitor")
    profile = make_profile(program, make_traffic("monitor", Shape(packets=3000)))
    instance = Problem(program, profile, COSTS, Limits()).instance
    for chosen in simple_plans(program, instance).values():
        _, fast, _, cross = instance.cost(chosen)
        predicted = predict(program, profile, COSTS, chosen)
        assert predicted.fast_cpu_ns == pytest.approx(fast)
        assert predicted.crossing_share == pytest.approx(cross)


def test_a_table_that_packets_reach_after_crossing_is_not_split_in_vain() -> None:
    program = load("monitor")
    profile = make_profile(program, make_traffic("monitor", Shape(packets=3000)))
    plan = search(Problem(program, profile, COSTS, Limits(bytes=1 << 16)).instance)  # too little for the sketch
    assert plan.chosen["sources"].home == plan.chosen["flows"].home == "slow"


def test_uniform_keys_gain_less_from_a_split_than_skewed_ones() -> None:
    program, costs = load("monitor"), []
    for skew in (0.0, 1.4):
        profile = make_profile(program, make_traffic("monitor", Shape(packets=6000, skew=skew)))
        costs.append(search(Problem(program, profile, COSTS, Limits(bytes=200_000)).instance).cost.slow_ns)
    assert costs[1] < 0.7 * costs[0]


def test_a_rate_beyond_both_tiers_is_refused_with_the_reason() -> None:
    program = load("bucket")
    profile = make_profile(program, make_traffic("bucket", Shape(packets=500)))
    instance = Problem(program, profile, COSTS, Limits(), rate_per_s=1e9).instance
    with pytest.raises(NoPlan, match=r"the fast tier has 1 ns a packet at this rate and needs more. Lower --rate"):
        search(instance)


def test_public_limits_exclude_what_the_machine_lacks_and_never_carry_costs() -> None:
    limits = load_limits(shipped("agilio-like"))
    assert limits.kind == "public"
    assert limits.source
    program = load("firewall")
    profile = make_profile(program, make_traffic("firewall", Shape(packets=500)))
    instance = Problem(program, profile, COSTS, limits).instance
    assert [choice.home for choice in instance.choices["rules"]] == ["slow"]
    with pytest.raises(BadInput, match="costs must be measured"):
        load_costs(shipped("agilio-like"))
    with pytest.raises(BadInput, match="limits stand in a file of their own"):
        load_limits(shipped("reference-costs"))


def test_the_queue_equals_its_own_state_probabilities() -> None:
    for load_, places in ((0.9, 16), (1.0, 5), (1.7, 9), (0.2, 3)):
        weights = [load_**n for n in range(places + 1)]
        p = [w / sum(weights) for w in weights]
        mean, lost = queue(load_, places)
        assert mean == pytest.approx(sum(n * q for n, q in enumerate(p)))
        assert lost == pytest.approx(p[-1])
    assert queue(0.9, 16)[0] == pytest.approx(5.60, abs=0.005)


def test_a_profile_survives_json() -> None:
    program = load("nat")
    profile = make_profile(program, make_traffic("nat", Shape(packets=300)))
    assert msgspec.json.decode(msgspec.json.encode(profile), type=Profile) == profile
