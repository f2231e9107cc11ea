"""Whom sends and receives of a window go to, told by the order of one iteration whose inputs were recorded."""

import json

import pytest
from synthetic_window import GLOO, PID, TRAINING, Events, capture

from eroica.errors import InputError
from eroica.summarize.files import name_sides, read_sides
from eroica.trace.table import CollectiveArguments

MS = 1_000_000
WALL = 1_795_000_000_000_000_000
BOUNDARIES = (1000, 1000 + 50 * MS, 1000 + 100 * MS, 1000 + 150 * MS)
#: A stage in the middle: two microbatches forward, and back.
CALLS = (("recv_", 0), ("send", 2), ("recv_", 0), ("send", 2), ("recv_", 2), ("send", 0), ("recv_", 2), ("send", 0))
SIDES = tuple(CollectiveArguments(name.strip("_"), peer_in_group=peer) for name, peer in CALLS)


def window(*calls):
    """Iterations with these calls, as the trace of a window has them; the first right after the boundary."""
    events = Events()
    for number, one in enumerate(calls):
        start = WALL + 50 * MS * number
        for place, (name, _) in enumerate(one):
            at = start + 5 * MS * place
            events.add(f"c10d::{name}", at + 1000, at + MS).note(f"gloo:{name.strip('_')}", at + 1000, at + 3 * MS)
            events.add("aten::mm", at + 3 * MS, at + 4 * MS)
        events.note("gloo:all_reduce", start + 45 * MS, start + 46 * MS, thread=GLOO)
    return events.table()


def named(*calls, sides=SIDES, boundaries=BOUNDARIES):
    found = name_sides(window(*calls), sides, capture(boundaries, clocks=((WALL, 1000),)))
    assert {found.name_of(row) for row in found.collectives} <= {"c10d::send", "c10d::recv_"}
    return [one.peer_in_group for _, one in sorted(found.collectives.items())]


def test_iterations_with_the_same_calls_go_to_the_same_sides():
    assert named(CALLS, CALLS, CALLS) == 3 * [peer for _, peer in CALLS]


def test_an_iteration_with_other_calls_tells_nothing():
    assert named(CALLS, CALLS[:-1], CALLS) == 2 * [peer for _, peer in CALLS]
    assert named(CALLS, CALLS[1:] + CALLS[:1]) == [peer for _, peer in CALLS]


def test_without_a_word_from_the_probe_or_a_whole_iteration_nothing_changes():
    assert named(CALLS, sides=()) == named(CALLS, boundaries=BOUNDARIES[:1]) == []


def probe(path, *inputs):
    rows = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": PID, "tid": TRAINING, "ts": 10.0 * at, "dur": 5, "args": said}
        for at, (name, said) in enumerate(inputs)
    ]
    path.write_text(json.dumps({"baseTimeNanoseconds": WALL, "traceEvents": rows}))
    return path


def to(peer):
    return {"Concrete Inputs": ["", "", str(peer), "0"], "Input Dims": [[[4]]]}


def test_the_probe_tells_its_calls_in_order_but_not_how_long_the_next_ones_are(tmp_path):
    path = probe(tmp_path / "probe.json", ("c10d::recv_", to(2)), ("aten::mm", to(7)), ("c10d::send", to(0)))
    assert [(one.name, one.peer_in_group, one.elements) for one in read_sides(path)] == [("recv", 2, 0), ("send", 0, 0)]


def test_a_probe_that_does_not_tell_all_its_sides_tells_none(tmp_path):
    assert read_sides(probe(tmp_path / "probe.json", ("c10d::recv_", to(2)), ("c10d::send", {}))) == ()
    assert read_sides(probe(tmp_path / "probe.json", ("aten::mm", {}))) == ()


def test_a_damaged_probe_is_an_input_error(tmp_path):
    path = tmp_path / "probe.json"
    path.write_text("{")
    with pytest.raises(InputError):
        read_sides(path)
