"""Writes the records that agents would send of a rehearsed job's connections: one of each host a second.

Iterations come from the replay. Connections are made: rings in the order of the group, messages from sender to
receiver, a byte waiting as long as its link's class, and what is left of it, lets it. Records are JSON lines in the
shape of `eroica_c4d`'s `HostRecord`; times are those of the job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from prismllm.costs import Costs
from prismllm.graph import Graph
from prismllm.replay import Iteration
from prismllm.whatif import Change, Cut, Network

Record = dict[str, Any]


@dataclass(frozen=True)
class Span:
    """A part of the job's life, in which some replayed iterations repeat.

    Of a standstill, `iterations` is the one that never ends.
    """

    iterations: Sequence[Iteration]
    changes: Sequence[Change] = ()
    seconds: float = 40.0


def write_records(graph: Graph, costs: Costs, spans: Sequence[Span], path: Path) -> int:
    """Write the records of spans, one after the other; return how many.

    A line of the file is a JSON object: `at` (seconds), `host`, `iterations` (rank -> completed), `record`.
    """
    encoder, count = msgspec.json.Encoder(), 0
    at, done = 0.0, 0
    with path.open("wb") as file:
        for span in spans:
            cycle = _Cycle(graph, span.iterations)
            flows = {} if cycle.is_endless else _flows(graph, costs, span, cycle.period_s / len(span.iterations))
            for second in range(1, int(span.seconds) + 1):
                for host, iterations in cycle.iterated(float(second), done):
                    record = {"interval_s": 1.0, "flows": flows.get(host, [])}
                    row = {"at": at + second, "host": f"host{host}", "iterations": iterations, "record": record}
                    file.write(encoder.encode(row) + b"\n")
                    count += 1
            at += int(span.seconds)
            if not cycle.is_endless:
                done += int(span.seconds / cycle.period_s * len(span.iterations))
    return count


class _Cycle:
    """Iterations that repeat, rank by rank; seconds from their begin."""

    def __init__(self, graph: Graph, iterations: Sequence[Iteration]) -> None:
        self.graph, self.count = graph, len(iterations)
        self.begin_s = min(float(track.begin_s.min()) for track in iterations[0].tracks)
        began, ended = (np.concatenate([getattr(track, name) for track in one.tracks])
                        for one, name in ((iterations[0], "begin_s"), (iterations[-1], "end_s")))  # fmt: skip
        self.is_endless = not bool(np.isfinite(ended).all())
        self.period_s = float("inf") if self.is_endless else float((ended - began).mean())
        self.iterations = iterations

    def iterated(self, now_s: float, done: int) -> Iterator[tuple[int, dict[int, int]]]:
        """Each host's ranks, and how many iterations each has completed, `done` of them before this span began."""
        whole = 0 if self.is_endless else int(now_s // self.period_s)
        rest_s = self.begin_s + (now_s if self.is_endless else now_s % self.period_s)
        hosts: dict[int, dict[int, int]] = defaultdict(dict)
        for number, track in enumerate(self.iterations[0].tracks):
            ends = np.sum([one.tracks[number].end_s <= rest_s for one in self.iterations], axis=0)
            for at, rank in enumerate(track.block.ranks.tolist()):
                hosts[rank // self.graph.job.local_world][rank] = done + whole * self.count + int(ends[at])
        yield from sorted(hosts.items())


def _flows(graph: Graph, costs: Costs, span: Span, iteration_s: float) -> dict[int, list[Record]]:
    """Connections of each host in a second: sender and receiver of each have one, and both ends tell of it."""
    bytes_of: dict[tuple[int, int], list[float]] = defaultdict(list)
    for operation, call in enumerate(graph.call_of.tolist()):
        op, nbytes, family = graph.calls[call]
        if family < 0:
            bytes_of[int(graph.pair[operation, 0]), int(graph.pair[operation, 1])].append(nbytes)
            continue
        ranks = graph.layout.families[family][graph.row_of[operation]].tolist()
        each = nbytes * (len(ranks) - 1) / len(ranks) * (2 if op == "all_reduce" else 1)
        for at, rank in enumerate(ranks if len(ranks) > 1 and nbytes else []):
            bytes_of[rank, ranks[(at + 1) % len(ranks)]].append(each)
    local = graph.job.local_world
    flows: dict[int, list[Record]] = defaultdict(list)
    for (source, target), sizes in bytes_of.items():
        ends = source // local, target // local
        link = costs.host if ends[0] == ends[1] else costs.net
        left = _left(span.changes, ends) if ends[0] != ends[1] else 1.0
        rate = link.bytes_per_s * left
        sent = sum(sizes) / iteration_s
        busy_s = min(1.0, (sum(sizes) / rate + len(sizes) * link.latency_s) / iteration_s)
        # a byte waits for those before it in its message, and for the way; what the way does not hold is unsent
        waiting = sum(size * (size / rate / 2 + link.latency_s) for size in sizes) / iteration_s
        unsent = (
            sum(size * size / rate / 2 * max(0.0, 1 - rate * link.latency_s / size) for size in sizes) / iteration_s
        )
        one, other = f"{source} {target}", f"{target} {source}"
        flows[ends[0]].append({"worker": source, "local": one, "remote": other, "sent_bytes": int(sent),
                               "waiting_byte_s": waiting, "unsent_byte_s": unsent, "busy_s": busy_s})  # fmt: skip
        flows[ends[1]].append({"worker": target, "local": other, "remote": one, "received_bytes": int(sent),
                               "arriving_s": busy_s})  # fmt: skip
    return flows


def _left(changes: Sequence[Change], ends: tuple[int, int]) -> float:
    """Return the share of bandwidth that is left between two hosts, 0-1."""
    left = 1.0
    for change in changes:
        if isinstance(change, Cut) and change.host in ends and (change.other < 0 or change.other in ends):
            left *= change.by
        if isinstance(change, Network):
            left *= change.by
    return left
