"""The thread of a group that learns paths again after changes and polls the planner."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time

from c4p import routes
from c4p.catalogue import AGE_S, Entry, is_current, learn, parse_path, same_paths
from c4p.client import Subscription
from c4p.demand import report_of, spread
from c4p.model import NetworkPath
from c4p.transport import Transport

ROUND_S = 0.25
CALM_S = 0.05
CLOSE_S = 5.0
_LOG = logging.getLogger("c4p")
#: Seconds between attempts to find a path that is missing: the first pause, which doubles, and the longest.
MISSING_S, LONGEST_MISSING_S = 1.0, 60.0


class Watcher:
    """Keeps one group's paths up to date.

    Args:
        transport: Moves its connections to changed paths.
        entry: The catalogue entry of the start.
        subscription: This member's poll of the planner; None without a planner.
        age_s: After this time the paths are checked by probes.
    """

    def __init__(
        self, transport: Transport, entry: Entry, subscription: Subscription | None, age_s: float = AGE_S
    ) -> None:
        self._transport, self._entry, self._subscription = transport, entry, subscription
        self._age_s = age_s
        self._doubted = False
        self._wanted = transport.sender.planned()
        self._seen = set(entry.by_path()) | set(map(parse_path, entry.excluded))
        self._pause_s = MISSING_S
        self._probe_at = time.monotonic() + MISSING_S
        self._stop = threading.Event()
        self._watch = routes.Watch()
        self._thread = threading.Thread(target=self._run, name="c4p-watcher", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread. Wait a few seconds at most for a planner that does not answer."""
        self._stop.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        """Run until the end. Only this thread uses the planner's connection and the kernel's."""
        try:
            self._rounds()
        finally:
            self._watch.close()
            if self._subscription is not None:
                self._subscription.leave()

    def _rounds(self) -> None:
        while not self._stop.is_set():
            self._watch.wait(ROUND_S)
            for step in (self._check_paths, self._follow_plan):
                try:
                    step()
                except Exception as error:  # noqa: BLE001 - no error ends the watch: the job keeps its plan
                    _LOG.debug("the paths stay as they are: %r", error)
                    self._stop.wait(ROUND_S)

    def _check_paths(self) -> None:
        """Learn again where a route has changed, a path is missing or the entry is old, until that succeeds."""
        if self._watch.changed() and not self._stop.wait(CALM_S):
            self._watch.changed()  # what belongs to the same change
            self._doubted = True
            self._pause_s = MISSING_S
        is_missing = bool(self._seen - self._entry.by_path().keys())
        if is_missing and time.monotonic() >= self._probe_at:
            self._pause_s = min(2 * self._pause_s, LONGEST_MISSING_S)
            self._probe_at = time.monotonic() + self._pause_s
            self._learn_again()
            self._doubted = False
        elif self._doubted or time.time() - self._entry.learned > self._age_s:
            if is_current(self._entry):
                self._entry = dataclasses.replace(self._entry, learned=time.time())
            else:
                self._probe_at = time.monotonic() + self._pause_s
                self._learn_again()
            self._doubted = False

    def _follow_plan(self) -> None:
        planned = self._subscription.poll() if self._subscription is not None else None
        if planned is not None:
            self._wanted = [parse_path(text) for text in planned]
            ports = self._entry.by_path()
            self._transport.move(ports, self._possible(ports))

    def _learn_again(self) -> None:
        """Replace the entry, and move all connections if ports lead elsewhere."""
        before = self._entry
        fresh = learn(before.source, (before.target, before.target_port), rounds=1)
        if same_paths(before, fresh):
            self._entry = dataclasses.replace(before, learned=fresh.learned)
            return
        self._entry = fresh
        ports = fresh.by_path()
        self._seen |= ports.keys()
        self._transport.move(ports, self._possible(ports), all_anew=True)
        if self._subscription is not None:
            self._subscription.report_paths(report_of(fresh, len(self._wanted)))

    def _possible(self, ports: dict[NetworkPath, list[int]]) -> list[NetworkPath]:
        """Return the wanted paths; in place of one that is missing now, others in turn."""
        wanted = self._wanted
        spare = iter(spread([path for path in ports if path not in wanted] or list(ports), len(wanted)))
        return [path if path in ports else next(spare) for path in wanted]
