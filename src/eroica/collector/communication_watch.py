"""Communication that watches itself: records and time in, verdicts out; a state machine beside `Windows`. No I/O.

    moving ──nothing moves for the limit──▶ hanging ──something moves──▶ moving
      └─two readings agree on class and place──▶ slow ──iterations as usual again──▶ moving

One verdict a hang, and one for each class and place of a slow job. What `eroica.communication` reads is read from the
last seconds; the healthy past is kept in chunks.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from eroica.collector.participants import Roll, counting
from eroica.collector.windows import Windows
from eroica.communication.conclusion import hang_verdict, place_in_words, slow_verdict, stretch_in_words
from eroica.communication.hang import Scene, find_hang, is_suspended
from eroica.communication.slow import Slow, Usual, find_slow, is_slow, usual_of
from eroica.communication.stretch import Ledger, Second, Stretch, build_matrix, stretch_of
from eroica.model.communication import DelayMatrix, HostCommunication, WorkerOperations
from eroica.model.verdict import Coverage, Verdict
from eroica.model.window import Window
from eroica.settings import Settings
from eroica.wire.messages import AgentReport

log = logging.getLogger("eroica.collector")

#: Lengths of the stretches that are read, seconds; the shortest that shows something sure counts.
_STRETCHES_S = (6.0, 12.0, 24.0, 48.0)
_CHUNK_S, _CHUNKS, _LEAST_CHUNKS = 8.0, 40, 2
_READ_S, _FEW_HOSTS = 1.0, 32
#: From when iterations are longer until it is told: moments must come together; longer if there is doubt.
_SETTLE_S, _DOUBT_S, _BEFORE_S = 6.0, 11.0, 1.0
#: Iterations of so many seconds tell that the job is slow, and in the middle of them it became so.
_PACE_S = 2.0
#: If so many usual iterations fit into them and none has ended, the job pauses.
_PAUSE_ITERATIONS = 3.0
#: What is not seen for so long is gone.
_UNSEEN_S = 3.0
#: Whoever moves does so at least so often; slowness is not read from a job that has just stopped.
_MOVING_S = 0.9
#: A job is as usual again if its iterations take at most so many times as long as usual, for so long.
_USUAL, _USUAL_S = 1.08, 10.0
#: A hang lasts for at least so many usual operations.
_HANG_OPERATIONS = 5.0
#: A pause counts as survived by so much: the next one may be a little longer.
_PAUSE_FACTOR = 1.5
#: An agent that has not reported for so long while the job hangs may be cut off.
_LATE_S, _UNHEARD_S = 1.3, 2.2
#: Who uses so much of a core, or moves so many bytes a second, while all wait for it, is at work.
_BUSY_CORE, _BUSY_BYTES = 0.2, 50_000
#: Other threads and children of a worker at work use so much more of a core than those of any that waits, in so many
#: seconds.
_WORK_CORE, _WORK_S = 0.2, 10.0
#: Hooks that fire so long after the job stood still belong to no iteration that had begun.
_AFTER_S = 1.0
#: A record that reaches back so much farther than the one before, seconds, is from an agent that did not run; whoever
#: stopped it may have stopped its workers, too.
_AWAY_S = 3.0
#: A connection that moved so many bytes since the record before carried data, not a sign of life: libraries such as
#: NCCL ask each other every second whether they are there, in some dozen bytes, however long the job hangs.
_DATA_BYTES = 4096
#: An agent that has said nothing while the job went on for so long watches no longer; its silence is no sign of a hang.
_GONE_S = 10.0
#: Places that one job is accused of in a lifetime.
_MOST_VERDICTS = 50


@dataclass(frozen=True)
class Sensed:
    """Instruction: keep and tell this verdict; have it confirmed by looks if the job hangs, else by a window."""

    window: Window
    verdict: Verdict
    since: float

    @property
    def hangs(self) -> bool:
        """The job stands still."""
        return self.verdict.window is not None and self.verdict.window.kind == "blocked"


@dataclass
class _Progress:
    """Since when nothing has moved; since when the job trains, as far as a tick has seen; moved since that tick."""

    at: float = 0.0
    longest_s: float = 0.0
    began: float | None = None
    moved: bool = False


class Sense:
    """The always-on sense of one job.

    Args:
        windows: For ids, lines and notes.
        settings: `communication`, `hang_s`, `communication_slow`, `silence_s`.
    """

    def __init__(self, windows: Windows, settings: Settings) -> None:
        self._windows = windows
        self._settings = settings
        self._hang: Window | None = None
        self._told = 0
        self._read_at = self._fresh_from = self._ticked = self._worded_at = float("-inf")
        self._words = ""
        self._ends: dict[str, set[int]] = {}
        self._begin(0.0)

    def _begin(self, longest_s: float) -> None:
        """Nothing is known of the workers but the longest pause that they have survived."""
        self.ledger = Ledger()
        self._progress = _Progress(longest_s=longest_s)
        self._counted: dict[int, int] = {}
        self._iterated: dict[int, int] = {}
        self._marks: dict[str, Second] = {}
        self._pids: dict[int, int] = {}
        self._heard: dict[int, tuple[int, float]] = {}
        self._refuted = False
        self._chunks: deque[Stretch] = deque(maxlen=_CHUNKS)
        self._chunk_from: float | None = None
        self._seen: object = None
        self._onset: float | None = None
        self._slower_since: float | None = None
        self._unseen: float | None = None
        self._usual_since: float | None = None
        self._accused: set[object] = set()

    @property
    def standing(self) -> frozenset[int]:
        """The window of a hang that lasts."""
        return frozenset() if self._hang is None else frozenset({self._hang.window_id})

    # ------------------------------------------------------------------ events in

    def reported(self, now: float, report: AgentReport) -> None:
        """An agent told; most reports bring no record."""
        if report.communication is None or not self._settings.communication:
            return
        here = [status for status in self._windows.roll.workers_of(report.host) if not status.ended]
        if any(self._pids.get(one.worker.global_rank, one.worker.pid) != one.worker.pid for one in here):
            self._restart()
        self._pids.update({one.worker.global_rank: one.worker.pid for one in here})
        before = self.ledger.latest.get(report.host)
        if before is not None and before.at <= self._progress.at:
            self._marks[report.host] = before
        iterations = {one.worker.global_rank: one.iteration for one in here}
        own = _of(report.communication, frozenset(iterations))
        second = self.ledger.take(now, report.host, own, iterations)
        self._hear(now, second)
        if before is not None and second.interval_s > _AWAY_S + 2 * before.interval_s:
            self._progress.at = max(self._progress.at, now)
        if self._moved(before, second) or self._has_new_ends(report.host):
            self._went_on(now)

    def finished(self, exit_status: int | None) -> None:
        """The command is over: if it did what it was to do, nothing hung to the end."""
        if exit_status == 0 and self._hang is not None:
            self._went_on(self._ticked)

    def refuted(self) -> None:
        """A look, which sees more, has found that somebody moves: what was told of a hang does not hold.

        Nothing more is said of this standstill; looks go on.
        """
        self._refuted = True
        self._pass("a look saw somebody move in what communication took for a hang")

    def _hear(self, now: float, second: Second) -> None:
        """Note when hooks of each worker fired last."""
        for one in second.operations:
            before, at = self._heard.get(one.worker, (one.heard, float("-inf")))
            self._heard[one.worker] = (one.heard, now if one.heard > before else at)

    def _has_new_ends(self, host: str) -> bool:
        """A worker of the host has come to its end in order: it waited for nobody."""
        ends = {
            status.worker.pid
            for status in self._windows.roll.workers_of(host)
            if status.ending is not None and status.ending.kind in ("signed-off", "exit") and not status.ending.number
        }
        new = ends - self._ends.get(host, set())
        self._ends[host] = ends
        return bool(new)

    def _restart(self) -> None:
        """Other processes: nothing of before says anything of them."""
        self._begin(self._progress.longest_s)
        if self._hang is not None:
            self._windows.ledger.move(self._hang.window_id, "restarted")
            self._hang = None

    def _moved(self, before: Second | None, second: Second) -> bool:
        """Somebody entered, completed, iterated, or sent another worker data since the record before this one."""
        moved = any(self._iterated.get(worker, -1) < iteration for worker, iteration in second.iterations.items())
        self._iterated.update(second.iterations)
        for one in second.operations:
            if one.counts:  # a group may get its name, and counters may be away for a while: neither is a movement
                counted = sum(max(count.entered, 0) + max(count.completed, 0) for count in one.counts)
                moved |= self._counted.get(one.worker, -1) < counted
                self._counted[one.worker] = counted
        moved |= any(max(one.flow.sent_bytes, one.flow.received_bytes) >= _DATA_BYTES for one in second.matched)
        return moved and before is not None

    def _went_on(self, now: float) -> None:
        progress = self._progress
        if progress.began is not None:
            progress.longest_s = max(progress.longest_s, now - progress.at)
        progress.at, progress.moved = now, True
        self._refuted = False
        self._pass("what communication took for a hang went on by itself")

    def _pass(self, why: str) -> None:
        """Take the verdict on the hang back, if there is one."""
        if self._hang is not None:
            window_id, self._hang = self._hang.window_id, None
            self._windows.ledger.move(window_id, "passed")
            self._windows.ledger.note(f"window {window_id}: {why}")

    @property
    def _in_training(self) -> bool:
        living = counting(self._windows.roll.living)
        return len(living) > 1 and all(status.state not in ("learning", "failed") for status in living)

    def tick(self, now: float) -> list[Sensed]:
        """Time passed; call about twice a second."""
        unseen_s, self._ticked = now - self._ticked, now
        if unseen_s > _UNSEEN_S and self._hang is None:  # we did not run, and have read nothing
            self._progress.at = max(self._progress.at, now)
        self._forget_who_is_gone()
        if is_suspended(one for second in self.ledger.latest.values() for one in second.operations):
            self._progress.at = max(self._progress.at, now)
        if self._progress.began is None and self._progress.moved:
            self._progress.began = now if self._in_training else None
        self._progress.moved = False
        if self._windows.ended or self._told >= _MOST_VERDICTS or self._progress.began is None:
            return []
        if self._hang is None and not self._refuted and (hang := self._hanging(now)) is not None:
            return [hang]
        if self._hang is None and now - self._read_at >= self._pause_s and self._is_moving(now):
            self._read_at = now
            return self._read(now)
        return []

    def _forget_who_is_gone(self) -> None:
        """Hosts that no longer report, while the job goes on, or where all have come to their end, are not watched."""
        for host, second in list(self.ledger.latest.items()):
            here = self._windows.roll.workers_of(host)
            has_ended = len(self._ends.get(host, ())) >= len(here) > 0
            if has_ended or self._progress.at - second.at > _GONE_S:
                del self.ledger.latest[host]
                self._marks.pop(host, None)

    @property
    def _pause_s(self) -> float:
        """Seconds between two readings; each reads all records of all hosts, so many hosts are read less often."""
        return _READ_S * max(1.0, len(self.ledger.latest) / _FEW_HOSTS)

    def _is_moving(self, now: float) -> bool:
        heard = all(now - second.at < _UNHEARD_S for second in self.ledger.latest.values())
        return heard and now - self._progress.at < max(_MOVING_S, self._progress.longest_s)

    # ------------------------------------------------------------------ views

    def matrix(self, now: float) -> DelayMatrix | None:
        """The delays of the last seconds, with what was usual; None where no two hosts talk."""
        usual = self._usual()
        stretch = stretch_of(self.ledger.between(now - _STRETCHES_S[1], now))
        return build_matrix(stretch, usual.cells if usual is not None else {})

    def in_words(self, now: float) -> str:
        """Communication in one line, at most once a second anew; empty without any."""
        if now - self._worded_at >= self._pause_s:
            self._worded_at = now
            self._words = stretch_in_words(stretch_of(self.ledger.between(now - _STRETCHES_S[0], now)))
        return self._words

    @property
    def _coverage(self) -> Coverage:
        roll = self._windows.roll
        heard = len(self.ledger.hosts)
        return Coverage(workers_expected=roll.world_size, workers_reported=min(heard, roll.world_size or heard))

    # ------------------------------------------------------------------ hang

    def _limit_s(self) -> float:
        rate = self._stretch_before(self._progress.at).operations_per_s
        operations_s = _HANG_OPERATIONS / rate if rate > 0 else 0.0
        return max(self._settings.hang_s, operations_s, _PAUSE_FACTOR * self._progress.longest_s)

    def _stretch_before(self, at: float) -> Stretch:
        return stretch_of(self.ledger.between(at - _STRETCHES_S[1], at))

    def _hanging(self, now: float) -> Sensed | None:
        waited_s = now - self._progress.at
        if waited_s < self._settings.hang_s or not self.ledger.latest:
            return None
        ages = [now - second.at for second in self.ledger.latest.values()]
        if waited_s < self._limit_s() or any(_LATE_S < age < _UNHEARD_S for age in ages):
            return None
        hang = find_hang(self._scene(now))
        if hang is None or (hang.is_busy and waited_s < self._settings.silence_s):
            return None  # the looks will be taken when the worker is silent; they see more than we do
        usual = self._stretch_before(self._progress.at)
        window = self._window(f"nothing entered, completed or moved for {waited_s:.1f} s")
        verdict = hang_verdict(self._windows.job, window, hang, waited_s, usual, self._coverage)
        self._hang = window
        self._told += 1
        return Sensed(window, verdict, self._progress.at)

    def _marked(self) -> dict[int, WorkerOperations]:
        """Return what each worker had done when something moved last: its host's last record by then."""
        seconds = [
            second if second.at <= self._progress.at else self._marks.get(host)
            for host, second in self.ledger.latest.items()
        ]
        return {one.worker: one for second in seconds if second is not None for one in second.operations}

    def _scene(self, now: float) -> Scene:
        latest, marks = self.ledger.latest, self._marked()
        before = self._stretch_before(self._progress.at)
        unheard = {host for host, second in latest.items() if now - second.at > _UNHEARD_S}
        operations = {one.worker: one for second in latest.values() for one in second.operations}
        return Scene(
            operations=operations,
            groups=self.ledger.groups,
            hosts=self.ledger.hosts,
            matched=tuple(one for second in latest.values() for one in second.matched),
            busy=frozenset(worker for worker, one in operations.items() if self._is_busy(now, marks.get(worker), one)),
            unheard=frozenset(unheard),
            home=self.ledger.hosts.get(0, ""),
            used=frozenset(before.cells),
            busiest=before.busiest,
            at_work=self._at_work(now, operations, marks),
        )

    def _at_work(
        self, now: float, operations: Mapping[int, WorkerOperations], marked: Mapping[int, WorkerOperations]
    ) -> frozenset[int]:
        """Workers that go on with something, as anything but their own use of a core tells."""
        began = max(self._progress.at, now - _WORK_S)
        seconds, passed_s = self.ledger.between(began, now), max(now - began, 0.1)
        marks = dict(marked) if began == self._progress.at else {}
        moved: dict[int, int] = {}
        for second in seconds:
            for one in second.operations:
                marks.setdefault(one.worker, one)
            for worker, count in second.elsewhere.items():
                moved[worker] = moved.get(worker, 0) + count
        cores = {
            worker: (one.elsewhere_cpu_s - marks[worker].elsewhere_cpu_s) / passed_s
            for worker, one in operations.items()
            if worker in marks
        }
        limit_s = self._limit_s()
        for worker in cores:
            files = (operations[worker].io_bytes or 0) - (marks[worker].io_bytes or 0)
            moved[worker] = moved.get(worker, 0) + max(0, files)
        least = min(cores.values(), default=0.0) + _WORK_CORE
        found = {worker for worker, used in cores.items() if used >= least}
        found |= {worker for worker, count in moved.items() if count >= _BUSY_BYTES * passed_s}
        found |= {
            worker
            for worker, (_, at) in self._heard.items()
            if at > self._progress.at + _AFTER_S and now - at < limit_s
        }
        return frozenset(found)

    def _is_busy(self, now: float, before: WorkerOperations | None, one: WorkerOperations) -> bool:
        waited_s = max(now - self._progress.at, 0.1)
        if before is None or one.state[:1] in ("T", "t"):
            return False
        moved = (one.io_bytes or 0) - (before.io_bytes or 0)
        return (
            one.state[:1] == "D" or one.cpu_s - before.cpu_s >= _BUSY_CORE * waited_s or moved >= _BUSY_BYTES * waited_s
        )

    # ------------------------------------------------------------------ slow

    def _read(self, now: float) -> list[Sensed]:
        """Tell what all moments show that came since iterations became longer, or since something was seen."""
        usual = self._usual()
        if usual is not None:
            self._pace(now, usual)
        self._chunk(now, usual)
        if usual is None:
            return []
        length_s, slow, stretch = self._first_sight(now, usual)
        if slow is None:
            self._calm(now, stretch, usual)
            return []
        self._usual_since = self._unseen = None
        since = self._slower_lately(now)
        if self._onset is None:
            self._onset = now if since is None else since
        since_s = now - self._onset
        if since_s < _SETTLE_S:
            return []
        began = self._onset - _BEFORE_S if since is None else since
        stretch, slow = self._look(min(began, now - length_s), now, usual)
        log.debug("communication looks slow for %.1f s: %s", since_s, slow and (slow.key, slow.gain, slow.doubtful))
        if slow is None or (slow.doubtful and since_s < _DOUBT_S) or slow.key in self._accused:
            return []
        if self._seen != slow.key:
            self._seen = slow.key
            return []
        return [self._accuse(slow, stretch, usual)]

    def _pace(self, now: float, usual: Usual) -> None:
        """Since when iterations take longer than usual: they are counted, so seconds tell what moments cannot yet."""
        stretch = stretch_of(self.ledger.between(now - _PACE_S, now))
        least = self._settings.communication_slow
        if stretch.iteration_s is None:
            is_pause = usual.iteration_s * _PAUSE_ITERATIONS < _PACE_S
            self._slower_since = None if is_pause else self._slower_since
        elif stretch.iteration_s < usual.iteration_s * (1 + least):
            self._slower_since = None
        elif self._slower_since is None and is_slow(stretch, usual, least):
            self._slower_since = max(now - _PACE_S / 2, self._fresh_from)

    def _slower_lately(self, now: float) -> float | None:
        """Since when; None if it is not slow, or has been for so long that something else may have changed."""
        since = self._slower_since
        return since if since is not None and now - since <= _STRETCHES_S[2] else None

    def _first_sight(self, now: float, usual: Usual) -> tuple[float, Slow | None, Stretch]:
        """The shortest stretch that shows something, and what; the longest one there is where none does."""
        length_s, slow, stretch = 0.0, None, self._look(now, now, usual)[0]
        since = self._slower_lately(now)
        if since is not None:
            stretch, slow = self._look(since, now, usual)
        for length_s in _STRETCHES_S if slow is None else ():
            began = max(self._fresh_from, self._progress.began or now, now - length_s)
            stretch, slow = self._look(began, now, usual)
            if slow is not None or began > now - length_s or self._is_usual(stretch, usual):
                break
        return length_s, slow, stretch

    @staticmethod
    def _is_usual(stretch: Stretch, usual: Usual) -> bool:
        """Iterations take what they used to: longer stretches would only show what is over."""
        return stretch.iteration_s is not None and stretch.iteration_s < usual.iteration_s * _USUAL

    def _look(self, began: float, now: float, usual: Usual) -> tuple[Stretch, Slow | None]:
        stretch = stretch_of(self.ledger.between(began, now))
        least = self._settings.communication_slow
        return stretch, find_slow(stretch, usual, self.ledger.hosts, least)

    def _accuse(self, slow: Slow, stretch: Stretch, usual: Usual) -> Sensed:
        since, self._seen = self._onset or 0.0, None
        # what else is found must show in what comes now
        self._onset = self._slower_since = self._fresh_from = self._progress.at
        self._accused.add(slow.key)
        window = self._window(f"communication shows {place_in_words(slow.places[0])}")
        self._told += 1
        return Sensed(window, slow_verdict(self._windows.job, window, slow, stretch, usual, self._coverage), since)

    def _calm(self, now: float, stretch: Stretch, usual: Usual) -> None:
        """Nothing is slow; after a while, what was found may be found again."""
        if self._unseen is None:
            self._unseen = now
        if now - self._unseen < _UNSEEN_S:
            return
        self._seen = self._onset = None
        if not self._accused or not stretch.iteration_s:
            return
        if stretch.iteration_s > usual.iteration_s * _USUAL:
            self._usual_since = None
        elif self._usual_since is None:
            self._usual_since = now
        elif now - self._usual_since >= _USUAL_S:
            self._usual_since = None
            self._accused.clear()
            self._fresh_from = now - _USUAL_S

    def _chunk(self, now: float, usual: Usual | None) -> None:
        """Keep what was healthy."""
        if self._chunk_from is None:
            self._chunk_from = now
        if now - self._chunk_from < _CHUNK_S:
            return
        chunk, self._chunk_from = stretch_of(self.ledger.between(self._chunk_from, now)), now
        slower = usual is not None and chunk.iteration_s and chunk.iteration_s > usual.iteration_s * _USUAL
        window = self._windows.window
        is_calm = window is None or window.purpose == "baseline"  # which opens while the job is healthy
        is_calm = is_calm and self._onset is None and self._slower_since is None and not self._accused
        if chunk.iteration_s and not slower and is_calm:
            self._chunks.append(chunk)

    def _usual(self) -> Usual | None:
        return usual_of(tuple(self._chunks)) if len(self._chunks) >= _LEAST_CHUNKS else None

    # ------------------------------------------------------------------ verdicts

    def _window(self, reason: str) -> Window:
        roll: Roll = self._windows.roll
        iteration = max((status.iteration for status in roll), default=0)
        return Window(
            window_id=self._windows.ledger.new_id(),
            purpose="communication",
            reason=reason,
            first_iteration=iteration,
            last_iteration=iteration,
        )


def _of(record: HostCommunication, workers: frozenset[int]) -> HostCommunication:
    """Keep of a host's record only its own workers; no host speaks for the workers of another."""
    return msgspec.structs.replace(
        record,
        workers=tuple(one for one in record.workers if one.worker in workers),
        flows=tuple(flow for flow in record.flows if flow.worker in workers),
    )
