"""Records are added up without the pauses between iterations."""

import pytest

from eroica_c4d.stretch import CellSum, Second, Stretch, stretch_of

STEP_S = 0.5


def lived(*parts: tuple[float, float | None], hosts: int = 2) -> Stretch:
    """Parts of (seconds, iteration in seconds); None pauses."""
    seconds, at, iteration = [], 0.0, 0.0
    for length_s, iteration_s in parts:
        for _ in range(round(length_s / STEP_S)):
            at += STEP_S
            iteration += STEP_S / iteration_s if iteration_s else 0.0
            for host in range(hosts):
                pauses = iteration_s is None
                cells = {(f"n{host}", f"n{1 - host}"): CellSum(sent_bytes=0 if pauses else 100_000, busy_s=0.1)}
                came = at + 0.1 * host
                seconds.append(Second(came, f"n{host}", STEP_S, cells, {host: int(iteration)}))
    return stretch_of(seconds)


@pytest.mark.parametrize("pause_s", [2.0, 4.0, 20.0])
def test_a_pause_makes_no_iteration_longer_and_no_way_slower(pause_s: float) -> None:
    plain, paused = lived((12.0, 0.1)), lived((5.0, 0.1), (pause_s, None), (7.0, 0.1))
    assert plain.iteration_s == pytest.approx(0.1, rel=0.05)
    assert paused.iteration_s == pytest.approx(0.1, rel=0.1)
    assert paused.cells["n0", "n1"].bytes_per_s == pytest.approx(200_000, rel=0.1)
    assert paused.seconds == pytest.approx(12.0, abs=1.1)


def test_a_pause_at_the_end_is_one_as_well_and_several_add_up() -> None:
    paused = lived((5.0, 0.1), (3.0, None), (5.0, 0.1), (4.0, None), (2.0, 0.1), (3.0, None))
    assert paused.iteration_s == pytest.approx(0.1, rel=0.15)


def test_iterations_that_all_take_longer_are_no_pauses() -> None:
    slow = lived((12.0, 2.0))
    assert slow.iteration_s == pytest.approx(2.0, rel=0.1) and slow.seconds == 12.0


def test_what_an_iteration_takes_at_least() -> None:
    few = lived((6.0, 2.0))
    assert few.iterations == 3 and few.iteration_s is not None
    assert few.least_iteration_s == pytest.approx(few.iteration_s * 3 / 4)
    assert Stretch(seconds=1, iteration_s=0.5).least_iteration_s == 0.5


def test_a_pause_that_follows_the_first_iterations_of_a_stretch_makes_them_no_longer() -> None:
    assert lived((1.0, 0.1), (5.0, None)).iteration_s is None
    assert lived((1.5, 0.1), (5.0, None)).iteration_s == pytest.approx(0.1, rel=0.3)
    assert lived((6.0, 2.5)).iteration_s == pytest.approx(2.5, rel=0.3)
