"""Exports of Nsight Systems: databases made by hand after its schema; no real one was seen."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from eroica.errors import InputError, UsageError
from eroica.model.verdict import Verdict
from eroica.offline.discover import discover
from eroica.offline.examine import examine
from eroica.settings import Settings
from eroica.trace.nsight import processes_of, read_nsight
from eroica.trace.table import Category
from support.nsight_exports import write_nsight
from support.written_jobs import START_US, WrittenJob
from support.written_worker import WrittenWorker

ONE = Settings(readers=1)


def judged(path: Path, settings: Settings = ONE) -> Verdict:
    return examine([path], settings).verdict


def accused(verdict: Verdict) -> set[int]:
    return {worker for one in verdict.findings if one.role == "cause" and one.scope == "some" for worker in one.workers}


def test_kernels_calls_ranges_and_copies_are_read_with_the_same_records(tmp_path: Path) -> None:
    worker = WrittenWorker(calls=3, training=True, copy_us=50.0)
    path = write_nsight({0: worker.record()}, tmp_path / "report.sqlite")
    assert processes_of(path) == (4000,)
    table = read_nsight(path, 4000, Settings())
    names = {table.name_of(row): Category(table.category[row]) for row in range(len(table))}
    assert names["aten::linear"] is Category.OPERATOR and names["linear_kernel"] is Category.KERNEL
    assert names["cudaLaunchKernel"] is Category.RUNTIME and names["Memcpy DtoH"] is Category.MEMORY
    assert names["Optimizer.step#SGD.step"] is Category.ANNOTATION
    assert (table.header.host, table.header.device) == ("node-1", "NVIDIA H100 80GB HBM3")
    assert table.start_ns.min() == pytest.approx(START_US * 1000, abs=100_000)
    assert (table.start_ns[1:] >= table.start_ns[:-1]).all() and (table.end_ns > table.start_ns).all()


@pytest.mark.parametrize("readers", [1, 2])
def test_ranks_of_one_export_are_workers_of_one_job(tmp_path: Path, readers: int) -> None:
    job = WrittenJob(ranks=4, slow={2: 2.25})
    verdict = judged(write_nsight(job.record(), tmp_path / "report.sqlite"), Settings(readers=readers))
    assert accused(verdict) == {2} and verdict.coverage.workers_reported == 4
    assert any("4 processes without ranks" in note for note in verdict.coverage.notes)


def test_an_export_for_each_rank_is_one_job(tmp_path: Path) -> None:
    for rank, trace in WrittenJob(ranks=3, slow={1: 2.0}).record().items():
        write_nsight({rank: trace}, tmp_path / f"rank{rank}.sqlite")
    assert accused(judged(tmp_path)) == {1}


def test_the_user_s_own_ranges_are_iterations(tmp_path: Path) -> None:
    trace = WrittenJob(ranks=1).record()[0]
    for event in trace["traceEvents"]:
        event["name"] = event["name"].replace("ProfilerStep#", "iteration ")
    verdict = judged(write_nsight({0: trace}, tmp_path / "report.sqlite"))
    assert verdict.window is not None and "the ranges that the user has numbered" in verdict.window.reason
    assert (verdict.window.first_iteration, verdict.window.last_iteration) == (10, 16)


def test_other_databases_are_named(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "mine.sqlite")) as database:
        database.execute("CREATE TABLE runs (id INTEGER)")
        database.commit()
    with pytest.raises(UsageError, match=r"mine\.sqlite is an SQLite database, but no export of Nsight"):
        discover([tmp_path])
    with pytest.raises(InputError, match="no export of Nsight"):
        read_nsight(tmp_path / "mine.sqlite", -1, Settings())


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_cut_database_is_one_error(tmp_path: Path, share: float) -> None:
    path = write_nsight({0: WrittenJob(ranks=1).record()[0]}, tmp_path / "rank0.sqlite")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises((InputError, UsageError), match=r"rank0\.sqlite"):
        judged(path)


def test_a_view_in_place_of_a_table_is_not_asked(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "trap.sqlite")) as database:
        database.execute(
            "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start "
            "FROM n) SELECT start, start AS end, 0 AS deviceId, 0 AS globalPid FROM n"
        )
        database.commit()
    with pytest.raises(InputError, match="no export of Nsight"):
        read_nsight(tmp_path / "trap.sqlite", -1, Settings())


def test_missing_tables_and_columns_cost_only_themselves(tmp_path: Path) -> None:
    path = write_nsight({0: WrittenJob(ranks=1).record()[0]}, tmp_path / "rank0.sqlite")
    with closing(sqlite3.connect(path)) as database:
        for table in ("NVTX_EVENTS", "OSRT_API", "TARGET_INFO_GPU", "TARGET_INFO_SESSION_START_TIME"):
            database.execute(f"DROP TABLE {table}")
        database.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN correlationId")
        database.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, demangledName, shortName) "
            "VALUES ('x', 5, 0, 7, 1, 1)"
        )
        database.commit()
    table = read_nsight(path, -1, Settings())
    assert (table.category == Category.KERNEL).any() and not table.header.has_wall_clock
