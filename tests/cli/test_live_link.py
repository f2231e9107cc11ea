"""`eroica live` and `eroica status`: the link to a running job's page."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from eroica.cli import group, jobs, status
from eroica.wire.address import Address, announce, read_address, withdraw
from eroica.wire.messages import JobStatus

LISTENS = Address(url="http://127.0.0.1:4711", token="t" * 20, pid=1, host="h", page="p" * 20 + "&#")
ANSWER = msgspec.json.encode(JobStatus(job="j", phase="watching", message="1 worker, watching"))


def test_the_link_is_printed_alone_and_the_way_to_it_from_elsewhere_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EROICA_HOST", "h")
    monkeypatch.setenv("SSH_CONNECTION", "1.2.3.4 5 6.7.8.9 22")
    announce(tmp_path, LISTENS, "h")
    monkeypatch.setattr(jobs, "call", lambda *_, **__: ANSWER)
    link = f"http://127.0.0.1:4711/?token={'p' * 20}%26%23"
    found = CliRunner().invoke(group, ["live", "--out", str(tmp_path)])
    assert found.exit_code == 0 and found.stdout == f"{link}\n"
    assert "ssh -N -L 4711:127.0.0.1:4711" in found.stderr
    assert link in CliRunner().invoke(group, ["status", "--out", str(tmp_path)]).stdout


def test_a_job_without_a_collector_has_no_link(tmp_path: Path) -> None:
    found = CliRunner().invoke(group, ["live", "--out", str(tmp_path)])
    assert found.exit_code != 0 and "http" not in found.stdout


def test_a_browser_is_given_a_private_file_and_not_the_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its command line is for everybody on the host to see."""
    monkeypatch.setenv("EROICA_HOST", "h")
    announce(tmp_path, LISTENS, "h")
    monkeypatch.setattr(jobs, "call", lambda *_, **__: ANSWER)
    opened: list[str] = []
    monkeypatch.setattr(status.webbrowser, "open", opened.append)
    assert CliRunner().invoke(group, ["live", "--open", "--out", str(tmp_path)]).exit_code == 0
    file = tmp_path / "live.html"
    assert opened == [file.as_uri()] and file.stat().st_mode & 0o777 == 0o600
    assert f"url=http://127.0.0.1:4711/?token={'p' * 20}%26%23" in file.read_text()
    address = read_address(tmp_path, "h")
    assert address is not None
    withdraw(tmp_path, address, "h")
    assert not file.exists()


def test_the_browsers_file_is_not_written_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EROICA_HOST", "h")
    announce(tmp_path, LISTENS, "h")
    monkeypatch.setattr(jobs, "call", lambda *_, **__: ANSWER)
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "live.html").symlink_to(precious)
    found = CliRunner().invoke(group, ["live", "--open", "--out", str(tmp_path)])
    assert found.exit_code != 0 and precious.read_text() == "mine"
