import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_window import Events

from eroica.model.series import decode_series
from eroica.model.window import FlightEntry
from eroica.model.worker import ProcessGroup
from eroica.summarize.collectives import find_executions
from eroica.summarize.rows import fit_collectives
from eroica.trace.table import Category, CollectiveArguments

US = 1000
MS = 1_000_000
GROUPS = (ProcessGroup(name="0", ranks=(0, 1)), ProcessGroup(name="1", ranks=(0, 1)))
WINDOW = (100 * MS, 1000 * MS)


def collective_records(executions, critical_ns, edges_ns, groups, rank, limit):
    return fit_collectives(executions, critical_ns, edges_ns, groups, rank, 10**9, limit=limit)


def entry(name, group, sequence, created, elements=10, operation=0):
    return FlightEntry(
        name=name, group=group, sequence=sequence, created_ns=created, elements=elements, operation=operation
    )


def two_groups(seed, before=5):
    """What torch records of two groups with two threads each: entries, and spans shortly after each entry."""
    pick = random.Random(seed)
    events, entries, truth = Events(), [], {}
    clock = {"0": 0, "1": 0}
    now = WINDOW[0] - before * 10 * MS
    while now < WINDOW[1] - 20 * MS:
        group = pick.choice("01")
        name = pick.choice(
            ["gloo:all_reduce", "gloo:broadcast"] if group == "0" else ["gloo:all_reduce", "gloo:all_gather"]
        )
        clock[group] += 1
        entries.append(entry(name, group, 40 + clock[group], now, elements=clock[group]))
        start = now + pick.randrange(15 * US, 200 * US)
        thread = 200 + 10 * int(group) + pick.randrange(2)
        if start >= WINDOW[0]:
            end = start + pick.randrange(100 * US, 3 * MS)
            events.note(name, start, end, thread=thread)
            truth[start] = (group, 40 + clock[group])
        now += pick.randrange(1 * MS, 12 * MS)
    return events.table(), entries, truth


@settings(deadline=None)
@given(st.integers(0, 10**9))
def test_gloo_spans_get_group_and_sequence_of_the_flight_recorder(seed):
    table, entries, truth = two_groups(seed)
    found = find_executions(table, entries, GROUPS, WINDOW)
    assert {one.start_ns: (one.group, one.sequence) for one in found} == truth
    assert {one.paired_by for one in found} == {"sequence"}
    assert all(one.elements == one.sequence - 40 for one in found)


def test_entries_the_ring_lost_leave_their_spans_unnumbered():
    table, entries, truth = two_groups(3)
    kept = [one for one in entries if one.created_ns > WINDOW[0] + 200 * MS]
    found = find_executions(table, kept, GROUPS, WINDOW)
    late = [one for one in found if one.start_ns > WINDOW[0] + 215 * MS]
    assert {one.start_ns: (one.group, one.sequence) for one in late} == {
        one.start_ns: truth[one.start_ns] for one in late
    }
    assert {one.paired_by for one in found if one.start_ns < WINDOW[0] + 190 * MS} == {"none"}
    records = collective_records(found, np.zeros(len(found), np.int64), np.array(WINDOW), GROUPS, 0, 512)
    numbered = [record for record in records if record.group]
    assert {record.paired_by for record in numbered} == {"sequence"}
    assert sum(record.dropped + record.executions for record in records) == len(found)


def test_without_a_recorder_one_group_is_paired_by_order_and_several_not_at_all():
    events = Events()
    for number in range(3):
        events.note("gloo:all_reduce", WINDOW[0] + number * MS, WINDOW[0] + number * MS + 5, thread=200)
        events.note("gloo:barrier", WINDOW[0] + number * MS + 9, WINDOW[0] + number * MS + 15, thread=201)
    found = find_executions(events.table(), [], GROUPS[:1], WINDOW)
    assert [(one.kind, one.group, one.sequence, one.paired_by) for one in found[:3]] == [
        ("all_reduce", "0", 0, "order"),
        ("barrier", "0", 0, "order"),
        ("all_reduce", "0", 1, "order"),
    ]
    assert {(one.group, one.paired_by) for one in find_executions(events.table(), [], GROUPS, WINDOW)} == {("", "none")}


def test_a_send_begins_with_the_call_that_registers_its_buffer():
    events = (
        Events().add("c10d::send", WINDOW[0] + 10, WINDOW[0] + 600).note("gloo:send", WINDOW[0] + 590, WINDOW[0] + 700)
    )
    events.add("c10d::recv_", WINDOW[0] + 710, WINDOW[0] + 720).note("gloo:recv", WINDOW[0] + 718, WINDOW[0] + 900)
    found = find_executions(events.table(), [], GROUPS[:1], WINDOW)
    assert [(one.kind, one.start_ns - WINDOW[0], one.end_ns - WINDOW[0]) for one in found] == [
        ("send", 10, 700),
        ("recv", 710, 900),
    ]


def test_sends_belong_to_the_group_whose_operations_skip_numbers():
    events = Events().note("gloo:send", WINDOW[0] + 40 * MS, WINDOW[0] + 41 * MS)
    flight = [
        entry("gloo:all_reduce", "0", 5, WINDOW[0] + 1 * MS, operation=5),
        entry("gloo:all_reduce", "1", 5, WINDOW[0] + 2 * MS, operation=9),
        entry("gloo:all_reduce", "0", 6, WINDOW[0] + 90 * MS, operation=6),
        entry("gloo:all_reduce", "1", 6, WINDOW[0] + 91 * MS, operation=11),
    ]
    (found,) = find_executions(events.table(), flight, GROUPS, WINDOW)
    assert (found.group, found.paired_by) == ("1", "order")
    (record,) = collective_records([found], np.array([7]), np.array(WINDOW), GROUPS, 0, 512)
    assert decode_series(record.peers, np.int32).tolist() == [1]


@pytest.mark.parametrize(
    ("peers", "group"),
    [((None, None), "0"), ((1, 3), ""), ((1, 2), "")],
    ids=["not told", "to somebody outside the group", "to the worker itself"],
)
def test_sends_in_a_larger_group_do_not_pair_if_nothing_tells_to_whom_they_go(peers, group):
    events = Events()
    for number, peer in enumerate(peers):
        said = CollectiveArguments("send", peer_in_group=peer) if peer is not None else None
        start = WINDOW[0] + 20 * number * MS
        events.add("c10d::send", start + MS, start + 4 * MS, arguments=said)
        events.note("gloo:send", start + 2 * MS, start + 3 * MS)
    found = find_executions(events.table(), [], (ProcessGroup(name="0", ranks=(0, 1, 5)),), WINDOW, rank=5)
    assert [(one.group, one.paired_by, one.peer) for one in found] == 2 * [(group, "none", -1)]


def test_sends_in_a_larger_group_pair_by_the_rank_in_the_group_that_their_call_names():
    events = Events()
    for number, (name, peer) in enumerate((("recv_", 0), ("send", 2), ("recv_", 2), ("send", 0))):
        start, kind = WINDOW[0] + (10 + 10 * number) * MS, name.strip("_")
        said = CollectiveArguments(kind, elements=64, peer_in_group=peer)
        events.add(f"c10d::{name}", start, start + 2 * MS, arguments=said)
        events.note(f"gloo:{kind}", start + MS, start + 3 * MS)
    group = ProcessGroup(name="0", ranks=(3, 4, 5))
    found = find_executions(events.table(), [], (group,), WINDOW, rank=4)
    assert [(one.kind, one.peer, one.elements, one.paired_by) for one in found] == [
        ("recv", 3, 64, "order"),
        ("send", 5, 64, "order"),
        ("recv", 5, 64, "order"),
        ("send", 3, 64, "order"),
    ]
    receives, sends = collective_records(found, np.zeros(4, np.int64), np.array(WINDOW), (group,), 4, 512)
    assert decode_series(receives.peers, np.int32).tolist() == [3, 5]
    assert decode_series(sends.peers, np.int32).tolist() == [5, 3]
    assert (receives.paired_by, sends.paired_by) == ("order", "order")


WORLD = ProcessGroup(name="0", description="default_pg", ranks=(0, 1, 2, 3))
PAIR = ProcessGroup(name="1", description="undefined", ranks=(0, 1))
COPIES = ProcessGroup(name="2", description="undefined", ranks=(0, 2))
PIPELINE = ProcessGroup(name="3", description="mesh_pp", ranks=(0, 1))
LINK = ProcessGroup(name="4", description="undefined", ranks=(0, 3))
ALONE = ProcessGroup(name="5", description="undefined", ranks=(0,))
#: Gradients of the copies, with a send in between: operation numbers that do not skip.
REDUCED = [entry("gloo:all_reduce", "2", n, WINDOW[0] + 30 * n * MS, operation=n) for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("groups", "flight", "expected"),
    [
        ((WORLD, PAIR, COPIES, ALONE), REDUCED, "1"),
        ((WORLD, COPIES), REDUCED, "0"),
        ((WORLD, PAIR, PIPELINE, COPIES), REDUCED, "3"),
        ((WORLD, PAIR, LINK, COPIES), REDUCED, ""),
        ((WORLD, PAIR, COPIES), [], ""),
        ((WORLD, PAIR, COPIES), [*REDUCED, entry("gloo:broadcast", "1", 1, 5 * MS, operation=1)], ""),
        ((WORLD, PAIR, COPIES), REDUCED[:1], "1"),
        ((WORLD, PAIR, COPIES), [entry("gloo:all_reduce", "2", n, WINDOW[0] + 30 * n * MS) for n in (1, 2)], "1"),
    ],
    ids=[
        "copies reduce, the world is idle",
        "only the world is left",
        "one is described",
        "two links",
        "nothing is recorded of any",
        "the pair is used for other things",
        "a single entry does not tell whether numbers skip",
        "no operation numbers",
    ],
)
def test_the_group_of_sends_is_found_or_left_open(groups, flight, expected):
    events = Events().note("gloo:send", WINDOW[0] + 40 * MS, WINDOW[0] + 41 * MS)
    (found,) = find_executions(events.table(), flight, groups, WINDOW)
    pair = expected and len(next(group.ranks for group in groups if group.name == expected)) == 2
    assert (found.group, found.paired_by) == (expected, "order" if pair else "none")


def test_nccl_kernels_bring_group_and_sequence_along():
    said = CollectiveArguments(name="_allgather_base", group="3", sequence=12, elements=64)
    events = Events().add("ncclDevKernel_AllGather(x)", WINDOW[0], WINDOW[0] + 9, Category.KERNEL, 7, said)
    events.add("ncclDevKernel_AllReduce(x)", WINDOW[0] + 10, WINDOW[0] + 19, Category.KERNEL, 7)
    found = find_executions(events.table(), [], GROUPS, WINDOW)
    assert [(one.name, one.kind, one.group, one.sequence, one.paired_by) for one in found] == [
        ("ncclDevKernel_AllGather", "all_gather", "3", 12, "sequence"),
        ("ncclDevKernel_AllReduce", "all_reduce", "", -1, "none"),
    ]


def test_a_record_keeps_the_last_executions_and_says_how_many_it_dropped():
    events, flight = Events(), []
    for number in range(10):
        start = WINDOW[0] + number * 10 * MS
        flight.append(entry("gloo:all_reduce", "0", number, start - 50 * US))
        events.note("gloo:all_reduce", start, start + (number + 1) * MS, thread=200)
    found = find_executions(events.table(), flight, GROUPS, WINDOW)
    edges = np.array([WINDOW[0], WINDOW[0] + 45 * MS, WINDOW[1]])
    (record,) = collective_records(found, np.arange(10) * 1000, edges, GROUPS, 0, 6)
    assert (record.executions, record.dropped, record.paired_by) == (6, 4, "sequence")
    assert decode_series(record.sequence, np.int64).tolist() == [4, 5, 6, 7, 8, 9]
    assert decode_series(record.iteration, np.int32).tolist() == [0, 1, 1, 1, 1, 1]
    assert decode_series(record.duration_us, np.float32).tolist() == [5000, 6000, 7000, 8000, 9000, 10000]
    assert decode_series(record.critical_us, np.float32).tolist() == [4, 5, 6, 7, 8, 9]
    assert decode_series(record.elements, np.int64).tolist() == [10] * 6
    assert record.peers == b""


@pytest.mark.parametrize(
    ("name", "backend", "is_one"),
    [
        ("gloo:all_reduce", "", True),
        ("ucc:alltoall", "", True),
        ("trainmover:all_reduce", "trainmover", True),
        ("mine:recv", "cpu:mine,cuda:nccl", True),
        ("tokens:gather", "gloo", False),
        ("mine:loss", "mine", False),
        ("nccl:all_reduce", "nccl", False),  # only enqueues
        ("xccl:reduce_scatter", "xccl", False),
        ("all_reduce", "mine", False),
    ],
)
def test_a_span_of_a_groups_backend_in_the_words_of_c10d_is_a_collective_of_the_host(name, backend, is_one):
    events = Events().note(name, WINDOW[0] + MS, WINDOW[0] + 2 * MS, thread=200)
    groups = [ProcessGroup(name="0", ranks=(0, 1), backend=backend)]
    assert len(find_executions(events.table(), [], groups, WINDOW)) == is_one
