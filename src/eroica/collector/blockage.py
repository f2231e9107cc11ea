"""Jobs that stand still, as a state machine beside `Windows`: reports, looks and time in, work and notes out. No I/O.

    moving ──a worker is silent──▶ looking ──all looks in, or deadline──▶ examining ──verdict──▶ standing
       ▲                              │                                      │                      │
       └──────────────────────────────┴──────────── a worker moved ──────────┴──────────────────────┘

Each standstill gets one look. The next one comes after progress, or after a pause where the examination found a worker
moving between the two looks. Beside standstills, a command that failed because a worker died first is examined.
A verdict on a standstill is "done" in the ledger as long as it holds: until a worker moves ("passed"), or the job is
started again ("restarted").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from eroica.collector.ledger import History
from eroica.collector.lives import Lives, in_words
from eroica.collector.opening import best_s
from eroica.collector.participants import WorkerKey, key_of
from eroica.collector.windows import Windows
from eroica.model.look import Blockage, Death, HostLooks
from eroica.model.verdict import Verdict
from eroica.model.window import Window
from eroica.model.words import signal_name, worker_list
from eroica.settings import Settings
from eroica.wire.messages import AgentReport, JobStatus, WorkerStatus

Movement = Literal["none", "gone", "on"]
#: Hosts without looks that an examination is told the reason of.
_MISSING_NAMED = 50
#: Who signs off, or is watched no more, has not gone on.
_NOT_TRAINING = ("finished", "failed")
#: Agents that have not handed in their looks by then are left out, seconds.
_LOOKS_S = 8.0
#: Looks that may find nothing before there is a pause between them, seconds.
_FREE_LOOKS, _PAUSE_S, _LONGEST_PAUSE_S = 3, 30.0, 600.0
#: Deaths that are told when the job is started again.
_NAMED = 8
_NOTHING = "nothing: somebody moved"


class Mark(NamedTuple):
    """A silent worker as it was seen last, and by which agent: a new one counts the silence from its own start."""

    status: WorkerStatus
    agent_pid: int

    def moved(self, status: WorkerStatus, agent_pid: int) -> bool:
        """Return whether the worker went on: a new iteration, or an event since.

        The report of an agent that knows no limit or past proves nothing.
        """
        if status.iteration > self.status.iteration:
            return True
        return agent_pid == self.agent_pid and not status.silent and status.silent_s < self.status.silent_s


@dataclass
class Standstill:
    """One silence of the job, from the first silent worker to the first that moves; it has lasted for `lasted_s`."""

    window: Window
    asked_at: float
    deadline: float
    marks: dict[WorkerKey, Mark] = field(default_factory=dict)
    phase: Literal["looking", "examining", "standing"] = "looking"
    looks: dict[str, HostLooks] = field(default_factory=dict)
    verdict: Verdict | None = None
    look_again_at: float = math.inf
    lasted_s: float = 0.0

    @property
    def who(self) -> str:
        """The silent workers, for a sentence."""
        return worker_list([each.status.worker.global_rank for each in self.marks.values()])

    def in_words(self, status: JobStatus) -> tuple[str, str]:
        """Phase and message for people."""
        if self.phase == "looking":
            return "looking", f"{self.who} silent ({self.window.reason}): looking at all workers"
        if self.phase == "examining":
            return "looking", f"{self.who} silent: comparing the looks at {len(status.workers)} workers"
        if self.verdict is None:
            return "silent", f"{self.who} silent ({self.window.reason})"
        summary = self.verdict.summary.removeprefix("Blocked: ")
        return self.verdict.verdict, f"standing still at iteration {status.iteration}: {summary}"

    def all_looks(self, excuses: Mapping[str, str]) -> tuple[HostLooks, ...]:
        """Return the looks of each host, and a note for each host that handed in none: why, by its name."""
        noted = (
            HostLooks(look_id=self.window.window_id, host=host, notes=(f"{host}: {why}",))
            for host, why in list(excuses.items())[:_MISSING_NAMED]
        )
        return (*(self.looks[host] for host in sorted(self.looks)), *noted)

    def mark(self, status: WorkerStatus, agent_pid: int) -> None:
        """A worker is silent now. What it was at counts from the iteration that is known: a new agent may say 0."""
        known = self.marks.get(key_of(status))
        iteration = max(status.iteration, known.status.iteration if known is not None else 0)
        self.marks[key_of(status)] = Mark(msgspec.structs.replace(status, iteration=iteration), agent_pid)
        self.lasted_s = max(self.lasted_s, status.silent_s)

    def follow(self, workers: Iterable[WorkerStatus], agent_pid: int) -> Movement:
        """Notice workers that went on ("on", at the first) or are gone; add workers that fell silent, too.

        Args:
            workers: Of one host, as its agent says now.
            agent_pid: Of that agent.
        """
        movement: Movement = "none"
        for status in workers:
            known = self.marks.get(key_of(status))
            if status.ended or status.state in _NOT_TRAINING:
                movement = movement if known is None else "gone"
            elif known is not None and known.moved(status, agent_pid):
                return "on"
            elif known is not None or status.silent:
                self.mark(status, agent_pid)
        return movement


@dataclass(frozen=True)
class Examine:
    """Instruction: run the diagnosis of this blockage, then call `Blockages.examined`."""

    window: Window
    blockage: Blockage
    asked_at: float


class Blockages:
    """All standstills and deaths of one job."""

    def __init__(self, windows: Windows, settings: Settings) -> None:
        self._windows = windows
        self._ledger = windows.ledger
        self._settings = settings
        self.lives = Lives()
        self._now: Standstill | None = None
        self._at_work: dict[int, Window] = {}
        self._fates: dict[int, str] = {}
        self._earlier: set[int] = set()
        self._idle_looks = 0
        self._outlived = 0
        self._quiet_until = 0.0
        self._ended: tuple[int | None, bool] | None = None
        self._buried = False

    # ------------------------------------------------------------------ events in

    def reported(self, now: float, report: AgentReport) -> list[Examine]:
        """An agent told the state of its workers; `Windows.take` has the report already."""
        before = self.lives.reported(now, report)
        if before is not None:
            self._restarted(before)
        workers = self._windows.roll.workers_of(report.host)
        self._outdate(workers)
        if self._now is not None:
            self._follow(now, self._now, workers, report.pid)
        return self.tick(now)

    def looked(self, now: float, looks: HostLooks) -> list[Examine]:
        """A host handed in what it saw; late and foreign looks are dropped."""
        current = self._now
        if current is None or not self.expects(looks):
            return []
        current.looks[looks.host] = looks
        return self.tick(now)

    def examined(self, now: float, window_id: int, verdict: Verdict | None, failed: bool = False) -> list[Examine]:
        """The diagnosis is done; None if somebody moved between the looks, or if it failed."""
        window = self._at_work.pop(window_id, None)
        if window is None:
            return []
        current = self._now if self._now is not None and self._now.window.window_id == window_id else None
        if current is not None:
            current.phase, current.verdict = "standing", verdict
            current.look_again_at = math.inf if verdict is not None else now + max(_PAUSE_S, self._pause_s())
        if verdict is None:
            self._found_nothing(window, failed)
        else:
            self._ledger.show(window, "done", verdict)
            if window_id in self._fates:
                self._seal(window_id, self._fates.pop(window_id))
        return [] if self._ended is None else self._bury(now, *self._ended)

    def finished(self, now: float, exit_status: int | None, asked_to_end: bool) -> list[Examine]:
        """The command is over.

        Args:
            now: Seconds.
            exit_status: Of the command, None if nobody knows it.
            asked_to_end: Somebody told the whole job to end.
        """
        if self._ended is not None and exit_status is None:
            return []
        self._ended = (exit_status, asked_to_end)
        work: list[Examine] = []
        current = self._now
        if current is not None and current.phase == "looking":
            if current.looks:
                work = self._examine(now, current)
            else:
                self._ledger.show(current.window, "given up", None, "the job ended before anybody had looked")
                self._now = None
        if exit_status == 0 or (exit_status is None and self.lives.all_done):
            if self._now is not None:
                self._went_on(self._now)
            for window_id in sorted(self._held):
                self._seal(window_id, "passed")
        return work or self._bury(now, exit_status, asked_to_end)

    def tick(self, now: float) -> list[Examine]:
        """Time passed."""
        current = self._now
        if current is None:
            self._maybe_look(now)
            return []
        if current.phase == "standing" and now >= current.look_again_at:
            self._now = None
            self._maybe_look(now)
            return []
        if current.phase == "looking":
            waited_for = any(self._windows.roll.hears(host, now) for host in self._without_looks(current))
            if not waited_for or now > current.deadline:
                return self._examine(now, current)
        return []

    def resume(self, history: History) -> None:
        """Go on where a collector of the same job ended; before anything else."""
        self._earlier = set(self._held & {window_id for window_id, _ in history.verdicts})

    # ------------------------------------------------------------------ views

    @property
    def look(self) -> int:
        """Number of the look that agents shall take now; 0 = none."""
        return self._now.window.window_id if self._now is not None and self._now.phase == "looking" else 0

    @property
    def standing(self) -> frozenset[int]:
        """Windows of standstills in which no worker has moved since: those that are "blocked", else the unexplained."""
        return self._blocked or self._held

    @property
    def _held(self) -> frozenset[int]:
        """Return the windows of standstills whose verdict holds."""
        return self._ledger.judged("done", purpose="blocked")

    @property
    def _blocked(self) -> frozenset[int]:
        """Return those of them whose cause is known."""
        return frozenset(one for one in self._held if self._ledger.verdicts[one].verdict == "blocked")

    @property
    def _failed_with(self) -> int:
        """Return the exit status of a command that failed by itself; else 0."""
        status, asked_to_end = self._ended or (None, False)
        return 0 if asked_to_end else status or 0

    @property
    def loss(self) -> str:
        """Name the workers that vanished from a failed command where nobody saw which went first; else ""."""
        status, lost = self._failed_with, self.lives.unexplained()
        if not status or self._buried or not lost:
            return ""
        who = worker_list([worker.global_rank for worker in lost])
        ended = f"status {status}" if status > 0 else f"signal {-status}"
        near = "too close together" if len(lost) > 1 else "too close to the others' end"
        return f"the command ended with {ended}, and {who} vanished {near} to tell who went first"

    @property
    def failure(self) -> str:
        """Tell how a command failed by itself and which worker ended first; else ""."""
        status = self._failed_with
        if not status:
            return ""
        failed = f"failed with status {status}" if status > 0 else f"was ended by {signal_name(-status)}"
        return self.loss or "; ".join(filter(None, (f"the command {failed}", self.lives.first_out())))

    @property
    def on(self) -> bool:
        """True if the job stands still: not if the looks have shown that a worker moves."""
        current = self._now
        return current is not None and (current.phase != "standing" or current.verdict is not None)

    @property
    def busy(self) -> bool:
        """Looks are awaited or being examined."""
        return bool(self._at_work) or self.look != 0

    def expects(self, looks: HostLooks) -> bool:
        """Return whether looks answer the look under way, from a host that takes part and has not handed in yet."""
        current = self._now
        return (
            current is not None
            and looks.look_id == self.look != 0
            and looks.host not in current.looks
            and self._windows.roll.knows(looks.host)
        )

    def shown_in(self, status: JobStatus) -> JobStatus:
        """The job for people, with phase and message of its standstill."""
        if self._now is None or self._windows.ended:
            return status
        phase, message = self._now.in_words(status)
        return msgspec.structs.replace(status, phase=phase, message=message)

    # ------------------------------------------------------------------ looking

    def _maybe_look(self, now: float) -> None:
        if self._ended is not None or self._at_work or now < self._quiet_until or self._windows.roll.waiting(now):
            return
        roll = self._windows.roll
        silent = [one for one in roll.living if one.silent and roll.hears(one.worker.host, now)]
        if not silent:
            return
        first = max(silent, key=lambda status: status.silent_s)
        more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
        said = first.silence or f"no event for {first.silent_s:.0f} s"
        reason = f"worker {first.worker.global_rank}{more}: {said}"
        window = self._window(reason, max(status.iteration for status in silent))
        self._now = Standstill(window, now, now + _LOOKS_S)
        for status in silent:
            self._now.mark(status, roll.agent_pid(status.worker.host))
        self._ledger.show(window, "looking")

    def _without_looks(self, current: Standstill) -> list[str]:
        return sorted(self._windows.roll.hosts_with_living() - set(current.looks))

    def _examine(self, now: float, current: Standstill) -> list[Examine]:
        current.phase = "examining"
        late, gone = "its agent did not hand in its looks in time", "its agent does not report any more"
        hears = self._windows.roll.hears
        looks = current.all_looks({host: late if hears(host, now) else gone for host in self._without_looks(current)})
        self._ledger.show(current.window, "examining")
        work = self._work(current.window, looks, self.lives.bereaved(), current.asked_at)
        current.looks = {}
        return [work]

    def _work(
        self, window: Window, looks: tuple[HostLooks, ...], deaths: tuple[Death, ...], asked_at: float
    ) -> Examine:
        self._at_work[window.window_id] = window
        blockage = Blockage(
            look_id=window.window_id,
            reason=window.reason,
            looks=looks,
            deaths=deaths,
            left=self.lives.left(),
            world_size=self.lives.world_size or self._windows.roll.world_size,
            baseline_iteration_s=window.baseline_iteration_s,
        )
        return Examine(window, blockage, asked_at)

    def _window(self, reason: str, iteration: int) -> Window:
        """A new one, which stands where the job does."""
        return Window(
            window_id=self._ledger.new_id(),
            purpose="blocked",
            kind="blocked",
            reason=reason,
            first_iteration=iteration,
            last_iteration=iteration,
            baseline_iteration_s=best_s(self._windows.roll),
        )

    def _pause_s(self) -> float:
        excess = self._idle_looks + self._outlived - _FREE_LOOKS
        return 0.0 if excess < 0 else min(_PAUSE_S * 2.0 ** min(excess, 10), _LONGEST_PAUSE_S)

    # ------------------------------------------------------------------ moving on

    def _follow(self, now: float, current: Standstill, workers: Iterable[WorkerStatus], agent_pid: int) -> None:
        """Notice workers that went on; add workers that fell silent, too."""
        movement = current.follow(workers, agent_pid)
        if movement == "on":
            self._went_on(current)
            self._quiet_until = now + self._pause_s()
        elif movement == "gone" and current.phase == "standing":
            training = (one for one in self._windows.roll.living if one.state not in _NOT_TRAINING)
            if not any(key_of(status) in current.marks for status in training):
                self._now = None  # what it said stays: they ended where they stood

    def _went_on(self, current: Standstill) -> None:
        """The silence ended by itself."""
        self._now = None
        window, verdict = current.window, current.verdict
        if current.phase == "looking":
            self._ledger.show(window, "done", None, _NOTHING)
            self._idle_looks += 1
        if current.phase == "examining":
            self._fates[window.window_id] = "passed"
        said = f": {verdict.summary.rstrip('.')}; it went on by itself" if verdict else " and went on by itself"
        where = f"at iteration {window.first_iteration}"
        self._ledger.note(f"{current.who} stood still for {current.lasted_s:.0f} s {where}{said}")
        self._seal(window.window_id, "passed")

    def _seal(self, window_id: int, fate: str) -> None:
        """A verdict, if there is one, holds no longer: what stood still went on, or the job was started again."""
        self._earlier.discard(window_id)
        if window_id in self._held:
            self._outlived += fate == "passed"
            self._ledger.move(window_id, fate)

    def _outdate(self, workers: Iterable[WorkerStatus]) -> None:
        """Keep verdicts of a collector before this one until a worker gets further."""
        farthest = max((status.iteration for status in workers if not status.ended), default=-1)
        for window_id in sorted(self._earlier):
            last = self._ledger.windows[window_id].last_iteration
            if farthest > last:
                self._ledger.note(f"window {window_id}: the job went on by itself after iteration {last}")
                self._seal(window_id, "passed")

    def _found_nothing(self, window: Window, failed: bool) -> None:
        self._idle_looks += 1
        if failed:
            self._ledger.show(window, "failed", None, "the diagnosis failed; see log/collector.log")
            return
        self._ledger.show(window, "done", None, _NOTHING)
        if self._fates.pop(window.window_id, None) is None:
            self._ledger.note(f"window {window.window_id}: {window.reason}, but somebody moved between the looks")

    # ------------------------------------------------------------------ deaths

    def _restarted(self, dead: tuple[Death, ...]) -> None:
        """A new generation of workers: what was found before stays found, but does not hold any more."""
        for death in dead[:_NAMED]:
            self._ledger.note(f"{in_words(death)}; the job was started again")
        current, self._now = self._now, None
        if current is not None and current.phase == "looking":
            self._ledger.show(current.window, "given up", None, "the job was started again")
        self._fates.update(dict.fromkeys(self._at_work, "restarted"))
        for window_id in sorted(self._held):
            self._ledger.note(f"window {window_id} says why the job stood still; after that it was started again")
            self._seal(window_id, "restarted")

    def _bury(self, now: float, exit_status: int | None, asked_to_end: bool) -> list[Examine]:
        """Examine a command that failed: did a worker die first?"""
        if not exit_status or self._blocked or self.busy or self._buried:
            return []
        dead = self.lives.culprits(asked_to_end)
        if not dead:
            return []
        self._buried = True
        more = f" and {len(dead) - 1} more" if len(dead) > 1 else ""
        iteration = max(death.iteration for death in dead)
        ended = f"status {exit_status}" if exit_status > 0 else f"signal {-exit_status}"
        window = self._window(f"{in_words(dead[0])}{more}, and the command ended with {ended}", iteration)
        self._ledger.show(window, "examining")
        return [self._work(window, (), dead, now)]
