"""Getting one window captured: the probe, the order for the same iterations on every worker, the wait for patterns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from eroica.collector import opening
from eroica.collector.ledger import History, Ledger
from eroica.collector.opening import Wanted
from eroica.collector.participants import AGENT_SILENT_S, Roll
from eroica.model.pattern import WorkerPattern
from eroica.model.window import UnderwayRecord, Window
from eroica.settings import Settings
from eroica.wire import patience
from eroica.wire.messages import OrderMessage, OrderResult, WorkerStatus

Phase = Literal["probe", "window", "patterns", "analysis"]
_MISSED = ("missed", "skipped", "failed")
_OVER = ("closed", "done")
#: What a worker has captured until it ends, its host hands over, or says why not.
_BEGUN = ("open", *_OVER)
#: Workers left out whose reason is told; the rest is a number.
_NAMED = 20
Outcome = Literal["going on", "given up", "too large", "ready"]
#: More orders than any window makes: agents take a serial number that they know for an old order.
_ORDERS_OF_A_WINDOW = 5


@dataclass
class Underway:
    """One window from the probe to its analysis.

    Attributes:
        roll: Who takes part in the job.
        window: As it was last ordered.
        wanted: What it was opened for.
        phase: How far it is.
        asked_at: When it was opened, seconds.
        deadline: Until when its phase may last, seconds.
        ranks: Global ranks that take part.
        patterns: Heads of those that came in (`eroica.collector.arrivals`), by global rank.
        left_out: Why, by global rank.
        serial: Number of the order for the window itself; 0 before it.
        resumed_at: When we took it over from a collector that died, seconds; 0 = it is our own.
        first_probes: Answers of a probe that met a long iteration and was followed by another, by global rank.
        stale: Answers to an earlier probe than the last one, by global rank.
        operators: Torch's operators are recorded, too.
        notes: What the window had to give up.
    """

    roll: Roll
    window: Window
    wanted: Wanted
    asked_at: float
    deadline: float
    ranks: frozenset[int]
    phase: Phase = "probe"
    patterns: dict[int, WorkerPattern] = field(default_factory=dict)
    left_out: dict[int, str] = field(default_factory=dict)
    serial: int = 0
    resumed_at: float = 0.0
    first_probes: dict[int, OrderResult] = field(default_factory=dict)
    stale: dict[int, OrderResult] = field(default_factory=dict)
    operators: bool = True
    notes: list[str] = field(default_factory=list)

    @property
    def waiting_for(self) -> set[int]:
        """Ranks whose pattern may still come."""
        return set(self.ranks) - set(self.patterns) - set(self.left_out)

    def record(self, now: float, wall_s: float) -> UnderwayRecord:
        """Describe the window for another collector that goes on with it.

        Args:
            now: Seconds, on our own clock.
            wall_s: The same moment in seconds since 1970.
        """
        runs: list[tuple[int, int]] = []
        for rank in sorted(self.ranks):
            first = runs.pop()[0] if runs and runs[-1][1] == rank - 1 else rank
            runs.append((first, rank))
        return UnderwayRecord(
            window=self.window,
            serial=self.serial,
            ranks=tuple(runs),
            asked_at=wall_s - (now - self.asked_at),
            until=wall_s + (self.deadline - now),
            resumed=self.resumed_at > 0,
        )

    @property
    def in_words(self) -> str:
        """Present phase of the window, for people."""
        window = self.window
        span = f"iterations {window.first_iteration} to {window.last_iteration}"
        words: dict[Phase, str] = {
            "probe": f"measuring one iteration ({window.reason})",
            "window": f"capturing {span} ({window.reason})",
            "patterns": "summarizing on the workers' hosts",
            "analysis": f"comparing {len(self.patterns)} workers",
        }
        return f"window {window.window_id}: {words[self.phase]}"

    def serve(self, wanted: Wanted) -> None:
        """Go on for another purpose: the probe that runs is the same for any."""
        self.wanted = wanted
        self.window = msgspec.structs.replace(
            self.window,
            purpose=wanted.purpose,
            reason=wanted.reason,
            baseline_iteration_s=wanted.baseline_s or self.window.baseline_iteration_s,
            since=wanted.since,
        )

    # ------------------------------------------------------------------ the probe

    def is_probed(self) -> bool:
        """Everybody has measured one iteration, cannot, or is gone."""
        finished = {rank for rank, result in self._probed().items() if result.status in ("done", *_MISSED)}
        return finished | self._gone() >= self.ranks

    def probes(self) -> dict[int, OrderResult]:
        """Results of the last probe, by global rank."""
        return {rank: result for rank, result in self._probed().items() if result.status == "done"}

    def _probed(self) -> dict[int, OrderResult]:
        return {rank: result for rank, result in self.answers("probe").items() if result != self.stale.get(rank)}

    # ------------------------------------------------------------------ the window

    def leave_out(self) -> None:
        """Wait no longer for workers that missed the window, failed in it or ended before it was opened."""
        answers = self.answers("window")
        for rank, result in answers.items():
            if result.status in _MISSED:
                self.left_out.setdefault(rank, result.note or result.status)
        for rank in self._gone():
            begun = rank in answers and answers[rank].status in _BEGUN
            if not begun and rank not in self.patterns:
                self.left_out.setdefault(rank, "the worker ended before the window was opened")

    def is_captured(self) -> bool:
        """The window is over on every worker that is not left out."""
        answers, gone = self.answers("window"), self._gone()
        over = {rank for rank, result in answers.items() if result.status in _OVER or rank in gone}
        return bool(over) and self.ranks <= over | set(self.left_out)

    def omissions(self) -> list[str]:
        """Return what the window gave up, and workers left out, each with its reason; a bounded list."""
        named = [f"worker {rank}: {why}" for rank, why in sorted(self.left_out.items())[:_NAMED]]
        if len(self.left_out) > len(named):
            named.append(f"and {len(self.left_out) - len(named)} more workers left out")
        return [*self.notes, *named]

    def answers(self, kind: str) -> dict[int, OrderResult]:
        """Answers of the window's workers to this order, by global rank."""
        return {
            status.worker.global_rank: status.result
            for status in self.roll
            if status.worker.global_rank in self.ranks
            and status.result.window_id == self.window.window_id
            and status.result.kind == kind
        }

    def _gone(self) -> set[int]:
        """Ranks of the window of which no process is there."""
        return set(self.ranks) - {status.worker.global_rank for status in self.roll.living}


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
            baseline_iteration_s=wanted.baseline_s or opening.best_s(training),
            current_iteration_s=opening.slowest_s(training),
            since=wanted.since,
        )
        ranks = frozenset(status.worker.global_rank for status in training)
        self.current = Underway(self._roll, window, wanted, now, now, ranks, operators=not self._too_many)
        self._probe(now, self.current, training)
        self._ledger.show(self.current.window, "probe")

    def advance(self, now: float, job_ended: bool) -> Outcome:
        """Time passed: "ready" once nobody is waited for any more, and the window can be analyzed."""
        current = self.current
        if current is None or current.phase == "analysis":
            return "going on"
        if current.phase == "probe":
            return self._advance_probe(now, current)
        found_us_at = max(current.resumed_at, self._roll.joined_at)
        may_still_report = current.resumed_at > 0 and now - found_us_at < AGENT_SILENT_S  # agents are still finding us
        if may_still_report and current.waiting_for and now <= current.deadline:
            return "going on"
        current.leave_out()
        if current.phase == "window" and current.is_captured():
            current.phase = "patterns"
            limit = current.deadline if job_ended else math.inf  # of a job that has ended: as it was said then
            until_saved_s = patience.until_saved_s(current.window.current_iteration_s or 0.0, self._settings)
            current.deadline = min(limit, now + until_saved_s)
            self._ledger.show(current.window, "summarizing")
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
            self._roll,
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

    # ------------------------------------------------------------------ the probe

    def _advance_probe(self, now: float, current: Underway) -> Outcome:
        if now < current.deadline and not current.is_probed():
            return "going on"
        probes = {**current.first_probes, **current.probes()}
        training = opening.in_training(self._roll)
        if not probes or not training:
            reasons = {result.note for result in current.answers("probe").values() if result.note}
            return self._give_up(current, "; ".join(sorted(reasons)) or "no worker answered in time")
        iteration_s = opening.slowest_s(training)
        shortest_s = min(status.current_s or 0.0 for status in training)
        before = current.first_probes
        events = max(1, *(opening.events_of(before.get(rank, one), one, shortest_s) for rank, one in probes.items()))
        length = opening.iterations(current.wanted, iteration_s, events, self._max_events, self._settings)
        whole = opening.iterations(current.wanted, iteration_s, 1, self._max_events, self._settings)
        if length < whole and not current.first_probes and opening.is_long(probes.values(), shortest_s):
            current.first_probes = current.stale = probes
            self._probe(now, current, training)
            return "going on"
        least = min(whole, opening.enough(iteration_s))
        if current.operators and (length < least or opening.is_slowed(training, events, iteration_s)):
            self._too_many, current.operators = events, False
            current.first_probes, current.stale = {}, current.probes()
            self._probe(now, current, training)
            return "going on"
        if objection := opening.objection(length, events, self._settings):
            self._give_up(current, objection)
            return "too large"
        if not current.operators:
            current.notes.append(f"operators are not recorded: one iteration makes {self._too_many:,} trace events")
        if lack := opening.shortfall(length, iteration_s, events, current.wanted):
            current.notes.append(lack)
        self._order_window(now, current, training, length)
        return "going on"

    def _probe(self, now: float, current: Underway, training: Sequence[WorkerStatus]) -> None:
        """Order a probe of the next iteration that nobody reaches before the order does."""
        iteration_s, lead, first = self._next(training)
        current.window = msgspec.structs.replace(current.window, first_iteration=first, last_iteration=first + 1)
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
        iteration_s, lead, first = self._next(training)
        current.window = msgspec.structs.replace(
            current.window, first_iteration=first, last_iteration=first + length, current_iteration_s=iteration_s
        )
        current.phase = "window"
        current.deadline = now + patience.until_closed_s(lead, length, iteration_s, self._settings)
        self._give("window", current.window)
        current.serial = self._serial
        self._ledger.show(current.window, "window")

    def _next(self, training: Sequence[WorkerStatus]) -> tuple[float, int, int]:
        """Seconds of an iteration, iterations until all have heard the next order, and the first one after that."""
        iteration_s = opening.slowest_s(training)
        lead = opening.lead(iteration_s, self._roll.host_count)
        return iteration_s, lead, max(status.iteration for status in training) + lead

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
        return int(min(self._settings.max_window_events, self._roll.event_budget))
