from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eroica.localize.arrivals import Arrivals, read_arrivals
from eroica.localize.axis import fit_axis
from eroica.localize.fleet import build_fleet
from eroica.localize.matching import (
    is_contradiction,
    pair_by_order,
    pair_executions,
)
from eroica.model.pattern import CollectiveRecord, WorkerPattern
from eroica.model.series import encode_series
from eroica.model.worker import ProcessGroup
from eroica.settings import Settings
from support.recordings import meet, recorded_collective, recorded_worker

NOISE = np.random.default_rng(7)
#: Four workers, ten executions 2 ms apart; worker 2 comes 1 ms late.
ARRIVALS = np.arange(10) * 2000.0 + NOISE.uniform(0, 50, (4, 10)) + np.array([0, 0, 1000, 0])[:, None]
CLOCKS = np.array([0.0, 5e6, -3e6, 123.0])


def records(order: np.ndarray | None = None, drift: float = 0.0, **changes: object) -> list[CollectiveRecord]:
    end, duration = meet(ARRIVALS)
    found = []
    for member in range(4):
        own = np.arange(10) if order is None or member != 3 else order
        ends = np.sort(end[member][own]) if order is None else end[member][own]
        found.append(
            recorded_collective(ends * (1 + drift * member) + CLOCKS[member], duration[member][own], **changes)
        )
    return found


def arrivals(*found: CollectiveRecord, world: int = 4, named: bool = True) -> Arrivals:
    groups = None if named else ()
    patterns = [recorded_worker(rank, [own], world=world, groups=groups) for rank, own in enumerate(found)]
    return read_arrivals(build_fleet(patterns, Settings()))


def test_executions_that_ended_at_other_moments_are_not_the_same_ones() -> None:
    shuffled = np.array([3, 0, 7, 1, 9, 2, 8, 5, 4, 6])
    _, why = pair_executions(records(shuffled))
    assert is_contradiction(why)
    assert "ends of the executions paired by order differ by up to" in why


def test_one_odd_execution_does_not_spoil_the_others() -> None:
    found = records()
    end, duration = meet(ARRIVALS)
    odd = end[3] + CLOCKS[3]
    odd[4] += 40_000
    assert pair_executions([*found[:3], recorded_collective(odd, duration[3])])[1] == ""


def test_without_a_named_group_all_workers_are_its_members_if_the_ends_agree() -> None:
    found = arrivals(*records(group="", paired_by="none"), named=False)
    assert found.executions == 10
    assert found.blame_share([2]) == 1
    assert not found.notes


def cut(*kept: slice, arrivals_MK: np.ndarray = ARRIVALS) -> list[CollectiveRecord]:
    """Workers whose windows begin and end at other executions."""
    end, duration = meet(arrivals_MK)
    return [
        recorded_collective(end[member][own] + CLOCKS[member], duration[member][own]) for member, own in enumerate(kept)
    ]


UNEVEN = np.cumsum(NOISE.uniform(1000, 4000, 10)) + ARRIVALS - np.arange(10) * 2000.0


def test_executions_at_the_borders_that_some_windows_lack_are_left_out() -> None:
    found = cut(slice(0, 9), slice(1, 10), slice(0, 10), arrivals_MK=UNEVEN)
    places, why = pair_executions(found)
    assert why == ""
    assert [place.tolist() for place in places] == [list(range(1, 9)), list(range(8)), list(range(1, 9))]
    assert pair_by_order(found)[1] == ""


def test_ends_that_are_damaged_count_as_none() -> None:
    found = records(group="", paired_by="none")
    ends = np.full(10, np.nan)
    broken = [*found[:3], msgspec.structs.replace(found[3], end_us=encode_series(ends))]
    assert "their ends too" in pair_by_order(broken)[1]
    assert arrivals(*broken, named=False).blamed_us.sum() == 0
    short = [*found[:3], msgspec.structs.replace(found[3], end_us=encode_series(ends[:4]))]
    assert arrivals(*short, named=False).blamed_us.sum() == 0


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(2, 7), st.integers(1, 12), st.booleans())
def test_whatever_was_recorded_blame_and_waiting_are_equal(seed: int, members: int, count: int, named: bool) -> None:
    noise = np.random.default_rng(seed)
    arrival = np.sort(noise.uniform(0, 1e6, count)) + noise.exponential(2000, (members, count))
    end, duration = meet(arrival, transfer_us=100)
    ends = end + noise.normal(0, noise.choice([1, 1e4]), end.shape)
    found = arrivals(*(recorded_collective(ends[m], duration[m]) for m in range(members)), world=members, named=named)
    assert found.blamed_us.sum() + found.withheld_us == pytest.approx(found.waited_us.sum())
    assert (found.blamed_us >= 0).all()


def test_the_late_among_those_present_are_blamed_though_a_members_trace_is_missing() -> None:
    found = arrivals(*records()[:3])
    assert found.blamed_us.sum(axis=1).argmax() == 2
    assert found.blamed_us.sum() + found.withheld_us == pytest.approx(found.waited_us.sum())
    assert any("no trace of 1 of 4 members of process group '0' (3)" in note for note in found.notes)


def test_a_member_that_has_a_trace_but_shows_no_execution_refuses_the_pairing() -> None:
    patterns = [recorded_worker(rank, [own]) for rank, own in enumerate(records()[:3])]
    patterns.append(recorded_worker(3, []))
    assert read_arrivals(build_fleet(patterns, Settings())).blamed_us.sum() == 0


def test_in_one_iteration_executions_take_the_place_of_iterations() -> None:
    """Two who come last in turns are both late; one who does so once is not."""
    late = np.zeros((6, 8))
    late[4, :], late[5, :] = 1000, 1000
    late[4, ::2] += 20
    late[5, 1::2] += 20
    late[0, 3] = 1005
    end, duration = meet(np.arange(8) * 5000.0 + late)
    found = arrivals(*(recorded_collective(end[m], duration[m]) for m in range(6)), world=6)
    assert found.blamed_us.sum() + found.withheld_us == pytest.approx(found.waited_us.sum())
    assert (found.blamed_us.sum(axis=1) > 0).tolist() == [False, False, False, False, True, True]


# --- one time axis for recorded traces ---


def placed(starts_us: np.ndarray, drifts: np.ndarray, jitter_us: float = 3.0, count: int = 40) -> list[WorkerPattern]:
    """Workers whose windows start at different moments and whose clocks run apart."""
    noise = np.random.default_rng(3)
    end, duration = meet(np.arange(count) * 50_000.0 + noise.uniform(0, 5000, (len(starts_us), count)) + 20_000)
    exits = end + noise.uniform(0, jitter_us, end.shape)
    return [
        recorded_worker(
            rank,
            [recorded_collective((exits[rank] - start) / (1 + drift), duration[rank])],
            world=len(starts_us),
        )
        for rank, (start, drift) in enumerate(zip(starts_us, drifts, strict=True))
    ]


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=6),
    st.floats(-5e-5, 5e-5),
)
def test_windows_are_placed_although_clocks_are_off_and_drift(starts: list[float], drift: float) -> None:
    starts_us = np.array(starts)
    drifts = np.linspace(0, drift, len(starts))
    axis = fit_axis(placed(starts_us, drifts))
    assert not axis.unplaced
    for rank in range(len(starts)):
        for real_us in (0.0, 1e6):
            since_ns = (real_us + 2e6 - starts_us[rank]) / (1 + drifts[rank]) * 1e3
            shown = axis.places[rank].offset_ns + (1 + axis.places[rank].drift) * since_ns
            assert shown == pytest.approx((real_us + 2e6 - starts_us[0]) * 1e3, abs=3 * axis.uncertainty_ns + 20_000)
    assert axis.uncertainty_ns < 30_000


def test_groups_that_share_a_member_are_chained_and_strangers_stay_unplaced() -> None:
    left, right = (ProcessGroup(name=name, ranks=ranks) for name, ranks in (("a", (0, 1)), ("b", (1, 2))))
    end, duration = meet(np.arange(12) * 1000.0 + np.zeros((2, 1)))
    offsets = [0.0, 400.0, 900.0]
    records = {
        0: [recorded_collective(end[0], duration[0], group="a")],
        1: [
            recorded_collective(end[0] - offsets[1], duration[0], group="a"),
            recorded_collective(end[0] + 333 - offsets[1], duration[0], group="b"),
        ],
        2: [recorded_collective(end[0] + 333 - offsets[2], duration[0], group="b")],
        3: [],
    }
    patterns = [recorded_worker(rank, own, groups=(left, right)) for rank, own in records.items()]
    axis = fit_axis(patterns)
    assert {rank: place.offset_ns for rank, place in axis.places.items()} == pytest.approx({0: 0, 1: 4e5, 2: 9e5})
    assert "no collective" in axis.unplaced[3]
