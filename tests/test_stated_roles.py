from __future__ import annotations

from pathlib import Path

import pytest

from eroica.errors import UsageError
from eroica.settings import load_settings, parse_roles


def test_names_with_ranks_and_ranges_of_them() -> None:
    roles = parse_roles(" actor = 0-2, 7 ;critic=3 ; ")
    assert roles == {"actor": frozenset({0, 1, 2, 7}), "critic": frozenset({3})}
    assert parse_roles("") == {}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("actor", "'actor' is no new name with ranks, as in"),
        ("actor=zero", "'actor=zero' is no new name"),
        ("actor=3-1", "'actor=3-1' is no new name"),
        ("actor=0-99999999999", "'actor=0-99999999999' is no new name"),
        ("a=0-3;a=5", "'a=5' is no new name"),
        ("a=0-3;b=3-5", "rank 3 is in both 'a' and 'b'"),
    ],
)
def test_bad_text_is_refused_with_what_is_wrong(text: str, complaint: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_roles(text)
    assert complaint in str(refused.value)


def test_bad_roles_are_refused_where_settings_are_read_not_in_the_middle_of_a_job(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="roles cannot be"):
        load_settings({}, {"EROICA_ROLES": "a=0;b=0"}, tmp_path)
    assert load_settings({"roles": "a=0;b=1"}, {}, tmp_path).roles == "a=0;b=1"
