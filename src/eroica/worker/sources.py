"""Choose the events that mark this process's iterations: a pure state machine. No torch, no clock.

Every source counts from its first event on, whether it is shown or not. So its numbers do not depend on when it was
chosen, and they agree between workers that see the same events. The table of sources is in
`docs/decisions/iterations.md`.
"""

from __future__ import annotations

from eroica.wire.beat import ANNOUNCED, BACKWARD, BATCHES, EXCHANGES, NO_SOURCE, OPTIMIZER
from eroica.worker.rhythm import Completed, Rhythm

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
