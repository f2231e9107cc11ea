"""Transfers of like process groups under NCCL: what β, μ and σ of their members tell, and what they do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest

from eroica.diagnosis import links as slow_groups
from eroica.localize.arrivals import Arrivals
from eroica.localize.families import Family, read_families
from eroica.localize.fleet import Fleet
from eroica.model.pattern import FunctionKey, WorkerPattern
from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from support import synthesize_window
from support.grouped import GroupedFleet, Meeting, Work, neighbors_of, strided

seeds = pytest.mark.parametrize("seed", range(4))
WORKERS, SIZE, ITERATIONS = 64, 8, 6


@dataclass(frozen=True)
class Use:
    """What workers use of their paths in the gathers.

    Attributes:
        mu: Worker -> mean use instead of the usual one.
        sigma: The same of its deviation.
        resource: What was sampled.
        usual: μ and σ of everybody else.
    """

    mu: Mapping[int, float] = field(default_factory=dict)
    sigma: Mapping[int, float] = field(default_factory=dict)
    resource: str = "pcie"
    usual: tuple[float, float] = (0.3, 0.05)


def verdict_on(transfer_ms: Mapping[int, float], path: Use = Use(), **more: object) -> Verdict:
    """Verdict on a window by hand of what `patterns_of` describes."""
    patterns = patterns_of(transfer_ms, path, **more)  # type: ignore[arg-type]
    return analyze("job", synthesize_window(patterns), patterns)


def verdict_since(
    transfer_ms: Mapping[int, float], path: Use = Use(), *, seed: int, workers: int, elements: int = 1 << 20
) -> Verdict:
    """Verdict on a job that has become slower: all was as usual in its healthy window."""
    before = patterns_of({}, Use(resource=path.resource, usual=path.usual), seed=seed + 100, workers=workers)
    now = patterns_of(transfer_ms, path, seed=seed, workers=workers, elements=elements)
    return analyze("job", synthesize_window(now, "slow", before), now, before)


def patterns_of(
    transfer_ms: Mapping[int, float],
    path: Use = Use(),
    *,
    seed: int = 0,
    late: Mapping[int, float] | None = None,
    workers: int = WORKERS,
    spread: float = 0.02,
    elements: int = 1 << 20,
) -> list[WorkerPattern]:
    """Groups of eight workers, one on each host, that gather for 100 ms, then an all-reduce across them.

    Args:
        transfer_ms: Group -> what it takes instead.
        path: Use of the workers' paths.
        seed: Of the noise.
        late: Worker -> how much more it computes, ms.
        workers: How many there are.
        spread: Of healthy groups' transfers.
        elements: Size of a gather.
    """
    noise = np.random.default_rng(seed)
    groups = workers // SIZE
    gather_GI = (
        100e3 * np.exp(noise.normal(0, spread, (groups, 1))) * np.exp(noise.normal(0, 0.01, (groups, ITERATIONS)))
    )
    for group, ms in transfer_ms.items():
        gather_GI[group] *= ms / 100
    compute_WI = 600e3 * np.exp(noise.normal(0, 0.01, (workers, ITERATIONS)))
    for worker, ms in (late or {}).items():
        compute_WI[worker] += ms * 1e3
    use = [np.full(workers, value) * np.exp(noise.normal(0, 0.05, workers)) for value in path.usual]
    for values, changed in zip(use, (path.mu, path.sigma), strict=True):
        for worker, value in changed.items():
            values[worker] = value
    fleet = GroupedFleet(workers=workers, iterations=ITERATIONS, seed=seed)
    fleet.works = [
        Work(
            key=FunctionKey(kind="compute", name="gemm", phase="forward", thread="device"),
            time_us=compute_WI,
            of=np.arange(workers),
            mu=np.full(workers, 0.7),
            sigma=np.full(workers, 0.02),
            count=40,
        )
    ]
    fleet.meetings = [
        Meeting(
            grouping=neighbors_of(workers, SIZE, "mesh_shard"),
            name="ncclDevKernel_AllGather_RING_LL(x)",
            kind="all_gather",
            phase="forward",
            times=4,
            transfer_us=gather_GI,
            mu=use[0],
            sigma=use[1],
            elements=elements,
            resource=path.resource,
        ),
        Meeting(
            grouping=strided(workers, SIZE, "mesh_replicate"),
            name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)",
            kind="all_reduce",
            phase="backward",
            times=1,
            transfer_us=np.full((SIZE, ITERATIONS), 40e3),
            mu=np.full(workers, 0.25),
            sigma=np.full(workers, 0.05),
            elements=1 << 24,
        ),
    ]
    return fleet.synthesize()


def found(verdict: Verdict) -> list[tuple[str, tuple[int, ...], tuple[str, ...]]]:
    return [(one.cause, one.workers, one.hosts) for one in verdict.findings if one.role == "cause"]


@seeds
def test_members_that_use_less_than_their_ring_peers_sit_on_the_link(seed: int) -> None:
    verdict = verdict_on({3: 250}, Use({25: 0.1, 26: 0.08}, {25: 0.04, 26: 0.04}), seed=seed)
    assert found(verdict) == [("slow-link", (25, 26), ("node-3",))]
    assert "carries little" in verdict.summary


@seeds
def test_a_restless_member_with_less_use_waits_and_is_not_named(seed: int) -> None:
    verdict = verdict_on({3: 250}, Use({25: 0.1}, {25: 0.5}), seed=seed)
    assert found(verdict) == [("slow-link", tuple(range(24, 32)), ("node-3",))]
    assert verdict.cause is not None and verdict.cause.confidence < 0.75


@seeds
@pytest.mark.parametrize("resource", ["", "nic"])
def test_without_samples_of_its_own_path_only_the_hosts_of_the_group_are_named(seed: int, resource: str) -> None:
    verdict = verdict_on({3: 250}, Use({27: 0.6}, resource=resource), seed=seed)
    assert found(verdict) == [("slow-link", tuple(range(24, 32)), ("node-3",))]
    assert verdict.summary.startswith("The network paths among node-3 are slow")


@seeds
def test_several_slow_groups_are_told_with_all_their_hosts(seed: int) -> None:
    verdict = verdict_on({1: 200, 5: 230}, seed=seed)
    assert found(verdict) == [("slow-link", (*range(8, 16), *range(40, 48)), ("node-1", "node-5"))]


# --- nothing of the kind ---


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("spread", [0.02, 0.1])
def test_healthy_groups_that_differ_by_ten_per_cent_are_no_cause(seed: int, spread: float) -> None:
    verdict = verdict_on({}, seed=seed, spread=spread)
    assert (verdict.verdict, verdict.findings) == ("healthy", ())


@pytest.mark.parametrize("seed", range(4))
def test_more_use_of_pcie_without_a_slow_group_is_no_cause(seed: int) -> None:
    assert found(verdict_on({}, Use({27: 0.7}), seed=seed)) == []


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("spread", [0.02, 0.1])
def test_two_healthy_groups_that_differ_by_ten_per_cent_are_no_cause(seed: int, spread: float) -> None:
    verdict = verdict_on({}, seed=seed, spread=spread, workers=16)
    assert (verdict.verdict, verdict.findings) == ("healthy", ())


# --- none but the healthy window to compare with ---


@seeds
def test_a_longer_transfer_at_the_same_use_is_no_detour(seed: int) -> None:
    verdict = verdict_since({0: 300}, seed=seed, workers=8)
    assert [cause for cause, _, _ in found(verdict)] == ["slow-collective-everywhere"]


@seeds
def test_a_group_that_no_pattern_describes_is_read_like_any_other(seed: int) -> None:
    before = patterns_of({}, seed=seed + 100, workers=8)
    now = patterns_of({0: 300}, Use({3: 0.6}), seed=seed, workers=8)
    bare = [[msgspec.structs.replace(one, process_groups=()) for one in each] for each in (now, before)]
    assert analyze("job", synthesize_window(bare[0], "slow", bare[1]), bare[0], bare[1]).verdict != "healthy"


@seeds
def test_more_use_without_a_longer_transfer_is_no_cause(seed: int) -> None:
    assert found(verdict_since({}, Use({3: 0.7}), seed=seed, workers=8)) == []


@seeds
def test_more_data_is_no_detour(seed: int) -> None:
    verdict = verdict_since({0: 300}, Use(dict.fromkeys(range(8), 0.7)), seed=seed, workers=8, elements=3 << 20)
    assert [cause for cause, _, _ in found(verdict)] == ["slow-collective-everywhere"]


@seeds
def test_groups_that_are_slow_but_hidden_behind_later_ones_cost_nothing(seed: int) -> None:
    """All but two groups compute longer, so that the slow transfers of these two are over in time."""
    late = {worker: 400.0 for worker in range(64) if worker // 8 not in {1, 5}}
    verdict = verdict_on({1: 250, 5: 250}, late=late, seed=seed)
    assert not {one.cause for one in verdict.findings} & {"slow-link", "link-fallback"}


def test_transfers_of_the_booking_are_those_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the booking kept saves decoding the records again, and says the same."""
    compared = []

    def both(fleet: Fleet, arrivals: Arrivals) -> tuple[Family, ...]:
        booked, decoded = (
            read_families(fleet, one) for one in (arrivals, msgspec.structs.replace(arrivals, transfer_us={}))
        )
        for one, other in zip(booked, decoded, strict=True):
            for mine, theirs in zip(one.groups, other.groups, strict=True):
                assert (mine.group, one.kind) in arrivals.transfer_us
                np.testing.assert_allclose(mine.transfer_us, theirs.transfer_us, rtol=1e-9)
                compared.append(mine.group)
        return booked

    monkeypatch.setattr(slow_groups, "read_families", both)
    verdict_on({3: 180.0})
    assert len(compared) >= WORKERS // SIZE
