from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.localize import synchronizing
from eroica.localize.arrivals import Arrivals, read_arrivals
from eroica.localize.fleet import build_fleet
from eroica.localize.matching import pair_executions
from eroica.model.pattern import CollectiveRecord, WorkerPattern
from eroica.model.series import encode_series
from eroica.model.worker import ProcessGroup, Worker
from eroica.settings import Settings


def record(durations: np.ndarray, **changes: object) -> CollectiveRecord:
    count = len(durations)
    plain = CollectiveRecord(
        group="0",
        kind="all_reduce",
        paired_by="sequence",
        executions=count,
        sequence=encode_series(np.arange(count, dtype=np.int64) + 7),
        iteration=encode_series(np.arange(count, dtype=np.int32)),
        duration_us=encode_series(np.asarray(durations, dtype=np.float32)),
        critical_us=encode_series(np.asarray(durations, dtype=np.float32)),
        elements=encode_series(np.full(count, 64, dtype=np.int64)),
    )
    return msgspec.structs.replace(plain, **changes)


def pattern_of(
    rank: int, iterations: int, own: tuple[CollectiveRecord, ...], *groups: ProcessGroup, wait_us: float = 0.0
) -> WorkerPattern:
    """A worker with iterations of 100 ms and nothing but collectives."""
    return WorkerPattern(
        worker=Worker(global_rank=rank),
        window_id=1,
        first_iteration=0,
        last_iteration=iterations,
        duration_s=iterations * 0.1,
        iteration_us=encode_series(np.full(iterations, 1e5, dtype=np.float32)),
        wait_us=encode_series(np.full(iterations, wait_us, dtype=np.float32)),
        functions=(),
        collectives=own,
        process_groups=groups,
    )


def fleet(*records: tuple[CollectiveRecord, ...], iterations: int, ranks: tuple[int, ...] | None = None):
    members = tuple(range(len(records))) if ranks is None else ranks
    patterns = [
        pattern_of(rank, iterations, own, ProcessGroup(name="0", ranks=members, backend="gloo"))
        for rank, own in enumerate(records)
    ]
    return build_fleet(patterns, Settings(one_off_fraction=0.0))


def booked(arrivals: Arrivals) -> tuple[float, float]:
    return float(arrivals.blamed_us.sum() + arrivals.withheld_us), float(arrivals.waited_us.sum())


def test_the_one_who_spends_least_time_in_it_came_last() -> None:
    late, early = np.full(6, 3000.0), np.full(6, 43000.0)
    arrivals = read_arrivals(fleet((record(early),), (record(late),), (record(early),), iterations=6))
    assert arrivals.waited_us.sum(axis=1) == pytest.approx([240_000, 0, 240_000], rel=1e-3)
    assert arrivals.blamed_us.sum(axis=1) == pytest.approx([0, 480_000, 0], rel=1e-3)
    assert arrivals.blame_share([1]) == 1


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(1, 30), st.floats(0, 1))
def test_blame_handed_out_and_withheld_is_what_was_waited(seed: int, members: int, count: int, hidden: float) -> None:
    noise = np.random.default_rng(seed)
    durations = noise.exponential(5000, (members, count)) + 100
    own = [(record(row, critical_us=encode_series((row * hidden).astype(np.float32))),) for row in durations]
    arrivals = read_arrivals(fleet(*own, iterations=count))
    handed, waited = booked(arrivals)
    assert handed == pytest.approx(waited, rel=1e-9, abs=1e-6)
    assert (arrivals.waited_us <= durations * hidden * 1.001 + 1e-6).all()


@pytest.mark.parametrize(("critical", "told"), [(0.3, True), (1.0, False)])
def test_a_window_in_which_senders_go_on_meanwhile_is_not_replayed(critical: float, told: bool) -> None:
    """An asynchronous send lasts until it is received, but holds its worker up only where that waits for it."""
    lasting = np.full(6, 40_000.0)
    held = encode_series((critical * lasting).astype(np.float32))
    peer = encode_series(np.full(6, 1, dtype=np.int32))
    send = record(lasting, kind="send", peers=peer, critical_us=held)
    receive = record(np.full(6, 500.0), kind="recv", peers=encode_series(np.zeros(6, dtype=np.int32)))
    arrivals = read_arrivals(fleet((send,), (receive,), iterations=6))
    assert any("sends go on beside other work" in note for note in arrivals.notes) == told


def test_on_busy_cores_uneven_leaving_blames_nobody_for_long() -> None:
    """The literal rule (the shortest came last) blames somebody for every microsecond."""
    noise = np.random.default_rng(5)
    durations = 4000 + noise.exponential(2500, (4, 80))
    arrivals = read_arrivals(fleet(*((record(row),) for row in durations), iterations=80))
    literal = (durations - durations.min(axis=0)).sum()
    assert arrivals.waited_us.sum() == pytest.approx(literal, rel=1e-3)
    assert arrivals.blamed_us.sum() == 0
    assert arrivals.withheld_us == pytest.approx(literal, rel=1e-3)


@pytest.mark.parametrize("second_us", [50_000, 15_000])
@pytest.mark.parametrize("seed", range(3))
def test_two_who_are_late_each_at_a_place_of_its_own_do_not_hide_each_other(seed: int, second_us: int) -> None:
    durations = 2000 + np.random.default_rng(seed).exponential(300, (4, 40))
    durations[[0, 2, 3], 0::2] += 50_000  # worker 1 is late to the first of each iteration
    durations[[0, 1, 3], 1::2] += second_us  # and worker 2 to the second
    places = encode_series(np.repeat(np.arange(20, dtype=np.int32), 2))
    arrivals = read_arrivals(fleet(*((record(row, iteration=places),) for row in durations), iterations=20))
    waited = float(arrivals.waited_us.sum())
    assert arrivals.blamed_us[1].sum() == pytest.approx(3 * 20 * 50_000, rel=0.05)
    assert arrivals.blamed_us[2].sum() == pytest.approx(3 * 20 * second_us, rel=0.1)
    assert sum(booked(arrivals)) == pytest.approx(2 * waited)


def reason(*records: CollectiveRecord) -> str:
    return pair_executions(records)[1]


def test_what_does_not_pair_is_refused() -> None:
    plain = record(np.ones(10))
    elsewhere = encode_series(np.arange(10, dtype=np.int64) + 900)
    assert "without sequence" in reason(plain, record(np.ones(10), paired_by="none"))
    assert "some members only" in reason(plain, record(np.ones(10), paired_by="order"))
    assert "unequal" in reason(record(np.ones(10), paired_by="order"), record(np.ones(9), paired_by="order"))
    assert "unequal" in reason(*[record(np.ones(10), paired_by="order", dropped=3)] * 2)
    assert "only 0 of 10" in reason(plain, record(np.ones(10), sequence=elsewhere))
    assert "different amounts" in reason(plain, record(np.ones(10), elements=encode_series(np.arange(10) + 1)))


def test_unpaired_nobody_is_blamed_and_the_reader_is_told() -> None:
    early, late = record(np.full(5, 9e4), paired_by="none"), record(np.full(5, 1e3), paired_by="none")
    arrivals = read_arrivals(fleet((early,), (late,), iterations=5))
    assert arrivals.blamed_us.sum() == 0
    assert "nobody is blamed" in arrivals.notes[0]


def test_with_a_member_missing_nobody_is_blamed() -> None:
    early, late = record(np.full(5, 9e4)), record(np.full(5, 1e3))
    arrivals = read_arrivals(fleet((early,), (late,), iterations=5, ranks=(0, 1, 2)))
    assert arrivals.blamed_us.sum() == 0
    assert "1 of 3 members" in arrivals.notes[0]


@pytest.mark.parametrize("kind", ["broadcast", "reduce", "gather", "scatter"])
def test_where_some_are_released_early_whom_all_others_wait_for_came_last_whoever_is_the_root(kind: str) -> None:
    early, late = record(np.full(5, 9e4), kind=kind), record(np.full(5, 1e3), kind=kind)
    arrivals = read_arrivals(fleet((early,), (late,), (early,), iterations=5))
    assert arrivals.blamed_us.sum(axis=1) == pytest.approx([0, 2 * 5 * 8.9e4, 0], rel=1e-3)
    two_left_early = read_arrivals(fleet((early,), (late,), (late,), (early,), iterations=5))
    assert two_left_early.blamed_us.sum() == 0


def test_a_receive_waits_for_its_sender_and_a_send_for_nobody() -> None:
    def to(rank: int, count: int = 5) -> bytes:
        return encode_series(np.full(count, rank, dtype=np.int32))

    send = record(np.full(5, 400.0), kind="send", peers=to(1))
    receive = record(np.full(5, 30_400.0), kind="recv", peers=to(0))
    slow_send = record(np.full(5, 70_000.0), kind="send", peers=to(0))
    fast_receive = record(np.full(5, 500.0), kind="recv", peers=to(1))
    arrivals = read_arrivals(fleet((send, fast_receive), (receive, slow_send), iterations=5))
    assert arrivals.blamed_us.sum(axis=1) == pytest.approx([150_000, 0], rel=1e-3)
    assert booked(arrivals)[0] == pytest.approx(booked(arrivals)[1])


def one_link(receives: list[int], sends: list[int], told: list[bool]) -> Arrivals:
    """Receives of worker 1 from worker 0, in these iterations of ten; it is not told of all of them."""
    peers = [
        encode_series(np.where(np.array(known), rank, -1).astype(np.int32)) for known, rank in ((told, 0), (True, 1))
    ]
    peers[1] = encode_series(np.full(len(sends), 1, dtype=np.int32))
    iterations = [encode_series(np.array(one, dtype=np.int32)) for one in (receives, sends)]
    receive = record(np.full(len(receives), 30_400.0), kind="recv", peers=peers[0], iteration=iterations[0])
    send = record(np.full(len(sends), 400.0), kind="send", peers=peers[1], iteration=iterations[1])
    return read_arrivals(fleet((send,), (receive,), iterations=10))


def test_iterations_in_which_not_all_sides_are_told_cost_only_themselves() -> None:
    """In iteration 4 there is something more to send, so that nothing tells to whom the receives of it go."""
    everywhere = list(range(10))
    told = [iteration != 4 for iteration in everywhere]
    arrivals = one_link(everywhere, everywhere, told)
    assert arrivals.blamed_us.sum(axis=1) == pytest.approx([9 * 30_000, 0], rel=1e-3)
    assert not any("do not pair" in note for note in arrivals.notes)


def groups_of_groups(seed: int, spoil: str) -> list[WorkerPattern]:
    """Twelve workers in three groups of four, and across them in four of three; one of the groups may be unlike."""
    noise, iterations, calls = np.random.default_rng(seed), 9, 4
    ends = np.cumsum(np.full(iterations * calls, 25_000.0))
    durations = noise.exponential(900, (12, 2, iterations * calls)) + 200
    durations[:, 0] += 30_000 * (np.arange(12) % 4 != 1)[:, None]
    own: list[list[CollectiveRecord]] = [[] for _ in range(12)]
    for rank in range(12):
        for at, (group, kind) in enumerate(((f"tp{rank // 4}", "all_reduce"), (f"dp{rank % 4}", "all_gather"))):
            place = np.repeat(np.arange(iterations), calls)
            if spoil == "iteration" and group == "tp1":
                place = np.maximum(place - 1, 0)
            if spoil == "border" and group == "tp1":
                place = np.where(place == 0, -1, place)
            end = ends + at * 12_000 + noise.normal(0, 20, ends.size)
            if spoil == "end" and rank == 5 and at == 0:
                end[7] = np.nan
            if spoil == "no end" and rank == 5 and at == 0:
                end = np.zeros(0)
            series = {"iteration": place.astype(np.int32), "end_us": end}
            encoded = {name: encode_series(values) if values.size else b"" for name, values in series.items()}
            own[rank].append(record(durations[rank, at], group=group, kind=kind, **encoded))
    return [
        pattern_of(
            rank,
            iterations,
            tuple(own[rank]),
            ProcessGroup(name=f"tp{rank // 4}", ranks=tuple(range(rank // 4 * 4, rank // 4 * 4 + 4))),
            ProcessGroup(name=f"dp{rank % 4}", ranks=(rank % 4, rank % 4 + 4, rank % 4 + 8), backend="nccl"),
            wait_us=9e4,
        )
        for rank in range(12)
    ]


@pytest.mark.parametrize("spoil", ["", "iteration", "border", "end", "no end"])
@pytest.mark.parametrize("at_once", [1, 300, 100_000])
def test_groups_judged_in_one_go_are_judged_as_one_by_one(
    spoil: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = build_fleet(groups_of_groups(3, spoil), Settings(one_off_fraction=0.0))
    with monkeypatch.context() as patch:
        patch.setattr(synchronizing.Paired, "is_whole", lambda one: False)
        alone = read_arrivals(window)
    monkeypatch.setattr(synchronizing, "_AT_ONCE", at_once)
    found = read_arrivals(window)
    for name in ("waited_us", "blamed_us"):
        np.testing.assert_allclose(getattr(found, name), getattr(alone, name), rtol=1e-9, atol=1e-6)
    np.testing.assert_allclose(found.direct.wait_us, alone.direct.wait_us)
    assert found.transfer_us.keys() == alone.transfer_us.keys() and len(found.transfer_us) == 7
    assert (found.executions, found.notes) == (alone.executions, alone.notes)
    assert found.withheld_us == pytest.approx(alone.withheld_us)
    assert found.blame_share([1, 5, 9]) > 0.9
