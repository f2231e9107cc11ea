"""Find the event that ends an iteration: a pure state machine over loader and optimizer events. No clock, no torch.

Source: EROICA, section 4.1. Deviations, so that the iteration ids of all workers of a job agree:

- The pattern is learned from the optimizers' steps. Of the loaders only "something was loaded since the last step"
  counts: how often each loader is asked differs between workers (evaluation on rank 0, a pipeline stage without a
  loader), what the optimizers do does not.
- Iterations from before the pattern was known are counted, with their times, once it is.
- An iteration lasts from the end of the one before, not from its first load: what happens in between costs time too.
- Where no optimizer steps, other events mark iterations (`Sources`). Every source counts from its first event on,
  whether it is shown or not. So its numbers do not depend on when it was chosen, and they agree between workers that
  see the same events. The table of sources is in `docs/decisions/iterations.md`.
"""

from __future__ import annotations

from eroica.wire.beat import ANNOUNCED, BACKWARD, BATCHES, EXCHANGES, NO_SOURCE, OPTIMIZER

_FED = 1
_LONGEST_IRREGULAR = 65_536
#: Identical sequences that fix the pattern (M of the paper), and optimizer steps without an iteration that end it (K).
_REPEATS, _RELEARN_EVENTS = 10, 200


Completed = tuple[int, int, int]
"""One completed iteration: how many are completed with it; when it ended, CLOCK_MONOTONIC nanoseconds; how many
nanoseconds passed since the end of the one before (0 for a first one whose start nobody saw)."""


def find_period(tokens: list[int], repeats: int) -> int | None:
    """Length of the shortest sequence that the list ends with `repeats` times in a row; None if there is none."""
    count = len(tokens)
    for period in range(1, count // repeats + 1):
        if tokens[-1] != tokens[-1 - period]:
            continue
        start = count - period * repeats
        if tokens[start : count - period] == tokens[start + period :]:
            return period
    return None


class Rhythm:
    """Learns what one iteration looks like and says when one is completed.

    Args:
        most: Events that are kept while no pattern is known; then there is none. 0 = no limit.

    Attributes:
        lost: No pattern was found within `most` events, and none is looked for any more.
    """

    def __init__(self, most: int = 0) -> None:
        self.iteration = 0
        self.lost = False
        self._most = most
        self.relearned = 0
        self.explicit = False
        self._fed = 0
        self._end_ns = 0  # of the last iteration; before the first one, its start
        # the pattern: tokens of one iteration, the optimizer that ends it and how often it steps in it
        self._cycle: list[int] | None = None
        self._shape: tuple[int, ...] = ()
        self._single: tuple[int, ...] = ()  # tokens that are a whole iteration, while nothing is unmatched
        self._mask = ~0
        self._last = -1
        self._multiplicity = 1
        self._position = 0
        self._count = 0
        # what did not match since the last matched iteration
        self._stretch: list[int] = []
        self._stretch_ns: list[int] = []
        self._stretch_from = (0, 0)  # iteration and its end where the stretch began

    @property
    def learning(self) -> bool:
        """The pattern is not known, so no iteration can be reported."""
        return self._cycle is None and not self.explicit

    @property
    def plain(self) -> tuple[int, ...]:
        """Answers (0, 1) to "loaded since the last step?" with which a step of optimizer 0 is a whole iteration."""
        return () if self.explicit else tuple(token & _FED for token in self._single if token >> 1 == 0)

    def state(self) -> tuple[int, int, int]:
        """Completed iterations, end of the last one in nanoseconds, whether something was loaded since (0, 1)."""
        return self.iteration, self._end_ns, self._fed

    def resume(self, iteration: int, end_ns: int, fed: int) -> None:
        """Plain iterations were counted elsewhere since `state`."""
        self.iteration, self._end_ns, self._fed = iteration, end_ns, fed

    def loaded(self, now_ns: int) -> None:
        """A data loader handed out a batch."""
        self._fed = _FED
        if not self._end_ns:
            self._begin(now_ns)

    def stepped(self, optimizer: int, now_ns: int) -> tuple[Completed, ...]:
        """An optimizer stepped.

        Args:
            optimizer: Its number, counted by first step: the same order on all workers.
            now_ns: CLOCK_MONOTONIC.

        Returns:
            The iterations that this completed: none, one, or all so far at the moment the pattern is learned.
        """
        token = optimizer << 1 | self._fed
        self._fed = 0
        if token in self._single:  # nearly always: one optimizer, one step
            self.iteration = iteration = self.iteration + 1
            duration_ns = now_ns - self._end_ns
            self._end_ns = now_ns
            return ((iteration, now_ns, duration_ns),)
        cycle = self._cycle
        if cycle is None or self._stretch or token & self._mask != cycle[self._position]:
            return self._search(token, now_ns)
        self._position += 1
        if self._position < len(cycle):
            return ()
        self._position = 0
        return (self._complete(now_ns),)

    def announced(self, now_ns: int) -> tuple[Completed, ...]:
        """The user's loop says itself that an iteration is over; from the first time on nothing else counts."""
        if not self.explicit:
            self.explicit, self._cycle, self._single = True, None, ()
            self._settle(0)
        if not self._end_ns:
            self._begin(now_ns)
        return (self._complete(now_ns),)

    def excuse(self, nanoseconds: int) -> None:
        """Leave this much out of the running iteration: time that was spent by us."""
        self._end_ns += nanoseconds

    def _begin(self, now_ns: int) -> None:
        self._end_ns = now_ns
        self._stretch_from = (0, now_ns)

    def _complete(self, now_ns: int) -> Completed:
        self.iteration += 1
        duration_ns, self._end_ns = now_ns - self._end_ns, now_ns
        return self.iteration, now_ns, duration_ns

    # ------------------------------------------------------------------ off the beaten track

    def _search(self, token: int, now_ns: int) -> tuple[Completed, ...]:
        """Something unknown, or nothing known yet: keep it, count on, look for a pattern in it."""
        if self.explicit or self.lost:
            return ()
        if not self._end_ns:
            self._begin(now_ns)
        if self._cycle is not None and not self._stretch:
            self._stretch_from = (self.iteration, self._end_ns)
            self._count = sum(1 for known in self._cycle[: self._position] if known >> 1 == self._last)
        self._single = ()
        self._stretch.append(token)
        self._stretch_ns.append(now_ns)
        if self._cycle is None:
            done = self._learn()
            if self._cycle is None and 0 < self._most <= len(self._stretch):
                self.lost, self._stretch, self._stretch_ns = True, [], []
            return done
        done = self._count_on(token, now_ns)
        if self._in_step_again():
            self._settle(0)
            return done
        if len(self._stretch) > max(_RELEARN_EVENTS, 2 * len(self._cycle)):
            self._cycle = None
        return done + self._learn()

    def _count_on(self, token: int, now_ns: int) -> tuple[Completed, ...]:
        """Outside the known sequence, iterations are counted by the optimizer that ends them."""
        if token >> 1 != self._last:
            return ()
        self._count += 1
        if self._count < self._multiplicity:
            return ()
        self._count = 0
        return (self._complete(now_ns),)

    def _in_step_again(self) -> bool:
        """The latest events are one whole known iteration, ending with an iteration's end."""
        cycle = self._cycle
        if cycle is None or self._count or len(self._stretch) < len(cycle):
            return False
        return [token & self._mask for token in self._stretch[-len(cycle) :]] == cycle

    def _settle(self, position: int) -> None:
        """Everything matches from here on."""
        self._stretch, self._stretch_ns = [], []
        self._position = position
        if self._cycle is not None and len(self._cycle) == 1:
            token = self._cycle[0]
            self._single = (token,) if self._mask == ~0 else (token, token | _FED)

    def _learn(self) -> tuple[Completed, ...]:
        count = len(self._stretch)
        if count % max(1, count >> 6):  # rarer the longer it takes
            return ()
        period = find_period(self._stretch, _REPEATS)
        if period is not None:
            return self._adopt(self._stretch[-period:], ~0)
        if self._cycle is not None or count < _RELEARN_EVENTS:
            return ()
        optimizers = [token & ~_FED for token in self._stretch]
        period = find_period(optimizers, _REPEATS)
        if period is not None:
            return self._adopt(optimizers[-period:], ~_FED)
        distinct = len(set(optimizers))
        if count >= min(4 * _REPEATS * distinct, _LONGEST_IRREGULAR):
            return self._adopt([max(optimizers)], ~_FED)
        return ()

    def _adopt(self, cycle: list[int], mask: int) -> tuple[Completed, ...]:
        """Take a new pattern and count, in retrospect, what it says about the unmatched events."""
        optimizers = [token >> 1 for token in self._stretch]
        last = self._ending(optimizers, [token >> 1 for token in cycle])
        known = self._shape
        self._last, self._mask = last, mask
        self._multiplicity = max(1, sum(1 for token in cycle if token >> 1 == last))
        ends = [index for index, optimizer in enumerate(optimizers) if optimizer == last]
        ends = ends[self._multiplicity - 1 :: self._multiplicity]
        done = self._retell(ends)
        past = len(optimizers) - 1 - ends[-1] if ends else 0
        past %= len(cycle)
        # turn the sequence so that it ends where iterations end; it now lies `past` events behind
        turn = len(cycle) - past
        self._cycle = cycle[turn:] + cycle[:turn]
        # the order in which its optimizers step: a new one in an old one's place changes nothing
        order = [token >> 1 for token in self._cycle]
        self._shape = tuple(order.index(one) for one in order)
        self.relearned += known not in ((), self._shape)
        self._settle(past)
        return done

    def _ending(self, seen: list[int], cycle: list[int]) -> int:
        """The optimizer whose step ends an iteration, the same on all workers: it depends on no loader.

        The one that ended the first iteration if the job began with a whole one, else the one that came last.
        """
        first = seen[: len(cycle)]
        if self._last < 0 and any(first == cycle[turn:] + cycle[:turn] for turn in range(len(cycle))):
            return first[-1]
        return max(cycle)

    def _retell(self, ends: list[int]) -> tuple[Completed, ...]:
        """Iterations of the stretch that were not reported yet."""
        iteration, end_ns = self._stretch_from
        told = self.iteration - iteration
        done = []
        for index in ends:
            iteration += 1
            before, end_ns = end_ns, self._stretch_ns[index]
            done.append((iteration, end_ns, end_ns - before))
        fresh = done[told:]
        if fresh:
            self.iteration, self._end_ns, _ = fresh[-1]
        return tuple(fresh)


# --- sources ---


#: A lesser source is chosen so long after the first event, nanoseconds: an optimizer's first step may take a while.
PATIENCE_NS = 10_000_000_000
#: A process that only loads batches or runs backward passes is a worker from so many of them on.
LEAST_EVENTS = 10
#: Events that are kept while no pattern is known: the search for one stays below 0.2 ms.
_MOST_EVENTS = 512
_MOST_KINDS = 256
#: Sources of which all workers of a job can be told to count the same one.
SHARED = (OPTIMIZER, EXCHANGES)


class Repeats:
    """Events of one source that is no optimizer, in the thread that began them.

    Attributes:
        rhythm: Counts its iterations.
        thread: Where its events count; 0 before the first one.
        first_ns: Time of the first event, CLOCK_MONOTONIC nanoseconds; 0 before it.
        last_ns: Time of the latest one.
        count: Events so far.
    """

    __slots__ = ("_numbers", "count", "first_ns", "last_ns", "rhythm", "thread")

    def __init__(self) -> None:
        self.rhythm = Rhythm(most=_MOST_EVENTS)
        self.thread = self.first_ns = self.last_ns = self.count = 0
        self._numbers: dict[object, int] = {}

    def happened(self, kind: object, now_ns: int, thread: int) -> tuple[Completed, ...] | None:
        """Count one event.

        Args:
            kind: Equal for events that are alike: which operation, in which group, with which peer.
            now_ns: CLOCK_MONOTONIC.
            thread: Where it happened.

        Returns:
            The iterations that it completed; None if it does not count.
        """
        if thread != self.thread:
            if self.thread:
                return None
            self.thread, self.first_ns = thread, now_ns
        self.last_ns = now_ns
        self.count += 1
        number = self._numbers.get(kind)
        if number is None:
            number = len(self._numbers)
            if number >= _MOST_KINDS:
                return ()
            self._numbers[kind] = number
        return self.rhythm.stepped(number, now_ns)


class Sources:
    """The sources of one process, and which of them is shown.

    Args:
        steps: The rhythm of optimizers and announcements.

    Attributes:
        shown: Source whose iterations the agent is told.
        lesser: The others by number.
    """

    def __init__(self, steps: Rhythm) -> None:
        self.shown = NO_SOURCE
        self.lesser = {source: Repeats() for source in (BATCHES, EXCHANGES, BACKWARD)}
        self._steps = steps
        self._has_stepped = self._is_ordered = False
        self._renumbered = 0

    @property
    def rhythm(self) -> Rhythm:
        """The rhythm that is shown; that of optimizers where nothing is."""
        one = self.lesser.get(self.shown)
        return self._steps if one is None else one.rhythm

    @property
    def relearned(self) -> int:
        """Times that the numbers of iterations have got another meaning."""
        return self._renumbered + self.rhythm.relearned

    @property
    def known(self) -> int:
        """Sources that all workers of a job may be told to count by, and this one could: bit n stands for source n."""
        found = 0 if self.lesser[EXCHANGES].rhythm.learning else 1 << EXCHANGES
        if self._has_stepped and not self._steps.learning:
            found |= 1 << (ANNOUNCED if self._steps.explicit else OPTIMIZER)
        return found

    def stepped(self) -> bool:
        """An optimizer stepped, or an iteration was announced. Return whether that is shown from now on."""
        if self.shown >= OPTIMIZER and not (self._steps.explicit and self.shown != ANNOUNCED):
            return False
        if self._is_ordered and not self._steps.explicit:
            self._has_stepped = True
            return False
        self._has_stepped = True
        self._show(ANNOUNCED if self._steps.explicit else OPTIMIZER)
        return True

    def choose(self, now_ns: int) -> bool:
        """Choose the best lesser source that repeats. Return whether another one is shown from now on."""
        if self.shown >= OPTIMIZER or self._is_ordered:
            return False
        begun = [one for one in self.lesser.values() if one.count]
        if not begun or now_ns - min(one.first_ns for one in begun) < PATIENCE_NS:
            return False
        for source in sorted(self.lesser, reverse=True):
            one = self.lesser[source]
            if source <= self.shown:
                return False
            if one.count and not one.rhythm.learning:
                self._show(source)
                return True
            if one.count and now_ns - one.last_ns < PATIENCE_NS and not one.rhythm.lost:
                return False  # a better one is being learned
        return False

    def order(self, source: int) -> bool:
        """The collector orders a source that every worker has. Return whether another one is shown from now on."""
        if source not in SHARED or not self.known >> source & 1 or self.shown == ANNOUNCED:
            return False
        self._is_ordered = True
        if source == self.shown:
            return False
        self._show(source)
        return True

    def _show(self, source: int) -> None:
        before = self.relearned
        was_shown, self.shown = self.shown, source
        # from nothing to something is no new meaning
        self._renumbered = before + (was_shown != NO_SOURCE) - self.rhythm.relearned
