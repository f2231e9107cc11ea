"""What of the profiler's events is a rank's own work."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

from prismllm.group import MARK
from prismllm.session import STEP, _read_profile

OWN, GLOO = 1, 2


@dataclass
class Event:
    """As torch's profiler gives it."""

    named: str
    at_ns: int
    took_ns: int = 0
    thread: int = OWN

    def name(self) -> str:
        return self.named

    def start_ns(self) -> int:
        return self.at_ns

    def duration_ns(self) -> int:
        return self.took_ns

    def start_thread_id(self) -> int:
        return self.thread

    def shapes(self) -> list[list[int]]:
        return [[4]]


@dataclass
class Profiled:
    """A profiler that was stopped."""

    events: list[Event] = field(default_factory=list)

    @property
    def kineto_results(self) -> SimpleNamespace:
        return SimpleNamespace(events=lambda: self.events, experimental_event_tree=list)


def digests_of(*more: Event) -> list[str]:
    """One iteration of a launch and a wait, each a mark of 10 ns, with an operator before, between and after them."""
    marks = [Event(MARK, 200, 10), Event(MARK, 300, 10)]
    operators = [Event("aten::mm", at) for at in (150, 250, 350)]
    steps = [Event(STEP, at) for at in (100, 400)]
    return _read_profile(Profiled([*steps, *marks, *operators, *more]), [1, 3], has_shapes=True)[0]


def test_operators_of_gloos_threads_are_not_the_ranks_work_wherever_they_fall():
    alone = digests_of()
    assert len(alone) == 3
    for at in (205, 211, 260):
        assert digests_of(Event("aten::copy_", at, thread=GLOO)) == alone
    assert digests_of(Event("aten::copy_", 260)) != alone
    assert digests_of(Event("aten::copy_", 205)) == alone  # of the call, on the rank's own thread
