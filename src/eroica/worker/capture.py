"""Turn an order into a trace on disk: a state machine that the hooks drive from one iteration boundary to the next.

Waiting, open, parked and closing happen in the training thread, at boundaries, and cost it the start and the stop of
the profiler (measured and reported as the stall). A window is parked at its end: nothing is recorded any more, but the
profiler stands until the collectives that were open then have completed, because torch 2.13 frees the memory that they
report their end to. A profiler that nobody needs any more stands likewise until then. Saving happens on a thread of its
own, which ends with the files.

A profiler is started and stopped in one thread, and records that thread. A window during which iterations end in
another thread is given up; its profiler stands until its own thread comes by (a step, a batch, the thread's end).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from eroica.errors import CaptureError
from eroica.settings import Settings
from eroica.wire import beat, patience
from eroica.wire.beat import Order, Result
from eroica.worker import kineto, setup, surroundings
from eroica.worker.errors_of_users import raised_by_user
from eroica.worker.guard import lack_for_a_window, memory_bytes, spared
from eroica.worker.pristine import Local, Thread, get_ident, get_native_id, monotonic, sleep
from eroica.worker.session import Session
from eroica.worker.tracer import ProfilerDoor, Tracer

IDLE, WAITING, OPEN, PARKED, SAVING, STANDING = range(6)
# state in the beat, by phase
STATES = (beat.STEADY, beat.STEADY, beat.CAPTURING, beat.SAVING, beat.SAVING, beat.STEADY)
_PARKED_ITERATIONS = 2
_LONGEST_PARKED = 512
_PATIENCE_S = 2.0
_LOOK_AGAIN_S = 0.02
_OVER_BUDGET = 1.2
#: An iteration may make far more events than the probed one. Nobody tells while they are recorded: the process's memory
#: bounds them from above (220 bytes for each, torch 2.13), and so does the time, at so many times the probed rate.
_EVENT_BYTES = 220
_DENSER = 3.0
_PAIR = 2  # workers among whom a send can only go to the other
_MOST_WITH_INPUTS = 100_000  # events of one iteration: ending a trace with their inputs takes longer
_TOLD_TO_END = "the job is told to end"
_RISEN = "iterations became longer"
_LEAST_ITERATIONS = 2  # fewer cannot be compared with each other
_OTHERS_PROFILER = "another profiler was started in the training"


class _AtThreadsEnd:
    """An object that only one thread holds: it goes when the thread ends, and then calls a function in that thread."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._call()


class Capturer:
    """Takes orders, one at a time, and answers what became of them.

    Args:
        worker: The identity page of this worker.
        answer: Writes a result into shared memory; called from the training thread and from the saving one.
        door: Knows of other profilers.
        in_background: Runs a function on a thread of its own and returns the thread.
        run: Runs our code behind the guest's border.
        settings: How long a window may stay open; see `eroica.wire.patience`.
        optimizers: Returns the optimizers that step.
        make_tracer: For tests.
    """

    def __init__(
        self,
        worker: dict[str, Any],
        answer: Callable[[Result], None],
        door: ProfilerDoor,
        in_background: Callable[[Callable[[], None]], Thread],
        run: Callable[..., Any],
        settings: Settings,
        make_tracer: Callable[..., Tracer] = Tracer,
        optimizers: Callable[[], Iterable[Any]] = tuple,
    ) -> None:
        self.phase = IDLE
        self._worker = worker
        self._answer = answer
        self._door = door
        self._in_background = in_background
        self._run = run
        self._settings = settings
        self._longest_s = 0.0
        self._before_ns = 0
        self._make_tracer = make_tracer
        self._optimizers = optimizers
        self._session: Session | None = None
        self._saving: Thread | None = None
        self._events_per_iteration = self._iteration_ns = 0.0  # as last measured
        self._resident_bytes = 0
        self._has_sends = False
        self._thread, self._kernel_thread = get_ident(), 0  # of the profiler
        self._of_thread = Local()
        self._give_up = self._end_early = ""
        self._waited = self._passed = 0
        self._patience_s = 0.0

    @property
    def busy(self) -> bool:
        """An order is being carried out in the training thread, so it wants to hear of boundaries."""
        return self._session is not None and self.phase != SAVING

    def take(self, order: Order, iteration: int, lack: str = "") -> None:
        """Accept or decline an order.

        Args:
            order: What the agent wants.
            iteration: Iterations completed so far.
            lack: Why there can be no window now, in a clause.
        """
        if order.kind == beat.CANCEL:
            if self.busy and self.phase != STANDING:
                self._give_up = "cancelled"
                if self._at_hand():
                    self._dismiss(beat.SKIPPED, "cancelled")
            return
        if order.kind == beat.CLOSE:
            if self._session is not None and self._session.order.window_id == order.window_id:
                self._end_early = _RISEN if order.flags & beat.RISEN else _TOLD_TO_END
            return
        status, note = self._decide(order, iteration, lack)
        if status == beat.ACCEPTED:
            operators = not order.flags & beat.NO_OPERATORS
            inputs = operators and self._wants_inputs(order)
            tracer = self._make_tracer(inputs=inputs, operators=operators)
            self._session = Session(order, tracer, self._run)
            self.phase, self._give_up, self._patience_s = WAITING, "", _PATIENCE_S
            self._waited = self._passed = 0
            self._end_early = ""
            self._before_ns = 0
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
        if session.prepared and get_ident() != self._thread:
            self.passed_elsewhere("iterations end in another thread than the profiler's")
            return 0
        before = session.stall_ns
        if self._give_up:
            self._dismiss(beat.SKIPPED, self._give_up)
            return session.stall_ns - before
        try:
            if self.phase == WAITING:
                self._wait(session, iteration, end_ns)
            elif self.phase == OPEN:
                self._go_on(session, iteration, end_ns)
            else:
                self._settle(session)
        except CaptureError as error:
            self._dismiss(beat.ORDER_FAILED, str(error))
        except BaseException:  # not ours: what was under way may be half done, so it ends at the next boundary
            self._give_up = "a signal's handler raised inside the profiler"
            raise
        return session.stall_ns - before

    def passed_elsewhere(self, note: str) -> None:
        """An iteration has ended in another thread than the profiler's: the window does not hold it."""
        session = self._session
        if session is None or self.phase in (SAVING, STANDING):
            return
        self._passed += 1
        if self.phase == WAITING:  # nothing runs yet
            self.give_up(note)
        elif self.phase == OPEN:
            self._leave_standing(session, beat.SKIPPED, note)
        elif self._passed >= _LONGEST_PARKED:
            self._leave_standing(session, beat.ORDER_FAILED, "the thread of the window did not come back to end it")

    def loaded(self, iterator: Any) -> None:
        """A loader handed out a batch: remember its children, and how it is set up, while the window is open."""
        session = self._session
        if session is None:
            return
        if self.phase == OPEN:
            session.add_batch(iterator)
            session.loader_pids.update(surroundings.loader_children(iterator))
            if not session.loader_setup:
                session.loader_setup = setup.loader_setup(iterator)
        elif self.phase == STANDING and self._at_hand():
            self._settle(session)

    def make_way(self) -> None:
        """Make way for another profiler, which comes first.

        Waits for open collectives, 2 s at most for a window. Where one stays open longer, ours has to stand, and torch
        refuses theirs.
        """
        session = self._session
        if session is None or self.phase == SAVING or not session.prepared:
            return
        if not self._at_hand():
            # its own thread ends it, which may take it 2 s; torch crashes where two of them are stopped
            self._give_up = _OTHERS_PROFILER
            gone = get_ident() == self._thread or self._await(
                lambda: not (self._session is session and session.prepared)
            )
            if not gone:
                session.tracer.displaced = True
            return
        if self.phase == OPEN:
            session.park()
            self.phase = STANDING
            self._tell(session.order, beat.SKIPPED, session, note=_OTHERS_PROFILER)
        settled = self.phase == WAITING or self._await(session.settled)
        if settled and self.phase == PARKED:
            self._finish(session)
        else:
            self._dismiss(beat.SKIPPED, _OTHERS_PROFILER)

    def give_up(self, note: str) -> None:
        """Iterations cannot be told apart any more: a window that is not complete ends here, uncaptured."""
        session = self._session
        if session is None or self.phase in (SAVING, STANDING):
            return
        if session.prepared and not self._at_hand():
            if self.phase != PARKED:
                self._give_up = note  # its own thread reads it at its next boundary
        elif self.phase != PARKED:
            self._dismiss(beat.SKIPPED, note)
        elif session.settled():  # the next boundary may be far away
            self._finish(session)

    def let_go(self, note: str) -> None:
        """The process ends: save what a window holds, and stop the profiler if it is safe, else let it end with us.

        A window that is still open ends with its last whole iteration; what it recorded is worth as much as any.

        It is not where the device still works: one that waits for a peer that has died would never let us go.
        """
        session = self._session
        if session is None or self.phase == SAVING:
            return
        if session.prepared and not self._at_hand():
            session.quiet()
            self._leave_standing(session, beat.SKIPPED, note)
            return
        session.tracer.waits = False
        if session.prepared and not self._await(session.idle):
            session.abandon()
            self._leave_standing(session, beat.SKIPPED, note)
            return
        if self.phase == OPEN and session.iterations >= _LEAST_ITERATIONS and session.order.kind == beat.WINDOW:
            self._park(session, note)
        if self.phase == PARKED and self._await(session.settled):
            self._finish(session)
        else:
            self._dismiss(beat.SKIPPED, note)

    def _thread_ends(self, session: Session) -> None:
        """The profiler's thread ends, and is here for the last time: nobody can stop its profiler afterwards."""
        if self._session is not session or not session.prepared or get_ident() != self._thread:
            return
        self.let_go("the thread that trained has ended")
        if self._session is session and self.phase == STANDING:
            session.tracer.displaced = True
            self._take_down(session)
            self._forget()

    def forked(self) -> None:
        """Leave the window to the parent, in a forked child."""
        if self._session is not None:
            self._session.collections.off()

    def collapse(self, failure: str) -> bool:
        """Something of ours failed: leave no profiler running; where even that fails, one that records nothing.

        Returns:
            False if there is still one to stop: call it again, later and in the training thread.
        """
        session = self._session
        if session is None or not session.prepared:
            return True
        if not self._at_hand():
            return False
        try:
            if self.phase == STANDING:
                self._settle(session)
            else:
                self._dismiss(beat.ORDER_FAILED, failure)
        finally:
            if self._session is session and session.prepared and self.phase != STANDING:
                session.abandon()
                self.phase = STANDING
        return self._session is None

    def finish(self, patience_s: float) -> None:
        """The process ends: wait a little for a save in progress."""
        if self._saving is not None:
            self._saving.join(patience_s)

    # ------------------------------------------------------------------ orders

    def _decide(self, order: Order, iteration: int, lack: str) -> tuple[int, str]:
        if self._session is not None:
            if self.phase == STANDING:
                return beat.SKIPPED, "the last window's profiler still stands: a collective of then is open"
            return beat.SKIPPED, f"still busy with window {self._session.order.window_id}"
        if order.last_iteration <= order.first_iteration:
            return beat.ORDER_FAILED, f"no iteration in {order.first_iteration} to {order.last_iteration}"
        if iteration > order.first_iteration:
            return beat.MISSED, f"already at iteration {iteration}, the window opens at {order.first_iteration}"
        if not self._door.exists:
            return beat.SKIPPED, "this process has not imported torch"
        if self._door.taken:
            return beat.SKIPPED, "another profiler is active in the training"
        if surroundings.in_backward():
            return beat.SKIPPED, "optimizers step inside the backward pass, where no profiler can be started"
        lack = lack or lack_for_a_window()
        if lack:
            return beat.SKIPPED, lack
        return beat.ACCEPTED, ""

    def _wants_inputs(self, order: Order) -> bool:
        """Return whether to record inputs, which tell the targets of sends; not in the first trace, of unknown size."""
        could_go_to_several = self._has_sends and self._worker["world_size"] > _PAIR
        return order.kind == beat.PROBE and could_go_to_several and self._events_per_iteration <= _MOST_WITH_INPUTS

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

    def _wait(self, session: Session, iteration: int, end_ns: int) -> None:
        first, last = session.order.first_iteration, session.order.last_iteration
        before_ns, self._before_ns = self._before_ns, end_ns
        if iteration > first:
            self._dismiss(beat.MISSED, f"already at iteration {iteration}, the window opens at {first}")
            return
        if iteration < first - 1:
            return
        if self._door.taken and not session.prepared:
            self._dismiss(beat.SKIPPED, "another profiler is active in the training")
            return
        if not session.prepared and not kineto.may_begin_here(self._door.used):
            self._dismiss(beat.SKIPPED, "iterations end in another thread than the one that imported torch")
            return
        self._thread, self._kernel_thread = get_ident(), get_native_id()
        with _OurTurn(self._door):
            if not session.prepared:
                session.prepare()
            if iteration == first:
                iteration_s = (end_ns - before_ns) * 1e-9 if before_ns else 0.0
                self._longest_s = patience.open_s(last - first, iteration_s, self._settings)
                if self._kernel_thread != os.getpid():  # the main thread's end is the process's
                    self._of_thread.sentinel = _AtThreadsEnd(lambda: self._run(self._thread_ends, session))
                session.count_gradients(self._optimizers())
                session.open()
                self._resident_bytes = memory_bytes()
                self.phase = OPEN
                self._tell(session.order, beat.OPEN, session)

    def _go_on(self, session: Session, iteration: int, end_ns: int) -> None:
        session.boundaries_ns.append(end_ns)
        order = session.order
        expected = session.iterations * self._events_per_iteration
        too_many = 0 < _OVER_BUDGET * order.max_events < expected or self._overflows(session)
        too_long = (end_ns - session.boundaries_ns[0]) * 1e-9 > self._longest_s
        enough = session.iterations >= _LEAST_ITERATIONS and (too_many or too_long or self._end_early)
        if iteration < order.last_iteration and not enough:
            return
        why = ""
        if iteration < order.last_iteration:
            why = self._end_early or f"{'its event budget' if too_many else 'its longest time'} was used up"
        self._park(session, why)

    def _overflows(self, session: Session) -> bool:
        """Return whether more events may be recorded than any window may hold (`hard_window_events`)."""
        most = max(self._settings.hard_window_events, session.order.max_events)
        open_ns = session.boundaries_ns[-1] - session.boundaries_ns[0]
        by_time = _DENSER * self._events_per_iteration * open_ns / max(self._iteration_ns, 1.0)
        return by_time > most and (memory_bytes() - self._resident_bytes) / _EVENT_BYTES > most

    def _park(self, session: Session, cut_by: str = "") -> None:
        """The window is over; `cut_by` is why, if that is not its own end."""
        if cut_by:
            session.notes.append(f"closed after {session.iterations} iterations: {cut_by}")
        session.park()
        self.phase = PARKED
        self._tell(session.order, beat.CLOSED, session, round(session.iterations * self._events_per_iteration))

    def _settle(self, session: Session) -> None:
        """Stop the profiler once no collective can still report to it; look ever more rarely."""
        if session.recording:
            session.park()
        self._waited += 1
        if self._waited < _PARKED_ITERATIONS or self._waited & (self._waited - 1):
            return
        if not session.settled():
            if self._waited >= _LONGEST_PARKED:
                self._leave_standing(session, beat.ORDER_FAILED, "a collective stayed open after the window")
        elif self.phase == PARKED:
            self._finish(session)
        else:
            self._take_down(session)
            self._forget()

    def _await(self, question: Callable[[], bool]) -> bool:
        """Return whether a condition becomes true soon; all waiting for one window takes 2 s at most."""
        began = monotonic()
        while not (answer := question()) and monotonic() - began < self._patience_s:
            sleep(_LOOK_AGAIN_S)
        self._patience_s = max(0.0, self._patience_s - (monotonic() - began))
        return answer

    # ------------------------------------------------------------------ the profiler's end

    def _at_hand(self) -> bool:
        """The profiler can be stopped here: only in its own thread once it runs, and in no backward pass."""
        return (self.phase == WAITING or get_ident() == self._thread) and not surroundings.in_backward()

    def _finish(self, session: Session) -> None:
        """A complete window whose profiler may be stopped."""
        try:
            with _OurTurn(self._door):
                session.close()
        except CaptureError as error:
            self._dismiss(beat.ORDER_FAILED, str(error))
            return
        self.phase = SAVING
        try:
            self._saving = self._in_background(self._save)
        except RuntimeError as error:  # the interpreter shuts down: Python 3.12 starts no more threads
            if raised_by_user(error):
                raise
            with spared():
                self._save()

    def _dismiss(self, status: int, note: str) -> None:
        """Throw away what there is of the current order, and say why; the profiler goes as soon as that is safe.

        A signal's handler may raise anywhere in it; the next boundary then calls it again.
        """
        session = self._session
        if session is None:
            return
        self._give_up = self._give_up or note
        if self.phase == OPEN and session.prepared:
            session.park()
        if self.phase != WAITING and session.prepared and not session.settled():
            self._leave_standing(session, status, note)
            return
        answered = self.phase == STANDING
        note = "; ".join(filter(None, (note, self._take_down(session))))
        if not answered:
            self._tell(session.order, status, session, note=note)
        self._forget()

    def _leave_standing(self, session: Session, status: int, note: str) -> None:
        """The order ends here, but a collective of its time is still open: the profiler stays, recording nothing."""
        if self.phase != STANDING:
            self._waited = 0
            session.quiet()
            self._tell(session.order, status, session, note=note)
        self.phase, self._give_up = STANDING, ""

    def _forget(self) -> None:
        """Be ready for the next order."""
        self._session, self.phase, self._give_up = None, IDLE, ""

    def _take_down(self, session: Session) -> str:
        """Stop the profiler and forget what it recorded.

        Returns:
            What went wrong, or nothing.
        """
        was_prepared, failure = session.prepared, ""
        try:
            with _OurTurn(self._door):
                session.close()
        except CaptureError as error:
            failure = str(error)
        if was_prepared:
            session.stall_ns += session.tracer.drop()
        return failure

    # ------------------------------------------------------------------ on the saving thread

    def _save(self) -> None:
        session = self._session
        if session is None:
            return
        order = session.order
        threads = {
            "training_thread_id": self._kernel_thread,
            "training_thread_ident": self._thread,
        }
        try:
            events = session.save(self._worker, threads)
        except OSError as error:
            session.stall_ns += session.tracer.drop()
            answer = (beat.ORDER_FAILED, session, 0, f"the trace could not be saved: {error}")
        else:
            count, bounds = max(1, session.iterations), session.boundaries_ns
            self._events_per_iteration, self._iteration_ns = events / count, (bounds[-1] - bounds[0]) / count
            self._has_sends |= session.has_sends
            answer = (beat.DONE, session, events, "; ".join(session.notes))
        self._tell(order, *answer)
        self._session, self.phase = None, IDLE  # after the answer: the next order's would overwrite it


class _OurTurn:
    """Tells the door that the profiler calls inside are ours."""

    def __init__(self, door: ProfilerDoor) -> None:
        self._door = door

    def __enter__(self) -> None:
        self._door.ours = get_ident()

    def __exit__(self, *_: object) -> None:
        self._door.ours = 0
