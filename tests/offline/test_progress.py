"""The bar while traces are read."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from eroica.offline import progress as module
from eroica.offline.discover import Source
from eroica.offline.progress import Bar


def drawn(terminal: bool, wanted: bool = True) -> str:
    file = io.StringIO()
    with Bar(wanted, Console(file=file, force_terminal=terminal, width=100)) as bar:
        bar.begin(2, 100_000_000)
        bar.advance(50_000_000)
        bar.done(Source(Path("rank0.json"), 50_000_000, 0, "."))
        bar.advance(25_000_000)
    return file.getvalue()


def test_a_terminal_shows_files_bytes_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WAIT_S", 0.0)
    monkeypatch.setenv("TERM", "xterm-256color")
    text = drawn(terminal=True)
    for word in ("reading 1 of 2 files", "75.0/100.0 MB", "B/s", "s left"):
        assert word in text


def test_nothing_is_drawn_elsewhere_or_unasked_or_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(terminal=True) == ""
    monkeypatch.setattr(module, "_WAIT_S", 0.0)
    assert drawn(terminal=False) == drawn(terminal=True, wanted=False) == ""


def looked(terminal: bool, monkeypatch: pytest.MonkeyPatch, wanted: bool = True) -> str:
    file, seconds = io.StringIO(), iter(range(0, 100, 1))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(seconds)))
    bar = Bar(wanted, Console(file=file, force_terminal=terminal, width=100))
    for entries in range(1000, 8000, 1000):
        bar.look(entries, 3)
        if entries == 2000:
            assert file.getvalue() == "", "nothing is said before two seconds"
    return file.getvalue()


def test_a_long_walk_says_once_what_it_is_doing_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    said = looked(terminal=False, monkeypatch=monkeypatch)
    assert said == "eroica: looking through folders: 3,000 entries, 3 traces and dumps so far\n"


def test_an_unwanted_bar_says_nothing_about_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looked(terminal=False, monkeypatch=monkeypatch, wanted=False) == ""
