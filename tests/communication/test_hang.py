"""A standstill is read from counters, processes and data that does not arrive."""

from itertools import permutations

import pytest

from eroica.communication.hang import Scene, find_hang
from eroica.communication.stretch import Matched
from eroica.model.communication import Flow, GroupCount, Place, WorkerOperations
from eroica.model.worker import ProcessGroup

HOSTS = {worker: f"node{worker // 2}" for worker in range(8)}
WORLD = {"0": ProcessGroup(name="0", description="default_pg", ranks=tuple(HOSTS))}


def operation(worker: int, entered: int = 12, completed: int = 11, state: str = "S", **more: float) -> WorkerOperations:
    counts = (GroupCount(group="0", entered=entered, completed=completed),)
    return WorkerOperations(worker=worker, counts=counts, state=state, **more)  # type: ignore[arg-type]


def scene(*changed: WorkerOperations, **more: object) -> Scene:
    operations = {worker: operation(worker) for worker in HOSTS} | {one.worker: one for one in changed}
    return Scene(operations=operations, groups=WORLD, hosts=HOSTS, home="node0", **more)  # type: ignore[arg-type]


def flow(worker: int, peer: int, queued: int = 0, unread: int = 0) -> Matched:
    one = Flow(worker=worker, local=f"x {worker}", remote=f"x {peer}", queued_bytes=queued, unread_bytes=unread)
    return Matched(one, HOSTS[worker], HOSTS[peer], peer)


def test_who_has_not_entered_hangs_outside_of_communication() -> None:
    found = find_hang(scene(operation(5, 11, 11)))
    assert found is not None
    assert (found.kind, found.places) == (
        "non-communication-hang",
        (Place(kind="worker", workers=(5,), hosts=("node2",)),),
    )
    assert found.operation == "collective number 12 of default_pg" and 5 not in found.waiting
    assert not found.is_busy


def waits(worker: int, before: int) -> WorkerOperations:
    count = GroupCount(group="0", entered=12, completed=11, waits_in="gloo:barrier", before=before)
    return WorkerOperations(worker=worker, counts=(count,), state="S")


@pytest.mark.parametrize(
    ("before", "at_work", "expected"),
    [(0, (), False), (5, (), True), (-1, (), True), (5, (5,), False), (5, (4,), True)],
)
def test_what_is_not_expected_is_left_to_those_who_see_more(
    before: int, at_work: tuple[int, ...], expected: bool
) -> None:
    """A collective that the job has not done before, or one for which an absent worker at work is waited."""
    found = find_hang(scene(operation(5, 11, 11), waits(2, before), at_work=frozenset(at_work)))
    assert (found is not None) == expected


def test_processes_that_are_all_stopped_were_suspended() -> None:
    assert find_hang(scene(*(operation(worker, state="T") for worker in HOSTS))) is None
    assert find_hang(scene(*(operation(worker, state="T") for worker in range(7)))) is not None


def test_who_has_not_entered_and_works_may_only_be_late() -> None:
    found = find_hang(scene(operation(5, 11, 11), busy=frozenset({5})))
    assert found is not None and found.is_busy


def test_a_host_of_which_nobody_has_entered_is_named_as_one() -> None:
    found = find_hang(scene(operation(2, 11, 11), operation(3, 11, 11)))
    assert found is not None and found.places == (Place(kind="host", workers=(2, 3), hosts=("node1",)),)


def test_a_stopped_process_is_inside_if_data_waits_for_it() -> None:
    inside = find_hang(scene(operation(4, 10, 10, "T"), matched=(flow(4, 3, unread=70_000),)))
    outside = find_hang(scene(operation(4, 10, 10, "T"), matched=(flow(4, 3, unread=112),)))
    assert inside is not None and outside is not None
    assert (inside.kind, outside.kind) == ("communication-hang", "non-communication-hang")
    assert inside.places == outside.places == (Place(kind="worker", workers=(4,), hosts=("node2",)),)


CELLS = frozenset(permutations(sorted(set(HOSTS.values())), 2))


def test_data_that_does_not_arrive_names_the_connection() -> None:
    found = find_hang(scene(matched=(flow(2, 4, queued=40_000),), used=CELLS))
    assert found is not None
    assert (found.kind, found.places[0].kind, found.places[0].hosts) == (
        "communication-hang",
        "connection",
        ("node1", "node2"),
    )


def test_a_host_that_nothing_reaches_is_named_by_its_link() -> None:
    stuck = (flow(0, 4, queued=9000), flow(2, 4, queued=9000), flow(4, 6, queued=9000), flow(6, 4, queued=100))
    found = find_hang(scene(matched=stuck, used=CELLS))
    assert found is not None and (found.places[0].kind, found.places[0].hosts) == ("link", ("node2",))


def test_a_host_that_is_not_heard_either_is_cut_off() -> None:
    late = (operation(4, 11, 11), operation(5, 11, 11))
    found = find_hang(scene(*late, unheard=frozenset({"node2"})))
    assert found is not None
    assert (found.kind, found.places[0].kind, found.places[0].hosts) == ("communication-hang", "link", ("node2",))
    assert "still runs" in found.places[0].instead[0]


def test_of_a_host_that_is_not_heard_but_reached_by_others_the_way_is_named() -> None:
    late = (operation(4, 11, 11), operation(5, 11, 11))
    found = find_hang(scene(*late, unheard=frozenset({"node2"}), matched=(flow(0, 4, queued=900),), used=CELLS))
    assert found is not None
    assert (found.places[0].kind, found.places[0].hosts) == ("connection", ("node0", "node2"))


def test_all_inside_and_nothing_to_see_is_left_to_those_who_see_more() -> None:
    found = find_hang(scene())
    assert found is None


#: Two replicas of two stages of two tensor-parallel workers: 4 * replica + 2 * stage + place.
GROUPS = {
    name: ProcessGroup(name=name, description=name, ranks=ranks)
    for name, ranks in (
        *((f"tp{first}", (first, first + 1)) for first in (0, 2, 4, 6)),
        *((f"dp{worker}", (worker, worker + 4)) for worker in range(4)),
    )
}


def in_groups(worker: int, tensor: int = 0, data: int = 0, state: str = "S") -> WorkerOperations:
    """Inside (1), behind (-1) or neither (0) in each of a worker's groups; tensor-parallel collectives are frequent."""
    counts = tuple(
        GroupCount(group=name, entered=done + (moved > 0), completed=done)
        for name, done, moved in ((f"tp{worker // 2 * 2}", 400 + min(tensor, 0), tensor), (f"dp{worker % 4}", 50, data))
    )
    return WorkerOperations(worker=worker, counts=counts, state=state)


def grid(*changed: WorkerOperations, **more: object) -> Scene:
    """The second replica waits for the first one's gradients."""
    operations = {worker: in_groups(worker, data=int(worker >= 4)) for worker in HOSTS}
    operations |= {one.worker: one for one in changed}
    more = {"busiest": {worker: f"tp{worker // 2 * 2}" for worker in HOSTS}} | more
    return Scene(operations=operations, groups=GROUPS, hosts=HOSTS, home="node0", **more)  # type: ignore[arg-type]


def test_who_waits_for_messages_is_not_taken_for_who_hangs() -> None:
    """Of the first replica nobody has come to the gradients; worker 3's mate waits for it, all others for messages."""
    found = find_hang(grid(in_groups(2, tensor=1)))
    assert found is not None
    assert found.places == (Place(kind="worker", workers=(3,), hosts=("node1",)),)
    assert (found.operation, found.waiting) == ("collective number 401 of tp2", (2,))
    assert found.confidence > 0.5


def test_of_two_that_stand_in_a_message_either_may_hang() -> None:
    """Workers 1 and 3 are both missed by their mates: one waits for the other's message."""
    found = find_hang(grid(in_groups(0, tensor=1), in_groups(2, tensor=1)))
    assert found is not None
    (place,) = found.places
    (other,) = {1, 3} - {*place.workers}
    assert place.workers[0] in (1, 3) and f"worker {other} on" in place.instead[0]
    assert 0.5 < found.confidence < 0.7


def in_two_groups(worker: int, first: int, second: int) -> WorkerOperations:
    """Inside (1) or behind (0) in each of two groups of all workers."""
    counts = (GroupCount(group="a", entered=300 + first, completed=300, before=300),)
    counts += (GroupCount(group="b", entered=305 + second, completed=305, before=305),)
    return WorkerOperations(worker=worker, counts=counts, state="S")


@pytest.mark.parametrize("few", [(2,), (0, 2, 5), (0, 1, 2, 3)])
def test_of_workers_in_different_collectives_the_few_are_told(few: tuple[int, ...]) -> None:
    """One collective is called under a condition that is not the same on all."""
    groups = {name: ProcessGroup(name=name, description=name, ranks=tuple(HOSTS)) for name in "ab"}
    operations = {worker: in_two_groups(worker, worker not in few, worker in few) for worker in HOSTS}
    busiest = dict.fromkeys(HOSTS, "b")
    found = find_hang(Scene(operations=operations, groups=groups, hosts=HOSTS, home="node0", busiest=busiest))
    assert (found is not None) == (len(few) < len(HOSTS) / 2)
    if found is not None:
        assert (found.kind, found.confidence) == ("non-communication-hang", 0.6)
        assert sorted(worker for place in found.places for worker in place.workers) == list(few)
        assert f"Worker {few[-1]} waits in collective number 306 of b." in found.evidence


def test_a_stopped_worker_is_told_wherever_it_is_missed() -> None:
    found = find_hang(grid(in_groups(2, tensor=1), in_groups(3, state="T")))
    assert found is not None
    assert found.places == (Place(kind="worker", workers=(3,), hosts=("node1",)),)


def test_of_stages_that_are_missed_by_different_groups_alike_either_may_hang() -> None:
    """Without tensor parallelism both stages of a replica are missed, and one of them waits for the other."""
    busiest = {worker: f"dp{worker % 4}" for worker in HOSTS}
    found = find_hang(grid(in_groups(4), in_groups(5), busiest=busiest))
    assert found is not None and found.places[0].workers == (2,)
    assert "worker 3 on node1" in found.places[0].instead[0] and found.confidence < 0.7
    found = find_hang(grid(busiest=busiest))
    assert found is None, "of four nobody is named"


def test_one_whose_mates_have_gone_on_for_a_message_may_be_the_one_that_hangs() -> None:
    """Worker 3 hangs before it sends to 1; its mate has sent, and waits for the next message behind its gradients."""
    passed = in_groups(2), in_groups(6)
    found = find_hang(grid(*passed, in_groups(0, tensor=1), in_groups(4), in_groups(5)))
    assert found is not None and found.places[0].workers == (1,)
    assert "worker 3 on node1" in found.places[0].instead[0] and found.confidence < 0.7


def test_a_message_that_does_not_arrive_is_no_fault_of_its_receiver() -> None:
    lost = Matched(Flow(worker=3, local="a 1", remote="b 1", queued_bytes=90_000), "node1", "node0", 1)
    found = find_hang(grid(in_groups(0, tensor=1), matched=(lost,)))
    assert found is None


def test_who_tells_no_counters_beside_a_collective_that_does_not_end_is_not_named() -> None:
    stuck = Matched(Flow(worker=2, local="a 1", remote="b 1", queued_bytes=90_000), "node1", "node3", 6)
    mute = WorkerOperations(worker=1, counts=(), state="S")
    busiest = {worker: f"tp{worker // 2 * 2}" for worker in HOSTS if worker != 1}
    seen = grid(
        *(in_groups(2, data=1), in_groups(3, data=1), mute),
        matched=(stuck,), used=frozenset({("node1", "node3")}), busiest=busiest,
    )  # fmt: skip
    found = find_hang(seen)
    assert found is not None
    assert (found.kind, found.places[0].hosts) == ("communication-hang", ("node1", "node3"))


def test_a_group_that_was_only_used_at_the_start_does_not_hold_innocent_workers_together() -> None:
    once = GroupCount(group="0", entered=0, completed=0)
    workers = [in_groups(worker, data=int(worker >= 4)) for worker in HOSTS]
    used = [WorkerOperations(worker=one.worker, counts=(*one.counts, once), state="S") for one in workers]
    scene = grid(*used)
    found = find_hang(Scene(**{**vars(scene), "groups": GROUPS | WORLD}))
    assert found is None


def test_a_collective_that_all_have_entered_holds_up_who_waits_for_messages() -> None:
    """Gradients of worker 2 and 6 do not arrive; worker 0 and 1 wait for a message meanwhile."""
    stuck = Matched(Flow(worker=2, local="a 1", remote="b 1", queued_bytes=90_000), "node1", "node3", 6)
    scene = grid(in_groups(2, data=1), in_groups(3, data=1), matched=(stuck,), used=frozenset({("node1", "node3")}))
    found = find_hang(scene)
    assert found is not None
    assert (found.kind, found.places[0].hosts) == ("communication-hang", ("node1", "node3"))
