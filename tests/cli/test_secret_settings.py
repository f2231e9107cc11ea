"""Settings that are secrets: in no list, no page and no text of the settings."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from eroica.cli.settings import settings
from eroica.settings import Settings


@pytest.mark.parametrize("name", ["webhook_url", "metrics_token", "fleet_token"])
def test_a_secret_is_listed_but_not_shown(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"EROICA_{name.upper()}", "https://chat/shhh")
    listed = CliRunner().invoke(settings).output
    assert f"{name} = (set, not shown)" in listed and "shhh" not in listed
    assert "shhh" not in repr(Settings(**{name: "https://chat/shhh"}))
