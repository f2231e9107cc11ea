"""From a batch to rows: checked and made harmless first, without the database; then entered by one thread.

Nothing is entered twice: a piece is known by the hash of its content, and a later piece about the same thing takes the
earlier one's place. Whoever is told that a piece is taken may forget it, so that is said after the commit only.
"""

from __future__ import annotations

import json
import logging
import math
import queue
import re
import threading
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import msgspec
import numpy as np
import sqlalchemy as sa
from eroica.errors import InputError
from eroica.fleet.records import (
    PROTOCOL,
    Batch,
    Beat,
    Piece,
    Points,
    Receipt,
    Refusal,
    RunFacts,
    WindowOrder,
)
from eroica.model.words import clean

from eroica_fleet.database import (
    orders,
    pieces,
    run_hosts,
    runs,
    times,
    upsert,
    writing,
)
from eroica_fleet.pieces import PREPARE, Change, Entry, PatternStore, number, unpack

UNDERSTOOD = (PROTOCOL,)
#: Unpacked bytes of the pieces of one request: what is beyond is neither taken nor refused, and comes with the next.
MAX_UNPACKED_BYTES = 64_000_000

_RUN = re.compile(r"[0-9a-f]{32}")
_KEY = re.compile(r"[a-z0-9/_-]{1,100}")
MOST_PIECES, MOST_HOSTS, MOST_POINTS, _MOST_ORDERS = 256, 20_000, 20_000, 100
#: Means that a line of a list draws.
SPARK = 60
#: Beats of a clock that is so far ahead are dated now, seconds.
_AHEAD_S = 60.0
#: Nobody waits longer for a window that the job was not told of, seconds.
ORDER_S = 600.0


class WrongVersion(InputError):
    """A batch of a version that we do not understand; whoever sends it keeps it."""

    def __init__(self, protocol: int) -> None:
        spoken = " and ".join(map(str, UNDERSTOOD))
        older = "the job's Eroica" if protocol < min(UNDERSTOOD) else "the service"
        super().__init__(f"this service understands reports of version {spoken}, not {protocol}; upgrade {older}")


class Ready(NamedTuple):
    """A batch that was checked.

    Attributes:
        project_id: Whose.
        facts: Of the runs that it is about.
        changes: Pieces, and how each is entered.
        refused: Those that will never be.
    """

    project_id: int
    facts: tuple[RunFacts, ...]
    changes: tuple[tuple[Piece, Change], ...]
    refused: tuple[Refusal, ...]
    beat: Beat | None


def decode_batch(data: bytes) -> Batch:
    """A batch from a request's body.

    Raises:
        WrongVersion: We do not understand it; the text says who is to be upgraded.
        InputError: It is none.
    """
    try:
        protocol = msgspec.msgpack.decode(data, type=_Version).protocol
        if protocol not in UNDERSTOOD:
            raise WrongVersion(protocol)
        batch = msgspec.msgpack.decode(data, type=Batch)
    except (ValueError, RecursionError) as error:
        raise InputError(f"these {len(data)} bytes are no batch of reports: {error}") from error
    if len(batch.pieces) > MOST_PIECES:
        raise InputError(f"more than {MOST_PIECES} pieces in one request")
    return batch


class _Version(msgspec.Struct):
    protocol: int


def prepare(batch: Batch, project_id: int, store: PatternStore) -> Ready:
    """Check all pieces, and write what goes into files.

    Args:
        batch: As it came.
        project_id: Whose.
        store: Where patterns go.

    Raises:
        OSError: A file could not be written; nothing of the batch counts then.
    """
    changes, refused, size = [], [], 0
    for piece in batch.pieces:
        try:
            _check_facts(piece.facts)
            if not _KEY.fullmatch(piece.key) or not math.isfinite(piece.at):
                raise InputError("its key is none")
            body = unpack(piece.body)
            size += len(body)
            if size > MAX_UNPACKED_BYTES:
                break  # the first one always fits
            changes.append((piece, PREPARE[piece.kind](piece, body, project_id, store)))
        except InputError as error:
            refused.append(Refusal(name=piece.name, why=clean(str(error), 500)))
    beat = batch.beat
    if beat is not None:
        _check_facts(beat.facts)
        beat = _harmless_beat(beat)
    known = {piece.facts.run: piece.facts for piece, _ in changes}
    if beat is not None:
        known[beat.facts.run] = beat.facts
    return Ready(project_id, tuple(known.values()), tuple(changes), tuple(refused), beat)


def _check_facts(facts: RunFacts) -> None:
    if not _RUN.fullmatch(facts.run) or not math.isfinite(facts.began) or not 0 <= facts.began < 1e11:
        raise InputError("a run has a name of 32 hexadecimal digits and a begin in seconds since 1970")
    if not clean(facts.job):
        raise InputError("a run needs the name of its job")


def _harmless_beat(beat: Beat) -> Beat:
    points = beat.points
    columns = [getattr(points, name) for name in Points.__struct_fields__]
    if len(set(map(len, columns))) != 1 or len(columns[0]) > MOST_POINTS:
        raise InputError(f"iteration times come as columns of equal length, at most {MOST_POINTS}")
    kept = [row for row in zip(*columns, strict=True) if all(number(value) is not None for value in row)]
    columns = list(zip(*kept, strict=True)) or [()] * len(columns)
    hosts = None if beat.hosts is None else tuple(dict.fromkeys(clean(host, 300) for host in beat.hosts[:MOST_HOSTS]))
    return msgspec.structs.replace(
        beat,
        at=min(number(beat.at) or 0.0, time.time() + _AHEAD_S),
        age_s=number(beat.age_s, time.time()) or 0.0,
        orders=None if beat.orders is None else tuple(one for one in beat.orders[:_MOST_ORDERS] if 0 < one < 2**62),
        phase=clean(beat.phase, 40),
        message=clean(beat.message, 500),
        iteration=min(max(beat.iteration, 0), 2**48),
        workers=min(max(beat.workers, 0), 2**24),
        mean_ms=number(beat.mean_ms),
        best_ms=number(beat.best_ms),
        hosts=hosts,
        points=Points(**dict(zip(Points.__struct_fields__, columns, strict=True))),
    )


# ---------------------------------------------------------------------- entering


class Entered(NamedTuple):
    """What became of a batch.

    Attributes:
        receipt: To be told once the transaction is committed.
        obsolete: Files of patterns that may go then.
    """

    receipt: Receipt
    obsolete: tuple[str, ...]


def enter(connection: sa.Connection, ready: Ready) -> Entered:
    """Enter a batch, inside a transaction of the caller's."""
    now = time.time()
    rows = {facts.run: _run_row(connection, ready.project_id, facts, now) for facts in ready.facts}
    names = {piece.name: (piece, change) for piece, change in ready.changes}
    known = _known(connection, ready.project_id, list(names))
    obsolete: list[str] = []
    for name, (piece, change) in names.items():
        if name in known:
            continue
        obsolete += change(connection, Entry(ready.project_id, rows[piece.facts.run].id, piece))
        connection.execute(
            upsert(connection, pieces)
            .values(project_id=ready.project_id, name=name, received_at=now)
            .on_conflict_do_nothing()
        )
    told: tuple[WindowOrder, ...] = ()
    if ready.beat is not None:
        row = rows[ready.beat.facts.run]
        _enter_beat(connection, ready.project_id, row, ready.beat, now)
        told = _orders(connection, row.id, ready.beat.orders, now)
    return Entered(Receipt(taken=tuple(names), refused=ready.refused, orders=told), tuple(obsolete))


def _known(connection: sa.Connection, project_id: int, names: Sequence[str]) -> set[str]:
    if not names:
        return set()
    question = sa.select(pieces.c.name).where(pieces.c.project_id == project_id, pieces.c.name.in_(names))
    return set(connection.execute(question).scalars())


def _run_row(connection: sa.Connection, project_id: int, facts: RunFacts, now: float) -> sa.Row[Any]:
    """What of a run's row is needed here; it is made if there is none, and that it was heard of is written down."""
    changed = int(1000 * now)
    search = f"{clean(facts.job, 300)} {clean(facts.commit, 100)}".lower()
    values: dict[str, Any] = {"heard_at": now, "changed": changed}
    if facts.commit:
        values |= {"commit_id": clean(facts.commit, 100), "search": search}
    return connection.execute(
        upsert(connection, runs)
        .values(
            project_id=project_id,
            run=facts.run,
            job=clean(facts.job, 300),
            search=search,
            commit_id=clean(facts.commit, 100),
            host=clean(facts.host, 300),
            eroica_version=clean(facts.eroica_version, 40),
            began_at=facts.began,
            heard_at=now,
            beat_at=0.0,
            phase="",
            message="",
            iteration=0,
            workers=0,
            hosts=0,
            until_s=-1.0,
            spark="[]",
            verdict="",
            cause="",
            summary="",
            changed=changed,
        )
        .on_conflict_do_update(index_elements=["project_id", "run"], set_=values)
        .returning(runs.c.id, runs.c.beat_at, runs.c.until_s, runs.c.spark)
    ).one()


def _enter_beat(connection: sa.Connection, project_id: int, row: sa.Row[Any], beat: Beat, now: float) -> None:
    run_id, new = row.id, _new_points(row.until_s, beat.points)
    values: dict[str, Any] = {}
    if new.at_s:
        packed = zlib.compress(msgspec.msgpack.encode(new), 6)
        connection.execute(
            sa.insert(times).values(project_id=project_id, run_id=run_id, until_s=new.at_s[-1], columns=packed)
        )
        values["until_s"] = new.at_s[-1]
        values["spark"] = json.dumps([*json.loads(row.spark), *(round(ms, 2) for ms in new.mean_ms)][-SPARK:])
    if beat.at >= row.beat_at:
        values |= {"phase": beat.phase, "message": beat.message, "beat_at": beat.at, "heard_at": now - beat.age_s}
        told = {name: getattr(beat, name) for name in ("iteration", "mean_ms", "best_ms", "workers")}
        values |= {name: value for name, value in told.items() if value}  # at its end nobody knows any more
        if beat.hosts is not None:
            values["hosts"] = len(beat.hosts)
            _enter_hosts(connection, project_id, run_id, beat.hosts)
    if values:
        connection.execute(sa.update(runs).where(runs.c.id == run_id).values(**values))


def _new_points(until_s: float, points: Points) -> Points:
    """Those after the last that is known: a beat that comes again brings none."""
    at = int(np.searchsorted(points.at_s, until_s, side="right"))
    return Points(**{name: getattr(points, name)[at:] for name in Points.__struct_fields__}) if at else points


def _enter_hosts(connection: sa.Connection, project_id: int, run_id: int, hosts: Sequence[str]) -> None:
    for at in range(0, len(hosts), 5000):
        rows = [{"project_id": project_id, "run_id": run_id, "host": host} for host in hosts[at : at + 5000] if host]
        if rows:
            connection.execute(upsert(connection, run_hosts).on_conflict_do_nothing(), rows)


def _orders(connection: sa.Connection, run_id: int, heard: Sequence[int] | None, now: float) -> tuple[WindowOrder, ...]:
    """Windows that were asked for and that the job has not said it has heard of.

    Args:
        connection: The database.
        run_id: Of the run.
        heard: Orders that it has heard of; None from a reporter that does not say so, and that is told once.
        now: Seconds since 1970.
    """
    waiting = (orders.c.run_id == run_id, orders.c.told_at.is_(None))
    if heard:
        connection.execute(sa.update(orders).where(*waiting, orders.c.id.in_(heard)).values(told_at=now))
    columns = (orders.c.id, orders.c.reason, orders.c.seconds)
    rows = connection.execute(sa.select(*columns).where(*waiting, orders.c.asked_at > now - ORDER_S)).all()
    if rows and heard is None:
        connection.execute(sa.update(orders).where(orders.c.id.in_([row.id for row in rows])).values(told_at=now))
    return tuple(WindowOrder(order=row.id, reason=row.reason, seconds=row.seconds) for row in rows)


log = logging.getLogger("eroica_fleet")

#: Batches in one transaction, and batches that may wait.
_TOGETHER, MOST_WAITING = 64, 512


class Busy(Exception):
    """Too many batches wait already."""


class Writer:
    """Enters batches into the database, in the order in which they came.

    Args:
        engine: The database.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = writing(engine)
        self._waiting: queue.Queue[tuple[Ready, Future[Entered]] | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name="fleet writer", daemon=True)
        self._thread.start()

    def submit(self, ready: Ready) -> Future[Entered]:
        """What will become of a batch; its exception is the database's.

        Raises:
            Busy: Come again.
        """
        done: Future[Entered] = Future()
        try:
            self._waiting.put_nowait((ready, done))
        except queue.Full:
            raise Busy from None
        return done

    def close(self) -> None:
        """Enter what waits, and end."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        over = False
        while not over:
            work = [self._waiting.get()]
            while len(work) < _TOGETHER and not self._waiting.empty():
                work.append(self._waiting.get_nowait())
            over = None in work
            asked = [one for one in work if one is not None]
            self._enter([one for one in asked if one[1].set_running_or_notify_cancel()])  # whoever gave up asks again

    def _enter(self, work: list[tuple[Ready, Future[Entered]]]) -> None:
        done: list[tuple[Future[Entered], Entered]] = []
        failed: list[tuple[Future[Entered], Exception]] = []
        try:
            with self._engine.begin() as connection:
                for ready, future in work:
                    try:
                        with connection.begin_nested():
                            done.append((future, enter(connection, ready)))
                    except sa.exc.IntegrityError as error:  # another service was quicker, as a rule: come again
                        log.warning("a batch cannot be entered now: %s", error.orig)
                        failed.append((future, error))
                    except Exception as error:  # one batch must not keep the others out
                        if _is_of_the_database(error):
                            raise
                        log.exception("a batch cannot be entered")
                        failed.append((future, InputError(f"it cannot be entered: {type(error).__name__}")))
        except Exception as error:  # whoever asked is told, and the next batches have their own try
            log.exception("%d batches could not be entered", len(work))
            done, failed = [], [(future, error) for _, future in work]
        for future, entered in done:
            future.set_result(entered)
        for future, problem in failed:
            future.set_exception(problem)


def _is_of_the_database(error: Exception) -> bool:
    """The database is to blame, or another transaction: the same batch may be entered later.

    Only a value that it cannot hold (DataError, or one that is refused before it is sent) is the batch's own fault.
    """
    return isinstance(error, sa.exc.DBAPIError) and not isinstance(error, sa.exc.DataError)
