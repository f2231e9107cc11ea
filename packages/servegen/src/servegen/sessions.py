"""Conversations of several turns. A client's arrivals start them; later turns follow after a log-normal time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from servegen.arrivals import US
from servegen.lengths import Drawn, Items
from servegen.workload import Sessions


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns of all conversations that one client starts in one block, conversation after conversation.

    Attributes:
        time_us: When each turn is sent. int64 [N]
        session: Number of its conversation, unique in the workload up to collisions of 63-bit numbers. int64 [N]
        turn: Number of the turn in its conversation, from 0. int32 [N]
    """

    time_us: NDArray[np.int64]
    session: NDArray[np.int64]
    turn: NDArray[np.int32]

    def grown(self, settings: Sessions, drawn: Drawn) -> tuple[Turns, Drawn]:
        """Return turns and lengths with the context of earlier turns and the system prompt added.

        Conversations are cut before the first turn whose input exceeds the longest context. A first turn stays.
        """
        own = drawn.input_tokens.astype(np.int64)
        answer = drawn.output_tokens - (0 if drawn.reasoning_tokens is None else drawn.reasoning_tokens)
        total = own + settings.system_tokens
        if settings.growth:
            before = np.cumsum(own + answer) - (own + answer)
            first = np.flatnonzero(self.turn == 0)
            total += before - np.repeat(before[first], np.diff([*first, len(before)]))
        fits = (total <= settings.max_context) | (self.turn == 0)
        # A turn after one that does not fit is dropped, too.
        broken = np.cumsum(~fits)
        start = np.flatnonzero(self.turn == 0)
        keep = broken == np.repeat(broken[start], np.diff([*start, len(broken)]))
        grown = replace(drawn, input_tokens=np.minimum(total, 2**31 - 1).astype(np.int32))
        if keep.all():
            return self, grown
        return Turns(self.time_us[keep], self.session[keep], self.turn[keep]), _kept(grown, keep)


def _kept(drawn: Drawn, keep: NDArray[np.bool_]) -> Drawn:
    return Drawn(
        drawn.input_tokens[keep],
        drawn.output_tokens[keep],
        None if drawn.reasoning_tokens is None else drawn.reasoning_tokens[keep],
        None if drawn.text_tokens is None else drawn.text_tokens[keep],
        {m: Items(items.counts[keep], items.tokens[np.repeat(keep, items.counts)]) for m, items in drawn.items.items()},
    )


def draw_turns(settings: Sessions, starts_us: NDArray[np.int64], rng: np.random.Generator) -> Turns:
    """Draw the turns of conversations that start at these times.

    Args:
        settings: Share, number and distance of turns.
        starts_us: Sorted times of the first turns. int64 [S]
        rng: Random stream.
    """
    size = len(starts_us)
    turns = np.ones(size, np.int64)
    several = rng.random(size) < settings.multi_turn
    # Turns beyond the second are geometric with the mean that is left.
    turns[several] = 1 + rng.geometric(1 / (settings.turns - 1), int(several.sum()))
    first = np.cumsum(turns) - turns
    turn = np.arange(int(turns.sum())) - np.repeat(first, turns)
    gaps = np.exp(rng.normal(np.log(settings.gap_s), settings.gap_sigma, len(turn))) * US
    gaps[turn == 0] = 0
    elapsed = np.cumsum(gaps)
    time_us = np.repeat(starts_us, turns) + (elapsed - np.repeat(elapsed[first], turns)).astype(np.int64)
    session = rng.integers(0, 2**63 - 1, size)
    return Turns(time_us, np.repeat(session, turns), turn.astype(np.int32))
