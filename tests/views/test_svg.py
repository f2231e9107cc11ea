"""The only place where names and numbers become markup."""

import math

import pytest

from eroica.views.svg import number, svg, tag


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
