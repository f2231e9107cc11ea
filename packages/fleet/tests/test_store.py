"""The service's store, on SQLite and on a real PostgreSQL: one suite for both."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from eroica.errors import InputError, UsageError
from eroica.fleet.records import Batch, PatternBlock, Piece, StandstillBody, pack_body
from support.run_directories import a_verdict

import eroica_fleet
from eroica_fleet.alerts import settle, tell
from eroica_fleet.asking import Ask
from eroica_fleet.chores import join_times, sweep, vacuum
from eroica_fleet.database import (
    alerts,
    metadata,
    migrate,
    open_database,
    pattern_files,
    pieces,
    repairs,
    runs,
    standstills,
    times,
    upsert,
    writing,
)
from eroica_fleet.findings import TrendFact
from eroica_fleet.insights import Insights, work_out
from eroica_fleet.intake import Writer, decode_batch, enter, prepare
from eroica_fleet.pieces import PatternStore, columns_of, decode_body, unpack
from eroica_fleet.queries import course, list_runs, patterns_file, table_file
from eroica_fleet.tenants import Caller, first_start
from filling import Filling, beat, facts_of, patterns_piece, verdict_piece

ME = Caller(1, "me", 1, frozenset({"read"}), 1e9)
DAY = 86_400.0


@pytest.fixture
def engine(database: str) -> Iterator[sa.Engine]:
    engine = open_database(database)
    migrate(engine)
    assert first_start(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def store(tmp_path: Path) -> PatternStore:
    return PatternStore(str(tmp_path / "patterns"))


def count(engine: sa.Engine, table: sa.Table) -> int:
    with engine.connect() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def revision_of(engine: sa.Engine) -> str | None:
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def newest_revision() -> str | None:
    """The one that no other goes on from."""
    files = sorted((Path(eroica_fleet.__file__).parent / "migrations" / "versions").glob("v*.py"))
    return files[-1].name[1:5]


def test_migrations_make_the_tables_that_the_code_works_with(engine: sa.Engine) -> None:
    assert revision_of(engine) == newest_revision()
    migrate(engine)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_services_that_begin_at_once_migrate_once(database: str) -> None:
    engines = [open_database(database) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(migrate, engines))
    assert {revision_of(engine) for engine in engines} == {newest_revision()}
    for engine in engines:
        engine.dispose()


def test_a_database_of_a_later_eroica_is_left_alone(engine: sa.Engine) -> None:
    with writing(engine).begin() as connection:
        connection.execute(sa.text("update alembic_version set version_num = '9999'"))
    with pytest.raises(InputError, match="later Eroica"):
        migrate(engine)


def test_two_services_that_get_the_same_pieces_keep_each_once(engine: sa.Engine, store: PatternStore) -> None:
    """Two writers as of two processes, batches that overlap, in threads."""
    facts = [facts_of(f"job{number}", 1000.0 + number) for number in range(4)]
    made = [
        [verdict_piece(each, window, 2000.0 + window, a_verdict(each.job)) for window in range(1, 9)] for each in facts
    ]
    batches = [Batch(pieces=tuple(mine[at : at + 4])) for mine in made for at in (0, 2, 4, 0)] * 3
    writers = [Writer(engine), Writer(engine)]
    with ThreadPoolExecutor(8) as threads:
        ready = list(threads.map(lambda batch: prepare(batch, 1, store), batches))
        futures = [writers[at % 2].submit(one) for at, one in enumerate(ready)]
    receipts = [future.result(30).receipt for future in futures]
    assert all(len(receipt.taken) == 4 for receipt in receipts)
    for writer in writers:
        writer.close()
    with engine.connect() as connection:
        found = connection.execute(sa.text("select run_id, window_id, count(*) from verdicts group by 1, 2")).all()
        named = connection.execute(sa.text("select count(*) from findings")).scalar_one()
        culprits = connection.execute(sa.text("select count(*) from culprits")).scalar_one()
    assert len(found) == named == culprits == 4 * 8
    assert {row[2] for row in found} == {1}
    assert count(engine, pieces) == 4 * 8


def test_a_batch_that_breaks_keeps_no_other_out(engine: sa.Engine, store: PatternStore) -> None:
    facts = facts_of("llm", 1000.0)
    good = prepare(Batch(pieces=(verdict_piece(facts, 1, 2000.0, a_verdict()),)), 1, store)

    def broken(*_: object) -> None:
        raise KeyError("a mistake of ours")

    piece = verdict_piece(facts, 2, 2000.0, a_verdict())
    writer = Writer(engine)
    futures = [writer.submit(good._replace(changes=((piece, broken),))), writer.submit(good)]
    writer.close()
    assert isinstance(futures[0].exception(), InputError)
    assert len(futures[1].result().receipt.taken) == 1


def test_whoever_gives_up_waiting_costs_no_other(engine: sa.Engine, store: PatternStore) -> None:
    facts = facts_of("llm", 1000.0)
    ready = [prepare(Batch(pieces=(verdict_piece(facts, at, 2000.0, a_verdict()),)), 1, store) for at in (1, 2)]
    writer = Writer(engine)
    with writing(engine).begin():  # the writer waits
        futures = [writer.submit(one) for one in ready[:1] * 70 + ready[1:]]
        assert futures[-2].cancel()
    writer.close()
    assert len(futures[-1].result(0).receipt.taken) == 1
    assert count(engine, pieces) == 2


@pytest.mark.parametrize(
    ("error", "is_ours"),
    [
        (sa.exc.DatabaseError("insert", {}, Exception("database disk image is malformed")), True),
        (sa.exc.ProgrammingError("insert", {}, Exception("no such column: cause")), True),
        (sa.exc.DataError("insert", {}, Exception("integer out of range")), False),
        (OverflowError("Python int too large to convert to SQLite INTEGER"), False),
        (sa.exc.IntegrityError("insert", {}, Exception("UNIQUE constraint failed")), True),
    ],
    ids=["malformed", "no column", "out of range", "overflow", "unique"],
)
def test_only_a_value_that_no_database_holds_is_the_batchs_own_fault(
    engine: sa.Engine, store: PatternStore, error: Exception, is_ours: bool
) -> None:
    facts = facts_of("llm", 1000.0)
    piece = verdict_piece(facts, 1, 2000.0, a_verdict())

    def broken(*_: object) -> None:
        raise error

    writer = Writer(engine)
    future = writer.submit(prepare(Batch(pieces=(piece,)), 1, store)._replace(changes=((piece, broken),)))
    writer.close()
    assert isinstance(future.exception(), type(error) if is_ours else InputError)


def test_a_batch_that_meets_anothers_row_costs_only_itself(engine: sa.Engine, store: PatternStore) -> None:
    facts = facts_of("llm", 1000.0)
    good = prepare(Batch(pieces=(verdict_piece(facts, 1, 2000.0, a_verdict()),)), 1, store)

    def meets(connection: sa.Connection, *_: object) -> None:
        row = dict(connection.execute(sa.select(runs)).one()._mapping)
        connection.execute(sa.insert(runs).values(**{**row, "id": None}))

    piece = verdict_piece(facts, 2, 2000.0, a_verdict())
    writer = Writer(engine)
    with writing(engine).begin():  # the writer waits: both are entered together
        futures = [writer.submit(one) for one in (good, good._replace(changes=((piece, meets),)), good)]
    writer.close()
    assert isinstance(futures[1].exception(), sa.exc.IntegrityError)
    assert [len(futures[at].result().receipt.taken) for at in (0, 2)] == [1, 1]


def test_an_earlier_look_at_a_standstill_does_not_take_a_later_ones_place(
    engine: sa.Engine, store: PatternStore
) -> None:
    filling, facts = Filling(engine, store), facts_of("llm", 1000.0)
    for at in (5.0, 9.0, 3.0):
        body = pack_body(StandstillBody(window_id=1, seen_at=at, record=b"{}"))
        filling.put(Piece(kind="standstill", key="standstill/1", facts=facts, at=at, body=body))
    with engine.connect() as connection:
        assert connection.execute(sa.select(standstills.c.seen_at)).scalars().all() == [9.0]


def test_what_unpacks_to_much_comes_in_several_requests(engine: sa.Engine, store: PatternStore) -> None:
    facts, waiting = facts_of("llm", 1000.0), []
    for window_id in range(1, 9):
        body = pack_body(StandstillBody(window_id=window_id, seen_at=2000.0, record=b" " * 20_000_000))
        waiting.append(Piece(kind="standstill", key=f"standstill/{window_id}", facts=facts, at=1.0, body=body))
    sizes = []
    while waiting:
        ready = prepare(Batch(pieces=tuple(waiting)), 1, store)
        assert not ready.refused
        with writing(engine).begin() as connection:
            taken = enter(connection, ready).receipt.taken
        sizes.append(len(taken))
        waiting = [piece for piece in waiting if piece.name not in taken]
    assert sizes == [3, 3, 2]
    with pytest.raises(InputError, match="at most"):
        pack_body(StandstillBody(window_id=1, seen_at=1.0, record=b" " * 33_000_000))


def test_a_later_piece_about_the_same_window_takes_its_place_and_an_earlier_one_does_not(
    engine: sa.Engine, store: PatternStore
) -> None:
    filling, facts = Filling(engine, store), facts_of("llm", 1000.0)
    for at, function in ((5.0, "middle"), (9.0, "last"), (3.0, "first")):
        piece = verdict_piece(facts, 1, 2000.0, a_verdict(function=function))
        filling.put(msgspec.structs.replace(piece, at=at))
    with engine.connect() as connection:
        assert connection.execute(sa.text("select function from verdicts")).scalars().all() == ["last"]
        assert connection.execute(sa.text("select function from findings")).scalars().all() == ["last"]


def test_patterns_become_a_file_with_a_row_for_each_function_and_worker(engine: sa.Engine, store: PatternStore) -> None:
    filling, facts = Filling(engine, store), facts_of("llm", 1_700_000_000.0)
    filling.put(patterns_piece(facts, 3, 0.2, workers=6))
    with engine.connect() as connection:
        row = connection.execute(sa.select(pattern_files)).one()
    assert row.path.startswith(f"project=1/month=2023-11/run={facts.run}/window=3-0-")
    answer = patterns_file(Ask(ME, engine, path={"run_id": 1, "window_id": 3}), store)
    table = pq.read_table(io.BytesIO(bytes(answer.body))).to_pylist()
    assert len(table) == row.rows == 6 * 5
    assert {(line["global_rank"], line["host"]) for line in table} == {(rank, f"node{rank // 4}") for rank in range(6)}
    first = table[0]
    assert (first["function"], first["stack"].splitlines()[-1]) == ("f0", "f0 (m.py:9)")
    assert first["critical_s"] == pytest.approx(0.2)
    late = patterns_piece(facts, 3, 0.2, workers=8)
    filling.put(msgspec.structs.replace(late, at=facts.began + 5))
    assert count(engine, pattern_files) == 1


def test_hostile_batches_are_refused_piece_by_piece(engine: sa.Engine, store: PatternStore) -> None:
    facts = facts_of("llm", 1000.0)
    good = verdict_piece(facts, 1, 2000.0, a_verdict())
    block = decode_body(unpack(patterns_piece(facts, 1, 0.2).body), PatternBlock)

    def broken(**changes: object) -> Piece:
        body = pack_body(msgspec.structs.replace(block, **changes))
        return Piece(kind="patterns", key="patterns/1/0", facts=facts, at=1.0, body=body)

    bad = [
        msgspec.structs.replace(good, body=b"junk"),
        msgspec.structs.replace(good, key="../../etc"),
        msgspec.structs.replace(good, facts=msgspec.structs.replace(facts, run="../up")),
        msgspec.structs.replace(good, facts=msgspec.structs.replace(facts, began=float("nan"))),
        broken(ranks=b"123"), broken(numbers=b"\0" * 8), broken(key=b"\xff" * len(block.key)), broken(places=()),
        broken(worker=(b"\x63\0\0\0" * (len(block.worker) // 4))),
    ]  # fmt: skip
    ready = prepare(Batch(pieces=(good, *bad)), 1, store)
    assert [piece for piece, _ in ready.changes] == [good]
    assert len(ready.refused) == len(bad)
    nasty = a_verdict(function="a\0b\x1b[31m", hosts=("h\0",), summary="x\0y" * 2000, gain=float("inf"))
    Filling(engine, store).put(verdict_piece(facts, 2, 2000.0, nasty))
    with engine.connect() as connection:
        row = connection.execute(sa.text("select function, gain, summary from verdicts")).one()
    assert "\0" not in row.function + row.summary and row.gain is None
    with pytest.raises(InputError):
        decode_batch(b"\xc1" * 10)
    with pytest.raises(InputError):
        decode_batch(b"\x91" * 10_000)


def test_columns_of_a_block_come_back_as_they_were() -> None:
    piece = patterns_piece(facts_of("llm", 1.0), 1, 0.25)
    columns = columns_of(decode_body(unpack(piece.body), PatternBlock))
    assert columns.numbers.shape == (11, 40)
    assert set(columns.ranks.tolist()) == set(range(8))
    assert len(columns.block.keys) == 5, "functions that workers share are named once"


def test_insights_come_from_what_was_reported(engine: sa.Engine, store: PatternStore) -> None:
    filling, now = Filling(engine, store), time.time()
    for number in range(12):
        hosts = [f"h{(number * 5 + at) % 60}" for at in range(19)] + ["bad"]
        filling.run(
            f"job{number}", now - 8 * 3600 - 60 * number, now, hosts, ["bad"], at=now - 3600, function="lib.step"
        )
    for number, best in enumerate((100.0, 101.0, 99.5, 100.5, 112.0)):
        facts = filling.run(
            "nightly",
            now - 9000 + 1000 * number,
            now,
            ["h1"],
            commit=f"c{number}",
            beat={"best_ms": best, "workers": 8},
        )
        filling.put(patterns_piece(facts, 1, 0.2 + (1.8 if number == 4 else 0.0)))
    found = work_out(engine, ME, now - DAY)
    assert [(fact.host, fact.named, fact.suspicious, fact.devices) for fact in found.hosts] == [
        ("bad", 12, True, {"GPU-bad": 12})
    ]
    assert [(fact.function, fact.jobs, fact.of_jobs) for fact in found.functions] == [("lib.step", 12, 13)]
    assert [(fact.cause, fact.jobs) for fact in found.trends] == [("slow-data-loading", 12)]
    slower = found.slower[0]
    assert len(found.slower) == 1
    assert (slower.job, slower.commit, slower.earlier) == ("nightly", "c4", 4)
    assert slower.change == pytest.approx(0.117, abs=0.002)
    assert slower.function.endswith("(m.py)")
    assert "commit c4 is 12 % slower than the 4 runs before, in f" in slower.summary
    assert settle(engine, 1, found) == 4
    assert settle(engine, 1, found) == 0


def test_a_final_verdict_names_nobody_a_second_time_after_a_repair(engine: sa.Engine, store: PatternStore) -> None:
    filling, now = Filling(engine, store), time.time()
    for number in range(3):
        job = f"job{number}"
        facts = filling.run(job, now - 9000, now, [f"h{at}" for at in range(20)], ["h0"], at=now - 7200)
        last = a_verdict(job, workers=(0,), hosts=("h0",))
        filling.put(verdict_piece(facts, 0, now - 10, last))
    with writing(engine).begin() as connection:
        connection.execute(sa.insert(repairs).values(project_id=1, host="h0", at=now - 3600, note=""))
    (fact,) = work_out(engine, ME, now - DAY).hosts
    assert (fact.named, fact.again) == (0, False)
    filling.put(verdict_piece(facts_of("job0", now - 9000), 2, now - 1800, last))
    (fact,) = work_out(engine, ME, now - DAY).hosts
    assert (fact.named, fact.again) == (1, True)


def test_a_final_verdict_dates_nothing_that_windows_before_the_days_asked_for_had_found(
    engine: sa.Engine, store: PatternStore
) -> None:
    filling, now = Filling(engine, store), time.time()
    for number in range(4):
        job = f"job{number}"
        facts = filling.run(job, now - 9000, now, [f"h{at}" for at in range(20)], ["h0"], at=now - 7200 + number)
        filling.put(verdict_piece(facts, 0, now - 10 + number, a_verdict(job, workers=(0,), hosts=("h0",))))
    with writing(engine).begin() as connection:
        connection.execute(sa.insert(repairs).values(project_id=1, host="h0", at=now - 3600, note=""))
    found = work_out(engine, ME, now - 1800)
    assert (found.hosts, found.trends) == ([], [])
    assert found.functions[0].first_at == pytest.approx(now - 7200, abs=1)
    assert work_out(engine, ME, now - DAY).hosts[0].host == "h0"


def test_what_had_begun_before_the_days_asked_for_under_another_function_is_no_moment(
    engine: sa.Engine, store: PatternStore
) -> None:
    filling, now = Filling(engine, store), time.time()
    for number in range(12):
        job, hosts = f"job{number}", [f"h{number}", f"g{number}"]
        began = now - 90_000 - 1000 * number
        facts = filling.run(job, began, now, hosts, hosts[:1], at=began + 20_000, function="open")
        filling.put(verdict_piece(facts, 2, now - 1000 + number, a_verdict(job, function="read", hosts=hosts[:1])))
    found = work_out(engine, ME, now - 3600)
    assert found.trends == []
    assert [(fact.function, fact.jobs) for fact in found.functions] == [("read", 12)]


def insights(at: float, *began: float) -> Insights:
    moments = [
        TrendFact(
            cause="slow-link", function="f", jobs=9, runs=9, running=9, began_at=each, until_at=each + 60, chance=0.0,
            names=[],
        )
        for each in began
    ]  # fmt: skip
    return Insights(at=at, hosts=[], functions=[], trends=moments, slower=[])


def test_services_with_insights_of_different_moments_raise_an_alert_once(engine: sa.Engine) -> None:
    began = 5000.0
    assert settle(engine, 1, insights(100.0, began), now=110.0) == 1
    settle(engine, 1, insights(90.0), now=120.0)  # another service, whose insights are older
    assert settle(engine, 1, insights(130.0, began), now=131.0) == 0
    settle(engine, 1, insights(140.0), now=150.0)
    assert settle(engine, 1, insights(139.0, began), now=151.0) == 0, "it ended meanwhile"
    assert settle(engine, 1, insights(160.0, began), now=161.0) == 1


def test_a_late_report_makes_no_other_moment(engine: sa.Engine) -> None:
    assert settle(engine, 1, insights(100.0, 5000.0), now=110.0) == 1
    assert settle(engine, 1, insights(200.0, 4600.0), now=210.0) == 0
    assert settle(engine, 1, insights(300.0, 4600.0, 9000.0), now=310.0) == 1
    assert count(engine, alerts) == 2


def test_two_moments_are_two_alerts_however_late_reports_move_them(engine: sa.Engine) -> None:
    assert settle(engine, 1, insights(100.0, 5000.0), now=110.0) == 1
    assert settle(engine, 1, insights(200.0, 4600.0, 5501.0), now=210.0) == 1
    assert settle(engine, 1, insights(300.0, 4550.0, 5501.0), now=310.0) == 0
    assert settle(engine, 1, insights(400.0, 4550.0), now=410.0) == 0
    with engine.connect() as connection:
        standing = connection.execute(sa.select(alerts.c.key).where(alerts.c.cleared_at.is_(None))).scalars().all()
    assert standing == ["trend slow-link 5000"]


def test_two_services_tell_an_alert_once(database: str, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("several services share a PostgreSQL")
    settle(engine, 1, insights(100.0, 5000.0), now=110.0)
    with writing(engine).begin() as connection:
        connection.execute(sa.text("update projects set webhook_url = 'http://127.0.0.1:9/'"))
    other, posted = open_database(database), []

    def post(url: str, row: object) -> bool:
        posted.append(row)
        assert tell(other, 1) == 0, "somebody is at it"
        return True

    monkeypatch.setattr("eroica_fleet.alerts._post", post)
    assert (tell(engine, 1), tell(other, 1), len(posted)) == (1, 0, 1)
    other.dispose()


def test_a_disk_without_room_for_a_vacuum_is_said(tmp_path: Path) -> None:
    engine = open_database(f"sqlite:///{tmp_path / 'fleet.db'}")
    migrate(engine)
    with engine.connect() as connection:
        raw = connection.connection.driver_connection
        assert raw is not None
        raw.execute("PRAGMA query_only=ON")
    with pytest.raises(OSError, match="stays taken"):
        vacuum(engine)
    engine.dispose()


def test_lists_are_walked_to_their_end_and_searched(engine: sa.Engine, store: PatternStore) -> None:
    filling, now = Filling(engine, store), time.time()
    for number in range(25):
        state = {"beat": {"phase": "over"}} if number % 5 == 0 else {}
        filling.run(f"job{number:02d}", now - 5000, now - 20 * (number // 2), [f"rack{number % 3}-h{number}"], **state)
    seen: list[str] = []
    after = ""
    while True:
        page = list_runs(Ask(ME, engine, query={"limit": "10", "after": after}))
        seen += [line.job for line in page.runs]
        after = page.after
        if not after:
            break
    assert sorted(seen) == [f"job{number:02d}" for number in range(25)]
    assert page.all == 25

    def found(**query: str) -> int:
        return list_runs(Ask(ME, engine, query=query)).all

    assert (found(q="JOB2"), found(q="rack1-"), found(q="%")) == (5, 8, 0)
    assert (found(state="over"), found(host="rack0-h3")) == (5, 1)
    assert (found(state="lost"), found(state="running")) == (6, 14)
    with pytest.raises(InputError, match="state is one of"):
        found(state="sick")


def test_what_is_old_goes_and_what_is_young_stays(engine: sa.Engine, store: PatternStore, tmp_path: Path) -> None:
    filling, now = Filling(engine, store), time.time()
    for job, age in (("old", 500 * DAY), ("older-patterns", 100 * DAY), ("young", DAY)):
        facts = filling.run(job, now - age, now - age, ["h"], ["h"])
        filling.put(patterns_piece(facts, 1, 0.2))
        filling.heard(facts, now - age)
    orphan = tmp_path / "patterns" / "project=1" / "month=2026-01" / "run=0a" / "window=1-0-ff.parquet"
    theirs = tmp_path / "patterns" / "theirs.parquet"
    orphan.parent.mkdir(parents=True)
    theirs.write_bytes(b"of somebody who keeps files there, too")
    os.utime(theirs, (1, 1))
    orphan.write_bytes(b"x")
    assert sweep(engine, store, now).orphans == 0, "it may be of a batch that is being entered"
    swept = sweep(engine, store, now + 7 * 3600)
    assert (count(engine, runs), count(engine, pattern_files), swept.orphans) == (2, 1, 1)
    files = list((tmp_path / "patterns").rglob("*.parquet"))
    assert len(files) == 2 and theirs in files and not orphan.exists()
    with engine.connect() as connection:
        for table in ("verdicts", "findings", "culprits", "run_hosts", "times"):
            left = connection.execute(sa.text(f"select distinct run_id from {table}")).scalars().all()
            assert len(left) == 2, table
    vacuum(engine)


def test_over_its_quota_a_project_loses_its_oldest_patterns(engine: sa.Engine, store: PatternStore) -> None:
    filling, now = Filling(engine, store), time.time()
    for number in range(6):
        filling.put(patterns_piece(facts_of(f"job{number}", now - 1000 + number), 1, 0.2))
    with engine.connect() as connection:
        size = connection.execute(sa.select(pattern_files.c.bytes).limit(1)).scalar_one()
    with writing(engine).begin() as connection:
        connection.execute(sa.text("update projects set quota_bytes = :b"), {"b": int(3.5 * size)})
    sweep(engine, store, now)
    with engine.connect() as connection:
        kept = connection.execute(sa.select(runs.c.job).join(pattern_files)).scalars().all()
    assert sorted(kept) == ["job3", "job4", "job5"]


def test_long_courses_are_joined_and_stay_in_order(engine: sa.Engine, store: PatternStore) -> None:
    filling, facts = Filling(engine, store), facts_of("long", 1000.0)
    for number in range(80):
        at = (10.0 * number + 1, 10.0 * number + 2)
        points = msgspec.structs.replace(beat(facts, 0, ["h"]).points, at_s=at)
        filling.put(beat=msgspec.structs.replace(beat(facts, 1100.0 + number, ["h"]), points=points))
    before = course(Ask(ME, engine, path={"run_id": 1})).times
    assert len(before.at_s) == 160
    assert join_times(engine, rows=64, points=40) == 1
    after = course(Ask(ME, engine, path={"run_id": 1})).times
    assert count(engine, times) == 1
    assert len(after.at_s) == 41 and list(after.at_s) == sorted(after.at_s)
    assert after.at_s[-1] == before.at_s[-1]
    assert join_times(engine) == 0


def test_one_query_of_duckdb_says_which_hosts_were_named_most_often(
    engine: sa.Engine, store: PatternStore, tmp_path: Path
) -> None:
    """The example of docs/fleet.md, word for word."""
    duckdb = pytest.importorskip("duckdb", reason="reads columns: pip install duckdb")
    filling, now = Filling(engine, store), time.time()
    for number in range(6):
        filling.run(f"job{number}", now - 9000, now, ["a", "b", "c"], ["b"] if number < 4 else ["c"])
    for name in ("culprits", "runs"):
        answer = table_file(Ask(ME, engine, path={"name": name}))
        (tmp_path / f"{name}.parquet").write_bytes(bytes(answer.body))
    document = (Path(__file__).parents[3] / "docs" / "fleet.md").read_text(encoding="utf-8")
    query = document.partition("```sql\n")[2].partition("```")[0]
    for name in ("culprits", "runs"):
        query = query.replace(f"'{name}.parquet'", f"'{tmp_path / name}.parquet'")
    rows = duckdb.connect().execute(query)
    assert [row[:3] for row in rows.fetchall()] == [("b", 4, 4), ("c", 2, 2)]


@pytest.mark.parametrize("url", ["nonsense", "mysql://x/y", "", "sqlite"])
def test_a_database_that_is_none_is_named(url: str) -> None:
    with pytest.raises(UsageError, match="sqlite:///"):
        open_database(url)


def test_upserts_know_both_dialects(engine: sa.Engine) -> None:
    assert upsert(engine, pieces).__module__.split(".")[2] in ("postgresql", "sqlite")
