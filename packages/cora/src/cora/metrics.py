"""Prometheus: counters of a run, on 127.0.0.1."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, Metric


class _Counters:
    """Turns the newest counters into metrics."""

    def __init__(self) -> None:
        self.newest: dict[str, Any] = {}

    def collect(self) -> Iterator[Metric]:
        help_text = "Packets by tier and what became of them."
        packets = CounterMetricFamily("cora_packets", help_text, labels=("tier", "what"))
        for tier in ("fast", "slow"):
            for what, count in self.newest.get(tier, {}).items():
                if what != "bytes":
                    packets.add_metric((tier, what), count)
        yield packets
        yield CounterMetricFamily("cora_bytes", "Bytes that came in.", self.newest.get("fast", {}).get("bytes", 0))
        yield CounterMetricFamily("cora_replans", "Re-plans.", self.newest.get("replans", 0))
        yield CounterMetricFamily("cora_moved_keys", "Keys moved between tiers.", self.newest.get("moved", 0))


def serve(port: int) -> Callable[[dict[str, Any]], None]:
    """Serve metrics and return what takes new counters."""
    counters, registry = _Counters(), CollectorRegistry()
    registry.register(counters)
    start_http_server(port, "127.0.0.1", registry)
    return counters.newest.update
