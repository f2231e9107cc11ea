"""How likely chance does as much: the exact sum beside a slow twin, and what follows for hosts and moments."""

from __future__ import annotations

import random
from itertools import product
from math import comb, prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eroica_fleet.evidence import Life, Naming, Onset, at_least
from eroica_fleet.findings import function_facts, host_facts, trend_facts

HOUR = 3600.0


def slowly(successes: int, probabilities: list[float]) -> float:
    """Every outcome there is."""
    total = 0.0
    for outcome in product((0, 1), repeat=len(probabilities)):
        if sum(outcome) >= successes:
            total += prod(p if hit else 1 - p for hit, p in zip(outcome, probabilities, strict=True))
    return total


@given(st.integers(0, 9), st.lists(st.floats(0, 1), max_size=8))
def test_the_sum_is_that_over_all_outcomes(successes: int, probabilities: list[float]) -> None:
    assert at_least(successes, probabilities) == pytest.approx(slowly(successes, probabilities), abs=1e-12)


def test_equal_probabilities_give_the_binomial() -> None:
    expected = sum(comb(300, k) * 0.01**k * 0.99 ** (300 - k) for k in range(10, 301))
    assert at_least(10, [0.01] * 300) == pytest.approx(expected, rel=1e-9)


def naming(run: int, host: str, at: float = 10.0, cause: str = "compute-slow") -> Naming:
    return Naming(run, host, frozenset({"GPU-1"}), frozenset({cause}), at, at)


def a_fleet(runs: int, hosts_per_run: int) -> tuple[dict[int, Life], dict[int, set[str]]]:
    """Runs of different jobs, one after the other; "busy" is in all of them."""
    lives = {run: Life(f"job{run}", 10.0 * run, 10.0 * run + 9) for run in range(runs)}
    hosts = {run: {"busy", *(f"h{(run * 7 + at) % 500}" for at in range(hosts_per_run - 1))} for run in range(runs)}
    return lives, hosts


def test_a_busy_host_is_no_bad_host() -> None:
    lives, hosts = a_fleet(200, 8)
    named = [naming(run, sorted(hosts[run])[run % len(hosts[run])]) for run in lives]
    facts = {fact.host: fact for fact in host_facts(named, hosts, lives, {})}
    busy = facts["busy"]
    assert busy.named > 15
    assert busy.named == max(fact.named for fact in facts.values())
    assert busy.expected == pytest.approx(25, abs=1)
    assert not any(fact.suspicious for fact in facts.values())


def test_a_bad_host_is_told_from_a_busy_one() -> None:
    lives, hosts = a_fleet(200, 8)
    with_bad = [run for run in lives if "h42" in hosts[run]]
    assert 1 < len(with_bad) < 10
    named = [naming(run, "h42" if run in with_bad else sorted(hosts[run])[run % len(hosts[run])]) for run in lives]
    facts = host_facts(named, hosts, lives, {})
    assert [fact.host for fact in facts if fact.suspicious] == (["h42"] if facts[0].of_any < 0.01 else [])
    assert facts[0].host == "h42"
    assert facts[0].named == facts[0].runs == len(with_bad)


def test_jobs_of_one_host_say_nothing_of_it() -> None:
    lives = {run: Life(f"job{run}", 0, 9) for run in range(50)}
    named = [naming(run, "alone") for run in lives]
    fact = host_facts(named, {run: {"alone"} for run in lives}, lives, {})[0]
    assert (fact.chance, fact.suspicious) == (1.0, False)


def test_one_job_that_is_started_again_and_again_accuses_no_host() -> None:
    hosts = {run: {f"h{at}" for at in range(100)} for run in range(10)}
    lives = {run: Life("same", run, run + 1) for run in hosts}
    fact = host_facts([naming(run, "h0") for run in hosts], hosts, lives, {})[0]
    assert fact.of_any < 1e-9
    assert not fact.suspicious


def test_a_device_that_is_always_the_same_one_is_told_from_one_that_was_picked() -> None:
    lives = {run: Life(f"job{run}", 0, 9, 8.0) for run in range(6)}
    hosts = {run: {"bad", *(f"h{at}" for at in range(7))} for run in lives}
    named = [
        Naming(run, "bad", frozenset({"GPU-3", "GPU-7"} if run == 0 else {"GPU-3"}), frozenset({"c"}), 5.0, 5.0)
        for run in lives
    ]
    (fact,) = host_facts(named, hosts, lives, {})
    assert fact.devices == {"GPU-3": 6, "GPU-7": 1}
    assert fact.device_chances["GPU-3"] == pytest.approx(8 * (2 / 8) * (1 / 8) ** 5)
    assert fact.device_chances["GPU-7"] == 1.0
    alone = {run: Life(f"job{run}", 0, 9) for run in lives}
    assert host_facts(named, hosts, alone, {})[0].device_chances["GPU-3"] == 1.0, "it has no other"


def test_a_repair_lets_a_host_begin_anew_and_says_when_it_is_named_again() -> None:
    hosts = {run: {f"h{at}" for at in range(100)} for run in range(10)}
    lives = {run: Life(f"job{run}", 100.0 * run, 100.0 * run + 90) for run in hosts}
    early = [naming(run, "h0", 100.0 * run + 5) for run in range(5)]
    mended = host_facts(early, hosts, lives, {"h0": 495.0})[0]
    assert (mended.named, mended.again, mended.suspicious) == (0, False, False)
    late = [naming(run, "h0", 100.0 * run + 5) for run in (7, 8, 9)]
    again = host_facts(early + late, hosts, lives, {"h0": 495.0})[0]
    assert (again.named, again.again, again.suspicious) == (3, True, True)


def test_a_host_that_one_run_named_before_and_after_its_repair_is_named_again() -> None:
    hosts = {run: {f"h{at}" for at in range(100)} for run in range(3)}
    lives = {run: Life(f"job{run}", 0.0, 1000.0) for run in hosts}
    both = [Naming(run, "h0", frozenset(), frozenset({"compute-slow"}), 100.0, 900.0) for run in hosts]
    fact = host_facts(both, hosts, lives, {"h0": 500.0})[0]
    assert (fact.named, fact.again) == (3, True)
    assert not host_facts(both, hosts, lives, {"h0": 50.0})[0].again


def onset(run: int, at: float, cause: str = "slow-storage-read", function: str = "read") -> Onset:
    return Onset(run, cause, function, at, at, 0.2)


def test_a_cause_that_began_for_many_at_one_moment_is_found() -> None:
    lives = {run: Life(f"job{run}", 100.0 * run, 100 * HOUR) for run in range(40)}
    scattered = [onset(run, (5 + 4.5 * run) * HOUR) for run in range(20)]
    assert trend_facts(scattered, lives) == []
    together = [onset(run, 50 * HOUR + 30 * run) for run in range(20, 28)]
    facts = trend_facts(scattered + together, lives)
    assert len(facts) == 1
    fact = facts[0]
    assert (fact.cause, fact.function, fact.running) == ("slow-storage-read", "read", 40)
    assert fact.jobs >= 8
    assert fact.began_at == pytest.approx(50 * HOUR, abs=HOUR)
    assert fact.chance < 1e-6


def test_causes_that_come_again_and_again_are_no_moment_though_all_jobs_were_started_at_once() -> None:
    """First sightings of what recurs pile up after a common start."""
    chance = random.Random(3)
    lives = {run: Life(f"job{run}", 0.0, 100 * HOUR) for run in range(400)}
    first = [onset(run, 0.3 * HOUR + chance.expovariate(1 / (2 * HOUR))) for run in lives]
    assert trend_facts(first, lives) == []


def test_what_was_there_from_the_start_did_not_begin_for_everybody() -> None:
    lives = {run: Life(f"job{run}", 1000.0, 100 * HOUR) for run in range(20)}
    assert trend_facts([onset(run, 1060.0) for run in lives], lives) == []


def test_a_cause_that_a_run_had_before_the_days_asked_for_did_not_begin_in_them() -> None:
    """Not even where another function has it since."""
    lives = {run: Life(f"job{run}", 0.0, 100 * HOUR) for run in range(20)}
    before = [onset(run, (10 + run) * HOUR, function="open") for run in lives]
    since = [onset(run, 90 * HOUR + 30 * run) for run in lives]
    assert trend_facts(since, lives, 80 * HOUR)
    assert trend_facts(before + since, lives, 80 * HOUR) == []


def test_a_function_counts_by_jobs_not_by_runs() -> None:
    lives = {run: Life(f"job{run // 5}", 0, 9) for run in range(15)}
    found = function_facts([onset(run, 5, "python-on-critical-path", "library.step") for run in range(10)], lives)
    assert [(fact.function, fact.jobs, fact.runs, fact.of_jobs) for fact in found] == [("library.step", 2, 10, 3)]
    assert function_facts([onset(run, 5, function="own.step") for run in range(5)], lives) == []
