"""Every tunable, and where its value comes from."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from eroica.errors import UsageError
from eroica.settings import Settings, load_settings


def test_flags_beat_environment_beats_file_beats_default(tmp_path: Path) -> None:
    (tmp_path / "eroica.toml").write_text("slowdown = 0.2\nwindow_s = 5\ncooldown_s = 7.5\n")
    environment = {"EROICA_SLOWDOWN": "0.3", "EROICA_WINDOW_S": "6"}
    settings = load_settings({"slowdown": 0.4, "horizon_iterations": None}, environment, tmp_path)
    assert (settings.slowdown, settings.window_s, settings.cooldown_s) == (0.4, 6.0, 7.5)
    assert settings.horizon_iterations == Settings().horizon_iterations


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("nonsense", "1", "unknown setting"),
        ("slowdown", "fast", "slowdown"),
        ("learn_repeats", "1.5", "learn_repeats"),
        ("keep_traces", "maybe", "keep_traces"),
    ],
)
def test_a_wrong_value_names_itself(tmp_path: Path, name: str, value: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load_settings({name: value}, {}, tmp_path)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "eroica.toml").write_text("= broken")
    with pytest.raises(UsageError, match=r"eroica\.toml"):
        load_settings({}, {}, tmp_path)


def test_every_setting_says_what_it_is() -> None:
    for item in fields(Settings):
        assert len(item.metadata["doc"]) > 10 and item.metadata["source"], item.name
