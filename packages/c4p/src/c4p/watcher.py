"""One thread for each group: learns ways again when a route changes, and asks the planner for its changes."""

from __future__ import annotations

import dataclasses
import threading
import time

from c4p import routes
from c4p.carrier import Carrier
from c4p.catalogue import AGE_S, Entry, agree, learn, parse_way, still_true
from c4p.client import Subscription
from c4p.demand import report_of, spread
from c4p.errors import C4PError
from c4p.model import Way

ROUND_S = 0.25
CALM_S = 0.05
CLOSE_S = 5.0
#: While a way is missing, the ways are learned again after the first pause; the pause doubles up to the second.
MISSING_S, LONGEST_MISSING_S = 1.0, 60.0


class Watcher:
    """Watches over one group's ways.

    Args:
        carrier: Told about other ways.
        entry: What was learned at the start.
        subscription: The planner's word for this member; None without a planner.
        age_s: After this time the ways are checked by probes.
    """

    def __init__(self, carrier: Carrier, entry: Entry, subscription: Subscription | None, age_s: float = AGE_S) -> None:
        self._carrier, self._entry, self._subscription = carrier, entry, subscription
        self._age_s = age_s
        self._doubted = False
        self._wanted = carrier.planned()
        self._seen = set(entry.by_way()) | set(map(parse_way, entry.left_out))
        self._pause_s = MISSING_S
        self._probe_at = time.monotonic() + MISSING_S
        self._stop = threading.Event()
        self.learned_again = 0
        self.last_error = ""
        self._watch = routes.Watch()
        self._thread = threading.Thread(target=self._run, name="c4p-watcher", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End. A planner that does not answer is not waited for longer than a few seconds."""
        self._stop.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        """Watch until the end; the planner's connection and the kernel's are this thread's alone."""
        try:
            self._rounds()
        finally:
            self._watch.close()
            if self._subscription is not None:
                self._subscription.leave()

    def _rounds(self) -> None:
        while not self._stop.is_set():
            self._watch.wait(ROUND_S)
            for step in (self._check_ways, self._follow_plan):
                try:
                    step()
                except Exception as error:  # noqa: BLE001 - nothing ends the watch: the job goes on as planned so far
                    self.last_error = str(error) if isinstance(error, C4PError | OSError) else repr(error)
                    self._stop.wait(ROUND_S)

    def _check_ways(self) -> None:
        """Learn again where a route has changed, a way is missing or the entry is old, until that succeeds."""
        if self._watch.changed() and not self._stop.wait(CALM_S):
            self._watch.changed()  # what belongs to the same change
            self._doubted = True
            self._pause_s = MISSING_S
        is_missing = bool(self._seen - self._entry.by_way().keys())
        if is_missing and time.monotonic() >= self._probe_at:
            self._pause_s = min(2 * self._pause_s, LONGEST_MISSING_S)
            self._probe_at = time.monotonic() + self._pause_s
            self._learn_again()
            self._doubted = False
        elif self._doubted or time.time() - self._entry.learned > self._age_s:
            if still_true(self._entry):
                self._entry = dataclasses.replace(self._entry, learned=time.time())
            else:
                self._probe_at = time.monotonic() + self._pause_s
                self._learn_again()
            self._doubted = False

    def _follow_plan(self) -> None:
        planned = self._subscription.news() if self._subscription is not None else None
        if planned is not None:
            self._wanted = [parse_way(text) for text in planned]
            ports = self._entry.by_way()
            self._carrier.move(ports, self._possible(ports))

    def _learn_again(self) -> None:
        """Replace the entry, and move all connections if ports lead elsewhere."""
        before = self._entry
        fresh = learn(before.source, (before.target, before.target_port), rounds=1)
        self.learned_again += 1
        if agree(before, fresh):
            self._entry = dataclasses.replace(before, learned=fresh.learned)
            return
        self._entry = fresh
        ports = fresh.by_way()
        self._seen |= ports.keys()
        self._carrier.move(ports, self._possible(ports), all_anew=True)
        if self._subscription is not None:
            self._subscription.learned(report_of(fresh, len(self._wanted)))

    def _possible(self, ports: dict[Way, list[int]]) -> list[Way]:
        """Return the wanted ways; in place of one that is missing now, others in turn."""
        wanted = self._wanted
        spare = iter(spread([way for way in ports if way not in wanted] or list(ports), len(wanted)))
        return [way if way in ports else next(spare) for way in wanted]
