from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import eroica
from eroica.model.shares import percent
from eroica.model.words import amount, byte_size, change, clean, milliseconds, seconds, worker_list


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        ([], "no worker"),
        ([2], "worker 2"),
        ([1, 0], "workers 0, 1"),
        ([3, 1, 2, 9, 9], "workers 1–3, 9"),
        (range(0, 40, 2), "workers 0, 2, 4, 6, 8, 10, 12, 14 and more, 20 in all"),
    ],
)
def test_workers_are_written_as_ranges(workers: list[int], words: str) -> None:
    assert worker_list(workers) == words


def test_numbers_have_units_and_about_three_digits() -> None:
    assert [percent(value) for value in (0, 0.0004, 0.004, 0.384, 1)] == ["0 %", "0 %", "0.4 %", "38 %", "100 %"]
    assert [milliseconds(value) for value in (0, 0.314, 41.23, 412.3, 12_345)] == [
        "0 ms",
        "0.31 ms",
        "41.2 ms",
        "412 ms",
        "12.3 s",
    ]
    assert [seconds(value) for value in (0.41, 4.94)] == ["410 ms", "4.9 s"]
    assert [byte_size(value) for value in (0, 999, 1_500, 31_200_000, 3 * 10**12)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "31 MB",
        "3.0 TB",
    ]
    assert (amount(0.02, "fraction of one core"), amount(12.345, "GB/s")) == ("2 %", "12.3 GB/s")
    assert (change(50, 67), change(50, 40), change(1, 24)) == ("+34 %", "-20 %", "24 times")


@given(st.text(), st.integers(4, 200))
def test_a_clean_name_is_one_printable_line_within_its_limit(text: str, limit: int) -> None:
    name = clean(text, limit)
    assert len(name) <= limit
    assert name == name.strip()
    assert all(character == " " or unicodedata.category(character)[0] not in "CZ" for character in name)


@given(st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), max_size=160))
def test_an_ordinary_name_stays_as_it_is(text: str) -> None:
    assert clean(text) == text


def test_shares_are_written_one_way_everywhere() -> None:
    """It is "3 %" rather than "3%": through `percent`, never through Python's own format."""
    package = Path(eroica.__file__).parent
    own = [path for path in package.rglob("*.py") if re.search(r":\.\d%\}", path.read_text())]
    assert own == []
