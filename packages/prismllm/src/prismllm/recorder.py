"""Records the calls of a rank and the time between them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from prismllm.errors import DivergenceError
from prismllm.model import Call, Step

_SCHEDULER = Path("/proc/thread-self/schedstat")


def own_ns() -> int:
    """Return nanoseconds of a clock that stands while this thread is ready and no core is free for it.

    Computing and sleeping count; waiting in the run queue is the load of this machine, not the job's.
    """
    now = time.perf_counter_ns()
    try:
        return now - int(_SCHEDULER.read_bytes().split()[1])
    except (OSError, IndexError):  # a kernel without scheduler statistics
        return now


class Recorder:
    """Writes down the events of one rank, iteration by iteration; lets no time pass.

    `clock_ns` returns nanoseconds of the rank's own work, and only goes forward.
    """

    def __init__(self, rank: int, clock_ns: Callable[[], int]) -> None:
        self.rank, self._clock_ns = rank, clock_ns
        self.steps: list[Step] = []
        self._begin()
        self.leave()

    def _begin(self) -> None:
        self.calls: list[Call] = []
        self.events: list[int] = []
        self._segments_ns: list[int] = []
        self._busy_ns: list[int] = []
        self._numbers: Counter[tuple[object, ...]] = Counter()

    @property
    def iteration(self) -> int:
        """The iteration that runs now."""
        return len(self.steps)

    def number(self, op: str, group: int, peer: int, tag: int) -> int:
        """Count this call; return how many of its class came before in this iteration."""
        key: tuple[object, ...] = (op, group, peer, tag) if op in ("send", "recv") else (group,)
        self._numbers[key] += 1
        return self._numbers[key] - 1

    def enter(self) -> int:
        """Own work ends here; return its nanoseconds."""
        spent = self._clock_ns() - self._left_ns
        self._segments_ns.append(spent)
        self._busy_ns.append(max(0, min(spent, time.thread_time_ns() - self._left_cpu_ns)))
        return spent

    def leave(self) -> None:
        """Own work goes on."""
        self._left_ns, self._left_cpu_ns = self._clock_ns(), time.thread_time_ns()

    def launched(self, call: Call) -> int:
        """A call is launched and own work goes on; return its place among the calls of this iteration."""
        self.calls.append(call)
        self.events.append(len(self.calls) - 1)
        self.leave()
        return len(self.calls) - 1

    def ask(self, place: int) -> None:
        """A rank is about to wait for a call. In a capture calls take no time."""

    def waited(self, place: int) -> None:
        """A call has been waited for and own work goes on."""
        self.events.append(-1 - place)
        self.leave()

    def end_step(self) -> Step:
        """The optimizer has stepped; the next iteration begins."""
        self.enter()
        step = Step(self.calls, self.events, self._segments_ns, busy_ns=self._busy_ns)
        self.steps.append(step)
        self._begin()
        self.leave()
        return step


def check_repeats(rank: int, first: Step, other: Step, number: int) -> None:
    """Check that an iteration makes the calls of the first one.

    Raises:
        DivergenceError: It does not; names the first call that differs, with file and line.
    """
    for place, (was, now) in enumerate(zip(first.calls, other.calls, strict=False)):
        if same_call(was) != same_call(now):
            raise DivergenceError(
                f"rank {rank}, iteration {number}, call {place}: {now}, where an earlier iteration had "
                f"{was}. Iterations must repeat: fix shapes (drop_last, padding), and seed what is random."
            )
    if len(first.calls) != len(other.calls):
        longer, count = (other, len(first.calls)) if len(other.calls) > len(first.calls) else (first, len(other.calls))
        raise DivergenceError(
            f"rank {rank}, iteration {number}: {len(other.calls)} calls, an earlier iteration had {len(first.calls)}; "
            f"the first that has no counterpart is {longer.calls[count]}. Capture iterations without "
            "evaluation, checkpoint or logging calls (--warmup), or let every iteration make the same calls."
        )
    if first.events != other.events:
        raise DivergenceError(
            f"rank {rank}, iteration {number}: the calls are waited for in another order than before; "
            "every iteration must wait in the same order."
        )


def same_call(call: Call) -> tuple[object, ...]:
    """Return the values that are equal in two iterations if a rank repeats a call."""
    nbytes = -1 if call.is_uneven else call.nbytes
    return call.op, call.group, call.number, call.signature, nbytes, call.peer, call.tag
