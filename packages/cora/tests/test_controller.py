from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cora.controller import Controller, SplitTable

RATE, KEYS, ROOM = 50_000, 300, 24


def simulate(
    heavy: Callable[[float], int], seconds: float, skew: float = 1.2, seed: int = 1
) -> tuple[list[float], list[float], list[float]]:
    """Return times of re-plans, and for each tick the share of packets in the slow tier and the least possible one."""
    random = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, KEYS + 1) ** skew
    weights /= weights.sum()
    controller = Controller({"flows": SplitTable(ROOM, 1500.0)})
    fast: set[bytes] = set()
    replans, shares, best = [], [], []
    used, read_at = {}, 0.0
    for tick in range(int(seconds * 10)):
        now = tick / 10
        counts = random.multinomial(RATE // 10, np.roll(weights, heavy(now)))
        uses = [(int(key).to_bytes(4, "little"), float(count)) for key, count in enumerate(counts) if count]
        for key, count in uses:
            used[key] = used.get(key, 0.0) + count
        shares.append(sum(count for key, count in uses if key not in fast) / counts.sum())
        best.append(1 - float(np.sort(counts)[-ROOM:].sum() / counts.sum()))
        if not controller.due(now, 10 * sum(count for key, count in uses if key not in fast)):
            continue
        since = now + 0.1 - read_at
        slow = [(key, 4.0 * random.binomial(int(count), 0.25)) for key, count in used.items() if key not in fast]
        controller.observe_slow("flows", slow, since)
        controller.observe_fast("flows", [(key, used.get(key, 0.0)) for key in fast], since)
        used, read_at = {}, now + 0.1
        if replan := controller.decide(now):
            replans.append(now)
            fast -= set(replan.down["flows"])
            fast |= set(replan.up["flows"])
            assert len(fast) <= ROOM
    return replans, shares, best


def test_steady_traffic_causes_one_replan_or_two() -> None:
    replans, shares, best = simulate(lambda _: 0, 60)
    assert 1 <= len(replans) <= 2
    assert np.mean(shares[20:]) <= np.mean(best[20:]) + 0.05


def test_six_shifts_a_minute_cause_at_most_twelve_replans_and_are_followed_within_a_second() -> None:
    replans, shares, best = simulate(lambda now: 60 * int(now // 10), 60)
    assert 6 <= len(replans) <= 12
    for shift in range(10, 60, 10):
        after = slice(10 * shift + 10, 10 * shift + 95)
        assert np.mean(shares[after]) <= 1.2 * np.mean(best[after]) + 0.02


def test_periodic_traffic_causes_at_most_two_replans_a_minute_once_it_is_known() -> None:
    for period in (1.0, 4.0):
        replans, _, _ = simulate(lambda now, period=period: 150 * (int(now / period) % 2), 120)  # type: ignore[misc]
        assert sum(now > 60 for now in replans) <= 2, (period, replans)
        assert max(sum(now <= at < now + 60 for at in replans) for now in range(60)) <= 12
