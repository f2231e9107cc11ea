"""Flight Recorder dumps of every version and form become the same record, or an error of one sentence."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eroica.errors import InputError
from eroica.trace.flight import FlightDump, is_dump, parse_dump, read_dump
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
