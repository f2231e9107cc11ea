"""Flight Recorder dumps of every version and form become the same record, or an error of one sentence."""

from __future__ import annotations

import builtins
import functools
import io
import json
import os
import pickle
import struct
from collections import OrderedDict
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eroica.errors import InputError
from eroica.model.look import GroupProgress
from eroica.trace.flight import FlightDump, flight_state, is_dump, load_data, parse_dump, read_dump, read_flight
from support.dumps import DumpedJob

_TRACES = Path(__file__).parents[2] / "../shared/traces"
_REAL = _TRACES / "flight_recorder"


def _job() -> DumpedJob:
    job = DumpedJob(4)
    job.add_group("7", [0, 1], "TENSOR")
    job.add_group("12", [2, 3], "TENSOR")
    job.enter(range(4), completed=range(4))
    job.enter([0, 1], "7", "nccl:_all_gather_base", completed=[1])
    job.send(0, 2)
    job.enter([0, 2, 3], elements=64)
    return job


def _progress(dump: FlightDump) -> dict[str, tuple[int, int]]:
    return {group.name: (group.enqueued, group.completed) for group in dump.state.progress}


def test_a_pickle_and_json_say_the_same() -> None:
    job = _job()
    for rank in range(4):
        assert parse_dump(job.pickled(rank), rank) == parse_dump(job.as_json(rank), rank)


def test_a_dump_tells_groups_counters_and_what_is_open() -> None:
    dump = parse_dump(_job().pickled(0), 0)
    assert [(group.name, group.description, group.ranks) for group in dump.groups] == [
        ("0", "default_pg", (0, 1, 2, 3)),
        ("7", "TENSOR", (0, 1)),
    ]
    assert _progress(dump) == {"0": (13, 12), "7": (12, 11)}
    assert [(entry.name, entry.group, entry.sequence, entry.elements) for entry in dump.state.open] == [
        ("nccl:_all_gather_base", "7", 12, 4096),
        ("nccl:send 0->2", "0", 1, 64),
        ("nccl:all_reduce", "0", 13, 64),
    ]
    assert [(entry.name, entry.sequence) for entry in dump.state.recent] == [("nccl:all_reduce", 12)]
    assert dump.state.mixed == ("0",)
    assert dump.notes == ()


def test_ranks_may_be_text_lists_or_missing() -> None:
    content = _job().content(0)
    content["pg_config"]["0"]["ranks"] = [0, 1, 2, 3]
    content["pg_config"]["7"]["ranks"] = "[0, 1, 2"
    assert [group.ranks for group in parse_dump(pickle.dumps(content), 0).groups] == [(0, 1, 2, 3), (0, 1, 2)]
    for raw in (None, 5, "", ["a"], [-1], [2**70], {"0": 1}):
        content["pg_config"]["7"]["ranks"] = raw
        assert parse_dump(pickle.dumps(content), 0).groups[1].ranks == ()


def test_the_first_versions_had_no_counters_and_groups_as_text() -> None:
    entries = [
        {"profiling_name": "nccl:all_reduce", "seq_id": 4, "pg_id": 0, "state": "completed", "input_sizes": [[8]]},
        {"profiling_name": "nccl:recv 0<-1", "seq_id": 5, "pg_id": 0, "state": "started", "process_group": "dp"},
        {"profiling_name": "nccl:broadcast", "seq_id": 6, "pg_id": 0, "state": "scheduled"},
    ]
    for content in (entries, {"version": "1.1", "entries": entries}):
        dump = parse_dump(pickle.dumps(content), 3)
        assert [(entry.name, entry.group, entry.is_p2p) for entry in dump.state.open] == [
            ("nccl:recv 0<-1", "dp", True),
            ("nccl:broadcast", "0", False),
        ]
        assert dump.state.recent[0].sequence == 4
        assert len(dump.notes) == 2


def test_an_entry_that_timed_out_is_open_with_nccl_and_a_retired_one_is_done_with_gloo() -> None:
    content = _job().content(0)
    for entry, name in zip(content["entries"], ("nccl:all_reduce", "gloo:all_reduce"), strict=False):
        entry.update(profiling_name=name, state="started", retired=True)
    dump = parse_dump(pickle.dumps(content), 0)
    assert dump.state.open[0].name == "nccl:all_reduce"
    assert [entry.name for entry in dump.state.recent] == ["gloo:all_reduce"]


def test_entries_that_make_no_sense_are_left_out_and_counted() -> None:
    content = _job().content(0)
    content["entries"] += [None, 5, {}, {"profiling_name": 3}, []]
    dump = parse_dump(pickle.dumps(content), 0)
    assert len(dump.state.open) == 3
    assert dump.notes == ("5 entries of the dump make no sense and are left out",)


def test_the_groups_tell_the_rank_where_the_name_does_not(tmp_path: Path) -> None:
    job = _job()
    job.add_group("13", [2], "EXPERT")
    path = tmp_path / "dump.pickle"
    path.write_bytes(job.pickled(2))
    assert read_dump(path).rank == 2
    path.write_bytes(job.pickled(0))
    assert read_dump(path).rank is None
    assert read_dump(path, rank=0).rank == 0


def test_dumps_are_known_by_their_content() -> None:
    job = _job()
    for head in (job.pickled(0), job.as_json(0), pickle.dumps(job.content(0), protocol=5)):
        assert is_dump(head[:4096])
    for head in (
        b"",
        b"{",
        b'{"schemaVersion": 1, "traceEvents": [',
        b'{"traceEvents": [{"name": "profiling_name"}]}',
        b'{"a": 1}',
        b"\x1f\x8b\x08",
        pickle.dumps({"weights": [1]}),
        b"\x80\x02" + b"x" * 100,
        b"PK\x03\x04",
        b"Fault ranks: [12, 14]",
    ):
        assert not is_dump(head)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]x", b"null", b"[1, 2]", b'{"entries": [{}]}', b'{"a": ' + b"[" * 100_000, b"\xff\xfe{"]
)
def test_what_is_no_dump_is_an_error_that_names_the_file(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "_dump_0"
    path.write_bytes(data)
    with pytest.raises(InputError, match="_dump_0"):
        read_dump(path)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_dump(tmp_path / "_dump_0")
    with pytest.raises(InputError, match="cannot be read"):
        read_dump(tmp_path)


def test_lists_that_are_shared_a_million_times_take_no_time() -> None:
    many = [0] * 1_000_000
    group = {"name": "0", "desc": "default_pg", "ranks": many}
    entry = {"profiling_name": "nccl:all_reduce", "input_sizes": [many], "process_group": many, "state": "scheduled"}
    content: dict[str, Any] = {
        "entries": [entry] * 300_000,
        "pg_config": {str(number): group for number in range(900)},
        "pg_status": {str(number): many for number in range(900)},
    }
    content["entries"].append(content)
    dump = parse_dump(pickle.dumps(content, protocol=4), 0)
    assert len(dump.state.open) == 256


def test_json_with_more_lists_than_memory_should_hold_is_refused() -> None:
    with pytest.raises(InputError, match="more lists"):
        parse_dump(b'{"entries": [' + b"[]," * 5_000_000 + b"[]]}")


def test_every_real_dump_is_read() -> None:
    if not _REAL.is_dir():
        pytest.skip("the real traces are not here")
    for path in sorted(_REAL.glob("*/_dump_*")):
        assert is_dump(path.read_bytes()[:4096])
        dump = read_dump(path)
        assert dump.rank == int(path.name.removeprefix("_dump_"))
        assert dump.groups[0].ranks == tuple(range(16))
        assert {group.name for group in dump.state.progress} == {group.name for group in dump.groups}
        assert all(dump.rank in group.ranks for group in dump.groups)
        assert dump.notes == ()
    assert not is_dump((_REAL / "lock_gil_1st" / "fault_injection.log").read_bytes())


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


def _replace(content: Any, path: list[int], value: Any) -> Any:
    """Puts a value somewhere into nested containers."""
    if not path or not isinstance(content, dict | list | tuple) or not content:
        return value
    keys = sorted(content) if isinstance(content, dict) else list(range(len(content)))
    key = keys[path[0] % len(keys)]
    changed = dict(content) if isinstance(content, dict) else list(content)
    changed[key] = _replace(content[key], path[1:], value)  # type: ignore[index]
    return changed


@settings(max_examples=250, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 30), max_size=5), _VALUES), min_size=1, max_size=4), st.booleans())
def test_a_dump_with_anything_anywhere_is_a_dump_or_an_error(
    changes: list[tuple[list[int], Any]], as_json: bool
) -> None:
    content: Any = _job().content(0)
    for path, value in changes:
        content = _replace(content, path, value)
    data = json.dumps(content).encode() if as_json else pickle.dumps(content, protocol=4)
    try:
        assert isinstance(parse_dump(data, 0), FlightDump)
    except InputError as error:
        assert "\n" not in str(error)


@settings(max_examples=250, deadline=None)
@example(0, b"c\\", 0, False)
@given(st.integers(0, 10**6), st.binary(max_size=6), st.integers(0, 6), st.booleans())
def test_a_dump_damaged_anywhere_is_a_dump_or_an_error(at: int, new: bytes, cut: int, as_json: bool) -> None:
    data = bytearray(_job().as_json(0) if as_json else _job().pickled(0))
    place = at % len(data)
    data[place : place + cut] = new
    try:
        assert isinstance(parse_dump(bytes(data), 0), FlightDump)
    except InputError as error:
        assert str(error)


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


_DATA = {"version": "2.9", "numbers": [1, -5, 300, 2**40, -(2**62), 1.5], "pair": ("35", "TP"), "no": None, "is": True}


class _Reduced:
    """Pickles as a call of its own choice."""

    def __init__(self, call: object, *arguments: object) -> None:
        self.reduced = call, arguments

    def __reduce__(self) -> tuple[object, ...]:
        return self.reduced


class _WithState:
    def __getstate__(self) -> dict[str, int]:
        return {"a": 1}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_containers_and_scalars_come_back_as_they_were(protocol: int) -> None:
    shared = [1, 2]
    data = [_DATA, shared, shared, [], {}, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), "é" * 300, list(range(3000))]
    assert load_data(pickle.dumps(data, protocol=protocol)) == data


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "what",
    [
        lambda mark: _Reduced(os.system, f"touch {mark}"),
        lambda mark: _Reduced(builtins.eval, f"open({str(mark)!r}, 'w')"),
        lambda mark: _Reduced(builtins.exec, f"open({str(mark)!r}, 'w')"),
        lambda mark: _Reduced(functools.partial, os.mkdir, str(mark)),
        lambda mark: functools.partial(os.mkdir, str(mark)),
        lambda mark: _Reduced(Path.touch, mark),
        lambda mark: _Reduced(os.mkdir, str(mark)),
        PurePosixPath,
        lambda mark: OrderedDict(a=1),
        lambda mark: _WithState(),
        lambda mark: datetime(2026, 1, 1),
        lambda mark: os.system,
        lambda mark: {1, 2},
        lambda mark: complex(1, 2),
        lambda mark: bytearray(b"abc"),
    ],
)
def test_nothing_is_imported_called_or_built(what: object, protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    data = pickle.dumps({"version": "2.9", "entries": [what(mark)]}, protocol=protocol)  # type: ignore[operator]
    if protocol < 5 or b"bytearray" in data or b"\x96" not in data:
        with pytest.raises(InputError):
            load_data(data)
    assert not mark.exists()


@pytest.mark.parametrize(
    "program",
    [
        b"\x80\x02cposix\nsystem\nX\x02\x00\x00\x00ls\x85R.",
        b"\x80\x02(X\x02\x00\x00\x00lsiposix\nsystem\n.",
        b"\x80\x02(cposix\nsystem\nX\x02\x00\x00\x00lso.",
        b"\x80\x04X\x05\x00\x00\x00posixX\x06\x00\x00\x00system\x93X\x02\x00\x00\x00ls\x85R.",
        b"\x80\x02ccopyreg\n_reconstructor\n.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02\x83\x01\x00.",
        b"\x80\x02\x84\x01\x00\x00\x00.",
        b"\x80\x02Psomething\n.",
        b"\x80\x02K\x01Q.",
        b"\x80\x02]}b.",
        b"\x80\x02])\x81.",
        b"\x80\x04])}\x92.",
        b"\x80\x05\x97.",
        b"\x80\x05\x98.",
        b"\x80\x02\x8f.",
        b"\x80\x02I5\n.",
        b"\x80\x02L" + b"9" * 100_000 + b"L\n.",
        b"\x80\x02S'a'\n.",
        b"cposix\nsystem\n(S'ls'\ntR.",
    ],
)
def test_instructions_beyond_data_are_refused(program: bytes) -> None:
    with pytest.raises(InputError):
        load_data(program)


@pytest.mark.parametrize(
    "program",
    [
        b"",
        b"\x80",
        b"\x80\x02",
        b"\x80\x02.",
        b"\x80\x02e.",
        b"\x80\x02u.",
        b"\x80\x02]K\x01K\x02s.",
        b"\x80\x02h\x05.",
        b"\x80\x02}]K\x01s.",
        b"\x80\x09].",
        b"\x80\x02X\x01\x00\x00\x00\xff.",
        b"\x80\x02X\xff\xff\xff\x7fabc.",
        b"\x80\x04\x8d" + b"\xff" * 8 + b"abc.",
        b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f" + b"abc.",
        b"\x80\x04\x95" + b"\xff" * 7 + b"\x7f" + b"].",
        b"\x80\x02\x8a\xff" + b"\x01" * 255 + b".",
        b"\x80\x02\x8b" + struct.pack("<i", 1 << 30) + b".",
        b"\x80\x02\x8b" + struct.pack("<i", -1) + b".",
        b"\x80\x02]r\xff\xff\xff\x7f.",
        b"\x80\x02]j\xff\xff\xff\x7f.",
    ],
)
def test_what_does_not_fit_together_is_an_error_of_one_sentence(program: bytes) -> None:
    with pytest.raises(InputError) as caught:
        load_data(program)
    assert "\n" not in str(caught.value)


def test_lists_that_share_and_contain_each_other_are_no_danger() -> None:
    laughs: list[object] = ["ha"]
    for _ in range(60):
        laughs = [laughs] * 10
    itself: list[object] = []
    itself.append(itself)
    deep: list[object] = []
    for _ in range(200):
        deep = [deep]
    for data in (laughs, itself, deep):
        assert isinstance(load_data(pickle.dumps(data, protocol=2)), list)
    nested = b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."
    assert isinstance(load_data(nested), list)


def test_more_lists_than_memory_should_hold_are_refused() -> None:
    with pytest.raises(InputError, match="more lists"):
        load_data(b"\x80\x02" + b"]" * 6_000_000 + b".")


def test_keys_that_could_collide_without_end_are_refused() -> None:
    pair = b"(" + b"K\x01K\x02\x86K\x00" * 60_000 + b"u"
    with pytest.raises(InputError):
        load_data(b"\x80\x02}" + pair + b".")


@settings(max_examples=400, deadline=None)
@given(
    st.data(),
    st.sampled_from([2, 3, 4, 5]),
    st.lists(
        st.tuples(st.integers(0, 400), st.integers(0, 255), st.sampled_from(["set", "insert", "cut"])), max_size=6
    ),
)
def test_a_damaged_pickle_is_data_or_an_error(
    data: st.DataObject, protocol: int, damages: list[tuple[int, int, str]]
) -> None:
    program = bytearray(pickle.dumps(_DATA, protocol=protocol))
    for at, value, how in damages:
        place = at % (len(program) + 1)
        if how == "cut":
            del program[place : place + value % 8]
        elif how == "insert" or place == len(program):
            program.insert(place, value)
        else:
            program[place] = value
    try:
        load_data(bytes(program))
    except InputError:
        return
    reference = io.BytesIO(bytes(program))
    pickle.load(reference)  # what was admitted is a pickle that nobody can object to


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_data_or_an_error(tail: bytes) -> None:
    try:
        load_data(b"\x80\x04" + tail)
    except InputError as error:
        assert str(error)
