"""Waits for the device share a pattern's budget: outer frames give way first, then the cheapest waits."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic_window import TRAINING, Events, capture, is_conserved, timeline

from eroica.model.pattern import Synchronization
from eroica.model.series import encode_series
from eroica.settings import Settings
from eroica.summarize import summarize_worker
from eroica.summarize.rows import fit_syncs, wire_size
from eroica.trace.schema import Category
from eroica.wire.codec import encode_record

MS = 1_000_000
RANDOM = np.random.default_rng(3)


def name(length: int) -> str:
    """As hard to compress as names can be."""
    return "".join(RANDOM.choice(list("abcdefghijklmnopqrstuvwxyz0123456789_"), length).tolist())


def waits(count: int, frames: int, length: int) -> list[Synchronization]:
    return [
        Synchronization(
            name=f"aten::wait_{at}",
            call="cudaStreamSynchronize",
            stack=tuple(f"{name(length)} (project/m.py:{depth})" for depth in range(frames)),
            count=200,
            lost_s=1.0 / (1 + at),
            per_iteration_us=encode_series(np.full(200, 5000.0 / (1 + at), np.float32)),
        )
        for at in range(count)
    ]


def test_what_fits_travels_as_it_is() -> None:
    whole = waits(8, frames=3, length=10)
    assert fit_syncs(whole, 3000) == tuple(whole)


def test_outer_frames_give_way_before_any_wait_does() -> None:
    whole = waits(4, frames=60, length=20)
    kept = fit_syncs(whole, 3000)
    assert [one.name for one in kept] == [one.name for one in whole]
    assert all(6 <= len(one.stack) < 60 for one in kept)
    assert all(one.stack == full.stack[-len(one.stack) :] for one, full in zip(kept, whole, strict=True))


def test_the_cheapest_waits_go_where_even_the_innermost_frames_are_too_much() -> None:
    whole = waits(8, frames=30, length=120)
    kept = fit_syncs(whole, 3000)
    assert [one.name for one in kept] == [one.name for one in whole[: len(kept)]]
    assert 1 <= len(kept) < 8
    assert wire_size(kept) <= 3000


def test_a_single_wait_with_frames_of_a_thousand_characters_keeps_what_fits() -> None:
    (kept,) = fit_syncs(waits(1, frames=40, length=1000), 3000)
    assert 1 <= len(kept.stack) <= 4


def test_nothing_fits_nowhere() -> None:
    assert fit_syncs([], 3000) == ()
    assert fit_syncs(waits(2, frames=3, length=10), 10) == ()


@pytest.mark.parametrize(("frames", "length"), [(25, 40), (60, 1000)])
def test_a_pattern_full_of_waits_with_deep_stacks_stays_below_30_kilobytes(frames: int, length: int) -> None:
    events, stretches, clock = Events(), [], 0
    stacks = [tuple(f"{name(length)} (project/m.py:{depth})" for depth in range(frames)) for _ in range(40)]
    for step in range(160):
        kind, stack = step % 8, stacks[step % 40]
        events.add(f"{kind}_{name(20)}", clock, clock + 30 * MS, Category.KERNEL, 20)
        events.add(f"aten::wait_{kind}", clock + 9 * MS, clock + 31 * MS)
        events.add("cudaStreamSynchronize", clock + 10 * MS, clock + 31 * MS, Category.RUNTIME)
        stretches.append((clock, clock + 40 * MS, stack))
        clock += 40 * MS
    facts = capture([int(edge) for edge in np.linspace(0, clock, 41)])
    sampled = timeline({(100, TRAINING): stretches})
    pattern = summarize_worker(facts, events.table(), sampled, None, [], Settings())
    assert pattern.syncs
    assert sum(one.lost_s for one in pattern.syncs) > 0
    assert len(encode_record(pattern)) <= 30_000
    assert wire_size(pattern.syncs) <= Settings().pattern_bytes // 8
    assert is_conserved(pattern)
