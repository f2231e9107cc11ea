"""Whose memory is whose."""

from __future__ import annotations

from prismllm.session import Allocation, account


def test_what_a_call_allocates_is_not_the_ranks_wherever_it_is_freed():
    """Gloo clones what it reduces and scatters inside the call, and the clone goes when the work does, after it."""
    changes = account([
        Allocation(1, 0xA, 100, is_own=True),
        Allocation(2, 0xB, 40, is_own=False),
        Allocation(3, 0xB, -40, is_own=True),
        Allocation(4, 0xA, -100, is_own=False),
    ])  # fmt: skip
    assert changes == [(1, 100), (4, -100)]


def test_a_block_that_another_thread_has_freed_unseen_is_gone_when_its_place_is_taken():
    changes = account([Allocation(1, 0xA, 100, is_own=True), Allocation(2, 0xA, 30, is_own=True)])
    assert changes == [(1, 100), (2, -100), (2, 30)]


def test_a_place_that_gloo_had_may_be_the_ranks_later():
    changes = account([Allocation(1, 0xA, 50, is_own=False), Allocation(2, 0xA, -50, is_own=True),
                       Allocation(3, 0xA, 50, is_own=True)])  # fmt: skip
    assert changes == [(3, 50)]
