"""Writes the records that agents would send of a rehearsed job's communication: one of each host a second.

Operations come from the replay: how far each rank is in each group, and how many of some random events lie inside a
collective. Connections are made: rings in the order of the group, messages from sender to receiver, a byte waiting as
long as its link's class, and what is left of it, lets it. Records are JSON lines in the shape of Eroica's
`HostCommunication`; times are those of the job.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from prismllm.costs import Costs
from prismllm.graph import Graph
from prismllm.replay import Iteration
from prismllm.whatif import Change, Cut, Network

Floats = NDArray[np.float64]
Record = dict[str, Any]


@dataclass(frozen=True)
class Span:
    """A part of the job's life, in which some replayed iterations repeat.

    Attributes:
        iterations: Replayed one after the other; of a standstill the one that never ends.
        changes: In force meanwhile.
        seconds: How long it is.
    """

    iterations: Sequence[Iteration]
    changes: Sequence[Change] = ()
    seconds: float = 40.0


def write_records(
    graph: Graph, costs: Costs, spans: Sequence[Span], path: Path, *, asks: int = 3, seed: int = 1
) -> int:
    """Write a file of records.

    Args:
        graph: Of the job.
        costs: Of links.
        spans: One after the other; iterations are counted on.
        path: File, a JSON object a line: `at` (seconds), `host`, `iterations` (rank -> completed), `record`.
        asks: Events at which a rank is asked in a second.
        seed: Of these events.

    Returns:
        How many records.
    """
    random, encoder, count = np.random.default_rng(seed), msgspec.json.Encoder(), 0
    at, done = 0.0, 0
    with path.open("wb") as file:
        for number, span in enumerate(spans):
            cycle = _Cycle(graph, span.iterations)
            flows = {} if cycle.is_endless else _flows(graph, costs, span, cycle.period_s / len(span.iterations))
            for second in range(1, int(span.seconds) + 1):
                for host, row in cycle.tell(float(second), done, asks, random):
                    row["record"] |= {"interval_s": 1.0, "flows": flows.get(host, [])}
                    if number == 0 and second == 1:
                        row["record"]["groups"] = _groups(graph, host)
                    file.write(encoder.encode({"at": at + second, "host": f"host{host}"} | row) + b"\n")
                    count += 1
            at += int(span.seconds)
            if not cycle.is_endless:
                done += int(span.seconds / cycle.period_s * len(span.iterations))
    return count


class _Cycle:
    """Iterations that repeat, rank by rank: when collectives are entered and completed; seconds from their begin."""

    def __init__(self, graph: Graph, iterations: Sequence[Iteration]) -> None:
        self.graph, self.count = graph, len(iterations)
        self.begin_s = min(float(track.begin_s.min()) for track in iterations[0].tracks)
        began, ended = (np.concatenate([getattr(track, name) for track in one.tracks])
                        for one, name in ((iterations[0], "begin_s"), (iterations[-1], "end_s")))  # fmt: skip
        self.is_endless = not bool(np.isfinite(ended).all())
        self.period_s = float("inf") if self.is_endless else float((ended - began).mean())
        self.iterations = iterations

    def tell(self, now_s: float, done: int, asks: int, random: np.random.Generator) -> Iterator[tuple[int, Record]]:
        """Each host's record of the second that ends now.

        Args:
            now_s: Since this span began.
            done: Iterations before it.
            asks: Events at which each rank is asked.
            random: Draws them.
        """
        whole = 0 if self.is_endless else int(now_s // self.period_s)
        rest_s = self.begin_s + (now_s if self.is_endless else now_s % self.period_s)
        moments_s = self.begin_s + (now_s - random.random(asks) if self.is_endless
                                    else random.random(asks) * self.period_s)  # fmt: skip
        hosts: dict[int, Record] = defaultdict(lambda: {"iterations": {}, "record": {"workers": []}})
        for number in range(len(self.iterations[0].tracks)):
            for rank, row, completed in self._ranks(number, rest_s, moments_s, done + whole * self.count):
                host = hosts[rank // self.graph.job.local_world]
                host["iterations"][rank] = completed
                host["record"]["workers"].append({"worker": rank, "asked": asks, "answered": asks, "state": "S"} | row)
        yield from sorted(hosts.items())

    def _ranks(self, number: int, rest_s: float, moments_s: Floats, before: int) -> Iterator[tuple[int, Record, int]]:
        layout, classes = self.graph.layout, self.graph.job.classes
        tracks = [one.tracks[number] for one in self.iterations]
        block, calls = tracks[0].block, classes[tracks[0].block.rank_class].step.calls
        each = Counter(layout.family_of(call.group) for call in calls if not call.is_pairwise)
        entered = {family: np.zeros(len(block.ranks), np.int64) for family in each}
        completed = {family: np.zeros(len(block.ranks), np.int64) for family in each}
        inside = np.zeros((len(moments_s), len(block.ranks)), np.int64)
        for track, iteration in zip(tracks, self.iterations, strict=True):
            opens = np.zeros_like(inside, bool)
            for place, call in enumerate(calls):
                if call.is_pairwise:
                    continue
                family = layout.family_of(call.group)
                at_s, done_s = track.at_s[track.launches[place]], iteration.done_s[block.operations[place]]
                entered[family] += at_s <= rest_s
                completed[family] += done_s <= rest_s
                opens |= (at_s <= moments_s[:, None]) & (moments_s[:, None] < done_s)
            inside += opens
        ends = np.sum([track.end_s <= rest_s for track in tracks], axis=0)
        for at, rank in enumerate(block.ranks.tolist()):
            counts = [{"group": str(layout.group_of(family, rank)),
                       "entered": before * n + int(entered[family][at]) - 1,
                       "completed": before * n + int(completed[family][at]) - 1}
                      for family, n in each.items()]  # fmt: skip
            yield rank, {"inside": int(inside[:, at].sum()), "counts": counts}, before + int(ends[at])


def _groups(graph: Graph, host: int) -> list[Record]:
    local = graph.job.local_world
    return [{"name": str(number), "description": group.description or "group", "ranks": group.ranks}
            for number, group in enumerate(graph.job.groups)
            if any(rank // local == host for rank in group.ranks)]  # fmt: skip


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
