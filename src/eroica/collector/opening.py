"""Choose the window that opens next: first requests of people, then triggers outside the cooldown, then the baseline.

A trigger is answered by a short window first. Most causes show in a few seconds; where its verdict is not sure, a whole
one follows at once, and the job's final verdict weighs both.

After a baseline window that looked slow already, another one follows as if a trigger had asked for it.

First iteration and length of a window follow from the pace that the workers report.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from eroica.collector.ledger import History
from eroica.collector.participants import WorkerKey, key_of
from eroica.model.verdict import Verdict
from eroica.model.window import WindowPurpose
from eroica.settings import Settings
from eroica.wire.messages import OrderResult, ProfileRequest, WorkerStatus, WorkerTrigger

#: Windows cost some iterations each: the pause between them doubles up to this, unless the setting is longer.
_LONGEST_COOLDOWN_S = 1800.0
#: After a window that never opened the next one may come sooner than after a verdict.
_AFTER_GIVING_UP_S = 30.0
#: Pause after a window that somebody asked for.
_AFTER_ASKED_S = 30.0
#: A job that has become so many times as slow as its last window showed it, and as what that was opened for, has a new
#: reason, and need not wait for longer than this after that window: its own cost is forgotten by then. Once a pause.
_FAR_SLOWER = 1.3
_LEAST_PAUSE_S = 30.0
#: Requests that wait; whoever asks more often than windows can be taken is refused.
_MOST_REQUESTS = 8
#: Times that an early window is tried.
_EARLY_TRIES = 2
#: No iteration is taken for shorter than this, seconds.
SHORTEST_S = 1e-6
#: Fewest iterations of a window, and a second of them; a window that must hold less says so.
MIN_ITERATIONS = 20
#: A first look that would take this share of a whole window is that.
_NEARLY_WHOLE = 0.6
#: A cause that is told with so much confidence needs no longer window.
_SURE = 0.8


@dataclass(frozen=True)
class Wanted:
    """A window that shall be opened.

    Attributes:
        purpose: Why.
        reason: The same, one clause for people.
        seconds: How long it shall be.
        iterations: How long instead, if not 0.
        least: Iterations that it shall hold where its budgets allow.
        baseline_s: What an iteration should take, as the trigger says it; None if it follows from the reports.
        window_id: The id that was promised already; 0 = none.
        since: See `Window`.
    """

    purpose: WindowPurpose
    reason: str
    seconds: float
    iterations: int = 0
    least: int = 0
    baseline_s: float | None = None
    window_id: int = 0
    since: int = 0


class Opening:
    """Requests that wait, triggers that were answered, and the pause between windows.

    Attributes:
        absolved: Windows so far that found nothing wrong, but for those that somebody asked for.
        quiet_until: No trigger counts before this moment, seconds.
    """

    def __init__(self, settings: Settings) -> None:
        self.absolved = 0
        self.quiet_until = 0.0
        self._settings = settings
        self._cooldown_s = settings.cooldown_s
        self._requests: list[tuple[int, ProfileRequest]] = []
        self._triggers_seen: dict[WorkerKey, int] = {}
        self._suspected = ""
        self._looks_left = 0
        self._known_s = math.inf
        self._known_at = 0.0
        self._is_early = False
        self._whole: Wanted | None = None  # what follows the look that is open, unless that suffices
        self._due: Wanted | None = None

    @property
    def refusal(self) -> str:
        """Tell why no further request can wait; "" if one can."""
        full = len(self._requests) >= _MOST_REQUESTS
        return f"{_MOST_REQUESTS} windows are waiting to be opened already" if full else ""

    def request(self, window_id: int, request: ProfileRequest) -> None:
        """Somebody wants a window; it will get this id."""
        self._requests.append((window_id, request))

    def next_request(self) -> Wanted | None:
        """The window that was asked for first."""
        if not self._requests:
            return None
        window_id, request = self._requests.pop(0)
        seconds = request.seconds or self._settings.window_s
        return Wanted("manual", request.reason, seconds, request.iterations, window_id=window_id)

    def next_trigger(self, now: float, workers: Iterable[WorkerStatus]) -> Wanted | None:
        """The window for a trigger that nobody answered yet; triggers inside the cooldown are dropped.

        Unless the job is far slower than what is known of it.
        """
        fresh = self._unanswered(workers)
        if self._due is not None:
            due, self._due = self._due, None
            return due
        is_quiet = now < self.quiet_until
        if is_quiet:
            fresh = [] if self._is_early else [trigger for trigger in fresh if self._is_news(now, trigger)]
        if fresh:
            self._is_early = is_quiet
        elif is_quiet or not (self._suspected and self._looks_left):
            return None
        else:
            self._looks_left -= 1
            return Wanted("early", self._suspected, self._settings.window_s)
        first = fresh[0]
        self._whole, self._known_s = None, first.current_s
        whole = Wanted(
            first.kind, first.reason, self._settings.window_s, baseline_s=first.baseline_s, since=first.since
        )
        look_s = max(self._settings.first_look_s, MIN_ITERATIONS * first.current_s)
        if not self._settings.first_look_s or look_s >= _NEARLY_WHOLE * whole.seconds:
            return whole
        self._whole = whole
        return replace(whole, seconds=look_s)

    def _is_news(self, now: float, trigger: WorkerTrigger) -> bool:
        is_rested = now >= self._known_at + min(_LEAST_PAUSE_S, self._settings.cooldown_s)
        return is_rested and trigger.kind == "slow" and trigger.current_s >= _FAR_SLOWER * self._known_s

    def _unanswered(self, workers: Iterable[WorkerStatus]) -> list[WorkerTrigger]:
        """New triggers of the living, from now on answered."""
        fresh = []
        for status in workers:
            trigger, key = status.trigger, key_of(status)
            if trigger is None or status.ended or self._triggers_seen.get(key) == trigger.count:
                continue
            self._triggers_seen[key] = trigger.count
            fresh.append(trigger)
        return fresh

    def suspect(self, reason: str) -> None:
        """The baseline window looked slow: look again, and once more if that window never opens."""
        self._suspected, self._looks_left = reason, _EARLY_TRIES

    def judged(self, now: float, purpose: WindowPurpose, verdict: Verdict, length: int = 0) -> None:
        """A window has its verdict: a pause follows, longer each time; a short one after one that somebody asked for.

        Capture and judgement slow a job down that has no core to spare, for as long as its last iterations remember.

        Args:
            now: Seconds.
            purpose: Why it was opened.
            verdict: What it showed.
            length: Iterations that it held; a second look holds no fewer.
        """
        self._suspected = ""
        shown_s = (verdict.iteration.current_ms or math.inf) / 1e3 if purpose != "manual" else math.inf
        self._known_s, self._known_at = max(shown_s, 0.0 if purpose == "early" else self._known_s), now
        if purpose == "manual":
            self.quiet_until = max(self.quiet_until, now + min(self._settings.cooldown_s, _AFTER_ASKED_S))
            return
        if purpose == "early" and verdict.verdict != "slow":  # a slowdown may still ask for its own
            return
        whole, self._whole = self._whole, None
        is_sure = verdict.verdict == "slow" and verdict.cause is not None and verdict.cause.confidence >= _SURE
        if whole is not None and not is_sure:
            self._due = replace(whole, least=length)
            return
        self.absolved += verdict.verdict == "healthy"
        self._pause(now)

    def _pause(self, now: float) -> None:
        self.quiet_until = now + self._cooldown_s
        self._cooldown_s = min(2 * self._cooldown_s, max(self._settings.cooldown_s, _LONGEST_COOLDOWN_S))

    def given_up(self, now: float, in_vain: bool = False) -> None:
        """A window never opened: a short pause follows.

        Args:
            now: Seconds.
            in_vain: Nor would the next one, and each probe costs the training something: a pause as after a verdict.
        """
        self._is_early, self._whole = False, None
        if in_vain:
            self._pause(now)
        self.quiet_until = max(self.quiet_until, now + min(self._settings.cooldown_s, _AFTER_GIVING_UP_S))

    def resume(self, history: History) -> None:
        """Go on where a collector of the same job ended."""
        triggered = (line for line in history.lines if line.purpose not in ("manual", "early"))
        self.absolved = sum(line.verdict == "healthy" for line in triggered)
        window = None if history.underway is None else history.underway.window
        if window is None or window.purpose not in ("slow", "expected") or not self._settings.first_look_s:
            return
        seconds = (window.last_iteration - window.first_iteration) * (window.current_iteration_s or 0.0)
        if seconds < _NEARLY_WHOLE * self._settings.window_s:  # a first look
            self._whole = Wanted(
                window.purpose,
                window.reason,
                self._settings.window_s,
                baseline_s=window.baseline_iteration_s,
                since=window.since,
            )


# --- length and first iteration of a window ---


#: What one trace event of a worker costs the training when recording ends, seconds.
_STALL_S = 4e-6
#: Time between the order and the window, seconds, and iterations at least: one that is under way cannot be the first.
_LEAD_S, _LEAST_LEAD = 1.0, 2
#: While nothing is under way, the hosts of a job of up to 125 report some 250 times a second together; none of them too
#: late for an order, which leaves a second (`_LEAD_S`).
_QUIET_PAUSE_S, _LONGEST_QUIET_PAUSE_S = 4e-3, 0.5
#: Reports a second of all hosts that one process takes in beside its other work. Whoever is silent for longer than the
#: longest pause and a second looks for another collector (`eroica.agent.home`).
_MOST_REPORTS_HZ, _LONGEST_PAUSE_S = 1000.0, 4.0
#: A probed iteration that is shorter than usual by this factor stands for no other.
_UNLIKE = 1.5
#: A shorter window tells little of what comes and goes, seconds...
ENOUGH_S = 1.0
#: ...but no window is made longer than this for its number of iterations.
LONGEST_S = 60.0
_FEWEST = 2  # iterations that can be compared with each other
#: Recording an operator takes so long, seconds, and may make iterations longer by this share.
_RECORDING_S, _LONGER = 0.5e-6, 0.2


def in_training(workers: Iterable[WorkerStatus]) -> list[WorkerStatus]:
    """Workers in full swing: their iterations are known, and roughly how long one takes."""
    return [
        status
        for status in workers
        if not status.ended and status.state in ("steady", "capturing", "saving") and status.current_s
    ]


def slowest_s(training: Iterable[WorkerStatus]) -> float:
    """Longest recent iteration of a worker (`WorkerStatus.current_s`), seconds; at least one worker."""
    return max(status.current_s or 0.0 for status in training)


def best_s(training: Iterable[WorkerStatus]) -> float | None:
    """Lowest mean of recent iterations, of the worker whose lowest is highest: all wait for each other."""
    return max((status.baseline_s for status in training if status.baseline_s), default=None)


def report_pause_s(hosts: int, is_busy: bool) -> float:
    """Seconds that an agent may wait until its next report; agents wait `eroica.wire.patience.REPORT_S` at least.

    Args:
        hosts: Hosts of the job.
        is_busy: A window or a standstill is under way.
    """
    thinned_s = min(hosts / _MOST_REPORTS_HZ, _LONGEST_PAUSE_S)
    return thinned_s if is_busy else max(thinned_s, min(_QUIET_PAUSE_S * hosts, _LONGEST_QUIET_PAUSE_S))


def lead(iteration_s: float, hosts: int) -> int:
    """Iterations until the window opens, so that the order reaches all workers in time."""
    lead_s = _LEAD_S + report_pause_s(hosts, is_busy=True)
    return max(_LEAST_LEAD, math.ceil(lead_s / max(iteration_s, SHORTEST_S)))


def events_of(first: OrderResult, last: OrderResult, iteration_s: float) -> int:
    """Trace events of the mean iteration of one worker, from the last probe and, if that met a long one, the first.

    One probe may have met a short iteration: where iterations take turns (several updates for one rollout), most of the
    events are in the few that are long. Two probes met both kinds, and the mean duration says how many there are of
    each: events lie as far between the two probes' as that lies between their durations.

    Args:
        first: What the worker answered first.
        last: What it answered then; the same without a second probe.
        iteration_s: The mean iteration, of the quickest worker, seconds.
    """
    if first == last:
        longer = iteration_s / last.duration_s if last.duration_s > 0 else 1.0
        return math.ceil(last.events * longer) if longer > _UNLIKE else last.events
    apart_s = first.duration_s - last.duration_s
    if apart_s <= 0 or first.duration_s <= _UNLIKE * last.duration_s:
        return max(first.events, last.events)
    share = min(max((iteration_s - last.duration_s) / apart_s, 0.0), 1.0)
    return math.ceil(last.events + share * (first.events - last.events))


def is_long(probes: Iterable[OrderResult], iteration_s: float) -> bool:
    """Return whether a probe met an iteration far longer than the quickest worker's usual one, seconds."""
    return any(probe.duration_s > _UNLIKE * iteration_s > 0 for probe in probes)


def enough(iteration_s: float) -> int:
    """Iterations that a window should hold: some, a second of them, but no more than fit into a minute."""
    pace_s = max(iteration_s, SHORTEST_S)
    some = max(MIN_ITERATIONS, math.ceil(ENOUGH_S / pace_s))
    return max(_FEWEST, min(some, math.floor(LONGEST_S / pace_s)))


def iterations(wanted: Wanted, iteration_s: float, events: int, max_events: int, settings: Settings) -> int:
    """Length of the window: the wanted time, what statistics need, and the tightest budget.

    Args:
        wanted: What the window was opened for.
        iteration_s: Of the slowest worker, seconds.
        events: Trace events of one iteration, of the worker that makes most.
        max_events: The tightest budget for the whole window.
        settings: Tunables.
    """
    asked = wanted.iterations or math.ceil(wanted.seconds / max(iteration_s, SHORTEST_S))
    least = max(enough(iteration_s), wanted.least)
    if not wanted.iterations:
        asked = max(min(asked, settings.max_window_iterations), least)
    else:
        asked = min(asked, max(settings.max_window_iterations, least))
    return max(_FEWEST, min(asked, max_events // events))


def is_slowed(training: Iterable[WorkerStatus], events: int, iteration_s: float) -> bool:
    """Return whether recording operators makes iterations on CPUs clearly longer.

    Where devices compute, most events are theirs, and cost the host nothing.
    """
    on_cpu = all(status.worker.device in ("", "cpu") for status in training)
    return on_cpu and _RECORDING_S * events > _LONGER * iteration_s


def shortfall(length: int, iteration_s: float, events: int, wanted: Wanted) -> str:
    """Tell what a window lacks that holds fewer iterations or seconds than it should; "" where it lacks nothing.

    Args:
        length: Iterations that it holds.
        iteration_s: Of the slowest worker, seconds.
        events: Trace events of one iteration, without operators.
        wanted: What it was opened for.
    """
    length_s = length * iteration_s
    if length >= MIN_ITERATIONS and length_s >= 0.99 * ENOUGH_S:
        return ""
    if wanted.iterations and length >= wanted.iterations:
        why = "as it was asked for"
    elif length >= enough(iteration_s):
        why = f"iterations take {iteration_s:.3g} s"
    else:
        why = f"even without operators one iteration makes {events:,} trace events"
    return f"the window holds {length} iterations in {length_s:.2g} s: {why}"


def objection(length: int, events: int, settings: Settings) -> str:
    """Tell why a window of so many iterations, with so many events in each, cannot be captured; "" if it can."""
    if length * events <= settings.hard_window_events:
        return ""
    return (
        f"one iteration makes {events} trace events: {length} iterations would stop the training for about "
        f"{_STALL_S * length * events:.0f} s; set hard_window_events to {length * events} to allow that"
    )
