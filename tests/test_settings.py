"""Every tunable, and where its value comes from."""

from __future__ import annotations

import runpy
from dataclasses import fields
from pathlib import Path

import pytest

from eroica.errors import UsageError
from eroica.settings import Settings, allowed, load_settings, pinned_config


def test_flags_beat_environment_beats_file_beats_default(tmp_path: Path) -> None:
    (tmp_path / "eroica.toml").write_text("slowdown = 0.2\nwindow_s = 5\ncooldown_s = 7.5\n")
    environment = {"EROICA_SLOWDOWN": "0.3", "EROICA_WINDOW_S": "6"}
    settings = load_settings({"slowdown": 0.4, "first_look_s": None}, environment, tmp_path)
    assert (settings.slowdown, settings.window_s, settings.cooldown_s) == (0.4, 6.0, 7.5)
    assert settings.first_look_s == Settings().first_look_s


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("sampler", "inisde", "one of auto, outside, inside, none"),
        ("slowdown", "nan", "a number, 0 to 1,000"),
        ("window_s", 0, "0.001 to"),
        ("scratch_bytes", -1, "a whole number, 0 or more"),
        ("min_gain", "3", "a number, 0 to 1"),
        ("webhook_on", "slow,fast", "any of slow, blocked, undetermined, healthy, with commas"),
        ("keep_traces", "maybe", "true or false"),
    ],
)
def test_an_impossible_value_says_what_is_possible(tmp_path: Path, name: str, value: object, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        load_settings({name: value}, {}, tmp_path)
    assert f"setting {name} cannot be {value!r}; it wants" in str(refused.value) and words in str(refused.value)


def test_every_default_is_possible_and_every_number_has_limits() -> None:
    given = {item.name: str(item.default) for item in fields(Settings)}
    assert load_settings(given, {}, Path("/nonexistent")) == Settings()
    for item in fields(Settings):
        if isinstance(item.default, int | float) and not isinstance(item.default, bool):
            assert item.metadata["allowed"] is not None and allowed(item), item.name
        assert len(item.metadata["doc"]) > 10 and item.metadata["source"], item.name


def test_a_process_that_went_elsewhere_reads_the_file_of_where_the_job_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, hz in (("start", 3), ("elsewhere", 7)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "eroica.toml").write_text(f"window_s = {hz}\n")
    (tmp_path / "bare").mkdir()
    monkeypatch.chdir(tmp_path / "start")
    pinned, named = pinned_config({}), pinned_config({"EROICA_CONFIG": "../elsewhere/eroica.toml"})
    monkeypatch.chdir(tmp_path / "bare")
    without = pinned_config({})
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_settings(environ=pinned).window_s == 3
    assert load_settings(environ=named).window_s == 7
    assert load_settings(environ=without).window_s == Settings().window_s


def test_an_unknown_setting_and_an_unreadable_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown setting"):
        load_settings({"nonsense": "1"}, {}, tmp_path)
    (tmp_path / "eroica.toml").write_text("= broken")
    with pytest.raises(UsageError, match=r"eroica\.toml"):
        load_settings({}, {}, tmp_path)


def test_the_page_of_settings_is_what_the_code_makes() -> None:
    docs = Path(__file__).parents[1] / "docs"
    page = runpy.run_path(str(docs / "make_settings.py"))["settings_page"]()
    assert (docs / "settings.md").read_text() == page, "run docs/make_settings.py"
