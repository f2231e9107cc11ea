from __future__ import annotations

import pytest

from eroica.diagnosis.words import format_ms, list_numbers, name_workers, short_name


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([1, 2], "1 and 2"),
        ([0, 1, 2, 3], "0 to 3"),
        ([1, 4, 5, 6], "1 and 4 to 6"),
        ([2, 5], "2 and 5"),
    ],
)
def test_runs_of_numbers_are_drawn_together(numbers: list[int], text: str) -> None:
    assert list_numbers(numbers) == text


def test_a_kernels_name_loses_its_template() -> None:
    assert short_name("void at::native::reduce_kernel<128, 4, at::f<int>>(int)") == "at::native::reduce_kernel<...>"
    assert short_name("volta_sgemm_64x64_nt") == "volta_sgemm_64x64_nt"
    assert short_name("<lambda>") == "<lambda>"
    assert len(short_name("x" * 200)) == 60


def test_workers_and_times_read_like_a_sentence() -> None:
    assert name_workers([4], capital=True) == "Worker 4"
    assert name_workers(range(12)) == "12 workers (0, 1, 2, ...)"
    assert [format_ms(us) for us in (41_000, 3210, 35)] == ["41 ms", "3.2 ms", "0.04 ms"]
