"""A signal comes while `eroica run` waits for the final verdict: the collector concludes, and that is the verdict."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from eroica.cli.launch import Impatient, Launch
from eroica.cli.nodes import Part


def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, concluded: bytes | None) -> Launch:
    """A launch whose wait is cut short; told to end, its collector writes this."""
    launch = object.__new__(Launch)
    collector = SimpleNamespace(problems=[])
    told: list[bool] = []
    parts = {
        "where": SimpleNamespace(run=tmp_path), "home": "", "_part": Part(), "_own_problems": [], "_never_begun": False,
        "_told": [], "_unwatched": False,
        "_collector": collector, "_helpers": [collector], "_footer": SimpleNamespace(end=lambda: None), "told": told,
    }  # fmt: skip
    for name, value in parts.items():
        setattr(launch, name, value)

    def cut_short(_: Launch) -> bytes:
        raise Impatient("SIGTERM came while waiting for it")

    def end(_: Launch, patient: bool) -> None:
        told.append(patient)
        if concluded is not None:
            (tmp_path / "verdict.json").write_bytes(concluded)

    monkeypatch.setattr(Launch, "_conclusion_is_elsewhere", lambda _: None)
    monkeypatch.setattr(Launch, "_final_verdict", cut_short)
    monkeypatch.setattr(Launch, "_end_helpers", end)
    return launch


def test_what_the_collector_concluded_then_is_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = waiting(tmp_path, monkeypatch, b"{}")
    assert launch.finish() == b"{}"
    assert launch.told == [False] and "no final verdict" not in capsys.readouterr().err  # type: ignore[attr-defined]


def test_without_one_the_reason_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert waiting(tmp_path, monkeypatch, None).finish() is None
    assert "no final verdict: SIGTERM came while waiting for it" in capsys.readouterr().err
