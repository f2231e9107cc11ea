"""Getting one window captured: the probe, the order for the same iterations on every worker, the wait for patterns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from eroica.collector import span
from eroica.collector.current_window import Underway
from eroica.collector.ledger import Ledger
from eroica.collector.opening import Wanted
from eroica.collector.participants import AGENT_SILENT_S, Roll
from eroica.collector.resume import History
from eroica.model.window import Window
from eroica.settings import Settings
from eroica.wire import patience
from eroica.wire.messages import OrderMessage, OrderResult, WorkerStatus

Outcome = Literal["going on", "given up", "too large", "ready"]
#: More orders than any window makes: agents take a serial number that they know for an old order.
_ORDERS_OF_A_WINDOW = 5


class Capturing:
    """The window that is being worked on, and what workers shall do for it.

    Args:
        settings: Tunables.
        roll: Who takes part.
        ledger: Where to say how far the window is.

    Attributes:
        current: None while no window is open.
        order: What workers shall do now, None if nothing.
    """

    def __init__(self, settings: Settings, roll: Roll, ledger: Ledger) -> None:
        self.current: Underway | None = None
        self.order: OrderMessage | None = None
        self._settings = settings
        self._roll = roll
        self._ledger = ledger
        self._serial = 0
        #: Trace events of one iteration with operators, once they were too many: later windows go without them, too, as
        #: only what was captured alike can be compared.
        self._too_many = 0

    def open(self, now: float, training: Sequence[WorkerStatus], wanted: Wanted) -> None:
        """Order the probe: one iteration, to learn how many events it makes.

        Args:
            now: Seconds.
            training: Workers that take part, at least one.
            wanted: What to open.
        """
        window = Window(
            window_id=wanted.window_id or self._ledger.new_id(),
            purpose=wanted.purpose,
            reason=wanted.reason,
            first_iteration=0,  # which follow with each order
            last_iteration=0,
            baseline_iteration_s=wanted.baseline_s or span.best_s(training),
            current_iteration_s=span.slowest_s(training),
            since=wanted.since,
        )
        ranks = frozenset(status.worker.global_rank for status in training)
        self.current = Underway(window, wanted, now, now, ranks, operators=not self._too_many)
        self._probe(now, self.current, training)
        self._ledger.show(self.current.window, "probe")

    def advance(self, now: float, job_ended: bool) -> Outcome:
        """Time passed: "ready" once nobody is waited for any more, and the window can be analyzed."""
        current = self.current
        if current is None or current.phase == "analysis":
            return "going on"
        if current.phase == "probe":
            return self._advance_probe(now, current)
        if self._may_still_report(now, current) and current.waiting_for and now <= current.deadline:
            return "going on"
        current.leave_out(self._roll)
        if current.phase == "window" and current.is_captured(self._roll):
            self._await_patterns(now, current, job_ended)
        return "ready" if not current.waiting_for or now > current.deadline else "going on"

    def close(self) -> None:
        """The window is over, and its order with it."""
        self.current = None
        self.order = None

    def resume(self, now: float, wall_s: float, history: History) -> None:
        """Go on with serial numbers that no agent has seen, and with the window that was underway.

        Agents that have its order already go on with it; the ledger has resumed.

        Args:
            now: Seconds, on our own clock.
            wall_s: The same moment in seconds since 1970.
            history: What the collector before left.
        """
        self._serial = _ORDERS_OF_A_WINDOW * self._ledger.last_id
        left = history.underway
        if left is None:
            return
        window = left.window
        self.current = Underway(
            window,
            Wanted(window.purpose, window.reason, 0.0),
            asked_at=now - max(wall_s - left.asked_at, 0.0),
            deadline=now + max(left.until - wall_s, 0.0) + AGENT_SILENT_S,
            ranks=frozenset(rank for first, last in left.ranks for rank in range(first, last + 1)),
            phase="window",
            patterns={pattern.worker.global_rank: pattern for pattern in history.arrived},
            serial=left.serial,
            resumed_at=now,
        )
        self.order = self._order(left.serial, "window", window)
        self._ledger.show(window, "window")

    def _may_still_report(self, now: float, current: Underway) -> bool:
        """We took the window over, and its agents are still finding us."""
        return current.resumed_at > 0 and now - max(current.resumed_at, self._roll.joined_at) < AGENT_SILENT_S

    # ------------------------------------------------------------------ the probe

    def _advance_probe(self, now: float, current: Underway) -> Outcome:
        if now < current.deadline and not current.is_probed(self._roll):
            return "going on"
        probes = {**current.first_probes, **current.probes(self._roll)}
        training = span.in_training(self._roll)
        if not probes or not training:
            return self._give_up(current, current.why_not_probed(self._roll))
        iteration_s = span.slowest_s(training)
        shortest_s = min(status.current_s or 0.0 for status in training)
        events = max(1, *(self._events(current, rank, probe, shortest_s) for rank, probe in probes.items()))
        length = span.iterations(current.wanted, iteration_s, events, self._max_events, self._settings)
        whole = span.iterations(current.wanted, iteration_s, 1, self._max_events, self._settings)
        if length < whole and not current.first_probes and span.is_long(probes.values(), shortest_s):
            current.first_probes = current.stale = probes
            self._probe(now, current, training)
            return "going on"
        least = min(whole, span.enough(iteration_s))
        if current.operators and (length < least or span.is_slowed(training, events, iteration_s)):
            self._too_many, current.operators = events, False
            current.first_probes, current.stale = {}, current.probes(self._roll)
            self._probe(now, current, training)
            return "going on"
        objection = span.objection(length, events, self._settings)
        if objection:
            self._give_up(current, objection)
            return "too large"
        burden = span.burden(length, events)
        if burden:
            self._ledger.note(f"window {current.window.window_id}: {burden}")
        if not current.operators:
            current.notes.append(f"operators are not recorded: one iteration makes {self._too_many:,} trace events")
        lack = span.shortfall(length, iteration_s, events, current.wanted)
        current.notes.extend(filter(None, [lack]))
        self._order_window(now, current, training, length)
        return "going on"

    def _events(self, current: Underway, rank: int, probe: OrderResult, iteration_s: float) -> int:
        """Events of one iteration of one worker."""
        first = current.first_probes.get(rank, probe)
        return span.events_of(probe, iteration_s) if first == probe else span.events_between(first, probe, iteration_s)

    def _probe(self, now: float, current: Underway, training: Sequence[WorkerStatus]) -> None:
        """Order a probe of the next iteration that nobody reaches before the order does."""
        iteration_s = span.slowest_s(training)
        first = span.first_iteration(training, iteration_s, self._roll.host_count, self._settings)
        current.window = msgspec.structs.replace(current.window, first_iteration=first, last_iteration=first + 1)
        lead = span.lead(iteration_s, self._roll.host_count, self._settings)
        current.deadline = now + patience.until_open_s(lead, iteration_s) + 10 * iteration_s + 10.0
        self._give("probe", current.window)

    def _give_up(self, current: Underway, why: str) -> Outcome:
        self._ledger.note(f"window {current.window.window_id} was given up: {why}")
        self._ledger.show(current.window, "given up", None, why)
        self._ledger.unseen = why
        self._give("cancel", current.window)  # which stays the order until another window opens
        self.current = None
        return "given up"

    # ------------------------------------------------------------------ the window

    def _order_window(self, now: float, current: Underway, training: Sequence[WorkerStatus], length: int) -> None:
        """Order the window itself: the same iterations on every worker."""
        iteration_s = span.slowest_s(training)
        first = span.first_iteration(training, iteration_s, self._roll.host_count, self._settings)
        current.window = msgspec.structs.replace(
            current.window,
            first_iteration=first,
            last_iteration=first + length,
            current_iteration_s=iteration_s,
        )
        current.phase = "window"
        lead = first - max(status.iteration for status in training)
        current.deadline = now + patience.until_closed_s(lead, length, iteration_s, self._settings)
        self._give("window", current.window)
        current.serial = self._serial
        self._ledger.show(current.window, "window")

    def _await_patterns(self, now: float, current: Underway, job_ended: bool) -> None:
        """The window is captured; a job that has ended waits no longer for patterns than was said then."""
        current.phase = "patterns"
        until_saved_s = patience.until_saved_s(current.window.current_iteration_s or 0.0, self._settings)
        limit = current.deadline if job_ended else math.inf
        current.deadline = min(limit, now + until_saved_s)
        self._ledger.show(current.window, "summarizing")

    def _give(self, kind: Literal["probe", "window", "cancel"], window: Window) -> None:
        self._serial += 1
        self.order = self._order(self._serial, kind, window)

    def _order(self, serial: int, kind: Literal["probe", "window", "cancel"], window: Window) -> OrderMessage:
        return OrderMessage(
            serial=serial,
            window_id=window.window_id,
            kind=kind,
            purpose=window.purpose,
            first_iteration=window.first_iteration,
            last_iteration=window.last_iteration,
            max_events=self._max_events,
            operators=self.current is None or self.current.operators,
        )

    @property
    def _max_events(self) -> int:
        """The tightest budget: the setting's or that of the host with the least scratch space."""
        return min((self._settings.max_window_events, *self._roll.event_budgets))
