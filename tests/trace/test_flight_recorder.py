import json

import pytest

from eroica.errors import InputError
from eroica.model.look import GroupProgress
from eroica.trace.flight import flight_state, read_flight


def entry(**changed):
    plain = {
        "collective_seq_id": 55,
        "p2p_seq_id": 0,
        "op_id": 60,
        "is_p2p": False,
        "record_id": 54,
        "process_group": ["3", "mesh_dp"],
        "profiling_name": "gloo:all_reduce",
        "input_sizes": [[4, 25], [7]],
        "time_created_ns": 1000,
        "state": "scheduled",
        "pg_id": 0,
    }
    return plain | changed


def write(path, entries):
    path.write_text(json.dumps({"version": "2.10", "pg_status": {}, "entries": entries}))
    return path


def test_an_entry_keeps_group_sequence_size_and_time(tmp_path):
    (found,) = read_flight(write(tmp_path / "f.json", [entry()]))
    assert (found.name, found.group, found.sequence, found.operation) == ("gloo:all_reduce", "3", 55, 60)
    assert (found.elements, found.created_ns, found.is_p2p) == (100, 1000, False)


def test_entries_come_in_the_order_they_were_enqueued(tmp_path):
    entries = [entry(time_created_ns=30), entry(time_created_ns=10), entry(time_created_ns=20)]
    assert [one.created_ns for one in read_flight(write(tmp_path / "f.json", entries))] == [10, 20, 30]


def test_hostile_numbers_and_long_names_are_bounded(tmp_path):
    hostile = entry(time_created_ns=-5, profiling_name="x" * 10_000, input_sizes=[[2**40, 2**40]])
    (found,) = read_flight(write(tmp_path / "f.json", [hostile]))
    assert (found.created_ns, found.elements, len(found.name)) == (0, 0, 200)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"entries": [{"state": 1}]}', '{"entries": 1}'])
def test_a_foreign_or_cut_file_is_refused(tmp_path, text):
    (tmp_path / "f.json").write_text(text)
    with pytest.raises(InputError, match=r"f\.json"):
        read_flight(tmp_path / "f.json")


def state_of(entries, **status):
    return flight_state(json.dumps({"version": "2.10", "pg_status": status, "entries": entries}).encode())


def test_gloos_open_collective_is_the_one_that_was_not_retired():
    entries = [entry(collective_seq_id=number, retired=number < 4, time_created_ns=number) for number in range(1, 5)]
    counters = {"last_enqueued_collective": "4", "last_completed_collective": "3", "last_started_collective": "-1"}
    state = state_of(entries, **{"0": counters})
    assert state.progress == (GroupProgress(name="3", enqueued=4, completed=3),)
    assert [one.sequence for one in state.open] == [4] and [one.sequence for one in state.recent] == [1, 2, 3]


def test_without_counters_progress_is_read_from_the_entries():
    entries = [
        entry(collective_seq_id=8, retired=True),
        entry(collective_seq_id=9),
        entry(is_p2p=True, collective_seq_id=9, p2p_seq_id=99),
    ]
    assert state_of(entries).progress == (GroupProgress(name="3", enqueued=9, completed=8),)


def test_a_hostile_state_is_bounded_or_refused():
    many = state_of([entry(retired=True)] * 500 + [entry()] * 500, **{str(i): {} for i in range(1000)})
    assert len(many.recent) == 32 and len(many.open) == 256 and len(many.progress) <= 1025
    odd = state_of([], **{"0": {"last_enqueued_collective": "many", "last_completed_collective": -7}})
    assert odd.progress == (GroupProgress(name="0"),)
    for text in (b"", b"{}", b"3", b"[" * 100_000):
        with pytest.raises(InputError):
            flight_state(text)
