"""Prometheus metrics of the gateway. Labels come from profiles with enough runs and from the configuration only."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """All metrics, in a registry of their own."""

    def __init__(self) -> None:
        r = self.registry = CollectorRegistry()
        names = ("workflow", "role")
        self.requests = Counter("pythia_requests", "Requests by status class", ["status"], registry=r)
        self.steps = Counter("pythia_steps", "Completed requests with identifiers", names, registry=r)
        self.wait = Histogram("pythia_wait_seconds", "Wait in the gateway", registry=r, buckets=SECONDS)
        self.ttft = Histogram("pythia_first_byte_seconds", "Arrival to first byte", registry=r, buckets=SECONDS)
        self.in_flight = Gauge("pythia_in_flight", "Requests at a replica", ["replica"], registry=r)
        self.reserved = Gauge("pythia_reserved_tokens", "Tokens reserved by bounds", ["replica"], registry=r)
        self.waiting = Gauge("pythia_waiting", "Requests that wait in the gateway", registry=r)
        self.bounds = Counter("pythia_bounds", "Answers with a predicted bound", ["workflow"], registry=r)
        self.missed = Counter("pythia_bound_misses", "Answers beyond their predicted bound", ["workflow"], registry=r)
        self.hits = Counter("pythia_next_role", "Whether the likeliest role came", ["workflow", "hit"], registry=r)
        self.changes = Counter("pythia_workflow_changes", "Noticed changes of a workflow", ["workflow"], registry=r)
        self.prompt = Counter("pythia_prompt_tokens", "Prompt tokens, as engines report them", registry=r)
        self.cached = Counter("pythia_cached_tokens", "Prompt tokens from a cache, as engines report them", registry=r)
        self.expected = Gauge("pythia_expected_requests", "Requests expected within the horizon", ["model"], registry=r)
        self.actual = Gauge("pythia_actual_requests", "Requests waiting or running", ["model"], registry=r)
        self.replicas = Gauge("pythia_replicas", "Replicas by state", ["model", "state"], registry=r)
        self.hints = Counter("pythia_hints", "Hints sent to engines", ["kind"], registry=r)
        self.dry = Counter("pythia_dry_run", "What a dry run would have done", ["decision"], registry=r)
