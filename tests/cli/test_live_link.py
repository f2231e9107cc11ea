"""`eroica live` and `eroica status`: the link to a running job's page."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from eroica.cli import group, jobs
from eroica.wire.address import Address, announce
from eroica.wire.messages import JobStatus


def test_the_link_is_printed_alone_and_the_way_to_it_from_elsewhere_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import msgspec

    monkeypatch.setenv("EROICA_HOST", "h")
    monkeypatch.setenv("SSH_CONNECTION", "1.2.3.4 5 6.7.8.9 22")
    announce(tmp_path, Address(url="http://127.0.0.1:4711", token="t" * 20 + "&#", pid=1, host="h"), "h")
    answer = msgspec.json.encode(JobStatus(job="j", phase="watching", message="1 worker, watching"))
    monkeypatch.setattr(jobs, "call", lambda *_: answer)
    link = f"http://127.0.0.1:4711/?token={'t' * 20}%26%23"
    found = CliRunner().invoke(group, ["live", "--out", str(tmp_path)])
    assert found.exit_code == 0 and found.stdout == f"{link}\n"
    assert "ssh -N -L 4711:127.0.0.1:4711" in found.stderr
    assert link in CliRunner().invoke(group, ["status", "--out", str(tmp_path)]).stdout


def test_a_job_without_a_collector_has_no_link(tmp_path: Path) -> None:
    found = CliRunner().invoke(group, ["live", "--out", str(tmp_path)])
    assert found.exit_code != 0 and "http" not in found.stdout
