import gzip
import itertools
import random
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eroica.errors import InputError
from eroica.offline.reading import read_one
from eroica.settings import Settings
from eroica.trace import chunks
from eroica.trace.kineto import read_trace
from eroica.trace.table import Category
from support.mutations import MUTATIONS, mutated, small_trace

LIMITS = Settings(max_trace_bytes=1_000_000, max_trace_events=10_000)
relaxed = settings(deadline=None, suppress_health_check=list(HealthCheck))


def check(path, data, reading=LIMITS):
    """Reads, or refuses with one clear error; what is read holds together."""
    path.write_bytes(data)
    began = time.process_time()
    try:
        table = read_trace(path, reading)
    except InputError as error:
        assert path.name in str(error)
        assert "\n" not in str(error)
        return None
    finally:
        assert time.process_time() - began < 10
    count = len(table)
    columns = (table.name, table.category, table.thread, table.start_ns, table.end_ns)
    assert [len(column) for column in columns] == [count] * 5
    assert [column.dtype for column in columns] == [np.int32, np.int8, np.int64, np.int64, np.int64]
    assert np.all(np.diff(table.start_ns) >= 0)
    assert np.all(table.end_ns >= table.start_ns)
    assert count == 0 or (table.name.min() >= 0 and table.name.max() < len(table.strings))
    assert set(table.category.tolist()) <= set(map(int, Category))
    assert all(0 <= row < count for row in table.collectives)
    assert all(isinstance(text, str) and len(text) <= 2000 for text in table.strings)
    assert all(isinstance(loss, str) and "\n" not in loss for loss in table.losses)
    return table


@relaxed
@given(
    data=st.binary(max_size=300) | st.binary(max_size=300).map(gzip.compress) | st.text(max_size=300).map(str.encode)
)
def test_any_bytes_are_read_or_refused(tmp_path_factory, data):
    check(tmp_path_factory.getbasetemp() / "any.json", data)


@relaxed
@given(
    prefix=st.sampled_from([b"[", b'{"traceEvents": [', b'{"traceEvents":[{"ph":"X","ts":1,']),
    data=st.binary(max_size=80),
)
def test_any_bytes_that_begin_like_a_trace_are_read_or_refused(tmp_path_factory, prefix, data):
    check(tmp_path_factory.getbasetemp() / "begun.json", prefix + data)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_fields = ("ph", "name", "cat", "pid", "tid", "ts", "dur", "args")
_events = st.fixed_dictionaries({}, optional=dict.fromkeys(_fields, _json)).map(lambda event: {"ph": "X", **event})


@relaxed
@given(events=st.lists(_events, max_size=5), header=st.dictionaries(st.sampled_from(["distributedInfo", "x"]), _json))
def test_fields_of_any_type_are_read_or_left_out(tmp_path_factory, events, header):
    import json

    path = tmp_path_factory.getbasetemp() / "typed.json"
    table = check(path, json.dumps({**header, "traceEvents": events}).encode())
    assert table is None or len(table) <= len(events)


@pytest.mark.parametrize("piece", [1 << 20, 50])
def test_what_befalls_trace_files_is_read_or_refused(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(chunks, "_PIECE_BYTES", piece)
    outcomes = []
    for seed in range(300):
        chance = random.Random(f"{seed} {piece}")
        outcomes.append(check(tmp_path / "t.json", mutated(small_trace(chance), chance)))
    assert sum(table is not None and len(table) > 0 for table in outcomes) > 150


def test_what_befalls_trace_files_ends_in_a_pattern_or_one_sentence(tmp_path):
    for seed, mutation in itertools.product(range(12), MUTATIONS):
        chance = random.Random(seed)
        path = tmp_path / "t.json"
        path.write_bytes(mutation(small_trace(chance), chance))
        summary = read_one(path, -1, LIMITS)
        assert (summary.pattern is None) == bool(summary.error)
