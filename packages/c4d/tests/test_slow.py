"""Own work of workers and delays of connections tell four classes apart."""

from dataclasses import replace
from itertools import permutations

import pytest

from eroica.communication.slow import Usual, find_slow, usual_of
from eroica.communication.stretch import CellReading, Stretch
from eroica.model.communication import Place

HOSTS = {worker: f"node{worker // 2}" for worker in range(8)}
CELLS = list(permutations(sorted(set(HOSTS.values())), 2))
QUICK = CellReading(delay_s=0.0008, bytes_per_s=2e6, busy=0.05, held=0.0)


def stretch(
    iteration_s: float = 0.1,
    outside: dict[int, float] | None = None,
    cells: dict[tuple[str, str], CellReading] | None = None,
    moments: int = 24,
) -> Stretch:
    shares = dict.fromkeys(HOSTS, 0.5) | (outside or {})
    readings = dict.fromkeys(CELLS, QUICK) | (cells or {})
    return Stretch(
        seconds=8, iteration_s=iteration_s, outside=shares, moments=dict.fromkeys(HOSTS, moments), cells=readings
    )


def past(*stretches: Stretch) -> Usual:
    usual = usual_of(stretches)
    assert usual is not None
    return usual


USUAL = past(stretch(), stretch())


def find(now: Stretch, usual: Usual = USUAL):  # type: ignore[no-untyped-def]
    return find_slow(now, usual, HOSTS, 0.15)


def test_a_worker_whose_own_work_grew_is_slow_outside_of_communication() -> None:
    found = find(stretch(0.2, {worker: 0.9 if worker == 3 else 0.25 for worker in HOSTS}))
    assert found is not None
    assert found.kind == "non-communication-slow"
    assert found.places == (Place(kind="worker", workers=(3,), hosts=("node1",)),)
    assert found.gain == pytest.approx(0.5)


def test_all_workers_of_a_host_are_the_host() -> None:
    found = find(stretch(0.2, {worker: 0.9 if worker in (2, 3) else 0.25 for worker in HOSTS}))
    assert found is not None
    assert found.places == (Place(kind="host", workers=(2, 3), hosts=("node1",)),)


def test_a_connection_whose_bytes_wait_is_slow_communication() -> None:
    slow = CellReading(delay_s=0.06, bytes_per_s=1e6, busy=0.6, held=0.0)
    found = find(stretch(0.2, dict.fromkeys(HOSTS, 0.25), {("node1", "node2"): slow}))
    assert found is not None
    assert (found.kind, found.places) == (
        "communication-slow",
        (Place(kind="connection", hosts=("node1", "node2")),),
    )


def test_more_bytes_that_wait_are_no_slow_way() -> None:
    more = CellReading(delay_s=0.06, bytes_per_s=30e6, busy=0.6, held=0.0)  # 50 MB/s while under way, 40 before
    assert find(stretch(0.2, dict.fromkeys(HOSTS, 0.25), {("node1", "node2"): more})) is None


@pytest.mark.parametrize(("iterations", "slow"), [(2, False), (30, True)])
def test_few_iterations_do_not_tell_that_a_job_is_slow(iterations: int, slow: bool) -> None:
    now = stretch(0.14, {worker: 0.9 if worker == 3 else 0.25 for worker in HOSTS})
    assert (find(replace(now, iterations=iterations)) is not None) == slow


def test_both_at_once_are_told() -> None:
    slow = CellReading(delay_s=0.06, bytes_per_s=1e6, busy=0.5, held=0.0)
    outside = {worker: 0.6 if worker == 6 else 0.17 for worker in HOSTS}
    found = find(stretch(0.3, outside, {("node0", "node1"): slow}))
    assert found is not None
    assert found.kind == "both-slow"
    assert [place.kind for place in found.places] == ["worker", "connection"]


def test_a_job_as_fast_as_ever_is_not_slow_whatever_differs() -> None:
    assert find(stretch(0.1, {3: 0.95})) is None


@pytest.mark.parametrize(("workers", "told"), [(8, True), (2000, False)])
def test_of_many_workers_one_differs_by_chance(workers: int, told: bool) -> None:
    hosts = {worker: f"node{worker}" for worker in range(workers)}

    def lived(iteration_s: float, shares: dict[int, float], moments: int) -> Stretch:
        return Stretch(
            seconds=8, iteration_s=iteration_s, outside=shares, moments=dict.fromkeys(hosts, moments)
        )  # fmt: skip

    usual = past(lived(0.1, dict.fromkeys(hosts, 0.5), 500))
    now = lived(0.2, dict.fromkeys(hosts, 0.25) | {3: 0.64}, 24)  # four standard errors more
    assert (find_slow(now, usual, hosts, 0.15) is not None) == told


@pytest.mark.parametrize(("moments", "told"), [(400, True), (12, False)])
def test_nobody_is_surely_late_whose_past_is_short(moments: int, told: bool) -> None:
    usual = past(stretch(0.17, moments=moments))
    now = stretch(0.2, dict.fromkeys(HOSTS, 0.425) | {3: 0.73}, moments=30)
    assert (find(now, usual) is not None) == told


def test_who_always_had_more_to_do_has_more_of_that_as_well_where_all_have_more() -> None:
    """Longer sequences: own work of all has grown by three quarters, and so has that of a heavy pipeline stage."""
    shares = {worker: 0.8 if worker == 3 else 0.3 for worker in HOSTS}
    usual = past(stretch(0.1, shares))
    assert find(stretch(0.175, shares, moments=150), usual) is None
    heavy = {worker: 0.8 if worker in (2, 3) else 0.3 for worker in HOSTS}
    assert find(stretch(0.175, heavy, moments=150), past(stretch(0.1, heavy))) is None
    found = find(stretch(0.2, {**dict.fromkeys(HOSTS, 0.15), 3: 0.9}, moments=150), usual)
    assert found is not None and found.places[0].workers == (3,)


def test_a_host_is_told_by_its_workers_together_where_none_is_sure_alone() -> None:
    outside = {worker: 0.5 if worker in (4, 5) else 0.25 for worker in HOSTS}
    found = find(stretch(0.2, outside, moments=20))
    assert found is not None
    assert found.places == (Place(kind="host", workers=(4, 5), hosts=("node2",)),)
    alone = {worker: 0.5 if worker == 4 else 0.25 for worker in HOSTS}
    assert find(stretch(0.2, alone, moments=16)) is None


@pytest.mark.parametrize(("one", "other", "workers"), [(0.58, 0.58, (2, 3)), (0.9, 0.55, (2,))])
def test_workers_that_are_not_surely_late_are_named_with_a_host_that_is_late_alike(
    one: float, other: float, workers: tuple[int, ...]
) -> None:
    shares = dict.fromkeys(HOSTS, 0.25) | {2: one, 3: other}
    found = find(stretch(0.2, shares, moments=14))
    assert found is not None
    assert sorted(worker for place in found.places for worker in place.workers) == list(workers)


def test_who_is_late_along_with_its_mates_is_held_up_and_who_they_wait_for_is_late() -> None:
    """Pipelines: workers of node1 wait for messages of worker 0, which looks like own work; its own mate waits for it.

    All others wait in collectives with those.
    """
    groups = {worker: f"tp{worker // 2}" for worker in HOSTS}
    shares = dict.fromkeys(HOSTS, 0.2) | {0: 0.95, 2: 0.95, 3: 0.95}
    now, usual = stretch(0.2, shares, moments=60), past(stretch(moments=600))
    found = find(now, usual)
    assert found is not None and {worker for place in found.places for worker in place.workers} == {0, 2, 3}
    found = find(replace(now, busiest=groups), usual)
    assert found is not None
    assert found.places == (Place(kind="worker", workers=(0,), hosts=("node0",)),)


def test_workers_that_a_slow_way_holds_up_are_not_late() -> None:
    slow = CellReading(delay_s=0.06, bytes_per_s=1e6, busy=0.6, held=0.0)
    shares = dict.fromkeys(HOSTS, 0.2) | {2: 0.95, 3: 0.95}
    now = stretch(0.2, shares, {("node1", "node2"): slow}, moments=60)
    found = find(now, past(stretch(moments=600)))
    assert found is not None and found.kind == "both-slow"
    found = find(replace(now, busiest={worker: f"tp{worker // 2}" for worker in HOSTS}), past(stretch(moments=600)))
    assert found is not None and found.kind == "communication-slow"


def test_where_all_ways_are_slow_alike_no_place_is_named() -> None:
    slow = CellReading(delay_s=0.008, bytes_per_s=1e6, busy=0.6, held=0.0)
    assert find(stretch(0.2, dict.fromkeys(HOSTS, 0.25), dict.fromkeys(CELLS, slow))) is None
    worse = dict.fromkeys(CELLS, slow) | {CELLS[0]: replace(slow, delay_s=0.2)}
    found = find(stretch(0.2, dict.fromkeys(HOSTS, 0.25), worse))
    assert found is not None and found.places == (Place(kind="connection", hosts=CELLS[0]),)


def test_who_is_late_with_its_mates_is_not_told_while_another_is_nearly_singled_out() -> None:
    """Node1's workers seem late, and worker 0, for which its mate waits, is not sure yet: they may be held up by it."""
    groups = {worker: f"tp{worker // 2}" for worker in HOSTS}
    shares = dict.fromkeys(HOSTS, 0.2) | {0: 0.5, 2: 0.6, 3: 0.6}
    now = replace(stretch(0.2, shares, moments=14), busiest=groups)
    assert find(now, past(stretch(moments=600))) is None
    alone = replace(stretch(0.2, shares | {0: 0.2}, moments=14), busiest=groups)
    found = find(alone, past(stretch(moments=600)))
    assert found is not None and found.places == (Place(kind="host", workers=(2, 3), hosts=("node1",)),)


def test_a_host_that_is_late_is_told_where_all_share_one_group() -> None:
    everybody = dict.fromkeys(HOSTS, "default_pg")
    for share, moments in ((0.5, 20), (0.58, 14)):
        now = stretch(0.2, dict.fromkeys(HOSTS, 0.25) | {4: share, 5: share}, moments=moments)
        found = find(replace(now, busiest=everybody), past(stretch(moments=600)))
        assert found is not None and found.places == (Place(kind="host", workers=(4, 5), hosts=("node2",)),)
