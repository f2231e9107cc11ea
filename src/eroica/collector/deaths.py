"""Find the workers that died in a job, and tell whether they died of themselves: a pure state machine.

A scheduler that ends a job, a launcher that ends the survivors of a failure and a worker that is killed all look alike
in a process table. They are told apart by who went first, by which signal, and by whether anybody lived on.

Times are the collector's own: the receipt of a report, less what the agent says has passed on its own clock.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from eroica.collector.intake import MAX_WORKERS
from eroica.collector.participants import WorkerKey
from eroica.model.look import Death, Ending
from eroica.model.words import signal_name
from eroica.model.worker import Worker
from eroica.wire.messages import AgentReport, WorkerStatus

_TOGETHER_S = 0.05  # agents look 20 times a second
_UNRELATED_S = 5.0  # a worker that was done so long before the first death has nothing to do with it
_LIVED_ON_S = 1.0
_TRAINED_ON_ITERATIONS = 100
_ASKED_TO_GO = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_ASKED_STATUSES = {128 + number for number in _ASKED_TO_GO}  # as shells hand them on


@dataclass
class _Life:
    """One worker of the current generation."""

    worker: Worker
    iteration: int
    alive_at: float
    gone_at: float | None = None
    ending: Ending | None = None

    @property
    def died(self) -> bool:
        """True if the worker ended without signing off, and not by `os._exit(0)`."""
        ending = self.ending
        return ending is not None and ending.kind != "signed-off" and not (ending.kind == "exit" and ending.number == 0)


class Deaths:
    """The lives of one generation of workers; a restart by the launcher begins the next."""

    def __init__(self) -> None:
        self._lives: dict[WorkerKey, _Life] = {}
        self._gone: set[WorkerKey] = set()
        self._former: set[WorkerKey] = set()

    def reported(self, now: float, report: AgentReport) -> tuple[Death, ...] | None:
        """Take in a clean report.

        Returns:
            If it shows that the job was started again: who had died of itself before. Else None.
        """
        before = None
        for status in report.workers:
            key = (report.host, status.worker.pid)
            if key in self._former:
                continue
            if key not in self._lives and not status.ended and self._is_successor(status.worker):
                before = self.culprits(asked=False)
                self._next_generation()
            self._take(now, key, status)
        return before

    def _is_successor(self, worker: Worker) -> bool:
        return any(self._lives[key].worker.global_rank == worker.global_rank for key in self._gone)

    def _next_generation(self) -> None:
        if len(self._former) > MAX_WORKERS:
            self._former.clear()
        self._former |= set(self._lives)
        self._lives, self._gone = {}, set()

    def _take(self, now: float, key: WorkerKey, status: WorkerStatus) -> None:
        life = self._lives.get(key)
        if life is None:
            if len(self._lives) >= MAX_WORKERS:
                return
            life = self._lives[key] = _Life(status.worker, status.iteration, now)
        life.worker, life.iteration = status.worker, max(life.iteration, status.iteration)
        if not status.ended:
            life.alive_at, life.gone_at, life.ending = now, None, None
            self._gone.discard(key)
        elif life.gone_at is None:
            unknown = Ending(kind="unknown" if status.state == "gone" else "signed-off")
            life.ending = status.ending or unknown
            life.gone_at = now - life.ending.ago_s
            self._gone.add(key)
        elif status.ending is not None and status.ending.kind == "signed-off":
            life.ending = status.ending  # by now its process has ended, too, and its exit status may be known

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
            how = _in_what_way(life.ending or Ending())
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
        if any(_last_seen(life) - end > (_LIVED_ON_S if asked else _TOGETHER_S) for life in (*others, *living)):
            return True
        told = any(_asked_to_go(life) or not life.died for life in others)
        return not asked and told and all(map(_is_known, guilty))

    def _records(self, lives: list[_Life]) -> tuple[Death, ...]:
        lives = sorted(lives, key=_gone_at)
        latest = max(map(_last_seen, self._lives.values()), default=0.0)
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
    return life.gone_at if life.gone_at is not None else life.alive_at


def _last_seen(life: _Life) -> float:
    return _gone_at(life)  # of somebody who lives: the last report


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


def _in_what_way(ending: Ending) -> str:
    if ending.out_of_memory:
        return ", killed for want of memory"
    if ending.kind == "signal":
        return f", by {signal_name(ending.number)}"
    return f", with status {ending.number}" if ending.number else ""
