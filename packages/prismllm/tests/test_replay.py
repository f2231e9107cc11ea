"""The replay agrees with a slow twin, and faults do what they must."""

from __future__ import annotations

import math

import numpy as np
import pytest
from msgspec.structs import replace

from made_jobs import MS, call, data_parallel, group, pipeline, rank_class, slow_twin, step
from prismllm import Rehearsal
from prismllm.costs import Costs, Link, Measured, formula
from prismllm.errors import DeadlockError, GraphError, InputError
from prismllm.graph import Job
from prismllm.replay import replay
from prismllm.whatif import Slow


@pytest.mark.parametrize("job", [data_parallel(12), pipeline(4, 3), pipeline(2, 8)], ids=["dp", "pp4", "pp2"])
@pytest.mark.parametrize("factors", [{}, {1: 1.7}, {0: 3.0, 5: 0.5}])
def test_replay_agrees_with_a_walk_rank_by_rank(job, factors):
    rehearsal = Rehearsal(job)
    changes = [Slow(rank, factor) for rank, factor in factors.items()]
    ends = replay(rehearsal.graph, rehearsal.costs, changes, 1)[0][-1].end_s(job.world)
    twin = slow_twin(rehearsal.graph, rehearsal.costs, factors)
    assert np.allclose(ends, [twin[rank] for rank in range(job.world)], rtol=1e-12)


def test_one_slow_rank_of_a_thousand_costs_everybody_its_time():
    rehearsal = Rehearsal(data_parallel(1000))
    plain, slow = rehearsal.predict(), rehearsal.predict("slow rank=713 by=1.5 from=1")
    assert slow.seconds - plain.seconds == pytest.approx(0.0055, rel=1e-6)  # half of its 11 ms
    assert slow.low <= slow.seconds <= slow.high


def test_the_range_stretches_work_on_a_core_and_calls_but_not_sleep():
    """10 ms of own work, of which 2 ms use a core, and a call of 4 ms."""
    what = step(10, call("all_reduce", 0), 0, ("wait", 0), 0)
    what = replace(what, busy_ns=[2 * MS, 0, 0])
    costs = Costs(table=[Measured("all_reduce", 2, 1000, 0.004)])
    prediction = Rehearsal(Job(2, [group(0, 1)], [rank_class(0, what)], [0, 0], 8, []), costs).predict()
    assert prediction.seconds == pytest.approx(0.014)
    assert prediction.low == pytest.approx(0.008 + 0.75 * 0.006)
    assert prediction.high == pytest.approx(0.008 + 1.7 * 0.006)


def test_a_hang_stops_everybody_who_needs_the_call_and_names_it():
    prediction = Rehearsal(pipeline(4, 2)).predict("hang rank=5 op=1 from=2")
    assert math.isinf(prediction.seconds)
    culprit, *others = prediction.blocked
    assert (culprit.rank, culprit.op, culprit.is_culprit) == (5, 1, True)
    assert {one.rank for one in others} == {1, 2, 3, 6, 7}  # 0 and 4 only send
    assert "rank 5 never makes call 1, send at t.py:1" in str(prediction)


def test_a_cut_network_slows_calls_between_hosts_only():
    job = data_parallel(16)
    many = Rehearsal(job, Costs(host=Link(0, 1e6), net=Link(0, 1e6)))
    plain = many.predict().seconds
    assert many.predict("cut host=1 by=0.1").seconds - plain == pytest.approx(9 * 2 * 15 / 16 * 1e-3, rel=1e-6)
    within = Rehearsal(data_parallel(8), Costs(host=Link(0, 1e6), net=Link(0, 1e6)))
    assert within.predict("cut host=0 by=0.1").seconds == pytest.approx(within.predict().seconds)


def test_calls_of_a_group_run_one_after_the_other_and_waits_come_later():
    what = step(1, call("all_reduce", 0), 1, call("all_reduce", 0, 1), 10, ("wait", 1), 0, ("wait", 0), 0)
    job = Job(2, [group(0, 1)], [rank_class(0, what)], [0, 0], 8, [])
    costs = Costs(table=[Measured("all_reduce", 2, 0, 0.02), Measured("all_reduce", 2, 10**6, 0.02)])
    rehearsal = Rehearsal(job, costs)
    assert replay(rehearsal.graph, costs, iterations=1)[1][0] == pytest.approx(0.041)


def test_ranks_that_wait_in_a_circle_are_named_with_their_lines():
    one = step(0, call("all_reduce", 0, site="a.py:1"), 0, ("wait", 0), 0, call("all_reduce", 1, site="a.py:2"), 0,
               ("wait", 1), 0)  # fmt: skip
    two = step(0, call("all_reduce", 1, site="a.py:5"), 0, ("wait", 0), 0, call("all_reduce", 0, site="a.py:6"), 0,
               ("wait", 1), 0)  # fmt: skip
    job = Job(
        2, [group(0, 1), group(0, 1, description="other")], [rank_class(0, one), rank_class(1, two)], [0, 1], 8, []
    )
    with pytest.raises(DeadlockError, match=r"rank 0 waits in all_reduce at a.py:1 for rank 1; rank 1 waits .* a.py:5"):
        Rehearsal(job).predict()


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (step(1, call("all_reduce", 0, nbytes=8, site="b.py:7"), 0, ("wait", 0), 0), r"rank 1 .*\(8 bytes\) at b.py:7"),
        (step(1, call("all_gather", 0, site="b.py:8"), 0, ("wait", 0), 0), r"rank 1 all_gather .* at b.py:8"),
        (step(1), r"call 0 of group g \[0, 1\] lacks a member: rank 0 makes all_reduce .* at t.py:1, rank 1"),
        (step(1, call("all_reduce", 0), 0, ("wait", 0), 0, call("send", 0, peer=0, site="b.py:9"), 0), r"rank 1 makes "
         r"send to rank 0 .* at b.py:9, for which rank 0 has no receive"),
    ],
)  # fmt: skip
def test_calls_that_do_not_fit_are_named_with_ranks_and_lines(second, said):
    first = step(1, call("all_reduce", 0), 0, ("wait", 0), 0)
    job = Job(2, [group(0, 1)], [rank_class(0, first), rank_class(1, second)], [0, 1], 8, [])
    with pytest.raises(GraphError, match=said):
        Rehearsal(job)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("slow rank=9 by=2", "no rank 9"),
        ("slow rank=1", "cannot be read"),
        ("slow rank=1 by=0", "above 0"),
        ("hang rank=1 op=7", "calls 0 to 0"),
        ("cut host=4 by=0.5", "hosts 0 to 0"),
        ("melt rank=1", "no change that is known"),
        ("network by=2 colour=red", "colour is not known"),
    ],
)
def test_a_change_that_cannot_be_is_one_clear_error(text, said):
    with pytest.raises(InputError, match=said):
        Rehearsal(data_parallel(4)).predict(text)


def test_formulas_have_their_limits():
    assert formula("all_reduce", 10**9, 1024, 0, 1e9) == pytest.approx(2, rel=1e-2)
    assert formula("all_gather", 10**9, 1024, 0, 1e9) == pytest.approx(1, rel=1e-2)
    assert Costs().seconds("all_reduce", 10**6, 1, is_remote=False) == 0
