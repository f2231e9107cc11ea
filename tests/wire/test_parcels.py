"""Patterns as parcels: shared parts beside each worker's own numbers."""

from __future__ import annotations

import zlib

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from eroica.errors import InputError
from eroica.model.pattern import CollectiveRecord, FunctionKey, FunctionPattern, WorkerPattern
from eroica.model.series import decode_series, encode_series
from eroica.model.worker import ProcessGroup, Worker
from eroica.wire import parcels
from eroica.wire.codec import decode_record, encode_record
from eroica.wire.parcels import (
    Parcel,
    from_file,
    from_parcel,
    pack_numbers,
    pack_parts,
    part_id,
    to_file,
    to_parcel,
    unpack_numbers,
    unpack_parts,
)
from eroica.wire.steps import differences, from_steps, pack_whole, to_steps, unpack_whole


def made(rank: int = 0, rows: int = 40, seed: int = 0) -> WorkerPattern:
    """A pattern as a real one: sampled stacks, series of some, a collective with sequence numbers."""
    random, iterations, window_s = np.random.default_rng((seed, rank)), 30, 3.0
    critical = np.sort(random.lognormal(-4.0, 1.5, rows))[::-1]
    functions = tuple(
        FunctionPattern(
            key=FunctionKey(kind="python", name=f"call_{at}", stack=("main (train.py:1)", f"call_{at} (job.py:{at})")),
            beta=float(critical[at]) / window_s, mu=float(random.uniform()), sigma=0.02,
            resource="cpu" if at % 2 else "",
            resource_samples=at, critical_s=float(critical[at]), total_s=float(critical[at] * 1.2), count=3 * at + 1,
            max_s=float(critical[at] / 2), active_iterations=min(at, iterations), beta_error=0.001, device_s=0.5 * at,
            per_iteration_us=_series(random.exponential(500.0, iterations)) if at < 20 else b"",
        )
        for at in range(rows)
    )  # fmt: skip
    numbers = np.arange(60)
    record = CollectiveRecord(
        group="0", kind="all_reduce", paired_by="sequence", executions=60, sequence=encode_series(numbers + 1000),
        iteration=encode_series((numbers // 2).astype(np.int32)), elements=encode_series(numbers % 2 * 4096),
        duration_us=_series(random.exponential(2000.0, 60)), critical_us=_series(random.exponential(1500.0, 60)),
        end_us=encode_series(np.cumsum(random.exponential(50_000.0, 60))),
    )  # fmt: skip
    return WorkerPattern(
        worker=Worker(global_rank=rank, world_size=64, host=f"n{rank // 8}", pid=100 + rank), window_id=3,
        first_iteration=100, last_iteration=100 + iterations, duration_s=window_s,
        iteration_us=_series(random.normal(1e5, 1e3, iterations)), wait_us=_series(random.exponential(1e4, iterations)),
        functions=functions, collectives=(record,), idle_s=0.1234, samples_used=500,
        process_groups=(ProcessGroup(name="0", ranks=tuple(range(64))), ProcessGroup(name="1", ranks=(0, 5))),
        host_facts={"cpu_count": 192.0, "memory_bytes": 25276063744.0}, setup={"torch": "2.13"}, notes=("short",),
        stall_s=0.5, timeline=b"a picture",
    )  # fmt: skip


def _series(values: NDArray[np.float64]) -> bytes:
    return encode_series(values.astype(np.float32))


def test_counts_names_and_order_are_exact_and_times_are_as_near_as_is_said() -> None:
    sent = made()
    came = from_parcel(to_parcel(sent))
    assert came.worker == sent.worker and came.process_groups == sent.process_groups and came.setup == sent.setup
    assert came.timeline == sent.timeline and came.notes == sent.notes and came.duration_s == sent.duration_s
    for one, other in zip(sent.functions, came.functions, strict=True):
        for name in ("key", "resource", "resource_samples", "count", "active_iterations"):
            assert getattr(one, name) == getattr(other, name)
        assert other.critical_s == pytest.approx(one.critical_s, rel=0.006)
        assert other.beta == pytest.approx(one.beta, rel=0.006) and other.total_s == pytest.approx(
            one.total_s, rel=0.006
        )
        assert other.max_s == pytest.approx(one.max_s, rel=0.025) and other.mu == pytest.approx(one.mu, abs=0.006)
        assert other.device_s == pytest.approx(one.device_s, rel=0.006) and bool(one.per_iteration_us) == bool(
            other.per_iteration_us
        )
        before, after = (decode_series(each.per_iteration_us, np.float32) for each in (one, other))
        np.testing.assert_allclose(after, before, rtol=0.011, atol=0.0005 * 1e5)
    (one_record,), (other_record,) = sent.collectives, came.collectives
    for name, kind in (("sequence", np.int64), ("iteration", np.int32), ("elements", np.int64), ("peers", np.int32)):
        before, after = (decode_series(getattr(each, name), kind) for each in (one_record, other_record))
        assert before.tolist() == after.tolist()
    for name, kind, off in (("duration_us", np.float32, 50), ("critical_us", np.float32, 50), ("end_us", float, 50)):
        before, after = (decode_series(getattr(each, name), kind) for each in (one_record, other_record))
        np.testing.assert_allclose(after, before, rtol=0.006, atol=off)
    assert came.host_facts["cpu_count"] == 192.0 and came.idle_s == pytest.approx(0.1234)
    assert came.host_facts["memory_bytes"] == pytest.approx(25276063744.0, rel=0.0005)


def test_what_has_travelled_once_travels_unchanged() -> None:
    once = to_parcel(from_parcel(to_parcel(made())))
    assert to_parcel(from_parcel(once)) == once


def test_workers_have_their_parts_in_common_and_their_own_is_small() -> None:
    one, other = to_parcel(made(0)), to_parcel(made(1))
    assert one.parts == other.parts and one.own != other.own
    assert len(one.own) < len(encode_record(made(0))) / 2


def test_a_parcel_in_a_file_is_read_as_a_pattern() -> None:
    parcel = to_parcel(made())
    assert decode_record(to_file(parcel), WorkerPattern) == from_parcel(parcel)
    assert from_file(to_file(parcel)) == parcel


@pytest.mark.parametrize("empty", [{"functions": ()}, {"collectives": ()}, {"duration_s": 0.0}, {"host_facts": {}}])
def test_a_pattern_may_lack_anything(empty: dict[str, object]) -> None:
    sent = msgspec.structs.replace(made(), **empty)
    assert len(from_parcel(to_parcel(sent)).functions) == len(sent.functions)


def test_a_record_whose_series_do_not_fit_together_travels_as_it_is() -> None:
    odd = msgspec.structs.replace(made().collectives[0], iteration=encode_series(np.arange(3, dtype=np.int32)))
    assert from_parcel(to_parcel(msgspec.structs.replace(made(), collectives=(odd,)))).collectives == (odd,)


def test_a_number_that_is_none_cannot_travel() -> None:
    bad = msgspec.structs.replace(made().functions[0], critical_s=float("nan"))
    with pytest.raises(ValueError, match="a number in it is none"):
        to_parcel(msgspec.structs.replace(made(), functions=(bad,)))


def _hostile() -> dict[str, Parcel]:
    good = to_parcel(made())
    return {
        "cut short": Parcel(good.parts, good.own[:-9]),
        "no parcel": Parcel(good.parts, b"\xff" * 20),
        "a bomb": Parcel(good.parts, zlib.compress(bytes(50_000_000))),
        "a part more": Parcel((*good.parts, good.parts[-1]), good.own),
        "a part less": Parcel(good.parts[:-1], good.own),
        "no parts": Parcel((), good.own),
        "a function that is none": Parcel((*good.parts[:-1], b"\xc1"), good.own),
        "a setup that is none": Parcel((b"\x01", *good.parts[1:]), good.own),
    }


@pytest.mark.parametrize("how", list(_hostile()))
def test_a_hostile_parcel_is_refused_with_one_error(how: str) -> None:
    with pytest.raises(InputError, match="are no WorkerPattern"):
        decode_record(to_file(_hostile()[how]), WorkerPattern)


def test_few_bytes_do_not_become_many_numbers() -> None:
    with pytest.raises(ValueError, match="parts are no pattern's"):
        unpack_numbers(pack_numbers([0] * 10), 10**9)
    with pytest.raises(ValueError, match="more than 4000000 bytes"):
        unpack_parts(zlib.compress(bytes(50_000_000)))


def test_numbers_and_parts_come_back() -> None:
    assert unpack_numbers(pack_numbers([5, 6, 7, 1, 90_000]), 5) == [5, 6, 7, 1, 90_000]
    assert unpack_parts(pack_parts([b"one", b""])) == (b"one", b"")
    assert len(part_id(b"one")) == 16 and part_id(b"one") != part_id(b"two")


def test_whole_numbers_of_any_size_come_back() -> None:
    for values in ([], [0, 0], [1, -1, 255, -256], [2**62, -(2**62), 0], [-(2**63), 2**63 - 1]):
        whole = np.asarray(values, dtype=np.int64)
        assert unpack_whole(pack_whole(whole), whole.size).tolist() == values
        assert np.cumsum(differences(whole)).tolist() == values
    with pytest.raises(ValueError, match="3 bytes are not 2 numbers"):
        unpack_whole(b"abc", 2)


def test_steps_are_even_near_zero_and_relative_above() -> None:
    values = np.asarray([0.0, 1e-3, 1.0, 1e6, -5.0])
    again = from_steps(to_steps(values, 1.0, 100), 1.0, 100)
    assert np.abs(again - values).max() <= 0.0051 * 1e6
    np.testing.assert_allclose(again, values, rtol=0.0051, atol=0.0051)
    assert np.isfinite(from_steps(np.asarray([2**62]), 1.0, 100)).all()


@pytest.mark.parametrize("count", [1, 20, 16_383, 16_384, 40_000])
def test_series_are_in_the_form_that_zlib_reads(count: int) -> None:
    values = np.arange(count, dtype=np.float64)
    assert zlib.decompress(parcels._series(values, "<f4")) == values.astype("<f4").tobytes()
    assert parcels._series(values[:0], "<f4") == b""
