"""A discrete-event model of serving engines: iteration-level batching, chunked prefill, and a cache of KV blocks.

An iteration takes `fixed_s` plus a time per decoding sequence, per prefilled token and per cached token. Between two
events (an arrival, an end, a full cache) the batch does not change, so many iterations are taken in one step.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from servegen.files import read_file
from servegen.pool import Floats

NonNegative = Annotated[float, msgspec.Meta(ge=0)]
#: Times between tokens are counted in bins of this ratio, from LEAST_GAP_S on.
GAP_RATIO, LEAST_GAP_S, GAP_BINS = 1.01, 1e-5, 2000
#: Share of the cache that a new sequence must leave free, so that it is not preempted at once.
WATERMARK = 0.01
ROUTERS = ("round-robin", "least-requests")


class Engine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One instance's speed and size. Times in seconds."""

    fixed_s: NonNegative = 0.008  #: Time of an iteration by itself
    per_sequence_s: NonNegative = 0.0001  #: Time per decoding sequence of an iteration
    per_prefill_token_s: NonNegative = 0.00005  #: Time per prefilled token
    per_cached_token_s: NonNegative = 2e-8  #: Time per token in the cache of decoding sequences
    #: Time before the scheduler sees a request and after its first token, added to the TTFT
    overhead_s: NonNegative = 0.005
    batch_tokens: Annotated[int, msgspec.Meta(gt=0)] = 1024  #: Tokens of one iteration at most, decoded and prefilled
    sequences: Annotated[int, msgspec.Meta(gt=0)] = 256  #: Sequences of one iteration at most
    blocks: Annotated[int, msgspec.Meta(gt=0)] = 32_768  #: KV blocks
    block_tokens: Annotated[int, msgspec.Meta(gt=0)] = 16  #: Tokens of a block


def read_engine(path: Path) -> Engine:
    """Read an engine's YAML file.

    Raises:
        BadFile: The file is malformed.
    """
    return read_file(path, lambda data: msgspec.yaml.decode(data, type=Engine), "YAML of an engine")


@dataclass(frozen=True)
class Served:
    """What a fleet did with N requests."""

    ttft_s: Floats  #: Time to the first token, NaN for requests that were not served. float64 [N]
    per_token_s: Floats  #: Mean time per output token after the first, NaN for answers of one token. float64 [N]
    gaps: NDArray[np.int64]  #: Tokens per bin of the time between tokens. int64 [GAP_BINS]
    preempted: int  #: How often a sequence lost its cache to another
    given_up: bool = False  #: Whether the simulation stopped because too many requests were late

    def gap_quantile(self, q: float) -> float:
        """Return a quantile of the time between tokens, 0 if no answer has two."""
        total = self.gaps.sum()
        place = int(np.searchsorted(np.cumsum(self.gaps), q * total))
        return LEAST_GAP_S * GAP_RATIO ** (place + 0.5) if total else 0.0


class _Sequence:
    __slots__ = ("arrived", "cached", "ends", "first", "generated", "index", "last", "output", "prefill")

    def __init__(self, index: int, arrived: float, prompt: int, output: int) -> None:
        self.index, self.arrived, self.output = index, arrived, output
        self.prefill, self.cached, self.generated, self.ends = prompt, 0, 0, -1
        self.first = self.last = math.nan


class Instance:
    """One engine: requests go in with `add`, time goes on with `run`."""

    def __init__(self, engine: Engine, ttft_s: Floats, per_token_s: Floats) -> None:
        self.engine = engine
        self.now = 0.0
        self.waiting: deque[_Sequence] = deque()
        self.gaps = [0] * GAP_BINS
        self.preempted = 0
        self.outstanding = 0
        self._ttft, self._per_token = ttft_s, per_token_s
        self._running: list[tuple[int, int, _Sequence]] = []  # by the iteration in which each ends
        self._iteration = 0
        self._cached = 0
        self._decoding = 0
        self._free = engine.blocks * engine.block_tokens
        self._prefilling: _Sequence | None = None

    def add(self, index: int, arrived: float, prompt: int, output: int) -> None:
        """Queue a request; one that is longer than the cache is cut to it."""
        output = max(min(output, self._capacity() // 2), 1)
        room = self._capacity() - output - 2 * self.engine.block_tokens
        self.waiting.append(_Sequence(index, arrived, max(min(prompt, room), 1), output))
        self.outstanding += 1

    def run(self, until: float) -> None:
        """Take iterations until this time, or until nothing is left."""
        while self.now < until:
            due = bool(self.waiting) and (self.waiting[0].arrived <= self.now or not self._decoding)
            if self._prefilling is None and due:
                self.now = max(self.now, self.waiting[0].arrived)
                if self.now >= until:
                    return
                self._admit()
            if self._prefilling is not None:
                self._mixed_iteration()
            elif self._decoding:
                # A request that waits for room cannot enter before a sequence ends.
                arrival = self.waiting[0].arrived if self.waiting else math.inf
                self._decode(min(until, arrival if arrival > self.now else math.inf))
            else:
                return

    def _capacity(self) -> int:
        return self.engine.blocks * self.engine.block_tokens

    def _admit(self) -> None:
        reserve = WATERMARK * self._capacity() if self._decoding else 0
        if self._decoding < self.engine.sequences and self._need(self.waiting[0].prefill) + reserve <= self._free:
            self._prefilling = self.waiting.popleft()
            self._free -= self._need(self._prefilling.prefill)

    def _need(self, tokens: int) -> int:
        """Return the tokens that a sequence takes of the cache; half a block on average is not filled."""
        return tokens + self.engine.block_tokens // 2

    def _mixed_iteration(self) -> None:
        """Decode all sequences once and prefill waiting ones with what is left of the iteration."""
        engine, started, budget = self.engine, [], max(self.engine.batch_tokens - self._decoding, 1)
        spent = 0
        while self._prefilling is not None and spent < budget:
            sequence = self._prefilling
            chunk = min(sequence.prefill - sequence.cached, budget - spent)
            sequence.cached += chunk
            spent += chunk
            if sequence.cached < sequence.prefill:
                break
            started.append(sequence)
            self._prefilling = None
            room = self._decoding + len(started) < engine.sequences
            if room and self.waiting and self.waiting[0].arrived <= self.now:
                self._admit()
        took = self._step() + engine.per_prefill_token_s * spent
        self._advance(1, took)
        for sequence in started:
            self._start(sequence)

    def _start(self, sequence: _Sequence) -> None:
        if math.isnan(sequence.first):
            sequence.first = self.now
            self._ttft[sequence.index] = self.now - sequence.arrived + self.engine.overhead_s
        else:
            self._count(self.now - sequence.last, 1)
        sequence.generated += 1
        if sequence.generated >= sequence.output:
            self._finish(sequence)
            return
        sequence.ends = self._iteration + sequence.output - sequence.generated
        heapq.heappush(self._running, (sequence.ends, sequence.index, sequence))
        self._decoding += 1
        self._cached += sequence.cached

    def _step(self) -> float:
        engine = self.engine
        return engine.fixed_s + engine.per_sequence_s * self._decoding + engine.per_cached_token_s * self._cached

    def _decode(self, until: float) -> None:
        """Take iterations without prefill up to the next end, the next arrival or a full cache."""
        count, step = self._decoding, self._step()
        room = self._free // count
        if room < 1:
            self._preempt()
            return
        steps = min(self._running[0][0] - self._iteration, room)
        growth = self.engine.per_cached_token_s * count
        if until < math.inf:
            steps = min(steps, _iterations(until - self.now, step, growth))
        self._advance(steps, step * steps + growth * steps * (steps - 1) / 2)

    def _advance(self, steps: int, took: float) -> None:
        count = self._decoding
        self.now += took
        self._iteration += steps
        if not count:
            return
        self._count(took / steps, steps * count)
        self._cached += steps * count
        self._free -= steps * count
        while self._running and self._running[0][0] <= self._iteration:
            sequence = heapq.heappop(self._running)[2]
            self._leave(sequence)
            self._finish(sequence)
        if self._free < 0:
            self._preempt()

    def _count(self, gap_s: float, tokens: int) -> None:
        place = int(math.log(max(gap_s, LEAST_GAP_S) / LEAST_GAP_S) / math.log(GAP_RATIO))
        self.gaps[min(place, GAP_BINS - 1)] += tokens

    def _leave(self, sequence: _Sequence) -> None:
        done = sequence.output - sequence.generated - max(sequence.ends - self._iteration, 0)
        sequence.generated += done
        sequence.cached += done
        self._decoding -= 1
        self._cached -= sequence.cached

    def _finish(self, sequence: _Sequence) -> None:
        self._free += self._need(sequence.cached)
        self.outstanding -= 1
        if sequence.output > 1:
            self._per_token[sequence.index] = (self.now - sequence.first) / (sequence.output - 1)

    def _preempt(self) -> None:
        """Send the youngest sequence back to the queue; its tokens are prefilled again."""
        if len(self._running) < 2:
            return
        youngest = max(self._running, key=lambda entry: entry[2].arrived)
        self._running.remove(youngest)
        heapq.heapify(self._running)
        sequence = youngest[2]
        self._leave(sequence)
        self._free += self._need(sequence.cached)
        sequence.prefill, sequence.cached, sequence.last = sequence.cached, 0, self.now
        self.waiting.appendleft(sequence)
        self.preempted += 1


def _iterations(seconds: float, first: float, growth: float) -> int:
    """Return how many iterations it takes to fill so many seconds, each longer than the one before by `growth`."""
    linear = max(first - growth / 2, 1e-12)
    # The root of growth / 2 * n^2 + linear * n = seconds, in the form that also holds without growth.
    count = 2 * seconds / (linear + math.sqrt(linear * linear + 2 * growth * seconds))
    return max(math.ceil(count - 1e-9), 1)


def simulate(
    engine: Engine,
    instances: int,
    times_s: Floats,
    inputs: Sequence[int],
    outputs: Sequence[int],
    router: str = "round-robin",
    ttft_s: float = math.inf,
    most_late: float = 1.0,
) -> Served:
    """Serve requests on a fleet.

    Args:
        engine: The instances' speed and size.
        instances: Their number.
        times_s: Sorted arrival times. float64 [N]
        inputs: Input tokens. [N]
        outputs: Output tokens. [N]
        router: "round-robin", or "least-requests": the instance with the fewest unfinished requests.
        ttft_s: A first token after this counts as late.
        most_late: Share of late requests from which the simulation gives up, 0-1.
    """
    size = len(times_s)
    ttft, per_token = np.full(size, math.nan), np.full(size, math.nan)
    fleet = [Instance(engine, ttft, per_token) for _ in range(instances)]
    for i, (now, prompt, output) in enumerate(zip(np.asarray(times_s).tolist(), inputs, outputs, strict=True)):
        chosen = fleet[i % instances]
        if router == "least-requests":
            for instance in fleet:
                instance.run(now)
            chosen = min(fleet, key=lambda instance: instance.outstanding)
        chosen.add(i, now, int(prompt), int(output))
    given_up = False
    for instance in fleet:
        instance.run(math.inf)
        if given_up := int((ttft > ttft_s).sum()) > most_late * size:
            break
    gaps = np.array([instance.gaps for instance in fleet], np.int64).sum(axis=0)
    return Served(ttft, per_token, gaps, sum(instance.preempted for instance in fleet), given_up)
