"""Settings of slow workers that differ from their peers' or from before: named where they explain it, else not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest

from eroica.model.causes import CATALOG
from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Verdict
from eroica.pipeline import analyze
from support import (
    FleetPlan,
    SlowCompute,
    SlowLink,
    SlowLoader,
    SlowPython,
    Trouble,
    synthesize,
    synthesize_window,
)

USUAL = {
    "affinity": "0-7",
    "affinity_cores": "8",
    "anomaly_mode": "off",
    "cores": "16",
    "cpu_quota": "none",
    "env:OMP_NUM_THREADS": "4",
    "loader_workers": "4",
    "memory_limit_gib": "16",
    "nice": "0",
    "torch": "2.13.0",
    "torch_threads": "4",
}
seeds = pytest.mark.parametrize("seed", range(3))
Change = Callable[[list[WorkerPattern]], list[WorkerPattern]]


def set_up(
    patterns: Sequence[WorkerPattern], workers: Sequence[int] = (), **changed: str | None
) -> list[WorkerPattern]:
    """The patterns as usual, with changed settings on some workers; None takes one away. "env_X" stands for "env:X"."""
    own = {name.replace("env_", "env:", 1): value for name, value in changed.items()}
    found = []
    for at, pattern in enumerate(patterns):
        facts = {**USUAL, **own} if at in workers else USUAL
        setup = {name: value for name, value in facts.items() if value is not None}
        found.append(msgspec.structs.replace(pattern, setup=setup))
    return found


def verdict_on(
    troubles: Sequence[Trouble], seed: int, now: Change, purpose: str = "slow", then: Change = set_up, **plan: object
) -> Verdict:
    before = then(synthesize(FleetPlan(seed=seed + 10_000, **plan), (), 1))
    patterns = now(synthesize(FleetPlan(seed=seed, **plan), troubles, 2))
    return analyze("job", synthesize_window(patterns, purpose, before), patterns, before)


def causes(verdict: Verdict) -> list[str]:
    return [one.cause for one in verdict.findings if one.role == "cause"]


@seeds
@pytest.mark.parametrize(
    "changed",
    [
        {"torch_threads": "8"},  # more threads make nobody slow whom they do not let wait
        {"affinity_cores": "16"},
        {"loader_workers": "0"},  # loading is not what is slow
        {"env_NCCL_P2P_DISABLE": "1"},
        {"torch": "2.12.0"},
        {"torch_threads": "3"},  # a quarter fewer cores do not make it 1.8 times as slow
        {"cpu_quota": "6"},  # more than it has threads
        {"nice": "5"},  # nobody waits for a core
    ],
)
def test_a_setting_that_cannot_explain_it_leaves_the_cause_as_it_is(seed: int, changed: dict[str, str]) -> None:
    verdict = verdict_on([SlowCompute((2,), 1.8, "none")], seed, lambda all_: set_up(all_, [2], **changed))
    assert causes(verdict) == ["compute-slow"], verdict.summary


NEUTRAL = [
    {"env_LD_PRELOAD": "libjemalloc.so"},
    {"env_OMP_NUM_THREADS": "8"},
    {"env_OMP_PROC_BIND": "true"},
    {"env_KMP_AFFINITY": "granularity=fine,compact"},
    {"env_MALLOC_CHECK_": "0"},
    {"env_PYTHONMALLOC": "pymalloc"},
    {"memory_limit_gib": "8"},
]


@seeds
@pytest.mark.parametrize("changed", NEUTRAL)
def test_a_difference_of_which_nobody_knows_what_is_slower_is_told_and_not_accused(
    seed: int, changed: dict[str, str]
) -> None:
    verdict = verdict_on([SlowCompute((2,), 1.8, "none")], seed, lambda all_: set_up(all_, [2], **changed))
    assert causes(verdict) == ["compute-slow"], verdict.summary
    told = [one for one in verdict.findings[0].evidence if one.startswith("Settings differ there: ")]
    (name,) = changed
    assert len(told) == 1 and name.removeprefix("env_") in told[0] and "for worker 2" in told[0]


@seeds
def test_more_threads_than_cores_explain_it_only_where_threads_wait_for_a_core(seed: int) -> None:
    many = lambda all_: set_up(all_, [2], torch_threads="64")  # noqa: E731
    alone = {"per_host": 1}
    verdict = verdict_on([SlowCompute((2,), 1.8, "none")], seed, many, **alone)
    assert causes(verdict) == ["compute-slow"], verdict.summary
    verdict = verdict_on([SlowCompute((2,), 1.8, "run_queue_wait")], seed, many, **alone)
    assert causes(verdict) == ["misconfiguration"], verdict.summary
    some = lambda all_: set_up(all_, [2], torch_threads="8")  # noqa: E731
    verdict = verdict_on([SlowCompute((2,), 1.8, "run_queue_wait")], seed, some, **alone)
    assert "misconfiguration" not in causes(verdict), verdict.summary


@seeds
def test_a_loader_without_processes_of_its_own_explains_slow_loading(seed: int) -> None:
    verdict = verdict_on([SlowLoader((1,), 40)], seed, lambda all_: set_up(all_, [1], loader_workers="0"))
    found = verdict.cause
    assert found is not None and (found.cause, found.workers) == ("misconfiguration", (1,)), verdict.summary
    assert found.function.name == "_read_block"
    assert found.next_step.endswith(CATALOG["misconfiguration"].next_step)
    assert "is set up differently: num_workers of its DataLoader is 0, and 4 for the peers" in verdict.summary
    usual = verdict_on([SlowLoader((1,), 40)], seed, set_up)
    assert causes(usual) == ["slow-data-loading"]


@seeds
def test_a_switch_turned_on_since_the_healthy_window_explains_what_got_slower_for_all(seed: int) -> None:
    everybody = range(4)
    on = lambda all_: set_up(all_, everybody, anomaly_mode="on")  # noqa: E731
    verdict = verdict_on([SlowCompute((0, 1, 2, 3), 1.8, "none")], seed, on)
    found = verdict.cause
    assert found is not None and (found.cause, found.scope) == ("misconfiguration", "all"), verdict.summary
    always = verdict_on([SlowCompute((0, 1, 2, 3), 1.8, "none")], seed, on, then=on)
    assert causes(always) == ["compute-slow"], always.summary
    assert any("anomaly mode is on" in sentence for sentence in always.findings[0].evidence)


@seeds
def test_communication_settings_are_mentioned_beside_slow_communication_only(seed: int) -> None:
    blocked = lambda all_: set_up(all_, range(4), env_NCCL_P2P_DISABLE="1")  # noqa: E731
    verdict = verdict_on([SlowLink(40)], seed, blocked, then=blocked)
    assert causes(verdict) == ["slow-collective-everywhere"], verdict.summary
    assert any("NCCL_P2P_DISABLE=1" in sentence for sentence in verdict.findings[0].evidence)
    verdict = verdict_on([SlowPython(40)], seed, blocked, then=blocked)
    assert causes(verdict) == ["python-on-critical-path"]
    assert not any("NCCL_P2P_DISABLE" in sentence for sentence in verdict.findings[0].evidence)
