"""Traffic between the hosts of a synthetic fleet: a ring in which data waits where a link is slow."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from eroica.model.pattern import LinkUse

_BYTES = 1e6
_RATE = 400e6


def synthesize_links(
    shape: tuple[int, int], per_host: int, seed: int, slow_us: Mapping[int, float], window_s: float
) -> dict[int, tuple[LinkUse, ...]]:
    """Links of each worker.

    The last worker of each host sends a megabyte an iteration to the first one of the next host. Over the link of a
    slow host it is under way for 70 to 100 % of what the link costs, in either direction; elsewhere for milliseconds.

    Args:
        shape: Workers and iterations.
        per_host: Workers of a host.
        seed: Of the noise, which is not the fleet's own.
        slow_us: Host -> what its link costs per iteration, microseconds.
        window_s: Length of the window.
    """
    workers, iterations = shape
    hosts = -(-workers // per_host)
    if hosts < 2:
        return {}
    noise = np.random.default_rng(seed)
    found: dict[tuple[int, int], LinkUse] = {}
    for source in range(hosts):
        target = (source + 1) % hosts
        cost_us = max(slow_us.get(source, 0.0), slow_us.get(target, 0.0))
        healthy_us = _BYTES / (_RATE * np.exp(noise.normal(0, 0.3))) * 1e6
        busy_s = min(float(iterations * max(cost_us * noise.uniform(0.7, 1.0), healthy_us)) / 1e6, window_s)
        sender, receiver = min((source + 1) * per_host, workers) - 1, target * per_host
        sent = _use(found, sender, source, target)
        found[sender, target] = msgspec.structs.replace(
            sent,
            sent_bytes=_BYTES * iterations,
            busy_s=busy_s,
            queued_bytes=150e3 if cost_us else 2e3,
            rtt_s=0.02 if cost_us else 2e-4,
        )
        got = _use(found, receiver, target, source)
        found[receiver, source] = msgspec.structs.replace(got, received_bytes=_BYTES * iterations)
    links: dict[int, tuple[LinkUse, ...]] = {}
    for (owner, _), use in sorted(found.items()):
        links[owner] = (*links.get(owner, ()), use)
    return links


def _use(found: Mapping[tuple[int, int], LinkUse], worker: int, here: int, there: int) -> LinkUse:
    return found.get((worker, there)) or LinkUse(local=f"10.0.0.{here + 1}", remote=f"10.0.0.{there + 1}")
