"""Windows of one job as a state machine: reports, patterns and time in, orders and work out. No I/O.

    idle ──trigger, request, baseline──▶ probe ──events and seconds──▶ window ──captured──▶ patterns ──all or
    deadline──▶ analysis ──verdict──▶ idle

Whoever reports counts: a worker that misses the start, fails or stays silent is left out with a note. `opening` says
which window opens next, `baseline` what later ones are compared with; `capturing` leads the open one from the probe to
its patterns, and `ledger` holds what people read of all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from eroica.collector.baseline import Baseline
from eroica.collector.capturing import Capturing, Underway
from eroica.collector.history import looks_slow
from eroica.collector.ledger import History, Ledger
from eroica.collector.opening import Opening, Wanted, best_s, in_training
from eroica.collector.participants import Roll, counting
from eroica.model.pattern import WorkerPattern
from eroica.model.verdict import Verdict
from eroica.model.window import ALONE, REFUSED, Window
from eroica.report.phrases import in_short
from eroica.settings import Settings
from eroica.wire.messages import (
    AgentReport,
    JobStatus,
    ProfileAnswer,
    ProfileRequest,
    WorkerStatus,
)


@dataclass(frozen=True)
class Analyze:
    """Instruction: run the analysis of this window, then call `Windows.analyzed`.

    Attributes:
        window: Which one.
        patterns: What its workers handed over: heads; whole ones take their place before anything is compared.
        baseline: What they are compared with, may be empty; heads likewise.
        expected_workers: Workers of the job.
        notes: What the reader should know.
        asked_at: When it was opened, seconds.
        counts: Its verdict is one on the job. That on a baseline window only tells whether to look again.
        doubted: A baseline window that is not trusted; the notes say why. It counts where nothing else tells.
    """

    window: Window
    patterns: tuple[WorkerPattern, ...]
    baseline: tuple[WorkerPattern, ...]
    expected_workers: int
    notes: tuple[str, ...]
    asked_at: float
    counts: bool = True
    doubted: tuple[WorkerPattern, ...] = ()


class Windows:
    """All windows of one job.

    Attributes:
        look: The verdict on the last baseline window; None if none was judged.
        hold: The job stands still: no window opens; one that is open goes on to its own deadlines.
        roll: Who takes part.
        ledger: What people read of all windows.
        ended: The job is over: no window opens any more.
        opening: Which window opens next.
        baseline: What later windows are compared with.
        capturing: The window that is open, and what workers shall do for it.
    """

    def __init__(self, job: str, settings: Settings) -> None:
        self.job = job
        self.look: Verdict | None = None
        self._judging = 0
        self.hold = False
        self.ended = False
        self._settings = settings
        self.ledger = Ledger()
        self.roll = Roll(self.ledger.note)
        self.opening = Opening(settings)
        self.baseline = Baseline(settings)
        self.capturing = Capturing(settings, self.roll, self.ledger)

    # ------------------------------------------------------------------ events in

    def take(self, now: float, report: AgentReport) -> None:
        """Take in a report, without moving on."""
        self.roll.reported(now, report)
        self.ledger.hear(report.host, report.notes)

    def take_pattern(self, pattern: WorkerPattern) -> bool:
        """Take in the head of a worker's summary, without moving on; False for a late one, or of another window."""
        current = self._awaiting(pattern.window_id, pattern.worker.global_rank)
        if current is not None:
            current.patterns[pattern.worker.global_rank] = pattern
        return current is not None

    def summary_failed(self, window_id: int, global_rank: int, note: str) -> None:
        """A worker's window could not be summarized."""
        if current := self._awaiting(window_id, global_rank):
            current.left_out[global_rank] = note

    def _awaiting(self, window_id: int, global_rank: int) -> Underway | None:
        """The open window, if it is this one and the worker takes part."""
        current = self.capturing.current
        if current is None or window_id != current.window.window_id or global_rank not in current.ranks:
            return None
        return current

    def asked(self, now: float, request: ProfileRequest) -> ProfileAnswer:
        """Somebody wants a window now; it opens at the next report."""
        refused = self._refused()
        if refused is not None:
            return refused
        window_id = self.ledger.new_id()
        self.opening.request(window_id, request)
        return ProfileAnswer(window_id=window_id)

    def _refused(self) -> ProfileAnswer | None:
        """Answer that no person can ask for a window now, with the reason; None if one can."""
        if self.ended:
            return ProfileAnswer(refused="the job is over")
        if self.window is not None and self.window.purpose != "baseline":
            busy = self.window.window_id
            return ProfileAnswer(window_id=busy, refused=f"window {busy} is open already; its verdict is coming")
        if not in_training(self.roll):
            return ProfileAnswer(refused=self._not_yet())
        if self.hold:
            return ProfileAnswer(refused="the job stands still; it is being looked at already")
        return ProfileAnswer(refused=self.opening.refusal) if self.opening.refusal else None

    def _not_yet(self) -> str:
        """Say what is missing before any window can open."""
        living = self.roll.living
        if not living:
            return "no worker has been seen yet: a process becomes one at its first optimizer step or exchange"
        if all(status.state == "learning" for status in living):
            return "no worker's iterations are known yet: ten equal ones are needed"
        return "no worker has completed the few iterations yet that tell how long one takes; three are needed"

    def analyzed(self, now: float, window_id: int, verdict: Verdict | None) -> None:
        """The analysis of a window is done; None if it failed."""
        if window_id == self._judging:
            self._judging = 0
            if verdict is not None:
                self.look = verdict
                if looks_slow(verdict) and verdict.cause is not None:  # only a longer window may say so
                    self.opening.suspect(f"the first window already shows {in_short(verdict.cause)}")
        current = self.capturing.current
        if current is None or current.window.window_id != window_id:
            return
        self.capturing.close()
        if verdict is None:
            self.ledger.show(current.window, "failed", None, "the analysis failed; see log/collector.log")
            return
        self.ledger.show(current.window, "done", verdict)
        if current.window.purpose == "early" and verdict.verdict == "slow":
            self.baseline.was_slow = True
        length = current.window.last_iteration - current.window.first_iteration
        self.opening.judged(now, current.wanted.purpose, verdict, length)

    def job_ended(self, now: float, patience_s: float = math.inf) -> list[Analyze]:
        """The command is over: no new windows; what is being summarized may still come in, for so long."""
        self.ended = True
        current = self.capturing.current
        if current is not None and current.phase == "probe":
            self.ledger.show(current.window, "given up", None, "the job ended before the window opened")
            self.capturing.close()
        elif current is not None:
            patience_s = min(patience_s, self._settings.window_deadline_s / 3)
            current.deadline = min(current.deadline, now + patience_s)
        return self.tick(now)

    def tick(self, now: float) -> list[Analyze]:
        """Time passed; call at least once a second."""
        current = self.capturing.current
        if current is not None and current.phase == "probe" and current.window.purpose == "baseline":
            self._give_way(now, current)
        if current is None:
            self._maybe_open(now)
            return []
        outcome = self.capturing.advance(now, self.ended)
        if outcome in ("given up", "too large"):
            self.opening.given_up(now, in_vain=outcome == "too large")
        return self._analyze(current) if outcome == "ready" else []

    def _give_way(self, now: float, current: Underway) -> None:
        """Let a baseline window that has not opened yet become the one for a trigger: it would show the same."""
        wanted = self.opening.next_trigger(now, self.roll)
        if wanted is not None:
            current.serve(wanted)
            self.baseline.gave_way()
            self.ledger.show(current.window, "probe")

    # ------------------------------------------------------------------ views

    @property
    def busy(self) -> bool:
        """A window is open or being analyzed, the baseline window included."""
        return self.capturing.current is not None or self._judging > 0

    @property
    def window(self) -> Window | None:
        """The window being worked on."""
        current = self.capturing.current
        return None if current is None else current.window

    def status(self) -> JobStatus:
        """The job for people."""
        workers = sorted(self.roll, key=lambda status: status.worker.global_rank)
        living = [status for status in workers if not status.ended]
        means = [status.current_s for status in living if status.current_s is not None]
        bests = [status.baseline_s for status in living if status.baseline_s is not None]
        current = self.capturing.current
        phase, message = self._between_windows(living) if current is None else (current.phase, current.in_words)
        return JobStatus(
            job=self.job,
            phase=phase,
            message=message,
            iteration=max((status.iteration for status in living or workers), default=0),
            mean_ms=1e3 * max(means) if means else None,
            best_ms=1e3 * max(bests) if bests else None,
            hosts=tuple(sorted(self.roll.hosts)),
            workers=tuple(workers),
            windows=self.ledger.lines,
            notes=tuple(self.ledger.notes),
        )

    def _between_windows(self, living: Sequence[WorkerStatus]) -> tuple[str, str]:
        """Phase and message while no window is open."""
        if self.ended:
            return "ended", "the job is over"
        if not living:
            return "waiting", "no worker has finished an iteration yet"
        if all(status.state == "learning" for status in living):
            return "learning", f"{len(living)} workers, learning their iterations"
        return "watching", f"{len(living)} workers, watching"

    def resume(self, now: float, wall_s: float, history: History) -> None:
        """Go on where a collector of the same job ended; before anything else. Times as for `underway`."""
        self.ledger.resume(history)
        self.opening.resume(history)
        self.baseline.resume(history)
        self.capturing.resume(now, wall_s, history)

    # ------------------------------------------------------------------ opening

    def _maybe_open(self, now: float) -> None:
        if self.ended or self.hold or self.roll.waiting(now):
            return
        training = in_training(self.roll)
        if training:
            self.baseline.watch(training)
            self.baseline.retake_if_better(training)
        wanted = self._wanted(now, training) if training else None
        if wanted is not None:
            self.capturing.open(now, training, wanted)

    def _wanted(self, now: float, training: Sequence[WorkerStatus]) -> Wanted | None:
        """The window to open now, in order of precedence."""
        request = self.opening.next_request()
        if request is not None or self.roll.gathering(now):
            return request
        trigger = self.opening.next_trigger(now, self.roll)
        if trigger is not None or not self.baseline.is_due(training, len(counting(self.roll.living))):
            return trigger
        self.baseline.opened()
        return Wanted("baseline", "early healthy window", self._settings.baseline_window_s)

    # ------------------------------------------------------------------ analysis

    def _analyze(self, current: Underway) -> list[Analyze]:
        current.left_out |= dict.fromkeys(sorted(current.waiting_for), "no pattern before the deadline")
        notes = current.omissions()
        is_baseline = current.window.purpose == "baseline"
        if is_baseline:
            self.baseline.taken(current.patterns.values(), current.window.current_iteration_s)
            if self.baseline.disturbed:
                self.ledger.note(f"window {current.window.window_id}: {self.baseline.disturbed}")
            self.ledger.show(current.window, "done", None, f"{len(self.baseline.patterns)} workers")
            self.capturing.close()  # other windows need not wait until it is judged
            if not current.patterns:
                self.ledger.unseen = "; ".join(notes)
                return []
            self._judging = current.window.window_id
        else:
            if current.window.purpose == "early" and self.baseline.is_far_faster_than(current.patterns.values()):
                current.window = msgspec.structs.replace(current.window, purpose="slow")
            current.phase = "analysis"
            self.ledger.show(current.window, "analysis")
        stands_alone = current.window.purpose in ALONE
        baseline = () if stands_alone else self._trusted_baseline(current, notes)
        return [
            Analyze(
                window=current.window,
                patterns=tuple(current.patterns[rank] for rank in sorted(current.patterns)),
                baseline=baseline,
                expected_workers=max(
                    [len(current.ranks), *(one.worker.world_size for one in current.patterns.values())]
                ),
                notes=tuple(notes),
                asked_at=current.asked_at,
                counts=not is_baseline,
                doubted=() if stands_alone or baseline else self.baseline.patterns,
            )
        ]

    def _trusted_baseline(self, current: Underway, notes: list[str]) -> tuple[WorkerPattern, ...]:
        """Patterns to compare with; none, and a note, if the job was not healthy when they were taken."""
        best, told_s = best_s(in_training(self.roll)), current.window.current_iteration_s
        now_s = self.baseline.pace_in(current.patterns.values(), told_s)
        if doubts := self.baseline.doubts(best, now_s):
            notes.append(f"{REFUSED}{doubts}.")
            self.baseline.distrust()
            return ()
        if part := self.baseline.shows_a_part(best, now_s):
            notes.append(part)
        return self.baseline.patterns
