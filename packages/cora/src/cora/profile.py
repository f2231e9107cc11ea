"""Profiles: what a program does with a trace.

The trace runs through the interpreter. A profile keeps, for each step, how often packets take it, and for each table
operation the hit share, the number of keys, their skew and working set. It also keeps the packets' classes: packets
with the same path whose keys have the same popularity rank bracket behave alike under every placement.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from cora.errors import BadInput
from cora.interpret import Interpreter, Key
from cora.packet import supported
from cora.program import Access, Branch, Program
from cora.traffic import Packet

#: Steps of a packet, as `Interpreter.visit` names them.
Run = list[tuple[int, bool, Key]]
#: Sizes of the fast part of a split table that plans may choose from, in entries.
SPLITS = (16, 64, 256, 1024, 4096, 16384)
#: Classes beyond this number are merged into the most frequent class of the same path.
MOST_CLASSES = 600


@dataclass(frozen=True)
class StepUse:
    """Use of a table operation by a trace.

    Attributes:
        step: Number of the step.
        table: Name of the table.
        share: Operations per packet, 0-1.
        hit_share: Share of operations that find an entry.
        keys: Distinct keys.
        working_set: Keys that matter: the exponential of the entropy of their popularity.
        skew: Fitted Zipf exponent; 0 for fewer than ten keys.
    """

    step: int
    table: str
    share: float
    hit_share: float
    keys: int
    working_set: float
    skew: float


@dataclass(frozen=True)
class PacketClass:
    """Packets with one path whose keys are in the same rank brackets.

    Attributes:
        weight: Share of all packets.
        steps: Steps of the path, in order.
        brackets: For each table operation, the index of the smallest split of `SPLITS` that holds the key;
            `len(SPLITS)` if none does.
    """

    weight: float
    steps: tuple[int, ...]
    brackets: tuple[int, ...]


@dataclass(frozen=True)
class Profile:
    """Steps and table operations of a program on a trace; see the module."""

    function: str
    packets: int
    unsupported: int
    duration_s: float
    rate_per_s: float
    mean_bytes: float
    burstiness: float
    visits: dict[int, float]
    taken: dict[int, float]
    uses: tuple[StepUse, ...]
    classes: tuple[PacketClass, ...]

    def use(self, step: int) -> StepUse | None:
        """Return how a table operation is used, or None if no packet came to it."""
        return next((use for use in self.uses if use.step == step), None)


def make_profile(program: Program, packets: Sequence[Packet], warm: float = 0.25) -> Profile:
    """Profile a program on packets in order of time.

    Args:
        program: The network function.
        packets: The trace.
        warm: Share of the trace that fills the tables first and is not counted, 0-1.
    """
    if not packets:
        raise BadInput("the trace has no packets of a supported kind")
    interpreter, skip = Interpreter(program), int(len(packets) * warm)
    runs: list[Run] = [[] for _ in packets]
    for packet, run in zip(packets, runs, strict=True):
        interpreter.visit = lambda *visit, run=run: run.append(visit)
        interpreter.run(packet.frame, packet.port, packet.time_ns)
    runs, counted = runs[skip:], len(packets) - skip
    visits = Counter(at for run in runs for at, _, _ in run)
    taken = Counter(at for run in runs for at, took, _ in run if took)
    steps = {at: step for at, step in enumerate(program.steps) if isinstance(step, Access)}
    keys: dict[int, Counter[Key]] = {at: Counter() for at in steps}
    counts: dict[str, Counter[Key]] = {name: Counter() for name in program.tables}
    for at, _, key in (visit for run in runs for visit in run if visit[0] in steps):
        keys[at][key] += 1
        counts[steps[at].table][key] += 1
    # Each key's rank by table, 0 being the most frequent.
    ranks = {name: {key: rank for rank, (key, _) in enumerate(one.most_common())} for name, one in counts.items()}
    branches = [at for at, step in enumerate(program.steps) if isinstance(step, Branch)]
    duration = max(1, packets[-1].time_ns - packets[skip].time_ns) / 1e9
    gaps = np.diff([packet.time_ns for packet in packets[skip:]]) if counted > 2 else np.array([1.0])
    return Profile(
        function=program.name,
        packets=counted,
        unsupported=sum(not supported(packet.frame) for packet in packets[skip:]),
        duration_s=duration,
        rate_per_s=counted / duration,
        mean_bytes=float(np.mean([len(packet.frame) for packet in packets])),
        burstiness=float(np.std(gaps) / max(np.mean(gaps), 1e-9)),
        visits={at: count / counted for at, count in sorted(visits.items())},
        taken={at: taken[at] / visits[at] for at in branches if visits[at]},
        uses=tuple(_use(at, steps[at].table, found, taken[at], counted) for at, found in keys.items() if found),
        classes=tuple(_classes(steps, runs, ranks, counted)),
    )


def _use(at: int, table: str, keys: Counter[Key], hits: int, counted: int) -> StepUse:
    counts = np.array(sorted(keys.values(), reverse=True), dtype=float)
    share = counts / counts.sum()
    return StepUse(
        step=at,
        table=table,
        share=float(counts.sum() / counted),
        hit_share=float(hits / counts.sum()),
        keys=len(counts),
        working_set=float(np.exp(-(share * np.log(share)).sum())),
        skew=zipf_exponent(counts),
    )


def zipf_exponent(counts: np.ndarray) -> float:
    """Return the maximum-likelihood Zipf exponent of key counts in falling order: float [keys]."""
    if len(counts) < 10:
        return 0.0
    log_rank = np.log(np.arange(1, len(counts) + 1))
    target = float((counts * log_rank).sum() / counts.sum())
    low, high = 0.0, 4.0
    for _ in range(40):
        middle = (low + high) / 2
        weights = np.exp(-middle * log_rank)
        low, high = (middle, high) if (weights * log_rank).sum() / weights.sum() > target else (low, middle)
    return low


def _classes(
    steps: dict[int, Access], runs: Iterable[Run], ranks: dict[str, dict[Key, int]], counted: int
) -> list[PacketClass]:
    found: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    for run in runs:
        brackets = tuple(
            # A key that is not in its table yet is created by the slow tier, whatever its rank will be.
            bisect_right(SPLITS, ranks[steps[at].table][key]) if hit else len(SPLITS)
            for at, hit, key in run
            if at in steps
        )
        found[(tuple(at for at, _, _ in run), brackets)] += 1
    kept = dict(found.most_common(MOST_CLASSES))
    first = {path: (path, brackets) for path, brackets in reversed(kept)}
    for one, count in found.most_common()[MOST_CLASSES:]:
        kept[first.get(one[0], next(iter(kept)))] += count
    return [PacketClass(count / counted, path, brackets) for (path, brackets), count in kept.items()]
