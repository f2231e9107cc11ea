"""Run inside the user's loop: at every batch, optimizer step, announced iteration, exchange and backward pass.

Per event: one clock reading, one write into shared memory, one step of the rhythm; at the end of an iteration one beat
more and one look for an order. A process becomes a worker at its first optimizer step, `eroica.step()` or exchange, or
when it has loaded batches or run backward passes for a while (`eroica.worker.rhythm`).

Steps of all threads count, in the order in which they end. Only one thread at a time deals with them, without a lock:
between reading `_busy` and writing it the interpreter calls nothing, so it changes threads and runs signal handlers
before or after, never between. A thread that finds another one inside leaves its step in a queue.
"""

from __future__ import annotations

import contextlib
import functools
import os
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from eroica.settings import load_settings
from eroica.wire import beat
from eroica.wire.beat import BACKWARD, BATCHES, EXCHANGES, OPTIMIZER, RING_SLOTS, BeatWriter, Result
from eroica.wire.places import places, private_directory
from eroica.worker import launch, surroundings
from eroica.worker.answering import Answering, has_other_threads
from eroica.worker.capture import SAVING, STATES, Capturer
from eroica.worker.errors_of_users import raised_by_user
from eroica.worker.guard import Guard, lack_of_files, log_of_this_process, spared
from eroica.worker.kineto import find_in_torch
from eroica.worker.plain_iterations import EITHER, Plain, make_hooks
from eroica.worker.pristine import Lock, Thread, get_ident, monotonic_ns
from eroica.worker.rhythm import LEAST_EVENTS, PATIENCE_NS, Completed, Rhythm, Sources
from eroica.worker.tracer import ProfilerDoor

_SAVE_PATIENCE_S = 10.0
_JOIN_PATIENCE_S = 1.0  # for a process that ends right after its first step
_ANNOUNCED = -1
#: Places of optimizers that are gone, kept for those that are made anew.
_MOST_VACANT = 64
#: A window opens only if one thread has completed this many iterations in a row: the profiler records one thread.
_ITERATIONS_IN_ONE_THREAD = 32
_SEVERAL_THREADS = "iterations end in several threads, of which the profiler records one"


class _Place(NamedTuple):
    """Identity by which an optimizer takes the place of an earlier one: type, and number and ends of its parameters.

    The parameter is the optimizer's first one.
    """

    known_by: tuple[object, ...]
    parameter: weakref.ref[Any]

    @classmethod
    def of(cls, optimizer: Any) -> _Place | None:
        """The place of an optimizer; None where nothing tells."""
        try:
            parameters = [one for group in optimizer.param_groups for one in group["params"]]
            known_by = (type(optimizer), len(parameters), id(parameters[0]), id(parameters[-1]))
            return cls(known_by, weakref.ref(parameters[0]))
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:  # it is no torch optimizer
            if raised_by_user(error):
                raise
            return None


class Guest:
    """Everything Eroica does in one process.

    Attributes:
        hooks: What torch shall call. They pass on to `stepped` and `loaded` whatever is no plain iteration.
        exchanged: To be called, with what it is, when a collective, send or receive begins.
        passed_back: To be called when a backward pass begins...
        leave_backward: ...until this is called: at the first step of an optimizer, which tells iterations better.
    """

    def __init__(self) -> None:
        raises = os.environ.get("EROICA_WORKER_FAILURES_RAISE", "").lower() in ("1", "true", "yes")
        self.guard = Guard(log_of_this_process, self._show_failure, raises)
        self.door = ProfilerDoor(self.guard.border(self._make_way))
        self.hooks = make_hooks(self.guard, self.stepped, self.loaded, self._ordered)
        self.exchanged = self.guard.border(functools.partial(self.repeated, EXCHANGES))
        self.passed_back = self.guard.border(functools.partial(self.repeated, BACKWARD))
        self.leave_backward: Callable[[], object] = lambda: None
        self._begin()

    def _begin(self) -> None:
        self._rhythm = Rhythm()
        self._sources = Sources(self._rhythm)
        self._facts: dict[str, Any] = {}
        self._is_strange = False  # registered before an optimizer said which device and thread train
        self._numbers: dict[int, int] = {}  # of optimizers, by id()
        self._numbered: dict[int, weakref.ref[Any]] = {}
        self._gone: deque[weakref.ref[Any]] = deque()  # optimizers, since anybody looked
        self._places: dict[int, _Place] = {}  # of optimizers, by id()
        self._vacant: dict[tuple[object, ...], list[tuple[int, weakref.ref[Any]]]] = {}
        self._optimizers_seen = 0
        self._beats: BeatWriter | None = None
        self._capturer: Capturer | None = None
        self._joining: Thread | None = None
        self._early: deque[Completed] = deque(maxlen=RING_SLOTS)  # completed before there was memory to write them to
        self._busy = False
        self._left: deque[tuple[Any, int, int]] = deque()  # steps that came while another one was dealt with
        self._latest_ns = 0
        self._thread = self._in_thread_since = 0  # the thread that ends iterations, and the first one that it ended
        self._loaded_ns = 0  # when a batch was handed out, if one was since the last step
        self._last: Completed = (0, 0, 0)
        self._known = False
        self._declined = False
        self._answering = Lock()
        self._witness: Answering | None = None

    # ------------------------------------------------------------------ events

    def loaded(self, iterator: Any) -> None:
        """A data loader handed out a batch, in any thread."""
        now = monotonic_ns()
        self._loaded_ns = self._loaded_ns or now
        if self._beats is not None:
            self._beats.touch(now)
            if self._capturer is not None and self._capturer.phase:
                self._capturer.loaded(iterator)
        if self._sources.shown < OPTIMIZER:
            self.repeated(BATCHES, None)

    def repeated(self, source: int, kind: object) -> None:
        """Something that may mark an iteration without an optimizer has happened, in any thread.

        Args:
            source: What.
            kind: As in `Repeats.happened`.
        """
        sources, now, thread = self._sources, monotonic_ns(), get_ident()
        one = sources.lesser[source]
        if one.rhythm.lost and sources.shown >= OPTIMIZER and thread == one.thread:  # hundreds in each iteration
            if self._beats is not None:
                self._beats.touch(now)
            return
        was_learning = one.rhythm.learning
        done = one.happened(kind, now, thread)
        if done is None:
            return
        beats = self._beats
        if beats is None:
            lasts = one.count >= LEAST_EVENTS and now - one.first_ns >= PATIENCE_NS
            if self._joining is None and (source == EXCHANGES or lasts):
                self._is_strange = True
                self._joins(None)
            return
        beats.touch(now)
        if self._busy:  # another thread is inside, or a signal's handler of this one
            return
        self._busy = True
        try:
            if sources.shown == source:
                self._take_in(beats, done, now, thread)
            elif sources.choose(now):
                self._renumber(beats, now)
            elif was_learning != one.rhythm.learning:
                beats.count_by(sources.shown, sources.known)
        finally:
            self._busy = False

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has stepped; without one, the user's loop called `eroica.step()`."""
        step = (optimizer, monotonic_ns(), get_ident())
        if self._busy:  # no call from here to the next line, see the module's text
            self._left.append(step)
            return
        self._busy = True
        try:
            self._count(*step)
            while self._left:
                self._count(*self._left.popleft())
        finally:
            self._busy = False

    def _count(self, optimizer: Any, now: int, thread: int) -> None:
        """Deal with one step.

        Nearly one piece because every further function costs half a microsecond here, where no cache is warm.
        """
        self._take_back()
        now = max(now, self._latest_ns)
        self._latest_ns = now
        beats = self._beats
        if beats is None and not self._joins(optimizer):
            return
        if self._gone:
            self._forget_optimizers()
        rhythm = self._rhythm
        if self._loaded_ns:
            rhythm.loaded(min(self._loaded_ns, now))
            self._loaded_ns = 0
        number = self._numbers.get(id(optimizer))
        if number is None:
            number = self._add_optimizer(optimizer)
        done = rhythm.stepped(number, now) if number >= 0 else rhythm.announced(now)
        sources = self._sources
        is_new = (sources.shown < OPTIMIZER or rhythm.explicit) and sources.stepped()
        if is_new:
            self.leave_backward()
        if beats is None:
            self._early.extend(done)
            return
        if is_new:
            self._renumber(beats, now)
        if self._is_strange:
            self._introduce(beats, optimizer)
        if sources.shown < OPTIMIZER:  # the collector wants it so
            beats.touch(now)
            return
        if self._early:
            done = (*self._early, *done)
            self._early.clear()
        is_plain = self._take_in(beats, done, now, thread) and rhythm.plain and self._optimizers_seen == 1
        if is_plain and thread == get_ident():
            self._hand_over(beats, self._numbered[id(optimizer)])

    def _take_in(self, beats: BeatWriter, done: tuple[Completed, ...], now: int, thread: int) -> bool:
        """Tell the agent of completed iterations, and look for orders.

        Returns:
            Whether there was one at least, and no order and no window.
        """
        capturer = self._capturer
        if not done or capturer is None:
            beats.touch(now)
            if self._known and self._sources.rhythm.learning:
                self._lost(beats)
            return False
        state, ordered, relearned = STATES[capturer.phase], False, self._sources.relearned
        if not self._known:
            beats.count_by(self._sources.shown, self._sources.known)
        for iteration, end_ns, duration_ns in done:
            ordered = beats.beat(iteration, end_ns, duration_ns, state, relearned)
        self._last, self._known = done[-1], True
        if thread != self._thread:
            self._in_thread_since = done[-1][0] if self._thread else 0
            self._thread = thread
        if not (ordered or capturer.phase):
            return True
        self._obey(capturer, beats, thread)
        return False

    def _renumber(self, beats: BeatWriter, now: int) -> None:
        """Iterations are those of another source from here on."""
        rhythm, capturer = self._sources.rhythm, self._capturer
        if capturer is not None:
            capturer.give_up("what marks an iteration has changed")
        iteration, end_ns, _ = rhythm.state()
        self._last, self._known = (iteration, end_ns or now, 0), not rhythm.learning
        beats.count_by(self._sources.shown, self._sources.known)
        state = beat.LEARNING if rhythm.learning or capturer is None else STATES[capturer.phase]
        self._show(beats, state)

    def _introduce(self, beats: BeatWriter, optimizer: Any) -> None:
        """Say anew which device and thread train: an optimizer steps in a process that became a worker without one."""
        self._is_strange = False
        thread = surroundings.training_thread()

        def tell() -> None:
            self._facts.update(surroundings.identity(os.environ, optimizer, thread))
            with contextlib.suppress(OSError), spared():  # who reads the old page knows less, that is all
                beats.introduce(self._facts)

        self._in_background(tell)

    def _hand_over(self, beats: BeatWriter, optimizer: weakref.ref[Any]) -> None:
        """Let the hooks deal with plain iterations themselves from here on."""
        plain = self._rhythm.plain
        iteration, end_ns, fed = self._rhythm.state()
        wanted = EITHER if len(plain) > 1 else plain[0]
        self.hooks.arm(beats, optimizer, wanted, Plain(iteration, end_ns, self._last[2], fed))

    def _take_back(self) -> None:
        """Deal with every event here again; count what the hooks have counted."""
        state = self.hooks.disarm()
        if state is not None:
            self._rhythm.resume(state.iteration, state.end_ns, state.fed)
            self._last = (state.iteration, state.end_ns, state.duration_ns)
            self._latest_ns = max(self._latest_ns, state.end_ns)

    def _ordered(self, _: object) -> None:
        """A plain iteration is over and the agent has left an order."""
        if self._busy:  # another thread steps, too, and looks for orders then
            return
        self._busy = True
        try:
            self._take_back()
            if self._beats is not None and self._capturer is not None:
                self._obey(self._capturer, self._beats, get_ident())
        finally:
            self._busy = False

    def _add_optimizer(self, optimizer: Any) -> int:
        """Number optimizers by first step; a new object gets a new number even where an old one lay in memory.

        But one of the same class for the same parameters takes the place of one that is gone: some loops make it anew
        each round.
        """
        key = id(optimizer)
        if optimizer is None:
            return _ANNOUNCED
        self._forget_optimizers()
        place = _Place.of(optimizer)
        number = self._number_before(place)
        if number is None:
            number = self._optimizers_seen
            self._optimizers_seen += 1
        if place is not None:
            self._places[key] = place
        self._numbers[key] = number
        # no Python in there: what a signal's handler raises in a reference's callback is lost
        self._numbered[key] = weakref.ref(optimizer, self._gone.append)
        return number

    def _number_before(self, place: _Place | None) -> int | None:
        """The lowest number of an optimizer that had this place and is gone."""
        gone = self._vacant.get(place.known_by) if place is not None else None
        if place is None or not gone:
            return None
        first = min(range(len(gone)), key=lambda at: gone[at][0])
        number, parameter = gone.pop(first)  # never compared: weak references compare what they point to
        return number if parameter() is place.parameter() else None

    def _forget_optimizers(self) -> None:
        while self._gone:
            gone = self._gone.popleft()
            for key in [key for key, reference in self._numbered.items() if reference is gone]:
                self._forget_optimizer(key)

    def _forget_optimizer(self, key: int) -> None:
        number, place = self._numbers.pop(key, None), self._places.pop(key, None)
        self._numbered.pop(key, None)
        if place is not None and number is not None:
            self._vacant.setdefault(place.known_by, []).append((number, place.parameter))
            if len(self._vacant) > _MOST_VACANT:  # loops that make parameters anew, too
                self._vacant.pop(next(iter(self._vacant)))

    def _obey(self, capturer: Capturer, beats: BeatWriter, thread: int) -> None:
        """At a boundary: take a new order, go on with the current one.

        Args:
            capturer: What orders are given to.
            beats: Where they come from.
            thread: The thread that the iteration ended in.
        """
        iteration, end_ns, _ = self._last
        # while a window is saved the next order waits: there is room for one answer only
        order = beats.new_order() if capturer.phase != SAVING else None
        if order is not None and order.kind == beat.COUNT:
            if self._sources.order(order.flags):
                self._renumber(beats, end_ns)
                return
        elif order is not None:
            in_one_thread = iteration - self._in_thread_since >= _ITERATIONS_IN_ONE_THREAD or not self._in_thread_since
            capturer.take(order, iteration, "" if in_one_thread else _SEVERAL_THREADS)
        if not capturer.busy:
            return
        if thread != get_ident():
            capturer.passed_elsewhere(_SEVERAL_THREADS)
            return
        stalled_ns = capturer.boundary(iteration, end_ns)
        if not self._left:  # nobody else has gone on meanwhile
            self._sources.rhythm.excuse(stalled_ns)

    def _lost(self, beats: BeatWriter) -> None:
        """The pattern is not known any more."""
        self._known = False
        if self._capturer is not None:
            self._capturer.give_up("the iteration pattern changed")
        self._show(beats, beat.LEARNING)

    def _show(self, beats: BeatWriter, state: int) -> None:
        iteration, end_ns, duration_ns = self._last
        beats.beat(iteration, end_ns, duration_ns, state, self._sources.relearned)

    # ------------------------------------------------------------------ becoming a worker

    def _joins(self, optimizer: Any) -> bool:
        """Return whether this process becomes a worker; begin with that in the background, once.

        All work with files and settings is done there: nothing that the training's own signals and threads raise in its
        steps can be taken for a failure of that, and a slow disk does not hold a step up.
        """
        if self._joining is None and not self._declined:
            self._declined = surroundings.in_loader_child()  # which only loads data
            if not self._declined:
                join = functools.partial(self._join, optimizer, surroundings.training_thread())
                self._joining = self._in_background(join)
        return not self._declined

    def _join(self, optimizer: Any, thread: int) -> None:
        """Register this process, in a thread of our own.

        Args:
            optimizer: The one that stepped first.
            thread: Kernel thread id of the one that trains.
        """
        lack = lack_of_files()
        if lack:
            raise OSError(lack)
        find_in_torch()
        settings = load_settings()
        where = places(os.environ)
        self._facts = facts = surroundings.identity(os.environ, optimizer, thread)
        private_directory(where.runtime)
        with spared():
            beats = BeatWriter.create(where.runtime, facts, settings.sealed_memory)
        beats.beat(0, monotonic_ns(), 0, beat.LEARNING, 0)
        beats.count_by(self._sources.shown, self._sources.known)
        self._capturer = Capturer(
            facts, self._answer, self.door, self._in_background, self.guard.run, settings,
            optimizers=lambda: [reference() for reference in list(self._numbered.values())],
        )  # fmt: skip
        if settings.answering_thread and has_other_threads():
            self._witness = Answering(where.runtime, self.guard.run)
            self._witness.start()
        if self._declined:  # the process has let us go meanwhile
            if self._witness is not None:
                self._witness.stop()
            beats.remove()
            return
        self._beats = beats
        if launch.agent_is_missing(where.runtime):
            launch.start_agent(where)

    def _in_background(self, work: Callable[[], None]) -> Thread:
        thread = Thread(functools.partial(self.guard.run, work))
        thread.start()
        return thread

    def _answer(self, result: Result) -> None:
        with self._answering:
            if self._beats is not None:
                self._beats.answer(result)

    def _make_way(self, _: object) -> None:
        """Somebody else's profiler is about to start. The hooks are not armed while there is a window to end."""
        if self._capturer is not None:
            self._capturer.make_way()

    # ------------------------------------------------------------------ endings

    def end(self) -> None:
        """The process ends or lets us go: sign off.

        Only inside a window is anything waited for. A complete window takes half a second to be saved as a rule, and
        10 s at most. Before that come at most 2 s for collectives that were open at its end and for a device that still
        works. Tearing the process down meanwhile could crash it, which is worse than the wait.
        """
        self._declined = True
        if self._joining is not None:
            self._joining.join(_JOIN_PATIENCE_S)
        self._take_back()
        beats, capturer, witness = self._beats, self._capturer, self._witness
        if beats is None:
            return
        if witness is not None:
            witness.stop()
        if capturer is not None:
            capturer.let_go("the training ended")
            capturer.finish(_SAVE_PATIENCE_S)
        self._show(beats, beat.FINISHED)
        beats.remove()
        self._begin()
        self._declined = True

    def welcome(self) -> None:
        """Watching begins (again): become a worker at the next step."""
        if self._beats is None:
            self._declined, self._joining = False, None

    def after_fork(self) -> None:
        """Start afresh in a forked child: beat file, window and failure are the parent's."""
        self._take_back()
        capturer, beats, witness = self._capturer, self._beats, self._witness
        if witness is not None:
            witness.abandon()
        if capturer is not None and capturer.phase:
            surroundings.quiet_after_fork()
            capturer.forked()
        if beats is not None:
            beats.close()
        self.door.ours = 0
        self._begin()

    def _show_failure(self, text: str) -> None:
        """After a failure: no profiler stays on, and the agent can read what it was."""
        capturer, beats = self._capturer, self._beats
        try:
            if capturer is not None and not capturer.collapse(text):
                self.guard.owe(functools.partial(capturer.collapse, text))
        finally:
            self._take_back()
            if beats is not None:
                self._show(beats, beat.FAILED)
                self._answer(Result(0, beat.ORDER_FAILED, 0, 0, 0, 0, 0, 0, text))
