"""The two hooks as torch calls them: a plain iteration is dealt with here, everything else by the guest.

In a computing job nothing is in the processor's caches when a hook fires: its cost is the number of objects it touches.
The guest arms these closures once an iteration is known to be one step of one optimizer and nothing else is going on.
They read a clock and write three words of shared memory at a step, one at a batch. Anything that is not plain (another
optimizer, a missing batch, an order of the agent) disarms them.

Names of this module come to the closures as default values, behind the three arguments that torch passes: looking a
name up in the module's dictionary touches several more cold lines each time (a microsecond in all, measured).

The interpreter changes threads, runs signal handlers and raises what other threads send at calls only. Each closure has
its last call before it changes anything: what is raised there leaves it as it is, and no step is counted half.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from eroica.wire.beat import (
    BEAT_END_WORD,
    BEAT_ITERATION_WORD,
    EVENT_WORD,
    ORDER_WORD,
    RING_SLOTS,
    RING_WORD,
    BeatWriter,
)
from eroica.worker.guard import Guard
from eroica.worker.pristine import get_ident, monotonic_ns

EITHER = 2


class Plain(NamedTuple):
    """Progress of the iterations.

    Attributes:
        iteration: Completed iterations.
        end_ns: When the last one ended.
        duration_ns: How long it took.
        fed: Whether something was loaded since (0 or 1).
    """

    iteration: int
    end_ns: int
    duration_ns: int
    fed: int


class Hooks(NamedTuple):
    """Closures that `make_hooks` makes.

    Attributes:
        stepped: An optimizer's post-step hook.
        loaded: Called after a batch was loaded, with the iterator.
        arm: (beat file, weak reference to the only optimizer, wanted `fed` or EITHER, where it stands): deal with
            plain iterations of this thread from now on.
        disarm: Leave everything to the guest again; where it stands, None if it was not armed.
    """

    stepped: Callable[..., None]
    loaded: Callable[..., None]
    arm: Callable[[BeatWriter, weakref.ref[Any], int, Plain], None]
    disarm: Callable[[], Plain | None]


def make_hooks(
    guard: Guard, stepped: Callable[[Any], object], loaded: Callable[[Any], object], ordered: Callable[[Any], object]
) -> Hooks:
    """The hooks of one process, not armed.

    Args:
        guard: What a failure goes to.
        stepped: The guest's way of dealing with any step.
        loaded: The same with a loaded batch.
        ordered: Called at the end of a plain iteration when the agent has left an order.
    """
    any_step, any_load, look_at_order = guard.border(stepped), guard.border(loaded), guard.border(ordered)
    words: Any = None
    known: Callable[[], Any] = object  # the only optimizer, as long as it lives; not armed: nobody
    owner = 0  # the thread that steps it; what other threads step is no iteration
    fed = wanted = iteration = end_ns = order = 0

    def plain_step(  # noqa: PLR0913, PLR0917 - see the module's text
        optimizer: Any = None,
        _arguments: Any = None,
        _keywords: Any = None,
        clock: Callable[[], int] = monotonic_ns,
        here: Callable[[], int] = get_ident,
        either: int = EITHER,
        ring: int = RING_WORD,
        last_slot: int = RING_SLOTS - 1,
        beat_end: int = BEAT_END_WORD,
        beat_iteration: int = BEAT_ITERATION_WORD,
        order_number: int = ORDER_WORD,
    ) -> None:
        nonlocal fed, iteration, end_ns
        thread = here()
        plain = known() is optimizer
        memory = words
        if not plain or owner != thread or fed != wanted != either or memory is None:
            any_step(optimizer)
            return
        try:
            now = clock()
            fed = 0
            iteration += 1
            memory[ring + (iteration & last_slot)] = now - end_ns
            memory[beat_end] = end_ns = now
            memory[beat_iteration] = iteration
            if memory[order_number] == order:
                return
        except Exception as error:  # the border
            if guard.passes(error):
                raise
            return
        look_at_order(None)

    def plain_load(iterator: Any = None, clock: Callable[[], int] = monotonic_ns, event: int = EVENT_WORD) -> None:
        nonlocal fed
        memory = words
        if memory is None:
            any_load(iterator)
            return
        try:
            fed = 1
            memory[event] = clock()
        except Exception as error:  # the border
            if guard.passes(error):
                raise

    def arm(beats: BeatWriter, optimizer: weakref.ref[Any], wanted_fed: int, state: Plain) -> None:
        nonlocal words, known, owner, fed, wanted, iteration, end_ns, order
        wanted, order, owner = wanted_fed, beats.order_seen, get_ident()
        iteration, end_ns, fed = state.iteration, state.end_ns, state.fed
        known = optimizer
        words = beats.words

    def disarm() -> Plain | None:
        nonlocal words, known
        if words is None:
            return None
        known = object
        memory, words = words, None
        return Plain(iteration, end_ns, memory[RING_WORD + (iteration & (RING_SLOTS - 1))], fed)

    for hook in (plain_step, plain_load):
        setattr(hook, "_torchdynamo_disable", True)  # noqa: B010 - an attribute that functions do not declare
    return Hooks(plain_step, plain_load, arm, disarm)
