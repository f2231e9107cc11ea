from __future__ import annotations

from eroica.cli.demo import Story
from eroica.wire.messages import JobStatus, WindowLine


def status(iteration: int, mean: float | None = None, windows: tuple[WindowLine, ...] = ()) -> JobStatus:
    return JobStatus(
        job="j", phase="watching", message="", iteration=iteration, mean_ms=mean, best_ms=50.0, windows=windows
    )


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


def test_the_story_tells_each_step_once_and_in_order() -> None:
    story = Story("slow-loader", from_iteration=200)
    course = [
        status(0),
        status(3),
        status(60, 50.0),
        status(201, 51.0),
        status(280, 75.0, (window("probe"),)),
        status(310, 75.0, (window("window"),)),
        status(365, 75.0, (window("patterns"),)),
        status(390, 75.0, (window("done", verdict="slow"),)),
    ]
    lines = [line for step in course for seen in (step, step) for line in story.tell(seen)]
    assert lines == [
        "training",
        "healthy, 50.0 ms per iteration",
        "slow-loader begins (iteration 200)",
        "noticed: 75.0 ms per iteration, 50 % above the best",
        "capturing iterations 300 to 360 on all workers",
        "summarizing and comparing",
        "slow: because",
    ]


def test_a_job_is_stopped_only_for_a_verdict_on_the_fault() -> None:
    story = Story("slow-loader", from_iteration=200)
    assert not story.concluded(status(390, 75.0, (window("analysis"),)))
    assert not story.concluded(status(390, 75.0, (window("done", verdict="healthy"),)))
    assert not story.concluded(status(390, 75.0, (window("done", verdict="slow", last=199),)))
    assert not story.concluded(status(390, 75.0, (window("done", purpose="baseline"),)))
    assert story.concluded(status(390, 75.0, (window("done", verdict="slow"),)))


def test_a_healthy_job_is_stopped_after_the_window_asked_for_by_hand() -> None:
    story = Story("none")
    assert not story.concluded(status(390, 50.0, (window("done", verdict="slow"),)))
    assert story.concluded(status(390, 50.0, (window("done", purpose="manual", verdict="healthy"),)))
