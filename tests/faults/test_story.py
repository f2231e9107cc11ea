from __future__ import annotations

from pathlib import Path

from eroica.cli.demo import Story
from eroica.demo.rehearsal import Rehearsal
from eroica.wire.messages import JobStatus, WindowLine


def status(iteration: int, *windows: WindowLine) -> JobStatus:
    return JobStatus(job="j", phase="watching", message="", iteration=iteration, windows=windows)


def window(phase: str, purpose: str = "slow", verdict: str = "", last: int = 360) -> WindowLine:
    return WindowLine(
        window_id=2,
        purpose=purpose,  # type: ignore[arg-type]
        phase=phase,
        first_iteration=300,
        last_iteration=last,
        verdict=verdict,
        summary="because",
    )


def story(fault: str) -> Story:
    return Story(Rehearsal(fault, 1, 2, Path(), from_iteration=200))


def test_the_story_tells_each_step_once_and_in_order() -> None:
    told = story("slow-loader")
    course = [
        status(0),
        status(3),
        status(201),
        status(310, window("window")),
        status(390, window("done", "slow", "slow")),
    ]
    assert [line for step in course for seen in (step, step) for line in told.tell(seen)] == [
        "training",
        "slow-loader begins (iteration 200)",
        "window 2 (slower than before) opens",
        "window 2 (slower than before): slow: because",
    ]


def test_a_job_is_stopped_only_for_a_verdict_on_the_fault_and_a_healthy_one_for_that_asked_for_by_hand() -> None:
    slow, healthy, hang = story("slow-loader"), story("none"), story("hang")
    assert not slow.concluded(status(390, window("analysis")))
    assert not slow.concluded(status(390, window("done", verdict="healthy")))
    assert not slow.concluded(status(390, window("done", verdict="slow", last=199)))
    assert not slow.concluded(status(390, window("done", "baseline")))
    assert slow.concluded(status(390, window("done", verdict="slow")))
    assert not healthy.concluded(status(390, window("done", verdict="slow")))
    assert healthy.concluded(status(390, window("done", "manual", "healthy")))
    assert not hang.concluded(status(390, window("done", verdict="slow")))
    assert hang.concluded(status(390, window("done", "blocked", "blocked")))
