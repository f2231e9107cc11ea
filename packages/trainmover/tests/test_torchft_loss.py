"""The figures of `benchmarks/torchft_loss.py`, from made-up iterations."""

import pytest
from benchmarks.torchft_loss import found


def iterations(*ends: tuple[int, float]) -> list[dict[str, float]]:
    """Steps and when they ended."""
    before = [0.0, *(at for _, at in ends)]
    return [{"step": step, "at": at, "took_s": at - last} for (step, at), last in zip(ends, before, strict=False)]


def test_what_is_done_again_is_part_of_the_pause_and_not_of_the_standing() -> None:
    records = iterations((0, 1.0), (1, 2.0), (2, 3.0), (3, 4.0), (2, 9.0), (3, 10.0), (4, 11.0), (5, 12.0))
    figures = found(records, 4.5, 12.0)
    assert figures["pause_s"] == pytest.approx(6.0)  # from the third step to the fourth, less one second
    assert figures["stood_s"] == pytest.approx(4.0)


def test_an_iteration_that_was_all_but_done_at_the_kill_does_not_hide_the_pause() -> None:
    records = iterations((0, 1.0), (1, 2.0), (2, 3.0), (3, 10.0), (4, 11.0))
    assert found(records, 2.9, 11.0)["pause_s"] == pytest.approx(6.0)


def test_a_pause_after_the_end_is_another_loss() -> None:
    records = iterations((0, 1.0), (1, 2.0), (2, 3.0), (3, 4.0), (4, 40.0))
    assert found(records, 2.5, 4.0)["pause_s"] == pytest.approx(0.0)
