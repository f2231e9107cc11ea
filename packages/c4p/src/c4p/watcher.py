"""One thread for each group: learns ways again when a route changes, and asks the planner for its changes."""

from __future__ import annotations

import dataclasses
import threading
import time

from c4p import routes
from c4p.carrier import Carrier
from c4p.catalogue import AGE_S, Entry, learn, parse_way, still_true
from c4p.client import Subscription
from c4p.demand import report_of, spread
from c4p.errors import C4PError
from c4p.model import Way

ROUND_S = 0.25
CALM_S = 0.05
CLOSE_S = 5.0


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
        """Learn again where a route has changed or the entry is old, until that succeeds."""
        if self._watch.changed() and not self._stop.wait(CALM_S):
            self._watch.changed()  # what belongs to the same change
            self._doubted = True
        if not self._doubted and time.time() - self._entry.learned <= self._age_s:
            return
        if still_true(self._entry):
            self._entry = dataclasses.replace(self._entry, learned=time.time())
        else:
            self._learn_again()
        self._doubted = False

    def _follow_plan(self) -> None:
        planned = self._subscription.news() if self._subscription is not None else None
        if planned is not None:
            ports = self._entry.by_way()
            self._carrier.move(ports, self._possible([parse_way(text) for text in planned], ports))

    def _learn_again(self) -> None:
        """All that was known is dropped: a hash over other next hops moves most ports."""
        entry = self._entry
        self._entry = learn(entry.source, (entry.target, entry.target_port), rounds=1)
        self.learned_again += 1
        ports, planned = self._entry.by_way(), self._carrier.planned()
        self._carrier.move(ports, self._possible(planned, ports), all_anew=True)
        if self._subscription is not None:
            self._subscription.learned(report_of(self._entry, len(planned)))

    def _possible(self, planned: list[Way], ports: dict[Way, list[int]]) -> list[Way]:
        """Planned ways; in place of one that is gone, others in turn."""
        spare = iter(spread([way for way in ports if way not in planned] or list(ports), len(planned)))
        return [way if way in ports else next(spare) for way in planned]
