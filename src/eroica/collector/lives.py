"""Follow each worker's process from its first report to its end: which died of itself, which were watched all along.

A scheduler that ends a job, a launcher that ends the survivors of a failure and a worker that is killed all look alike
in a process table. They are told apart by who went first, by which signal, and by whether anybody lived on.

Only workers that were watched all along are said to be healthy. A worker may never be seen, be lost (something of ours
failed in it), drop out (nobody reports it any more, and nobody saw it end), or end before anything could be told of its
speed.

Times are the collector's own: the receipt of a report, less what the agent says has passed on its own clock. A pure
state machine.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from eroica.collector.intake import MAX_WORKERS, clean_text
from eroica.collector.participants import AGENT_SILENT_S, WorkerKey
from eroica.model.look import Death, Ending
from eroica.model.words import plural, signal_name, worker_list
from eroica.model.worker import Worker
from eroica.wire.messages import AgentReport, WorkerStatus
from eroica.wire.places import read_private

_TOGETHER_S = 0.05  # agents look 20 times a second
_UNRELATED_S = 5.0  # a worker that was done so long before the first death has nothing to do with it
_LIVED_ON_S = 1.0
_TRAINED_ON_ITERATIONS = 100
_ASKED_TO_GO = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_ASKED_STATUSES = {128 + number for number in _ASKED_TO_GO}  # as shells hand them on
_MOST_LOGS, _MOST_LOG_BYTES = 200, 200_000
_FAILURE = "Eroica stops watching this worker"
_LONGEST_REASON = 160


class Attendance(NamedTuple):
    """Workers watched at the end of a job, and the gaps.

    Attributes:
        expected: Workers of the job, as far as anybody knows; 0 if none was ever seen.
        watched: Those that were watched all along, and long enough to tell.
        gaps: One clause for each kind of those that were not.
    """

    expected: int = 0
    watched: int = 0
    gaps: tuple[str, ...] = ()


@dataclass
class _Life:
    """One worker's process; times in seconds.

    Attributes:
        judged: Its speed is known.
        failure: What of ours failed in it, and at which iteration; "" and 0 if nothing did.
    """

    worker: Worker
    iteration: int
    alive_at: float
    gone_at: float | None = None
    ending: Ending | None = None
    judged: bool = False
    failure: str = ""
    failed_at: int = 0

    @property
    def died(self) -> bool:
        """True if the worker ended without signing off, and not by `os._exit(0)`."""
        ending = self.ending
        return ending is not None and ending.kind != "signed-off" and not (ending.kind == "exit" and ending.number == 0)

    def take(self, now: float, status: WorkerStatus) -> None:
        """Take in what an agent says of it."""
        self.worker, self.iteration = status.worker, max(self.iteration, status.iteration)
        self.judged = self.judged or status.baseline_s is not None
        if status.state == "failed" and not self.failure:
            self.failure, self.failed_at = status.result.note or "something of Eroica's failed", status.iteration
        if not status.ended:
            self.alive_at, self.gone_at, self.ending = now, None, None
        elif self.gone_at is None:
            self.ending = status.ending or Ending(kind="unknown" if status.state == "gone" else "signed-off")
            self.gone_at = now - self.ending.ago_s
        elif status.ending is not None and status.ending.kind == "signed-off":
            self.ending = status.ending  # by now its process has ended, too, and its exit status may be known


class Lives:
    """The processes of a job's workers; a restart by the launcher begins the next generation of them."""

    def __init__(self) -> None:
        self._all: dict[WorkerKey, _Life] = {}
        self._lives: dict[WorkerKey, _Life] = {}
        self._gone: set[WorkerKey] = set()

    def reported(self, now: float, report: AgentReport) -> tuple[Death, ...] | None:
        """Take in a clean report.

        Returns:
            If it shows that the job was started again: who had died of itself before. Else None.
        """
        before = None
        for status in report.workers:
            key = (report.host, status.worker.pid)
            life = self._all.get(key)
            if life is None:
                if len(self._all) >= 2 * MAX_WORKERS:
                    continue
                gone = {self._lives[one].worker.global_rank for one in self._gone}
                if not status.ended and status.worker.global_rank in gone:  # somebody takes their place
                    before = self.culprits(asked=False)
                    self._lives, self._gone = {}, set()
                life = self._all[key] = self._lives[key] = _Life(status.worker, status.iteration, now)
            life.take(now, status)
            if key in self._lives:
                (self._gone.discard if life.gone_at is None else self._gone.add)(key)
        return before

    # ------------------------------------------------------------------ questions

    @property
    def world_size(self) -> int:
        """Workers of this generation, as their reports say; 0 before the first is here."""
        return max((life.worker.world_size for life in self._lives.values()), default=0)

    def bereaved(self) -> tuple[Death, ...]:
        """Deaths for somebody who knows that the survivors stand still.

        Workers that were asked to go count if they are the fewer: a scheduler asks all of them. One without whom the
        others have trained on for long is not whom they wait for.
        """
        gone = [life for life in self._lives.values() if life.gone_at is not None]
        few = 2 * len(gone) < len(self._lives)
        furthest = max((life.iteration for life in self._lives.values() if life.gone_at is None), default=0)
        missed = [life for life in gone if furthest - life.iteration <= _TRAINED_ON_ITERATIONS]
        return self._records([life for life in missed if life.died and (few or not _asked_to_go(life))])

    def left(self) -> tuple[Worker, ...]:
        """Workers that ended in order, or after an exception, while others live on."""
        gone = [life.worker for life in self._lives.values() if life.gone_at is not None and not life.died]
        return tuple(gone) if len(gone) < len(self._lives) else ()

    @property
    def all_done(self) -> bool:
        """True if all workers have ended in order, and none with a status that says otherwise."""
        endings = [life.ending for life in self._lives.values() if not life.died]
        return 0 < len(self._lives) == sum(ending is not None and not ending.number for ending in endings)

    def attendance(self, now: float, lost: Sequence[str] = ()) -> Attendance:
        """Count the workers that were watched all along, as of now.

        Args:
            now: The job's end.
            lost: Why processes could not be watched that no agent has told of.
        """
        world = max((one.worker.world_size for one in self._all.values()), default=0)
        everybody = list(self._by_rank().values() if world > 1 else self._all.values())
        ranks = {one.worker.global_rank for one in everybody}
        never = [rank for rank in range(world) if rank not in ranks] if world > 1 else []
        failed = [one for one in everybody if one.failure]
        rest = [one for one in everybody if not one.failure]
        dropped = [one for one in rest if one.gone_at is None and now - one.alive_at > AGENT_SILENT_S]
        short = [one for one in rest if one not in dropped and not one.judged]
        unseen = len(lost) - len(failed) if len(everybody) - len(failed) == 0 else 0
        gaps = (
            *_failures(failed),
            *_clause(dropped, lambda who, at: f"{who} dropped out at iteration {at}, and nobody saw it end"),
            *([f"{worker_list(never)} {'was' if len(never) == 1 else 'were'} never seen"] if never else []),
            *_clause(short, lambda who, at: f"{who} had only {plural(at, 'iteration')}, too few to tell"),
            *(f"one process could not be watched: {_short(why)}" for why in lost[:1] if unseen > 0),
        )
        watched = len(rest) - len(dropped) - len(short)
        return Attendance(max(world, len(everybody)), watched, gaps)

    def _by_rank(self) -> dict[int, _Life]:
        """The newest process of each rank, with what those before it tell."""
        newest: dict[int, _Life] = {}
        for one in self._all.values():
            former = newest.get(one.worker.global_rank)
            newest[one.worker.global_rank] = one
            if former is not None:  # started again; what came before counts, too
                one.judged = one.judged or former.judged
                one.failure, one.failed_at = former.failure or one.failure, former.failed_at or one.failed_at
        return newest

    def culprits(self, asked: bool) -> tuple[Death, ...]:
        """Return the workers that died first, of themselves, while others lived on.

        Args:
            asked: Somebody asked the whole job to end: only what cannot come from that counts.
        """
        gone = sorted((life for life in self._lives.values() if life.gone_at is not None), key=_gone_at)
        first_death = next((life for life in gone if life.died), None)
        if first_death is None:
            return ()
        related = [life for life in gone if _gone_at(life) > _gone_at(first_death) - _UNRELATED_S]
        first = [life for life in related if _gone_at(life) - _gone_at(related[0]) <= _TOGETHER_S]
        doubtful = asked or any(not life.died for life in first)
        guilty = [life for life in first if life.died and not _asked_to_go(life) and (_is_known(life) or not doubtful)]
        if guilty and self._outlived(guilty, related, asked):
            return self._records(guilty)
        return self._records([life for life in guilty if life.ending is not None and life.ending.out_of_memory])

    def first_out(self) -> str:
        """Name the worker that was first to end with a failure, else first at all, in a clause; "" while all live."""
        gone = sorted((life for life in self._lives.values() if life.gone_at is not None), key=_gone_at)
        failed = [life for life in gone if life.died or (life.ending is not None and life.ending.number)]
        for life in (*failed, *gone):
            ending = life.ending or Ending()
            how = f", with status {ending.number}" if ending.number else ""
            how = f", by {signal_name(ending.number)}" if ending.kind == "signal" else how
            how = ", killed for want of memory" if ending.out_of_memory else how
            return f"worker {life.worker.global_rank} was the first to end{how}, at iteration {life.iteration}"
        return ""

    def unexplained(self) -> tuple[Worker, ...]:
        """Workers that ended neither in order nor because they were asked to, as far as anybody knows."""
        died = [life for life in self._lives.values() if life.died and not _asked_to_go(life)]
        return tuple(life.worker for life in sorted(died, key=lambda life: life.worker.global_rank))

    def _outlived(self, guilty: list[_Life], related: list[_Life], asked: bool) -> bool:
        """Others were there after the first had died: not all vanished together."""
        living = [life for life in self._lives.values() if life.gone_at is None]
        others = [life for life in related if life not in guilty]
        if not living and _died_alike(related):
            return False
        end = max(map(_gone_at, guilty))
        if any(_gone_at(life) - end > (_LIVED_ON_S if asked else _TOGETHER_S) for life in (*others, *living)):
            return True
        told = any(_asked_to_go(life) or not life.died for life in others)
        return not asked and told and all(map(_is_known, guilty))

    def _records(self, lives: list[_Life]) -> tuple[Death, ...]:
        lives = sorted(lives, key=_gone_at)
        latest = max(map(_gone_at, self._lives.values()), default=0.0)
        return tuple(
            Death(
                worker=life.worker,
                iteration=life.iteration,
                ending=life.ending or Ending(),
                lived_on_s=round(max(0.0, latest - _gone_at(life)), 3),
            )
            for life in lives
        )


def _gone_at(life: _Life) -> float:
    """When it ended; of a process that lives: its last report."""
    return life.gone_at if life.gone_at is not None else life.alive_at


def _died_alike(lives: list[_Life]) -> bool:
    """Return whether all died of the same known cause within a second: then one act killed them all."""
    ways = {(life.ending.kind, life.ending.number) for life in lives if life.ending is not None}
    spread_s = _gone_at(lives[-1]) - _gone_at(lives[0])
    return len(lives) > 1 and len(ways) == 1 and spread_s <= _LIVED_ON_S and all(map(_is_known, lives))


def _asked_to_go(life: _Life) -> bool:
    ending = life.ending
    if ending is None or ending.out_of_memory:
        return False
    if ending.kind == "signal":
        return ending.number in _ASKED_TO_GO
    return ending.kind == "exit" and ending.number in _ASKED_STATUSES


def _is_known(life: _Life) -> bool:
    """Return whether the kernel told how the process ended, and that it was not asked to go."""
    ending = life.ending
    return ending is not None and (ending.out_of_memory or ending.kind in ("signal", "exit")) and not _asked_to_go(life)


def in_words(death: Death) -> str:
    """Say which worker ended, how, and at which iteration."""
    ending = death.ending
    how = {"signal": f"was ended by {signal_name(ending.number)}", "exit": f"exited with status {ending.number}"}.get(
        ending.kind, "vanished"
    )
    if ending.out_of_memory:
        how = "was killed for want of memory"
    who = f"worker {death.worker.global_rank} ({death.worker.host}, pid {death.worker.pid})"
    return f"{who} {how} at iteration {death.iteration}"


def _failures(failed: Sequence[_Life]) -> list[str]:
    """Say the first failure of ours, on which worker, and how many more there were."""
    if not failed:
        return []
    first = min(failed, key=lambda one: one.failed_at)
    others = f"; so were {len(failed) - 1} more" if len(failed) > 1 else ""
    return [
        f"worker {first.worker.global_rank} was lost at iteration {first.failed_at} ({_short(first.failure)}){others}"
    ]


def _clause(some: Sequence[_Life], say: Callable[[str, int], str]) -> list[str]:
    if not some:
        return []
    ranks = [one.worker.global_rank for one in some]
    who = worker_list(ranks) if len(set(ranks)) == len(some) else f"{len(some)} processes"
    return [say(who, max(one.iteration for one in some))]


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 1]}…"


def failures_in(logs: Path) -> list[str]:
    """Read from the logs why processes of this host could not be watched.

    Processes of other hosts count too where they share the run directory.

    Args:
        logs: Directory of the logs.

    Returns:
        One line for each of them.
    """
    found: list[str] = []
    with contextlib.suppress(OSError):
        for path in sorted(logs.glob("worker-*.log"))[:_MOST_LOGS]:
            text = read_private(path, _MOST_LOG_BYTES).decode("utf-8", "replace")
            if _FAILURE in text:
                lines = [line for line in text.splitlines() if line.strip() and not line[0].isspace()]
                found.append(clean_text(lines[-1]))
    return found
