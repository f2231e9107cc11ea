"""Records the calls of a rank and the time between them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from prismllm.errors import DivergenceError
from prismllm.model import Call, Step


class Recorder:
    """The events of one rank, iteration by iteration.

    Args:
        clock_ns: Nanoseconds of a clock that only goes forward.
        cpu_ns: Nanoseconds in which this thread has used a core.
    """

    def __init__(self, clock_ns: Callable[[], int], cpu_ns: Callable[[], int] = time.thread_time_ns) -> None:
        self._clock_ns, self._cpu_ns = clock_ns, cpu_ns
        self.steps: list[Step] = []
        self._left_ns, self._left_cpu_ns = clock_ns(), cpu_ns()
        self._begin()

    def _begin(self) -> None:
        self.calls: list[Call] = []
        self.events: list[int] = []
        self._segments_ns: list[int] = []
        self._busy_ns: list[int] = []
        self._numbers: Counter[tuple[object, ...]] = Counter()

    def number(self, op: str, group: int, peer: int, tag: int) -> int:
        """Count this call; return how many of its class came before in this iteration."""
        key: tuple[object, ...] = (op, group, peer, tag) if op in ("send", "recv") else (group,)
        self._numbers[key] += 1
        return self._numbers[key] - 1

    def enter(self) -> int:
        """Own work ends here.

        Returns:
            Its nanoseconds.
        """
        spent = self._clock_ns() - self._left_ns
        self._segments_ns.append(spent)
        self._busy_ns.append(max(0, min(spent, self._cpu_ns() - self._left_cpu_ns)))
        return spent

    def leave(self) -> None:
        """Own work goes on."""
        self._left_ns, self._left_cpu_ns = self._clock_ns(), self._cpu_ns()

    def launch(self, call: Call) -> int:
        """A call is launched; between `enter` and `leave`.

        Returns:
            Its place among the calls of this iteration.
        """
        self.calls.append(call)
        self.events.append(len(self.calls) - 1)
        return len(self.calls) - 1

    def wait(self, place: int) -> None:
        """A call is waited for; between `enter` and `leave`."""
        self.events.append(-1 - place)

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

    Args:
        rank: Whose iterations they are.
        first: The iteration that stands for all.
        other: A later one.
        number: Which, counted from the start of the script.

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
