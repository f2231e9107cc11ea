"""Composes the clients' streams into one, block by block, in bounded memory and on any number of processes.

`plan` turns a workload and a pool into blocks of time. `stream` yields one Arrow table per block, sorted by time. A
block's content depends only on the seed, the clients' names and the clients' state at its start. With several
processes, a first pass over the gaps alone finds these states; then the processes draw different blocks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from servegen.arrivals import LENGTHS, SESSIONS, US, Block, State, client_key, exact, first_state, generator, renewal
from servegen.errors import BadRequest
from servegen.lengths import Column, draw_lengths, draw_turns, grow, joined, parse_coupling, pick
from servegen.parallel import map_ordered
from servegen.pool import Floats, Pool
from servegen.workload import Workload

#: Requests that a block holds on average at most, all clients together. It bounds the memory.
BLOCK_REQUESTS = 150_000


@dataclass(frozen=True)
class Plan:
    """What `stream` needs, made by `plan`."""

    workload: Workload  #: The workload
    pool: Pool  #: The pool, without clients that lack histograms
    #: Rate changes: seconds from the workload's start, and total rate (NaN: the pool's own)
    steps: tuple[tuple[float, float], ...]
    keys: tuple[int, ...]  #: Each client's number for seeding. [C]
    emitted: NDArray[np.int64]  #: Which clients are emitted. [C]
    notes: tuple[str, ...]  #: What a user should know: clients left out, windows without clients

    @property
    def seconds(self) -> float:
        """Return the workload's length."""
        return self.workload.hours * 3600

    def rates(self, time_s: float) -> Floats:
        """Return each client's rate at a time, 0 for all if no client is active. [C]."""
        weights = self.pool.rate[:, self._window(time_s)]
        total = next(rate for start, rate in reversed(self.steps) if start <= time_s)
        if math.isnan(total):
            return weights
        active = weights.sum()
        return weights * (total / active) if active > 0 else np.zeros_like(weights)

    def _window(self, time_s: float) -> int:
        pool_s = self.workload.start_hour * 3600 + time_s
        return int(pool_s // self.pool.window_s) % self.pool.windows

    def spans(self) -> Iterator[tuple[float, float]]:
        """Yield the stretches of time without a change of rates, as (start, end) in seconds."""
        offset = self.workload.start_hour * 3600
        window = self.pool.window_s
        windows = range(int(offset // window) + 1, int((offset + self.seconds) // window) + 1)
        edges = {0.0, self.seconds, *(start for start, _ in self.steps), *(w * window - offset for w in windows)}
        yield from itertools.pairwise(sorted(edge for edge in edges if 0 <= edge <= self.seconds))

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks in order of time."""
        turns = self.workload.sessions.mean_turns if self.workload.sessions else 1.0
        for start, end in self.spans():
            window = self._window(start)
            rate = self.rates(start) / turns
            pieces = max(math.ceil(rate.sum() * turns * (end - start) / BLOCK_REQUESTS), 1)
            pieces = 1 if self.workload.counts == "exact" else pieces
            edges = np.rint(np.linspace(start, end, pieces + 1) * US).astype(int).tolist()
            process, shape = self.pool.process[:, window], self.pool.shape[:, window]
            for low, high in itertools.pairwise(edges):
                yield Block(low, high - low, window * self.pool.window_s, rate, process, shape)


def plan(workload: Workload, pool: Pool) -> Plan:
    """Check a workload against its pool and return what `stream` needs.

    Raises:
        BadRequest: The workload reaches beyond the pool's end, names an unknown client, or nothing is left.
    """
    coupling = parse_coupling(workload.coupling)
    notes: list[str] = []
    end = workload.start_hour * 3600 + workload.hours * 3600
    if end > pool.span_s and not workload.repeat:
        hours = f"hours {workload.start_hour:g} to {end / 3600:g}"
        span = f"reach beyond the pool's {pool.span_s / 3600:g} hours"
        raise BadRequest(f"{hours} {span}; shorten the workload or use --repeat")
    lacking, share = pool.without_lengths()
    if lacking:
        whose = f"{lacking} clients without length histograms ({share:.0%} of the pool's requests)"
        notes.append(f"left out {whose}; with --rate, the others take over their share")
        pool = pool.only(pool.complete())
    if workload.sessions and coupling[0] == "comonotone":
        notes.append("turns of one conversation draw their lengths independently of each other")
    number = {name: c for c, name in enumerate(pool.clients)}
    for name in workload.only_clients:
        if name not in number:
            raise BadRequest(f"the pool has no client {name!r} with histograms; `servegen show` lists its clients")
    rate = workload.rate
    steps = tuple(rate) if isinstance(rate, list) else ((0.0, math.nan if rate is None else rate),)
    if not steps or steps[0][0] != 0 or any(b[0] <= a[0] for a, b in itertools.pairwise(steps)):
        raise BadRequest("the seconds of rate steps must begin at 0 and rise")
    emitted = [number[name] for name in dict.fromkeys(workload.only_clients)] or list(range(len(pool.clients)))
    made = Plan(workload, pool, steps, tuple(map(client_key, pool.clients)), np.array(sorted(emitted)), ())
    silent = sum(end - start for start, end in made.spans() if not made.rates(start).any())
    if silent:
        notes.append(f"no client is active in {silent / 3600:.2f} of {workload.hours:g} hours; these stay empty")
    return replace(made, notes=tuple(notes))


def stream(made: Plan, processes: int = 1) -> Iterator[pa.Table]:
    """Yield the workload's requests, one table per block, sorted by time.

    Columns: time_us, client, input_tokens, output_tokens; with reasoning pools reasoning_tokens; with multimodal pools
    text_tokens and a list of item sizes per modality; with sessions session, turn and, if set, shared_tokens.
    """
    waiting: pa.Table | None = None
    for block, table in _tables(made, processes):
        if made.workload.sessions is None:
            yield table
            continue
        joined = table if waiting is None else pa.concat_tables([waiting, table])
        times = joined["time_us"].to_numpy()
        order = np.argsort(times, kind="stable")
        due = int(np.searchsorted(times[order], block.start_us + block.length_us))
        yield joined.take(order[:due])
        waiting = joined.take(order[due:])


def _tables(made: Plan, processes: int) -> Iterator[tuple[Block, pa.Table]]:
    state = first_state(made.workload.seed, [made.keys[c] for c in made.emitted])
    if processes <= 1:
        for block in made.blocks():
            table, state = _draw_block(made, (block, state))
            yield block, table
        return
    blocks = list(made.blocks())
    rows = np.array_split(np.arange(len(made.emitted)), min(processes * 2, len(made.emitted)))
    found = map_ordered(_states, (made, blocks), [(part, state[part]) for part in rows], processes)
    states = [np.concatenate(parts) for parts in zip(*found, strict=True)]
    drawn = map_ordered(_draw_block, made, zip(blocks, states, strict=True), processes)
    for block, (table, _) in zip(blocks, drawn, strict=True):
        yield block, table


def _states(shared: tuple[Plan, list[Block]], task: tuple[NDArray[np.int64], State]) -> list[State]:
    """Return the state of some clients at each block's start."""
    (made, blocks), (part, state) = shared, task
    clients = made.emitted[part]
    states = []
    for block in blocks:
        states.append(state)
        if made.workload.counts == "renewal":
            keys = [made.keys[c] for c in clients]
            _, state = renewal(made.workload.seed, keys, state, _part(block, clients))
    return states


def _part(block: Block, clients: NDArray[np.int64]) -> Block:
    return replace(block, rate=block.rate[clients], process=block.process[clients], shape=block.shape[clients])


def _draw_block(made: Plan, task: tuple[Block, State]) -> tuple[pa.Table, State]:
    (block, state), workload, clients = task, made.workload, made.emitted
    keys = [made.keys[c] for c in clients]
    if workload.counts == "exact":
        times = exact(workload.seed, keys, _part(block, clients))
    else:
        times, state = renewal(workload.seed, keys, state, _part(block, clients))
    coupling = parse_coupling(workload.coupling)
    parts: list[dict[str, Column]] = []
    for client, key, seconds in zip(clients, keys, times, strict=True):
        if parts and not len(seconds):
            continue
        turns = {"time_us": block.start_us + (seconds * US).astype(np.int64)}
        if workload.sessions is not None:
            chat = generator(workload.seed, SESSIONS, key, block.start_us)
            turns = draw_turns(workload.sessions, turns["time_us"], chat)
        size = len(turns["time_us"])
        rng = generator(workload.seed, LENGTHS, key, block.start_us)
        histograms = {field: column[client].at(block.pool_s) for field, column in made.pool.lengths.items()}
        drawn = draw_lengths(histograms, size, rng, coupling)
        columns = {"time_us": turns.pop("time_us"), "client": np.full(size, client, np.int32), **drawn, **turns}
        parts.append(columns if workload.sessions is None else grow(workload.sessions, columns))
    whole = {name: joined([part[name] for part in parts]) for name in parts[0]}
    # Requests of the same microsecond keep the order of their clients.
    order = np.argsort(whole["time_us"], kind="stable")
    table = {name: pa.array(pick(column, order)) for name, column in whole.items()}
    table["client"] = pa.DictionaryArray.from_arrays(table["client"], pa.array(made.pool.clients))
    return pa.table(table), state
