"""What the service does unasked: alerts every minute, retention every hour."""

from __future__ import annotations

import logging
import threading
import time

import sqlalchemy as sa

from eroica_fleet.alerts import settle, tell
from eroica_fleet.insights.ask import Asked
from eroica_fleet.patterns import PatternStore
from eroica_fleet.retention import sweep
from eroica_fleet.tables import projects
from eroica_fleet.tenants import Caller

log = logging.getLogger("eroica_fleet")

ALERTS_S, SWEEP_S = 60.0, 3600.0


class Chores:
    """A thread beside the service.

    Args:
        engine: The database.
        store: Where patterns lie.
        asked: Works insights out.
        alerts_s: Pause between two looks for alerts, seconds.
        sweep_s: Pause between two sweeps, seconds.
    """

    def __init__(
        self,
        engine: sa.Engine,
        store: PatternStore,
        asked: Asked,
        alerts_s: float = ALERTS_S,
        sweep_s: float = SWEEP_S,
    ) -> None:
        self._engine, self._store, self._asked = engine, store, asked
        self._alerts_s, self._sweep_s = alerts_s, sweep_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet chores", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End after what is being done."""
        self._over.set()
        self._thread.join()

    def look(self) -> None:
        """Raise, clear and tell alerts of all projects."""
        with self._engine.connect() as connection:
            ids = list(connection.execute(sa.select(projects.c.id)).scalars())
        for project_id in ids:
            if self._over.is_set():
                return
            try:
                caller = Caller(0, "alerts", project_id, frozenset({"read"}), 0.0)
                settle(self._engine, project_id, self._asked.insights(caller))
            except Exception:  # one project's reports cost no other its alerts
                log.exception("alerts of project %d could not be worked out", project_id)
        for project_id in ids:
            if self._over.is_set():
                return
            try:
                tell(self._engine, project_id)
            except Exception:  # nor does its webhook
                log.exception("project %d could not be told its alerts", project_id)

    def _run(self) -> None:
        swept = time.monotonic()
        while not self._over.wait(self._alerts_s):
            try:
                if time.monotonic() - swept >= self._sweep_s:
                    swept = time.monotonic()
                    log.info("swept: %s", sweep(self._engine, self._store))
            except Exception:  # the service outlives what goes wrong here; the next round tries again
                log.exception("retention failed")
            try:
                self.look()
            except Exception:
                log.exception("alerts failed")
