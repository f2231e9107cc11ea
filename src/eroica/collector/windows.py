"""Windows of one job as a state machine: reports, patterns and time in, orders and work out. No I/O.

    idle ──trigger, request, baseline──▶ probe ──events and seconds──▶ window ──captured──▶ patterns ──all or
    deadline──▶ analysis ──verdict──▶ idle

Whoever reports counts: a worker that misses the start, fails or stays silent is left out with a note.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from eroica.collector.intake import clean_text
from eroica.collector.resume import History
from eroica.collector.roll import Roll, WorkerKey
from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Verdict
from eroica.model.window import Window, WindowPurpose
from eroica.settings import Settings
from eroica.wire.messages import (
    AgentReport,
    JobStatus,
    OrderMessage,
    ProfileAnswer,
    ProfileRequest,
    WindowLine,
    WorkerStatus,
    WorkerTrigger,
)

Phase = Literal["idle", "probe", "window", "patterns", "analysis"]
_LEFT_OUT = ("missed", "skipped", "failed")
_HARD_EVENTS = 500_000  # about 2 s of stall at 4 microseconds for each
_BASELINE_TRIES = 3
_LONGEST_COOLDOWN_S = 1800.0
_MOST_REQUESTS = 8
_MOST_NOTES = 100
_PARKED_ITERATIONS = 5  # that a worker may need after the window before its profiler can be stopped


@dataclass(frozen=True)
class Analyze:
    """Instruction: run the analysis of this window, then call `Windows.analyzed`."""

    window: Window
    patterns: tuple[WorkerPattern, ...]
    baseline: tuple[WorkerPattern, ...]
    expected_workers: int
    notes: tuple[str, ...]
    asked_at: float


@dataclass
class _Open:
    """The window being worked on."""

    window: Window
    phase: Phase
    asked_at: float
    deadline: float
    wanted_s: float
    wanted_iterations: int
    ranks: frozenset[int]
    patterns: dict[int, WorkerPattern] = field(default_factory=dict)
    left_out: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def waiting_for(self) -> set[int]:
        return set(self.ranks) - set(self.patterns) - set(self.left_out)


class Windows:
    """All windows of one job.

    Attributes:
        hold: The job stands still: no window opens; one that is open goes on to its own deadlines.
        roll: Who takes part.
    """

    def __init__(self, job: str, settings: Settings) -> None:
        self.job = job
        self.settings = settings
        self.hold = False
        self.roll = Roll(self.note)
        self.order: OrderMessage | None = None
        self.absolved = 0
        self.ended = False
        self.verdicts: dict[int, Verdict] = {}
        self.baseline: tuple[WorkerPattern, ...] = ()
        self.notes: list[str] = []
        self._windows: dict[int, WindowLine] = {}
        self._current: _Open | None = None
        self._last_id = 0
        self._told = 0
        self._serial = 0
        self._baseline_done = not settings.baseline_window
        self._baseline_tries = 0
        self._triggers_seen: dict[WorkerKey, int] = {}
        self._quiet_until = 0.0
        self._cooldown_s = settings.cooldown_s
        self._requests: list[tuple[int, ProfileRequest]] = []

    # ------------------------------------------------------------------ events in

    def reported(self, now: float, report: AgentReport) -> list[Analyze]:
        """An agent told the state of its workers."""
        self.take(now, report)
        return self.tick(now)

    def take(self, now: float, report: AgentReport) -> None:
        """The same without moving on."""
        self.roll.reported(now, report)
        for note in report.notes:
            if self._told < _MOST_NOTES:  # what agents say does not crowd out what we have to say
                self._told += self.note(f"{report.host}: {note}")

    def pattern_arrived(self, now: float, pattern: WorkerPattern) -> list[Analyze]:
        """A worker's summary is here; patterns of other windows are late and dropped."""
        current = self._current
        if current is not None and self.expects(pattern):
            current.patterns[pattern.worker.global_rank] = pattern
        return self.tick(now)

    def summary_failed(self, now: float, window_id: int, global_rank: int, note: str) -> list[Analyze]:
        """A worker's window could not be summarized."""
        current = self._current
        if current is not None and window_id == current.window.window_id and global_rank in current.ranks:
            current.left_out[global_rank] = note
        return self.tick(now)

    def asked(self, now: float, request: ProfileRequest) -> ProfileAnswer:
        """Somebody wants a window now; it opens at the next report."""
        if self.ended:
            return ProfileAnswer(refused="the job is over")
        if self._current is not None and self._current.window.purpose != "baseline":
            busy = self._current.window.window_id
            return ProfileAnswer(window_id=busy, refused=f"window {busy} is open already; its verdict is coming")
        if not self._training():
            return ProfileAnswer(refused="no worker has finished its first iterations yet; try again in a moment")
        if self.hold:
            return ProfileAnswer(refused="the job stands still; it is being looked at already")
        if len(self._requests) >= _MOST_REQUESTS:
            return ProfileAnswer(refused=f"{_MOST_REQUESTS} windows are waiting to be opened already")
        self._requests.append((self._take_id(), request))
        return ProfileAnswer(window_id=self._last_id)

    def analyzed(self, now: float, window_id: int, verdict: Verdict | None) -> None:
        """The analysis of a window is done; None if it failed."""
        current = self._current
        if current is None or current.window.window_id != window_id:
            return
        self._close()
        if verdict is None:
            self._line(current.window, "failed", "", "the analysis failed; see log/collector.log")
            return
        self._line(current.window, "done", verdict.verdict, verdict.summary)
        self.verdicts[window_id] = verdict
        if current.window.purpose == "manual":
            return
        if verdict.verdict == "healthy":
            self.absolved += 1
        self._quiet_until = now + self._cooldown_s
        self._cooldown_s = min(2 * self._cooldown_s, max(self.settings.cooldown_s, _LONGEST_COOLDOWN_S))

    def job_ended(self, now: float, patience_s: float = math.inf) -> list[Analyze]:
        """The command is over: no new windows; what is being summarized may still come in, for so long."""
        self.ended = True
        if self._current is not None:
            if self._current.phase == "probe":
                self._line(self._current.window, "given up", "", "the job ended before the window opened")
                self._close()
            else:
                self._current.deadline = min(
                    self._current.deadline, now + min(patience_s, self.settings.window_deadline_s / 3)
                )
        return self.tick(now)

    def tick(self, now: float) -> list[Analyze]:
        """Time passed; call at least once a second."""
        if self._current is None:
            self._maybe_open(now)
            return []
        return self._advance(now, self._current)

    # ------------------------------------------------------------------ views

    @property
    def busy(self) -> bool:
        """A window is open or being analyzed."""
        return self._current is not None

    @property
    def window(self) -> Window | None:
        """The window being worked on."""
        return None if self._current is None else self._current.window

    def expects(self, pattern: WorkerPattern) -> bool:
        """The pattern is of the window being worked on and of a worker in it."""
        current = self._current
        return (
            current is not None
            and pattern.window_id == current.window.window_id
            and pattern.worker.global_rank in current.ranks
        )

    @property
    def hosts(self) -> frozenset[str]:
        """Hosts whose agent ever reported."""
        return self.roll.hosts

    @property
    def last_heard(self) -> float:
        """When any agent last reported; 0 if none ever did."""
        return self.roll.last_heard

    def status(self) -> JobStatus:
        """The job for people."""
        workers = sorted(self.roll, key=lambda status: status.worker.global_rank)
        living = [status for status in workers if not status.ended]
        means = [status.current_s for status in living if status.current_s is not None]
        bests = [status.baseline_s for status in living if status.baseline_s is not None]
        phase, message = self._phase(living)
        return JobStatus(
            job=self.job,
            phase=phase,
            message=message,
            iteration=max((status.iteration for status in living), default=0),
            mean_ms=1e3 * max(means) if means else None,
            best_ms=1e3 * max(bests) if bests else None,
            hosts=tuple(sorted(self.roll.hosts)),
            workers=tuple(workers),
            windows=tuple(self._windows[window_id] for window_id in sorted(self._windows)),
            notes=tuple(self.notes),
        )

    # ------------------------------------------------------------------ beside the windows of iterations

    def reserve(self) -> int:
        """A window id for something that is no window of iterations; `show` makes it visible."""
        return self._take_id()

    def show(self, window: Window, phase: str, verdict: Verdict | None = None, summary: str = "") -> None:
        """A reserved window in one line; its verdict, if it has one, counts from now on."""
        if verdict is not None:
            self.verdicts[window.window_id] = verdict
            summary = summary or verdict.summary
        self._line(window, phase, "" if verdict is None else verdict.verdict, summary)

    def resume(self, history: History) -> None:
        """Go on where a collector of the same job ended; before anything else."""
        self._windows.update({line.window_id: line for line in history.lines})
        self.verdicts.update(history.verdicts)
        self._last_id = history.last_id + 1  # one may have been asked for that left no trace
        self._serial = 4 * self._last_id  # no order has more than four parts: agents have seen no such number
        self.absolved = sum(line.verdict == "healthy" and line.purpose != "manual" for line in history.lines)
        if history.baseline:
            self.baseline, self._baseline_done = history.baseline, True
        for note in history.notes:
            self.note(note)

    # ------------------------------------------------------------------ opening

    def _take_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _training(self) -> list[WorkerStatus]:
        return [
            status
            for status in self.roll
            if not status.ended and status.state in ("steady", "capturing", "saving") and status.current_s
        ]

    def _maybe_open(self, now: float) -> None:
        if self.ended or self.hold or self.roll.waiting(now):
            return
        training = self._training()
        if not training:
            return
        if self._requests:
            window_id, request = self._requests.pop(0)
            seconds = request.seconds or self.settings.window_s
            self._open(now, "manual", request.reason, seconds, request.iterations, window_id=window_id)
            return
        if self.roll.gathering(now):
            return
        trigger = self._new_trigger(now)
        if trigger is not None:
            self._open(now, trigger.kind, trigger.reason, self.settings.window_s, 0, trigger.baseline_s)
        elif self._baseline_is_due(training):
            self._baseline_tries += 1
            self._baseline_done = self._baseline_tries >= _BASELINE_TRIES
            self._open(now, "baseline", "early healthy window", self.settings.baseline_window_s, 0)

    def _new_trigger(self, now: float) -> WorkerTrigger | None:
        """A trigger that nobody answered yet; those inside the cooldown are dropped."""
        fresh = None
        for status in self.roll:
            trigger, key = status.trigger, (status.worker.host, status.worker.pid)
            if trigger is None or status.ended or self._triggers_seen.get(key) == trigger.count:
                continue
            self._triggers_seen[key] = trigger.count
            if now >= self._quiet_until:
                fresh = fresh or trigger
        return fresh

    def _baseline_is_due(self, training: Iterable[WorkerStatus]) -> bool:
        if self._baseline_done:
            return False
        training = list(training)
        world = max(status.worker.world_size for status in training)
        everybody = len(training) >= min(world, len(self.roll.living))
        return everybody and all(
            status.steady and status.iteration >= self.settings.baseline_after_iterations for status in training
        )

    def _open(
        self,
        now: float,
        purpose: WindowPurpose,
        reason: str,
        wanted_s: float,
        wanted_iterations: int,
        baseline_s: float | None = None,
        window_id: int = 0,
    ) -> None:
        training = self._training()
        slowest = max(status.current_s or 0.0 for status in training)
        baselines = [status.baseline_s for status in training if status.baseline_s]
        first = self._first_iteration(training, slowest)
        window = Window(
            window_id=window_id or self._take_id(),
            purpose=purpose,
            reason=reason,
            first_iteration=first,
            last_iteration=first + 1,
            baseline_iteration_s=baseline_s or max(baselines, default=None),
            current_iteration_s=slowest,
        )
        lead_s = (first - max(status.iteration for status in training)) * slowest
        self._current = _Open(
            window=window,
            phase="probe",
            asked_at=now,
            deadline=now + 3 * lead_s + 10 * slowest + 10.0,
            wanted_s=wanted_s,
            wanted_iterations=wanted_iterations,
            ranks=frozenset(status.worker.global_rank for status in training),
        )
        self._give("probe", window)
        self._line(window, "probe")

    def _first_iteration(self, training: Iterable[WorkerStatus], iteration_s: float) -> int:
        lead = max(2, math.ceil(self.settings.window_lead_s / max(iteration_s, 1e-6)))
        return max(status.iteration for status in training) + lead

    def _give(self, kind: Literal["probe", "window", "cancel"], window: Window) -> None:
        self._serial += 1
        self.order = OrderMessage(
            serial=self._serial,
            window_id=window.window_id,
            kind=kind,
            purpose=window.purpose,
            first_iteration=window.first_iteration,
            last_iteration=window.last_iteration,
            max_events=self._max_events,
        )

    @property
    def _max_events(self) -> int:
        """The tightest budget: the setting's or that of the host with the least scratch space."""
        return min((self.settings.max_window_events, *self.roll.event_budgets))

    # ------------------------------------------------------------------ moving on

    def _advance(self, now: float, current: _Open) -> list[Analyze]:
        if current.phase == "probe":
            self._advance_probe(now, current)
        elif current.phase in ("window", "patterns"):
            self._leave_out(current)
            if current.phase == "window" and self._captured(current):
                current.phase = "patterns"
                parked_s = _PARKED_ITERATIONS * (current.window.current_iteration_s or 0.0)
                limit = current.deadline if self.ended else math.inf
                current.deadline = min(limit, now + parked_s + self.settings.window_deadline_s)
                self._line(current.window, "summarizing")
            if not current.waiting_for or now > current.deadline:
                return self._analyze(current)
        return []

    def _answers(self, current: _Open, kind: str) -> dict[int, WorkerStatus]:
        """Statuses of the window's workers that have answered this order, by global rank."""
        return {
            status.worker.global_rank: status
            for status in self.roll
            if status.worker.global_rank in current.ranks
            and status.result.window_id == current.window.window_id
            and status.result.kind == kind
        }

    def _advance_probe(self, now: float, current: _Open) -> None:
        answers = self._answers(current, "probe")
        finished = {rank for rank, status in answers.items() if status.result.status in ("done", *_LEFT_OUT)}
        finished |= self._ended_ranks(current)
        if finished < set(current.ranks) and now < current.deadline:
            return
        probes = [status.result for status in answers.values() if status.result.status == "done"]
        training = self._training()
        if not probes or not training:
            reasons = {status.result.note for status in answers.values() if status.result.note}
            self._give_up(now, current, "; ".join(sorted(reasons)) or "no worker answered in time")
            return
        iteration_s = max(status.current_s or 0.0 for status in training)
        events = max(1, *(probe.events for probe in probes))
        iterations = self._iterations(current, iteration_s, events)
        if iterations * events > _HARD_EVENTS:
            self._give_up(
                now,
                current,
                f"one iteration makes {events} trace events: even {iterations} iterations would stop the training "
                "for seconds",
            )
            return
        first = self._first_iteration(training, iteration_s)
        current.window = Window(
            window_id=current.window.window_id,
            purpose=current.window.purpose,
            reason=current.window.reason,
            first_iteration=first,
            last_iteration=first + iterations,
            baseline_iteration_s=current.window.baseline_iteration_s,
            current_iteration_s=iteration_s,
        )
        current.phase = "window"
        lead_s = (first - max(status.iteration for status in training)) * iteration_s
        current.deadline = now + 3 * (lead_s + iterations * iteration_s) + self.settings.window_deadline_s
        self._give("window", current.window)
        self._line(current.window, "window")

    def _give_up(self, now: float, current: _Open, why: str) -> None:
        self.note(f"window {current.window.window_id} was given up: {why}")
        self._line(current.window, "given up", "", why)
        self._give("cancel", current.window)
        self._current = None
        self._quiet_until = max(self._quiet_until, now + min(self.settings.cooldown_s, 30.0))

    def _iterations(self, current: _Open, iteration_s: float, events: int) -> int:
        """Length of the window: the wanted time, what statistics need, and the tightest budget."""
        wanted = current.wanted_iterations or math.ceil(current.wanted_s / max(iteration_s, 1e-6))
        budget = self._max_events // events
        return max(self.settings.min_window_iterations, min(wanted, self.settings.max_window_iterations, budget))

    def _ended_ranks(self, current: _Open) -> set[int]:
        living = {status.worker.global_rank for status in self.roll.living}
        return set(current.ranks) - living

    def _leave_out(self, current: _Open) -> None:
        answers = self._answers(current, "window")
        for rank, status in answers.items():
            if status.result.status in _LEFT_OUT:
                current.left_out.setdefault(rank, status.result.note or status.result.status)
        for rank in self._ended_ranks(current):
            captured = rank in answers and answers[rank].result.status == "done"
            if not captured and rank not in current.patterns and self._host_is_silent_or_ended(rank):
                current.left_out.setdefault(rank, "the worker ended inside the window")

    def _host_is_silent_or_ended(self, rank: int) -> bool:
        known = [status for status in self.roll if status.worker.global_rank == rank]
        return any(status.ended for status in known) or not known

    def _captured(self, current: _Open) -> bool:
        answers = self._answers(current, "window")
        done = {rank for rank, status in answers.items() if status.result.status in ("closed", "done")}
        return bool(done) and set(current.ranks) <= done | set(current.left_out)

    def _analyze(self, current: _Open) -> list[Analyze]:
        for rank in sorted(current.waiting_for):
            current.left_out[rank] = "no pattern before the deadline"
        if current.window.purpose == "baseline":
            self.baseline = tuple(current.patterns.values())
            self._baseline_done = self._baseline_done or bool(self.baseline)
            self._line(current.window, "done", "", f"{len(self.baseline)} workers")
            self._close()
            return []
        current.phase = "analysis"
        self._line(current.window, "analysis")
        notes = [f"worker {rank}: {why}" for rank, why in sorted(current.left_out.items())[:20]]
        if len(current.left_out) > len(notes):
            notes.append(f"and {len(current.left_out) - len(notes)} more workers left out")
        world = max((p.worker.world_size for p in current.patterns.values()), default=len(current.ranks))
        return [
            Analyze(
                window=current.window,
                patterns=tuple(current.patterns[rank] for rank in sorted(current.patterns)),
                baseline=self.baseline,
                expected_workers=max(world, len(current.ranks)),
                notes=(*current.notes, *notes),
                asked_at=current.asked_at,
            )
        ]

    def _close(self) -> None:
        self._current = None
        self.order = None

    # ------------------------------------------------------------------ words

    def _line(self, window: Window, phase: str, verdict: str = "", summary: str = "") -> None:
        self._windows[window.window_id] = WindowLine(
            window_id=window.window_id,
            purpose=window.purpose,
            phase=phase,
            first_iteration=window.first_iteration,
            last_iteration=window.last_iteration,
            verdict=verdict,
            summary=summary,
        )

    def note(self, text: str) -> bool:
        """Remember something that people should know; bounded. False if it was known or there is no room."""
        text = clean_text(text)
        if text in self.notes or len(self.notes) >= 2 * _MOST_NOTES:
            return False
        self.notes.append(text)
        return True

    def _phase(self, living: list[WorkerStatus]) -> tuple[str, str]:
        if self._current is not None:
            window = self._current.window
            span = f"iterations {window.first_iteration} to {window.last_iteration}"
            words = {
                "probe": f"window {window.window_id}: measuring one iteration ({window.reason})",
                "window": f"window {window.window_id}: capturing {span} ({window.reason})",
                "patterns": f"window {window.window_id}: summarizing on the workers' hosts",
                "analysis": f"window {window.window_id}: comparing {len(self._current.patterns)} workers",
            }
            return self._current.phase, words.get(self._current.phase, "")
        if self.ended:
            return "ended", "the job is over"
        if not living:
            return "waiting", "no worker has finished an iteration yet"
        if all(status.state == "learning" for status in living):
            return "learning", f"{len(living)} workers, learning their iterations"
        return "watching", f"{len(living)} workers, watching"
