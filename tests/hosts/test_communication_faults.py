"""Real jobs on namespaces as hosts: communication alone tells what is wrong, before any window.

Not every run is right yet (docs/c4.md has the shares), so `make test-all` leaves them out.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from support.hosts import available

pytestmark = [pytest.mark.root, pytest.mark.jobs, pytest.mark.long, pytest.mark.timeout(240)]
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.parametrize("fault", ["slow-path", "stop-inside"])
def test_class_and_place_of_a_fault_in_a_real_job(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    possible, why = available()
    if not possible:
        pytest.skip(f"no namespaces here: {why}")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    specification = importlib.util.spec_from_file_location("c4d", BENCHMARKS / "c4d.py")
    assert specification is not None and specification.loader is not None
    c4d = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(c4d)
    out = tmp_path / "runs.jsonl"
    monkeypatch.setattr(
        sys, "argv", ["c4d.py", "--out", str(out), "--hosts", "3", "--workers", "1", "--faults", fault, "--seed", "1"]
    )
    monkeypatch.setattr(c4d, "AFTER_S", 1.0)
    assert c4d.main() == 0
    (line,) = [record for record in map(json.loads, out.read_text().splitlines()) if record["kind"] == "run"]
    assert line["right"] == {"class": True, "place": True}, line
    assert line["told"]["kind"] == line["truth"]["kind"]
