"""Flight Recorder dumps that lie in folders."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent))
from written_traces import write

from eroica.cli import group
from eroica.offline import diagnose, diagnose_all

DUMPS = Path(__file__).parents[2] / "../shared/traces/flight_recorder"
pytestmark = pytest.mark.skipif(not DUMPS.is_dir(), reason="the real dumps are not here")


def link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(source.resolve())


def dump(rank: int, job: str = "lock_gil_1st") -> Path:
    return DUMPS / job / f"_dump_{rank}"


def test_dumps_of_one_job_in_a_folder_for_each_host_are_one_standstill(tmp_path: Path) -> None:
    for rank in range(16):
        link(dump(rank), tmp_path / f"node{rank // 8}" / f"_dump_{rank}")
    (verdict,) = diagnose_all(tmp_path)
    assert verdict.coverage.workers_reported == 16 and verdict.job == tmp_path.name
    assert verdict.cause is not None and verdict.cause.workers == (9, 14)


def test_a_second_and_a_damaged_dump_cost_only_themselves(tmp_path: Path) -> None:
    for rank in range(16):
        link(dump(rank), tmp_path / f"_dump_{rank}")
    shutil.copy(dump(3), tmp_path / "nccl_trace_rank_3")
    (tmp_path / "_dump_99").write_bytes(dump(3).read_bytes()[:2000])
    verdict = diagnose(tmp_path)
    assert verdict.cause is not None and verdict.cause.workers == (9, 14)
    assert any("is a second dump of worker 3" in note for note in verdict.coverage.notes)
    assert any("_dump_99" in note for note in verdict.coverage.notes)


def test_a_dump_alone_is_enough_for_a_verdict_and_its_groups_tell_whose_it_is(tmp_path: Path) -> None:
    shutil.copy(dump(9), tmp_path / "dump")
    for verdict in (diagnose(dump(9)), diagnose(tmp_path)):
        assert verdict.coverage.workers_reported == 1 and 9 not in verdict.coverage.missing


def test_a_standstill_comes_before_slowness_and_is_kept(tmp_path: Path) -> None:
    write(tmp_path / "traces" / "rank0.json", load_us=80_000.0)
    for rank in range(16):
        link(dump(rank), tmp_path / "dumps" / f"_dump_{rank}")
    out = tmp_path.with_name(tmp_path.name + "-kept")
    options = ["--quiet", "--set", "readers=1"]
    assert CliRunner().invoke(group, ["diagnose", str(tmp_path), "--out", str(out), *options]).exit_code == 3
    again = diagnose_all(out)
    assert [verdict.verdict for verdict in again] == ["blocked", "slow"]
    assert again[0].cause is not None and again[0].cause.workers == (9, 14)
