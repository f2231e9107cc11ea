import gzip
import json
from random import Random

import pytest

from eroica.errors import InputError
from eroica.settings import Settings
from eroica.trace import chunks, columns, source
from eroica.trace.kineto import read_trace
from support import mutations

SAID = {"Collective name": "allreduce", "Process Group Name": "0"}


def event(number, **more):
    return {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 7, "ts": number, "dur": 2, **more}


def half(phase, ts, name="x", tid=7):
    return {"ph": phase, "cat": "cpu_op", "name": name, "pid": 1, "tid": tid, "ts": ts}


def write(path, events, **top):
    path.write_text(json.dumps({"traceEvents": events, "baseTimeNanoseconds": 0, **top}))
    return path


def test_a_record_of_escaped_quotes_is_read_in_passing(tmp_path):
    for text in ("{" + '\\"' * 40_000, "{'a': " + "'\\" * 100_000, "{" * 50_000):
        table = read_trace(write(tmp_path / "t.json", [event(1)], distributedInfo=text))
        assert table.header.world_size == 0


def test_an_absurd_world_size_is_not_believed_and_said(tmp_path):
    said = {"rank": 0, "world_size": 20_000_000, "pg_config": [{"pg_name": "0", "pg_size": 20_000_000, "ranks": []}]}
    table = read_trace(write(tmp_path / "t.json", [event(1)], distributedInfo=said))
    assert (table.header.world_size, table.header.groups) == (0, ())
    assert table.losses == ("the trace states a world size of 20,000,000, which is not believed",)


def test_groups_of_very_many_workers_have_no_members_unless_these_are_listed(tmp_path):
    said = {"rank": 0, "world_size": 200_000, "pg_config": [{"pg_name": "0", "pg_size": 200_000, "ranks": []}]}
    table = read_trace(write(tmp_path / "t.json", [event(1)], distributedInfo=said))
    assert (table.header.world_size, table.header.groups) == (200_000, ())


def test_objects_that_are_no_events_count_towards_the_limit(tmp_path):
    flows = [half("s", number) for number in range(50)]
    table = read_trace(write(tmp_path / "t.json", [event(1), *flows]), Settings(max_trace_events=20))
    assert table.losses == ("only the first 20 events were kept (max_trace_events)",)


@pytest.mark.parametrize("nothing", [{}, {"ph": ""}, 7])
def test_a_file_of_hardly_anything_but_empty_objects_is_refused(tmp_path, nothing):
    path = write(tmp_path / "t.json", [event(1), event(2), *[nothing] * 5000])
    with pytest.raises(InputError, match="5,000 of its first 5,002 objects are empty or unreadable"):
        read_trace(path)


def test_a_file_that_unpacks_to_absurdly_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "_SWELLING_BYTES", 1_000_000)
    text = json.dumps({"traceEvents": [event(1)]}).encode()
    (tmp_path / "t.gz").write_bytes(gzip.compress(text[:-2] + b', {"ph": "s"}' * 200_000 + b"]}"))
    with pytest.raises(InputError, match="unpacks to more than 500 times its size"):
        read_trace(tmp_path / "t.gz")


def test_a_duration_below_zero_never_reaches_to_the_end_of_the_trace(tmp_path):
    events = [event(0, name="aten::mm", dur=40), event(50, name="aten::mm", dur=-2), event(300)]
    events += [half("B", 20), half("E", 10)]
    table = read_trace(write(tmp_path / "t.json", events))
    assert (table.end_ns - table.start_ns).tolist() == [40_000, 2_000]
    assert table.losses == ("left out: 2 events that would have ended before they began",)
    assert table.open_events == 0


@pytest.mark.parametrize(
    ("limit", "events"),
    [
        ("_MOST_OPEN", [half("B", number) for number in range(5)]),
        ("_MOST_PLACES", [event(number, tid=number) for number in range(5)]),
        ("_MOST_NAME_TEXT", [event(number, name=f"n{number}") for number in range(5)]),
        ("_MOST_COLLECTIVES", [event(n, cat="kernel", name="ncclAllReduce", args=SAID) for n in range(5)]),
    ],
)
def test_reading_ends_where_something_else_than_events_is_too_much(tmp_path, monkeypatch, limit, events):
    monkeypatch.setattr(columns, limit, 3)
    monkeypatch.setattr(chunks, "_PIECE_BYTES", 50)
    table = read_trace(write(tmp_path / "t.json", [*events, *map(event, range(10, 999))]))
    assert 0 < len(table) < 900
    assert "events were kept: they have too many" in table.losses[0] and table.damage == table.losses[:1]


@pytest.mark.parametrize("mishap", mutations.EXCESSES)
def test_a_trace_with_too_much_of_something_is_read_all_the_same(tmp_path, mishap):
    data = mutations.small_trace(Random(3))
    (tmp_path / "t.json").write_bytes(mishap(data, Random(1)))
    table = read_trace(tmp_path / "t.json")
    assert (table.end_ns >= table.start_ns).all()
    assert table.header.world_size <= 1_000_000
