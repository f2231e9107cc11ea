"""Adapter for the continuous batching of transformers 5.24: priorities, values of cached prefixes, counts.

This is the only module that touches transformers' internals, which are not promised to stay. `tests/test_engine.py`
checks every one of them that is used here.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching import scheduler as schedulers
from transformers.generation.continuous_batching.cache_allocators.cache_allocator import BlockLedger

from pythia.records import common, remember

#: Share of free blocks below which cached blocks are evicted.
MARGIN = 0.1
#: Requests, roles and values that are remembered.
MOST = 20_000


@dataclass
class Board:
    """What the server tells the scheduler, and what the scheduler counts.

    Attributes:
        requests: Of each request: its priority (lower goes first, as in vLLM), and the names of the prefixes that its
            blocks belong to (role, group).
        prefix: Per role: the tokens that its latest two prompts have in common at their beginning.
        values: Worth of cached prefixes; the least goes first. Empty: least recently used.
        hits: Prompt tokens of a request that were found in the cache.
        iterations: (decoding requests, prefilled tokens, cached tokens, seconds) of the latest iterations.
    """

    requests: OrderedDict[str, tuple[int, str, str]] = field(default_factory=OrderedDict)
    prefix: OrderedDict[str, list[int]] = field(default_factory=OrderedDict)
    last: OrderedDict[str, list[int]] = field(default_factory=OrderedDict)
    values: OrderedDict[str, float] = field(default_factory=OrderedDict)
    hits: OrderedDict[str, int] = field(default_factory=OrderedDict)
    preempted: int = 0
    evicted: int = 0
    iterations: deque[tuple[int, int, int, float]] = field(default_factory=lambda: deque(maxlen=20_000))

    def arrive(self, request: str, tokens: list[int], priority: int, role: str, group: str) -> None:
        """Register a request before it is added."""
        remember(self.requests, request, (priority, role, group), MOST)
        if role:
            before = self.last.get(role)
            if before is not None:
                same = tokens[: common(before, tokens)]
                remember(self.prefix, role, same or self.prefix.get(role, []), MOST // 20)
            remember(self.last, role, tokens, MOST // 20)

    def set_values(self, values: dict[str, float]) -> None:
        """Take new values of prefixes."""
        for name, value in values.items():
            remember(self.values, name, value, MOST)

    def urgency(self, request: str) -> int:
        """Return the priority of a request."""
        return self.requests.get(request, (0, "", ""))[0]


class _Ledger(BlockLedger):  # type: ignore[misc]
    """Evicts some cached blocks, least valuable first, where the original one evicts all of them."""

    def __init__(self, board: Board, wanted: Callable[[], int]) -> None:
        super().__init__()
        self.board, self.wanted = board, wanted
        self.names: dict[int, str] = {}

    def evict_cached_blocks(self) -> list[int]:
        """Return the evicted blocks."""
        values, names = self.board.values, self.names
        order = sorted(self.cached_blocks, key=lambda block: values.get(names.get(block, ""), 0.0))  # oldest first
        evicted = order[: self.wanted()]
        for block in evicted:
            del self.cached_blocks[block]
            self.hash_to_block.pop(self.block_to_hash.pop(block))
            names.pop(block, None)
        self.board.evicted += len(evicted)
        return evicted


def scheduler_class(board: Board) -> type:
    """Return a scheduler that orders waiting requests by priority and preempts the least urgent."""

    class PriorityScheduler(schedulers.FIFOScheduler):  # type: ignore[misc]
        def __init__(self, cache: Any, safety_margin: float | None, max_requests_per_batch: int) -> None:
            super().__init__(cache, MARGIN if safety_margin is None else safety_margin, max_requests_per_batch)
            self._since = (0.0, 0, 0, 0)
            for allocator in cache.cache_allocators.values():
                allocator.ledger = _Ledger(board, self._wanted)
                allocator.free_blocks = self._freeing(allocator)
            search = cache.search_prefix_match

            def searching(request_id: str, prompt_ids: list[int]) -> int:
                found = int(search(request_id, prompt_ids))
                remember(board.hits, request_id, max(board.hits.get(request_id, 0), found), MOST)
                return found

            cache.search_prefix_match = searching

        def _wanted(self) -> int:
            free = float(self.cache.compute_free_capacity())
            return 2 + max(0, math.ceil((float(self.safety_margin) - free) * int(self.cache.num_blocks)))

        @staticmethod
        def _freeing(allocator: Any) -> Callable[..., None]:
            def free_blocks(request_id: str, no_cache: bool = False) -> None:
                table = allocator.block_table.pop(request_id, [])
                _, role, group = board.requests.get(request_id, (0, "", ""))
                shared = len(board.prefix.get(role, ())) // allocator.tokens_per_page
                names = allocator.ledger.names
                freed = []
                for i in range(len(table) - 1, -1, -1):  # the end of a prefix is worth less than its beginning
                    names[table[i]] = role if i < shared else group
                    if allocator.ledger.release(table[i], no_cache):
                        freed.append(table[i])
                        names.pop(table[i], None)
                allocator.pool.free_blocks(allocator.index, freed)

            return free_blocks

        def add_waiting_request(self, state: Any) -> None:
            board.preempted += bool(state._true_initial_tokens or state.is_cpu_offloaded)
            super().add_waiting_request(state)

        def _get_waiting_candidates(self) -> list[Any]:
            free = self.max_requests_per_batch - len(self.active_requests)
            waiting = super()._get_waiting_candidates()
            waiting.sort(key=lambda state: board.urgency(state.request_id))
            return list(waiting[: max(0, free)])

        def schedule_batch(self, token_budget: int, cache_budget: int) -> Any:
            now = time.perf_counter()
            then, decoding, prefilled, cached = self._since
            if then:
                board.iterations.append((decoding, prefilled, cached, now - then))
            found = super().schedule_batch(token_budget, cache_budget)
            self.starved_requests.sort(key=lambda pair: board.urgency(pair[0].request_id))
            batch = found[0] or []
            decoding = sum(f.query_length == 1 for f in batch)
            cached = sum(f.state.current_len() for f in batch)
            self._since = (time.perf_counter() if batch else 0.0, decoding, found[2] - decoding, cached)
            return found

    return PriorityScheduler


def manager(model: Any, board: Board, *, slots: int, kv_tokens: int, batch_tokens: int, page: int = 16) -> Any:
    """Return a started manager of continuous batching whose scheduler reads the board."""
    name = f"pythia-{id(board)}"
    schedulers.SCHEDULER_MAPPING[name] = scheduler_class(board)
    generation = GenerationConfig(max_new_tokens=16, do_sample=False, eos_token_id=-1, pad_token_id=0)
    config = ContinuousBatchingConfig(
        page_size=page, num_blocks=kv_tokens // page, max_batch_tokens=batch_tokens, max_requests_per_batch=slots,
        scheduler_type=name, allow_block_sharing=True, use_async_batching=False,
    )  # fmt: skip
    made = model.init_continuous_batching(generation_config=generation, continuous_batching_config=config)
    made.start()
    return made
