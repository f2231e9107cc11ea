"""One thread that writes: batches that wait together are committed together, and answered after that."""

from __future__ import annotations

import logging
import queue
import threading
from concurrent.futures import Future

import sqlalchemy as sa
from eroica.errors import InputError

from eroica_fleet.database import writing
from eroica_fleet.intake import Entered, Ready, enter

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
