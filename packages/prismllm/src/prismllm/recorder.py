"""Writes down what a rank does; told by the process group, knows no torch, reads the clock that it is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from prismllm.errors import DivergenceError
from prismllm.model import Call, Step


class Recorder:
    """The moments of one rank, iteration by iteration.

    Args:
        clock_ns: Nanoseconds of a clock that only goes forward.
    """

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self.steps: list[Step] = []
        self._left_ns = clock_ns()
        self._begin()

    def _begin(self) -> None:
        self.calls: list[Call] = []
        self.moments: list[int] = []
        self._segments_ns: list[int] = []
        self._numbers: Counter[tuple[object, ...]] = Counter()

    def number(self, op: str, group: int, peer: int, tag: int) -> int:
        """How many calls of this kind came before in this iteration; counts this one."""
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
        return spent

    def leave(self) -> None:
        """Own work goes on."""
        self._left_ns = self._clock_ns()

    def launch(self, call: Call) -> int:
        """A call is launched; between `enter` and `leave`.

        Returns:
            Its place among the calls of this iteration.
        """
        self.calls.append(call)
        self.moments.append(len(self.calls) - 1)
        return len(self.calls) - 1

    def wait(self, place: int) -> None:
        """A call is waited for; between `enter` and `leave`."""
        self.moments.append(-1 - place)

    def end_step(self) -> Step:
        """The optimizer has stepped; the next iteration begins."""
        self.enter()
        step = Step(self.calls, self.moments, self._segments_ns)
        self.steps.append(step)
        self._begin()
        self.leave()
        return step


def check_repeats(rank: int, first: Step, other: Step, number: int) -> None:
    """An iteration does what the first one did.

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
                f"rank {rank}, iteration {number}, call {place}: {describe(now)}, where an earlier iteration had "
                f"{describe(was)}. Iterations must repeat: fix shapes (drop_last, padding), and seed what is random."
            )
    if len(first.calls) != len(other.calls):
        longer, count = (other, len(first.calls)) if len(other.calls) > len(first.calls) else (first, len(other.calls))
        raise DivergenceError(
            f"rank {rank}, iteration {number}: {len(other.calls)} calls, an earlier iteration had {len(first.calls)}; "
            f"the first that has no counterpart is {describe(longer.calls[count])}. Capture iterations without "
            "evaluation, checkpoint or logging calls (--warmup), or let every iteration make the same calls."
        )
    if first.moments != other.moments:
        raise DivergenceError(
            f"rank {rank}, iteration {number}: the calls are waited for in another order than before; "
            "every iteration must wait in the same order."
        )


def same_call(call: Call) -> tuple[object, ...]:
    """What makes two calls of one rank the same."""
    return call.op, call.group, call.number, call.signature, call.nbytes, call.peer, call.tag


def describe(call: Call) -> str:
    """A call in words, with its place in the script."""
    to = f" {'to' if call.op == 'send' else 'from'} rank {call.peer}" if call.is_pairwise else ""
    return f"{call.op}{to} of {call.signature} ({call.nbytes:,} bytes) at {call.site}"
