"""When a worker counts as silent: event times in, judgement out, a fake clock."""

from __future__ import annotations

import pytest

from eroica.agent.slowdown import Silence
from eroica.settings import Settings

POLL_S = 0.05


class Watched:
    """A worker that is polled 20 times a second."""

    def __init__(self, mean_s: float | None = 0.1, **settings: float) -> None:
        self.silence = Silence(Settings(**settings))
        self.now, self.events, self.mean_s = 500.0, 0, mean_s
        self.learning = self.over = False
        self.poll()

    def poll(self, step_s: float = POLL_S) -> bool:
        self.now += step_s
        self.silence.poll(self.now, self.events, self.mean_s, self.learning, self.over)
        return self.silence.silent

    def work(self) -> None:
        self.events += 1
        self.poll()

    def quiet(self, seconds: float) -> bool:
        """Whether it counts as silent after so long without an event."""
        for _ in range(round(seconds / POLL_S)):
            self.poll()
        return self.silence.silent


def test_ten_seconds_without_an_event_are_a_silence_of_a_fast_job() -> None:
    worker = Watched()
    worker.work()
    assert not worker.quiet(9.9)
    assert worker.quiet(0.3)
    assert "no event for 10." in worker.silence.clause and "more than 10 s" in worker.silence.clause


def test_an_unknown_pattern_has_a_limit_of_its_own() -> None:
    worker = Watched(mean_s=None, silence_learning_s=60.0)
    worker.learning = True
    worker.work()
    assert not worker.quiet(59)
    assert worker.quiet(2)
    assert "learns" in worker.silence.clause


@pytest.mark.parametrize("seconds", [20.0, 3600.0])
def test_a_worker_that_has_finished_or_failed_is_never_silent(seconds: float) -> None:
    worker = Watched()
    worker.work()
    worker.quiet(12)
    worker.over = True
    assert not worker.quiet(min(seconds, 100.0))


def test_an_agent_that_was_stopped_does_not_take_everybody_for_silent() -> None:
    worker = Watched()
    worker.work()
    worker.quiet(5)
    assert not worker.poll(step_s=600.0)  # the agent, and maybe the job, was stopped for ten minutes
    assert not worker.quiet(3.5)
    worker.work()
    assert worker.silence.longest_s < 12
    worker.quiet(5)
    worker.poll(step_s=600.0)
    assert worker.quiet(30)
