"""The only place where names and numbers become markup."""

import math

import pytest

from eroica.views.svg import clip, number, points, roof, svg, tag, ticks


@pytest.mark.parametrize(
    ("value", "written"),
    [(3, "3"), (3.25, "3.25"), (3.1999, "3.2"), (-0.001, "0"), (100.0, "100"), (math.nan, "0"), (math.inf, "0")],
)
def test_coordinates_are_short(value, written):
    assert number(value) == written


def test_everything_from_outside_is_escaped():
    made = svg(10, 10, tag("text", '<b>&"'), title='"><script>')
    assert "<b>" not in made
    assert "<script" not in made
    assert 'aria-label="&#34;&gt;&lt;script&gt;"' in made


def test_turning_and_hidden_characters_are_gone():
    assert tag("text", "a\u202eb\u200bc\x00d\ud800e") == "<text>abc de</text>"


def test_ticks_are_round_and_inside():
    assert ticks(0, 37, 4) == [0, 10, 20, 30]
    assert ticks(212, 240, 5) == [220, 230, 240]
    assert ticks(5, 5) == [5]
    assert ticks(math.nan, 1) == []
    assert roof(37, 4) == 40
    assert roof(0) == 1


def test_lines_have_gaps_where_nothing_is_known():
    assert points([0, 1, 2, 3], [5, 6, math.nan, 7]) == "M0 5L1 6M3 7"


def test_long_names_lose_their_middle():
    assert clip("short", 100) == "short"
    assert clip("a" * 50 + "end", 100).endswith("end")
    assert len(clip("a" * 50, 100)) <= 100 / (12 * 0.56)
    assert clip("anything", 10) == ""
