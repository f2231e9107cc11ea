"""Fleets on several hosts: a slow link is named by its host, and nothing else is taken for one."""

from __future__ import annotations

import msgspec
import pytest

from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from support import (
    FleetPlan,
    SlowCompute,
    SlowHostLink,
    Trouble,
    synthesize,
    synthesize_window,
)

seeds = pytest.mark.parametrize("seed", range(6))


def verdict_on(
    *troubles: Trouble, seed: int, hosts: int = 3, purpose: str = "slow", baseline: bool = True, links: bool = True
) -> Verdict:
    plan = {"workers": 2 * hosts, "per_host": 2}
    healthy = synthesize(FleetPlan(seed=seed + 10_000, **plan), (), 1)
    patterns = synthesize(FleetPlan(seed=seed, **plan), troubles, 2)
    if not links:
        patterns = [msgspec.structs.replace(pattern, links=()) for pattern in patterns]
    window = synthesize_window(patterns, purpose, healthy)
    return analyze("job", window, patterns, healthy if baseline else ())


@seeds
@pytest.mark.parametrize("hosts", [3, 5])
@pytest.mark.parametrize("ms", [60, 300])
@pytest.mark.parametrize("baseline", [True, False])
def test_a_slow_link_is_named_by_its_host(seed: int, hosts: int, ms: float, baseline: bool) -> None:
    verdict = verdict_on(SlowHostLink((1,), ms), seed=seed, hosts=hosts, baseline=baseline)
    found = verdict.cause
    assert verdict.verdict == "slow", verdict.summary
    assert found is not None
    assert (found.cause, found.scope, found.hosts, found.workers) == ("slow-link", "some", ("node-1",), (2, 3))
    assert [one.role for one in verdict.findings] == ["cause"]
    assert verdict.summary.startswith("The network link of node-1 is slow: data waits on it ")
    assert found.resource is not None and found.resource.peers_mean is not None
    assert found.resource.mean < found.resource.peers_mean / 3
    assert found.gain == pytest.approx(ms / verdict.iteration.current_ms, rel=0.35)
    assert found.confidence > 0.7


@seeds
@pytest.mark.parametrize("purpose", ["manual", "slow"])
@pytest.mark.parametrize("baseline", [True, False])
def test_a_healthy_fleet_on_several_hosts_has_no_slow_link(seed: int, purpose: str, baseline: bool) -> None:
    assert verdict_on(seed=seed, purpose=purpose, baseline=baseline).cause is None


@seeds
def test_a_slow_host_is_named_as_slow_and_not_as_its_link(seed: int) -> None:
    verdict = verdict_on(SlowCompute((2, 3), 3.0), seed=seed)
    causes = [one for one in verdict.findings if one.role == "cause"]
    assert [(one.cause, one.workers) for one in causes] == [("compute-slow", (2, 3))]


@seeds
def test_without_the_connections_it_is_slow_communication(seed: int) -> None:
    found = verdict_on(SlowHostLink((1,), 300), seed=seed, links=False).cause
    assert found is not None
    assert found.cause == "slow-collective-everywhere"
