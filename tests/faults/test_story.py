from __future__ import annotations

from eroica.cli.demo import Story
from eroica.model.look import Ending
from eroica.model.worker import Worker
from eroica.wire.messages import JobStatus, WindowLine, WorkerStatus


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


def test_a_job_is_stopped_only_for_a_verdict_on_the_fault_and_a_healthy_one_for_that_asked_for_by_hand() -> None:
    story = Story("slow-loader", from_iteration=200)
    assert not story.concluded(status(390, 75.0, (window("analysis"),)))
    assert not story.concluded(status(390, 75.0, (window("done", verdict="healthy"),)))
    assert not story.concluded(status(390, 75.0, (window("done", verdict="slow", last=199),)))
    assert not story.concluded(status(390, 75.0, (window("done", purpose="baseline"),)))
    assert story.concluded(status(390, 75.0, (window("done", verdict="slow"),)))
    story = Story("none")
    assert not story.concluded(status(390, 50.0, (window("done", verdict="slow"),)))
    assert story.concluded(status(390, 50.0, (window("done", purpose="manual", verdict="healthy"),)))


def standing(*silent_s: float, death: Ending | None = None, windows: tuple[WindowLine, ...] = ()) -> JobStatus:
    workers = [
        WorkerStatus(worker=Worker(global_rank=rank), state="steady", silent_s=seconds)
        for rank, seconds in enumerate(silent_s)
    ]
    if death is not None:
        gone = Worker(global_rank=len(workers))
        workers.append(WorkerStatus(worker=gone, state="gone", ended=True, ending=death))
    return JobStatus(
        job="j", phase="watching", message="", iteration=200, mean_ms=50.0, workers=tuple(workers), windows=windows
    )


def test_the_story_of_a_blocked_job_tells_how_long_nobody_has_moved() -> None:
    story = Story("hang", from_iteration=200)
    looking, done = window("analysis", "blocked"), window("done", "blocked", verdict="blocked")
    course = [
        standing(0.1, 0.0),
        standing(7.2, 0.2),  # one of them moves
        standing(4.0, 3.0),
        standing(8.0, 7.0),
        standing(12.0, 11.0, windows=(looking,)),
        standing(15.0, 14.0, windows=(done,)),
    ]
    assert [line for step in course for line in story.tell(step)] == [
        "training",
        "healthy, 50.0 ms per iteration",
        "hang begins (iteration 200)",
        "no worker has moved for 7 s",
        "noticed: looking at stacks, kernel states and collectives of every worker",
        "blocked: because",
    ]
    assert [story.concluded(step) for step in course] == [False] * 5 + [True]
    assert not story.concluded(status(390, 75.0, (window("done", verdict="slow"),)))


def test_the_story_tells_who_died_first_and_how() -> None:
    story = Story("hang", from_iteration=200)
    lines = list(story.tell(standing(0.1, death=Ending(kind="signal", number=9))))
    assert lines[-1] == "worker 1 is gone: signal 9"
    assert not list(story.tell(standing(0.1, 0.2, death=Ending(kind="exit", number=1))))
    assert not [
        line for line in Story("none").tell(standing(0.1, death=Ending(kind="signal", number=15))) if "gone" in line
    ]
    assert not [line for line in Story("none").tell(standing(0.1, death=Ending(kind="signed-off"))) if "gone" in line]
