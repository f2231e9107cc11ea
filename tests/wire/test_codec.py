"""Patterns on the wire: nothing is lost, what workers have in common is kept once, groups are a few bytes."""

from __future__ import annotations

import base64
import zlib

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica.errors import InputError
from eroica.model.pattern import FunctionKey, FunctionPattern, WorkerPattern
from eroica.model.rows import NUMBERS, RowTable
from eroica.model.worker import ProcessGroup, Worker
from eroica.wire.codec import MAX_DECODED_BYTES, decode_record, encode_record, pack_pattern, unpack_pattern

#: A pattern as version 0.1.0 sent it, before `neighbors`, `setup` and the wire's own form existed: frozen.
_OLDER = (
    "eJxtU82O0zAQTlkuPAEXDj3CgRXdI5fdN7Fce9padWzjsbdbTiAhEBIcKvEAXbZJ03S1PzwC4tZ3QDwGRyZJW1KBc8jM2J755vvGP5PH+cT6Mf"
    "gP66G2fa6Z52bcKbUVWzsp6YCWDNVreLgYWQy5sRKe8yunZJJLOFcCroSL68ZkMSo5X02UkXbClOzcDpTHwFQAz4Oy5uhG87b/qJSxsRhuTn8n"
    "9breb7OIP5LlhKtQW6tBNKKK4+zz1Rim7xdjqpS7aRhZszA8hYUGPsgwcDGe3adcme7T4Ol37KYve88yN+IImTIuhjyMPHBZ1NvKDLOht9HNF3"
    "0IfHP6q0HyNY2bZLsyVMOU793CA9roBczvdhZDnjoNmJTCq6AqEnF/fhlsOAhkwkYTkizlF63oPacGz+EvQ5StgsTAe+v3x+4ceHZI01pYraG+"
    "jbNPTTuXvZqhkmvSE2QUsHJckcX608x6Cb6ECxCxKVQgvIpgBBDT+9yUeC9RU2bXW+UVoCEFE8jMHICnfw5GNrpJb50Dmdw4bwUgshoTzt7VUl"
    "32aGiQsrkq9zyr5g2/JJ0HR8s+yUdZFjSVNldSQ4ugb9us7D8cX28FoPJU9nbn7XDckvqMC0GYqSHrvxdixI0BjW/KarbZgMjHtyuaZ1aLsznr"
    "brXSisDNPmb10yh6L46rr5d7SG2AnX9SIlFB1AbAzdmT5uqNBwGkidzGd1jzfsRpGztRH/85tfZAA2owVaE1OT6E1s01zTyBPwwu6Q3oNjdrjG"
    "nKPT3kVnDl+aSpmBQD6rgqP88M9YSznHcr4w8iYY5x"
)


def group(ranks: tuple[int, ...], name: str = "1") -> ProcessGroup:
    return ProcessGroup(name=name, description="mesh_dp", ranks=ranks, backend="nccl")


def pattern(rank: int = 0, groups: tuple[ProcessGroup, ...] = (), row: FunctionPattern | None = None) -> WorkerPattern:
    key = FunctionKey(kind="python", name="leaf", stack=("main (train.py:1)", "leaf (train.py:9)"), phase="input")
    return WorkerPattern(
        worker=Worker(global_rank=rank, world_size=100_000),
        window_id=1,
        first_iteration=3,
        last_iteration=9,
        duration_s=1.5,
        iteration_us=b"",
        wait_us=b"",
        functions=(row or FunctionPattern(key=key, beta=0.5),),
        process_groups=groups,
        notes=("a note",),
    )


def test_every_field_of_a_row_arrives() -> None:
    values = dict.fromkeys(FunctionPattern.__struct_fields__)
    key = FunctionKey(kind="gc", name="collection", stack=("a", "b"), phase="forward", thread="autograd", group="7")
    for at, name in enumerate(values):
        values[name] = {"key": key, "resource": "nic", "per_iteration_us": b"abc"}.get(name, at + 1)
    row = msgspec.convert(values, FunctionPattern)
    sent = pattern(row=row)
    assert unpack_pattern(pack_pattern(sent)) == sent
    assert type(unpack_pattern(pack_pattern(sent)).functions[0]) is FunctionPattern


@given(
    st.one_of(
        st.builds(
            lambda first, step, count: tuple(range(first, first + step * count, step)),
            st.integers(0, 99),
            st.integers(1, 9),
            st.integers(0, 60),
        ),
        st.lists(st.integers(0, 2**31 - 1), max_size=40).map(tuple),
    )
)
def test_any_group_arrives_as_it_was(ranks: tuple[int, ...]) -> None:
    sent = pattern(groups=(group(ranks), group((1, 0), "2")))
    assert decode_record(encode_record(sent), WorkerPattern) == sent


def test_a_group_of_a_hundred_thousand_is_some_bytes_and_one_object() -> None:
    everybody = group(tuple(range(100_000)))
    sent = [encode_record(pattern(rank, (everybody,))) for rank in (0, 1)]
    assert max(map(len, sent)) < 700
    one, other = (decode_record(data, WorkerPattern) for data in sent)
    assert one.process_groups == (everybody,)
    assert one.process_groups[0] is other.process_groups[0]


def test_a_pattern_of_an_older_version_is_read() -> None:
    read = decode_record(base64.b64decode(_OLDER), WorkerPattern)
    assert (read.worker.host, read.worker.world_size, read.notes) == ("node-a", 4, ("a note",))
    assert (read.functions[0].key.stack, read.functions[0].beta) == (("main (train.py:1)",), 0.5)
    assert read.process_groups == (ProcessGroup(name="1", ranks=(0, 1, 2, 3), backend="gloo"),)
    assert (read.collectives[0].kind, read.links[0].sent_bytes) == ("all_reduce", 7.0)
    assert (read.neighbors, read.setup) == ((), {})


def with_spans(*spans: tuple[int, int, int]) -> bytes:
    plain = msgspec.to_builtins(pattern(), builtin_types=(bytes,))
    plain["process_groups"] = [{"name": str(at), "span": span} for at, span in enumerate(spans)]
    return msgspec.msgpack.encode(plain)


@pytest.mark.parametrize(
    "spans",
    [
        [(0, 1, 2**40)],
        [(0, 0, 5)],
        [(-1, 1, 5)],
        [(0, 1, -1)],
        [(0, 1, 1_500_000), (1, 1, 1_500_000)],
        [(0, 1, 3_000_000), (0, 1, -2_999_999)],
    ],
)
def test_groups_that_no_job_has_are_refused_before_any_is_built(
    spans: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[tuple[int, int, int]] = []
    monkeypatch.setattr("eroica.wire.codec._members", lambda *span: built.append(span) or ())
    with pytest.raises(ValueError, match="process group"):
        unpack_pattern(with_spans(*spans))
    assert not built


def test_rows_stay_columns_until_somebody_asks_for_one() -> None:
    rows = tuple(
        FunctionPattern(
            key=key(name), beta=0.1 * at, resource=("cpu", "nic")[at % 2], count=at, per_iteration_us=b"x" * at
        )
        for at, name in enumerate("abcd")
    )
    sent = msgspec.structs.replace(pattern(), functions=rows)
    read = unpack_pattern(pack_pattern(sent)).functions
    assert isinstance(read, RowTable) and read == rows and rows == read and len(read) == 4
    assert (read[-1], read[1:3], list(read)) == (rows[-1], rows[1:3], list(rows))
    assert type(read[0].count) is int and type(read[0].beta) is float
    with pytest.raises(IndexError):
        read[4]


def key(name: str) -> FunctionKey:
    return FunctionKey(kind="compute", name=name)


def numbers(**changed: float) -> bytes:
    return np.asarray([[changed.get(name, 0.0)] for name in NUMBERS]).tobytes()


ONE = {"keys": [msgspec.msgpack.encode(key("a"))], "numbers": numbers(), "resources": ["cpu"],
       "resource": np.zeros(1, np.int32).tobytes(), "series": b"", "ends": np.zeros(1, np.int64).tobytes()}  # fmt: skip


@pytest.mark.parametrize(
    "changed",
    [
        {"keys": []},
        {"keys": [b"\xc1"]},
        {"keys": [msgspec.msgpack.encode({"kind": "nonsense", "name": "x"})]},
        {"numbers": numbers()[:-16]},
        {"numbers": numbers(count=-1)},
        {"numbers": numbers(resource_samples=float("nan"))},
        {"resource": np.ones(1, np.int32).tobytes()},
        {"resource": np.asarray([-1], np.int32).tobytes()},
        {"resources": []},
        {"ends": np.asarray([-5], np.int64).tobytes()},
        {"series": b"more"},
    ],
)
def test_columns_that_do_not_fit_together_are_refused(changed: dict[str, object]) -> None:
    plain = msgspec.to_builtins(pattern(), builtin_types=(bytes,))
    with pytest.raises(ValueError, match=r"."):
        unpack_pattern(msgspec.msgpack.encode({**plain, "functions": {**ONE, **changed}}))


def test_rows_from_before_devices_were_told_arrive_without_them() -> None:
    row = FunctionPattern(key=FunctionKey(kind="python", name="f"), beta=0.5, max_s=0.25, beta_error=0.125, count=7)
    plain = msgspec.to_builtins(pattern(row=row), builtin_types=(bytes,))
    column = NUMBERS.index("device_s")
    table = np.asarray([[getattr(row, name)] for name in NUMBERS], dtype=np.float64)
    older = {**ONE, "numbers": np.delete(table, column, axis=0).astype("<f8").tobytes()}
    (found,) = unpack_pattern(msgspec.msgpack.encode({**plain, "functions": older})).functions
    assert (found.beta, found.max_s, found.beta_error, found.count) == (0.5, 0.25, 0.125, 7)
    assert found.device_s == 0


# ---------------------------------------------------------------------- other records


def test_a_record_survives_the_way() -> None:
    worker = Worker(global_rank=5, host="ä", pid=1)
    assert decode_record(encode_record(worker), Worker) == worker


@given(st.binary(max_size=200))
def test_any_bytes_end_in_one_clear_error(data: bytes) -> None:
    with pytest.raises(InputError, match="Worker"):
        decode_record(data, Worker)


def test_a_bomb_is_refused_before_it_unpacks() -> None:
    bomb = zlib.compress(msgspec.msgpack.encode({"global_rank": 1, "host": "x" * (MAX_DECODED_BYTES + 10)}))
    with pytest.raises(InputError, match="refused"):
        decode_record(bomb, Worker)
