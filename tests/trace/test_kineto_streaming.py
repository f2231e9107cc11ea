import gzip
import json
import math
import os
from random import Random

import numpy as np
import pytest

from eroica.errors import InputError
from eroica.settings import Settings
from eroica.trace import chunks, columns, source
from eroica.trace.kineto import read_trace
from support import mutations

TRICKY = ['},{"ph": "X"},', '"},\n{', '\\"}, {"a": [', "]}", '"traceEvents": [', "é😀", "a\\"]


def event(number, **more):
    return {"ph": "X", "cat": "cpu_op", "name": f"op{number % 3}", "pid": 1, "tid": 7, "ts": number, "dur": 2, **more}


def write(path, document, indent=None):
    data = json.dumps(document, indent=indent).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(chunks, "_PIECE_BYTES", 60)
    monkeypatch.setattr(chunks, "_NEAR_BYTES", 40)


@pytest.mark.parametrize("indent", [None, 0, 2])
@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_pieces_that_end_inside_of_texts_and_nested_objects_are_put_right(tmp_path, small_pieces, name, indent):
    nested = {"lists": [[{"a": 1}, {"b": [{"c": text}, {"d": text}]}] for text in TRICKY]}
    events = [event(number, args=nested if number % 2 else {"text": TRICKY[number % 7]}) for number in range(30)]
    document = {"x": nested, "traceEvents": events, "y": nested, "baseTimeNanoseconds": 10**9, "host_name": "t"}
    table = read_trace(write(tmp_path / name, document, indent))
    assert table.start_ns.tolist() == [10**9 + number * 1000 for number in range(30)]
    assert (table.losses, table.header.host) == ((), "t")


@pytest.mark.parametrize("ending", ["]", "]\n", "", ",\n", "  "])
def test_a_bare_list_of_events_needs_no_closing_bracket(tmp_path, small_pieces, ending):
    text = "[" + ",\n".join(json.dumps(event(number)) for number in range(9)) + ending
    (tmp_path / "t.json").write_text(text)
    table = read_trace(tmp_path / "t.json")
    assert (len(table), table.losses) == (9, ())


def test_truncated_at_any_byte_everything_before_is_kept(tmp_path, small_pieces):
    events = [json.dumps(event(number, args={"a": [{"b": "},{"}, {"c": 1}]})) for number in range(6)]
    text = '{"traceEvents": [' + ", ".join(events) + "]}"
    ends = [text.index(one) + len(one) for one in events]
    for cut in range(18, len(text)):
        (tmp_path / "t.json").write_text(text[:cut])
        whole = sum(end <= cut for end in ends)
        try:
            table = read_trace(tmp_path / "t.json")
        except InputError:
            assert whole == 0
        else:
            assert len(table) == whole
            assert table.losses


def damage(path, old, new):
    text = path.read_bytes()
    assert text.count(old) == 1
    path.write_bytes(text.replace(old, new))
    return path


@pytest.mark.parametrize(
    "new",
    [
        b'"name": special',
        b'"name" "special"',
        b'"name": "special',
        b'"name": ["special"',
        b"\x00\x01\x02",
        b'"args": ' + b"[" * 100_000,
        b'}], "name": "special"',
    ],
)
def test_what_stands_before_damage_is_kept_and_the_loss_is_said(tmp_path, new):
    events = [event(number) for number in range(200)]
    events[100]["name"] = "special"
    table = read_trace(damage(write(tmp_path / "t.json", {"traceEvents": events}), b'"name": "special"', new))
    assert len(table) == 100
    assert "what follows was left out" in table.damage[0]


def test_an_event_without_a_usable_time_is_left_out_and_counted(tmp_path):
    times = [math.nan, math.inf, None, "soon", [], True, -1e300, 1e17]
    events = [event(number) for number in range(20)] + [event(0, ts=time) for time in times]
    table = read_trace(write(tmp_path / "t.json", {"traceEvents": events}))
    assert (len(table), table.losses) == (20, ("left out: 8 events without a usable time",))


def test_a_time_written_as_text_is_a_time(tmp_path):
    table = read_trace(write(tmp_path / "t.json", {"traceEvents": [event(0, ts="12.5", dur="3"), event(20)]}))
    assert (table.start_ns[0], table.end_ns[0]) == (12_500, 15_500)


@pytest.mark.parametrize("far", [-3.2e12, 1e13])
def test_events_far_from_all_others_do_not_stretch_the_window(tmp_path, far):
    table = read_trace(write(tmp_path / "t.json", {"traceEvents": [*map(event, range(50)), event(far), event(far)]}))
    assert len(table) == 50
    assert "left out: 2 events more than 1 h away from the others" in table.losses[0]


def test_a_kernel_without_an_end_is_left_out(tmp_path):
    events = [*map(event, range(5)), event(2, cat="kernel", dur=None)]
    table = read_trace(write(tmp_path / "t.json", {"traceEvents": events}))
    assert (len(table), table.losses, table.open_events) == (5, ("left out: 1 device event without an end",), 0)


def test_names_of_any_type_become_texts_of_bounded_length(tmp_path):
    names = ["x" * 1_000_000, "x" * 999_999, 12, None, 1.5, ["list"], {"a": 1}]
    table = read_trace(
        write(tmp_path / "t.json", {"traceEvents": [event(at, name=one) for at, one in enumerate(names)]})
    )
    assert table.strings == ("x" * 2000, "12", "None", "1.5", "")
    assert len(table) == 7


def test_elements_that_are_no_events_are_counted(tmp_path):
    path = write(tmp_path / "t.json", {"traceEvents": [event(1), 3, None, "x", [], {}, event(2)]})
    table = read_trace(path)
    assert (len(table), table.losses) == (2, ("left out: 4 damaged events",))


def test_unescaped_windows_paths_and_foreign_bytes_are_mended(tmp_path):
    path = write(tmp_path / "t.json", {"traceEvents": [event(1, name="fooo"), event(2)], "host_name": "baar"})
    damage(path, b"fooo", b"f\xff\xfeo")
    table = read_trace(damage(path, b"baar", b"C:\\users\\new"))
    assert (table.strings[0], table.header.host, table.losses) == ("f??o", "C:/users\new", ())


def test_the_end_of_a_file_that_lost_its_base_time_says_so(tmp_path):
    document = {"traceEvents": [event(4e12 + number) for number in range(9)], "baseTimeNanoseconds": 1_790_000_000_000}
    path = write(tmp_path / "t.json", document)
    assert read_trace(path).header.has_wall_clock
    path.write_bytes(path.read_bytes()[:-60])
    table = read_trace(path)
    assert not table.header.has_wall_clock
    assert "no time of day" in table.losses[-1]


def test_limits_keep_the_first_part_and_say_so(tmp_path):
    path = write(tmp_path / "t.json.gz", {"traceEvents": [event(number) for number in range(50_000)]})
    few = read_trace(path, Settings(max_trace_events=1000))
    assert (len(few), few.losses[0]) == (1000, "only the first 1,000 events were kept (max_trace_events)")
    short = read_trace(path, Settings(max_trace_bytes=100_000))
    assert 900 < len(short) < 1300
    assert short.losses[0] == "only the first 100,000 bytes were read (max_trace_bytes)"
    exactly = read_trace(path, Settings(max_trace_events=50_000))
    assert (len(exactly), exactly.losses) == (50_000, ())


def test_a_bomb_of_spaces_ends_early_and_needs_little_memory(tmp_path):
    packed = gzip.compress(b'{"traceEvents": [' + b" " * 50_000_000, compresslevel=1)
    (tmp_path / "t.json.gz").write_bytes(packed)
    with pytest.raises(InputError, match="holds no events"):
        read_trace(tmp_path / "t.json.gz", Settings(max_trace_bytes=20_000_000))


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), os.mkfifo])
def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path, make):
    make(tmp_path / "t.json")
    with pytest.raises(InputError, match="no regular file"):
        read_trace(tmp_path / "t.json")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty"),
        (b"  \n ", "empty"),
        (b"\xef\xbb\xbf", "empty"),
        ('{"traceEvents": []}'.encode("utf-16"), "UTF-16"),
        (b"\x28\xb5\x2f\xfd1234", "zstd"),
        (b"PK\x03\x04", "zip"),
        (b"\x80\x04\x95", "pickle"),
        (b"hello", "no JSON"),
        (b'"abc"', "a single value"),
        (b"-12.5", "a single value"),
        (b'{"learning_rate": 0.1}', "holds no traceEvents"),
        (b'{"version": "2.10", "pg_config": {}, "entries": []}', "Flight Recorder"),
        (b'{"a": 1, ', "cut short before its events"),
        (b'{"a": "\\"traceEvents\\": [1]"}', "holds no traceEvents"),
        (b'{"a": {"traceEvents": []}}', "holds no traceEvents"),
        (b'{"traceEvents": null}', "no list"),
        (b"[1, 2, 3]", "holds no events"),
        (b'[{"lr": 0.1}, {"lr": 0.2}]', "holds no events"),
        (b"[" * 1_000_000, "holds no events"),
        (b'{"a":' * 1_000_000, "no trace"),
        (b'{"traceEvents": [' + b"[" * 1_000_000, "holds no events"),
        (b'{"traceEvents": [' + b'{"args":' * 1_000_000, "holds no events"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_reason(tmp_path, data, said):
    (tmp_path / "foreign.json").write_bytes(data)
    with pytest.raises(InputError, match=said) as caught:
        read_trace(tmp_path / "foreign.json")
    assert "foreign.json" in str(caught.value)
    assert len(str(caught.value)) < 600


def test_damaged_metadata_before_the_events_costs_only_itself(tmp_path):
    path = write(tmp_path / "t.json", {"a": "fooo", "traceEvents": [event(1)], "distributedInfo": {"rank": 5}})
    table = read_trace(damage(path, b'"fooo"', b"}oops{"))
    assert (len(table), table.header.rank) == (1, 5)
    assert "before the events" in table.losses[0]


def test_times_at_both_ends_of_what_can_be_are_no_overflow(tmp_path):
    events = [event(number * 4e14 - 3.9e15, dur=3.9e15) for number in range(20)]
    table = read_trace(write(tmp_path / "t.json", {"traceEvents": events, "baseTimeNanoseconds": 2**62}))
    assert np.all(table.end_ns >= table.start_ns)
    assert np.all(np.diff(table.start_ns) >= 0)


SAID = {"Collective name": "allreduce", "Process Group Name": "0"}


def half(phase, ts, name="x", tid=7):
    return {"ph": phase, "cat": "cpu_op", "name": name, "pid": 1, "tid": tid, "ts": ts}


def written(path, events, **top):
    return write(path, {"traceEvents": events, "baseTimeNanoseconds": 0, **top})


def test_a_record_of_escaped_quotes_is_read_in_passing(tmp_path):
    for text in ("{" + '\\"' * 40_000, "{'a': " + "'\\" * 100_000, "{" * 50_000):
        table = read_trace(written(tmp_path / "t.json", [event(1)], distributedInfo=text))
        assert table.header.world_size == 0


def test_an_absurd_world_size_is_not_believed_and_said(tmp_path):
    said = {"rank": 0, "world_size": 20_000_000, "pg_config": [{"pg_name": "0", "pg_size": 20_000_000, "ranks": []}]}
    table = read_trace(written(tmp_path / "t.json", [event(1)], distributedInfo=said))
    assert (table.header.world_size, table.header.groups) == (0, ())
    assert table.losses == ("the trace states a world size of 20,000,000, which is not believed",)


def test_groups_of_very_many_workers_have_no_members_unless_these_are_listed(tmp_path):
    said = {"rank": 0, "world_size": 200_000, "pg_config": [{"pg_name": "0", "pg_size": 200_000, "ranks": []}]}
    table = read_trace(written(tmp_path / "t.json", [event(1)], distributedInfo=said))
    assert (table.header.world_size, table.header.groups) == (200_000, ())


def test_objects_that_are_no_events_count_towards_the_limit(tmp_path):
    flows = [half("s", number) for number in range(50)]
    table = read_trace(written(tmp_path / "t.json", [event(1), *flows]), Settings(max_trace_events=20))
    assert table.losses == ("only the first 20 events were kept (max_trace_events)",)


@pytest.mark.parametrize("nothing", [{}, {"ph": ""}, 7])
def test_a_file_of_hardly_anything_but_empty_objects_is_refused(tmp_path, nothing):
    path = written(tmp_path / "t.json", [event(1), event(2), *[nothing] * 5000])
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
    table = read_trace(written(tmp_path / "t.json", events))
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
    table = read_trace(written(tmp_path / "t.json", [*events, *map(event, range(10, 999))]))
    assert 0 < len(table) < 900
    assert "events were kept: they have too many" in table.losses[0] and table.damage == table.losses[:1]


@pytest.mark.parametrize("mishap", mutations.EXCESSES)
def test_a_trace_with_too_much_of_something_is_read_all_the_same(tmp_path, mishap):
    data = mutations.small_trace(Random(3))
    (tmp_path / "t.json").write_bytes(mishap(data, Random(1)))
    table = read_trace(tmp_path / "t.json")
    assert (table.end_ns >= table.start_ns).all()
    assert table.header.world_size <= 1_000_000
