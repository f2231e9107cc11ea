"""From an order to a trace on disk: a state machine that the hooks drive from one iteration boundary to the next.

Waiting, open, parked and closing happen in the training thread, at boundaries, and cost it the start and the stop of
the profiler (measured and reported as the stall). A window is parked at its end: nothing is recorded any more, but the
profiler stands until the collectives that were open then have completed, because torch 2.13 frees the memory that they
report their end to. Saving happens on a thread of its own, which ends with the files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from eroica.errors import CaptureError
from eroica.wire import beat
from eroica.wire.beat import Order, Result
from eroica.worker import surroundings
from eroica.worker.session import Session
from eroica.worker.tracer import ProfilerDoor, Tracer

IDLE, WAITING, OPEN, PARKED, SAVING = range(5)
# state in the beat, by phase
STATES = (beat.STEADY, beat.STEADY, beat.CAPTURING, beat.SAVING, beat.SAVING)
_PARKED_ITERATIONS = 2
_LONGEST_PARKED = 500
_OVER_BUDGET = 1.2


class Capturer:
    """Takes orders, one at a time, and answers what became of them.

    Args:
        worker: The identity page of this worker.
        answer: Writes a result into shared memory; called from the training thread and from the saving one.
        door: Knows of other profilers.
        in_background: Runs a function on a thread of its own and returns the thread.
        longest_s: A window that stays open longer is closed at the next boundary.
        make_tracer: For tests.
    """

    def __init__(
        self,
        worker: dict[str, Any],
        answer: Callable[[Result], None],
        door: ProfilerDoor,
        in_background: Callable[[Callable[[], None]], threading.Thread],
        longest_s: float = 120.0,
        make_tracer: Callable[[bool], Tracer] = Tracer,
    ) -> None:
        self.phase = IDLE
        self._worker = worker
        self._answer = answer
        self._door = door
        self._in_background = in_background
        self._longest_ns = round(longest_s * 1e9)
        self._make_tracer = make_tracer
        self._session: Session | None = None
        self._saving: threading.Thread | None = None
        self._events_per_iteration = 0.0
        self._thread = threading.get_ident()
        self._give_up = ""
        self._parked_at = 0
        self._left_standing: Session | None = None

    @property
    def busy(self) -> bool:
        """An order is being carried out in the training thread, so it wants to hear of boundaries."""
        return self._session is not None and self.phase != SAVING

    def take(self, order: Order, iteration: int) -> None:
        """Accept or decline an order.

        Args:
            order: What the agent wants.
            iteration: Iterations completed so far.
        """
        if order.kind == beat.CANCEL:
            if self.busy:
                self._abandon(beat.SKIPPED, "cancelled")
            return
        status, note = self._decide(order, iteration)
        if status == beat.ACCEPTED:
            python_calls = bool(order.flags & beat.TRACE_PYTHON_CALLS)
            self._session = Session(order, self._make_tracer(python_calls))
            self.phase, self._give_up = WAITING, ""
        self._tell(order, status, note=note)

    def boundary(self, iteration: int, end_ns: int) -> int:
        """An iteration ended, in the training thread.

        Args:
            iteration: Iterations completed.
            end_ns: When it ended, CLOCK_MONOTONIC.

        Returns:
            Nanoseconds for which this kept the training thread.
        """
        session = self._session
        if session is None or self.phase == SAVING:
            return 0
        before = session.stall_ns
        if self._give_up:
            self._abandon(beat.SKIPPED, self._give_up)
            return session.stall_ns - before
        try:
            if self.phase == WAITING:
                self._wait(session, iteration)
            elif self.phase == OPEN:
                self._go_on(session, iteration, end_ns)
            else:
                self._settle(session, iteration)
        except CaptureError as error:
            self._abandon(beat.ORDER_FAILED, str(error))
        return session.stall_ns - before

    def loaded(self, iterator: Any) -> None:
        """A loader handed out a batch: remember its children while the window is open."""
        if self.phase == OPEN and self._session is not None:
            self._session.loader_pids.update(surroundings.loader_children(iterator))

    def make_way(self) -> None:
        """Somebody else wants to profile now: they come first."""
        session = self._session
        if session is None or self.phase == SAVING or not session.prepared:
            return
        note = "another profiler was started in the training"
        if threading.get_ident() == self._thread:
            self._abandon(beat.SKIPPED, note)
        else:
            self._give_up = note

    def give_up(self, note: str) -> None:
        """Iterations cannot be told apart any more, or there are none: an open window ends here, uncaptured."""
        if self.busy and (self.phase < OPEN or threading.get_ident() == self._thread):
            self._abandon(beat.SKIPPED, note)

    def let_go(self, note: str) -> None:
        """The process ends: record no further, and leave the profiler to end with it."""
        session = self._session
        if session is None or self.phase == SAVING:
            return
        if self.phase == OPEN:
            session.park()
        self._session, self.phase, self._left_standing = None, IDLE, session
        self._tell(session.order, beat.SKIPPED, session, note=note)

    def collapse(self, failure: str) -> None:
        """Something of ours failed: leave no profiler running."""
        session = self._session
        if session is not None and session.prepared and threading.get_ident() == self._thread:
            self._abandon(beat.ORDER_FAILED, failure)

    def finish(self, patience_s: float) -> None:
        """The process ends: wait a little for a save in progress."""
        if self._saving is not None:
            self._saving.join(patience_s)

    # ------------------------------------------------------------------ orders

    def _decide(self, order: Order, iteration: int) -> tuple[int, str]:
        if self._session is not None:
            return beat.SKIPPED, f"still busy with window {self._session.order.window_id}"
        if order.last_iteration <= order.first_iteration:
            return beat.ORDER_FAILED, f"no iteration in {order.first_iteration} to {order.last_iteration}"
        if iteration > order.first_iteration:
            return beat.MISSED, f"already at iteration {iteration}, the window opens at {order.first_iteration}"
        if not self._door.exists:
            return beat.SKIPPED, "this process has not imported torch"
        if self._door.taken:
            return beat.SKIPPED, "another profiler is active in the training"
        return beat.ACCEPTED, ""

    def _tell(self, order: Order, status: int, session: Session | None = None, events: int = 0, note: str = "") -> None:
        captured = session.boundaries_ns if session is not None else []
        last = order.first_iteration + len(captured) - 1 if len(captured) > 1 else order.last_iteration
        stall_ns = session.stall_ns if session is not None else 0
        duration_ns = captured[-1] - captured[0] if captured else 0
        self._answer(
            Result(
                order.window_id, status, order.kind, order.first_iteration, last, events, stall_ns, duration_ns, note
            )
        )

    # ------------------------------------------------------------------ boundaries

    def _wait(self, session: Session, iteration: int) -> None:
        first = session.order.first_iteration
        if iteration > first:
            self._abandon(beat.MISSED, f"already at iteration {iteration}, the window opens at {first}")
            return
        if iteration < first - 1:
            return
        if self._door.taken and not session.prepared:
            self._abandon(beat.SKIPPED, "another profiler is active in the training")
            return
        self._thread = threading.get_ident()
        with _OurTurn(self._door):
            if not session.prepared:
                session.prepare()
            if iteration == first:
                session.open()
                self.phase = OPEN
                self._tell(session.order, beat.OPEN, session)

    def _go_on(self, session: Session, iteration: int, end_ns: int) -> None:
        session.boundaries_ns.append(end_ns)
        order = session.order
        too_many = 0 < _OVER_BUDGET * order.max_events < session.iterations * self._events_per_iteration
        too_long = end_ns - session.boundaries_ns[0] > self._longest_ns
        if iteration < order.last_iteration and not too_many and not too_long:
            return
        if iteration < order.last_iteration:
            why = "its event budget" if too_many else "its longest time"
            session.notes.append(f"closed after {session.iterations} iterations: {why} was used up")
        session.park()
        self.phase, self._parked_at = PARKED, iteration
        self._tell(order, beat.CLOSED, session, round(session.iterations * self._events_per_iteration))

    def _settle(self, session: Session, iteration: int) -> None:
        """Stop the profiler once no collective can still report to it."""
        waited = iteration - self._parked_at
        if waited < _PARKED_ITERATIONS:
            return
        if not session.settled():
            if waited > _LONGEST_PARKED:
                self._leave_standing(session)
            return
        with _OurTurn(self._door):
            session.close()
        self.phase = SAVING
        self._saving = self._in_background(self._save)

    def _leave_standing(self, session: Session) -> None:
        """A collective never ends: the profiler stays, recording nothing, and this was the last window here."""
        self._session, self.phase = None, IDLE
        self._left_standing = session
        self._tell(session.order, beat.ORDER_FAILED, session, note="a collective stayed open after the window")

    def _abandon(self, status: int, note: str) -> None:
        """Throw away what there is of the current order, and say why."""
        session = self._session
        if session is None:
            return
        was_prepared = session.prepared
        try:
            with _OurTurn(self._door):
                session.close()
        except CaptureError as error:
            note = f"{note}; {error}"
        if was_prepared:
            session.tracer.drop()
        self._session, self.phase, self._give_up = None, IDLE, ""
        self._tell(session.order, status, session, note=note)

    # ------------------------------------------------------------------ on the saving thread

    def _save(self) -> None:
        session = self._session
        if session is None:
            return
        order = session.order
        threads = {
            "training_thread_id": self._worker["training_thread_id"],
            "training_thread_ident": self._thread,
            "thread_names": surroundings.thread_names(),
            "process_groups": surroundings.process_groups(),
        }
        try:
            events = session.save(self._worker, threads)
        except OSError as error:
            session.tracer.drop()
            answer = (beat.ORDER_FAILED, session, 0, f"the trace could not be saved: {error}")
        else:
            self._events_per_iteration = events / max(1, session.iterations)
            answer = (beat.DONE, session, events, "; ".join(session.notes))
        self._session, self.phase = None, IDLE  # before the answer: the next order may come at once
        self._tell(order, *answer)


class _OurTurn:
    """Tells the door that the profiler calls inside are ours."""

    def __init__(self, door: ProfilerDoor) -> None:
        self._door = door

    def __enter__(self) -> None:
        self._door.ours = True

    def __exit__(self, *_: object) -> None:
        self._door.ours = False
