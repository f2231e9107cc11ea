"""Workers' lives: who died first and of itself, and that only a job that was watched all along is called healthy."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from eroica.collector.history import Hints, final_verdict
from eroica.collector.lives import Attendance, Lives, failures_in
from eroica.model.look import Ending
from eroica.model.lost import Lost
from eroica.model.verdict import (
    Breakdown,
    IterationTimes,
    Verdict,
    VerdictWindow,
    VerdictWord,
)
from eroica.model.worker import Worker
from eroica.wire.messages import AgentReport, OrderResult, WorkerStatus
from support.verdicts import plain

TERM, KILL, SEGV, INT = signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGINT


def status(rank: int, world: int = 4, pid: int = 0, baseline_s: float | None = 0.1, **more: object) -> WorkerStatus:
    worker = Worker(global_rank=rank, world_size=world, pid=pid or 100 + rank, host="h")
    return WorkerStatus(worker=worker, **{"state": "steady", "iteration": 500, "baseline_s": baseline_s, **more})  # type: ignore[arg-type]


def ended(rank: int, number: int = 0, ago_s: float = 0.0, **more: object) -> WorkerStatus:
    ending = Ending(kind="signed-off", number=number, ago_s=ago_s)
    return status(rank, state="finished", ended=True, ending=ending, **more)


def lost(rank: int, **more: object) -> WorkerStatus:
    return status(rank, state="failed", result=OrderResult(note="ValueError: odd"), iteration=12, **more)


def attendance(*reports: tuple[float, tuple[WorkerStatus, ...]], now: float = 100.0, logged: tuple = ()) -> Attendance:
    roster = Lives()
    for at, workers in reports:
        roster.reported(at, report(*workers))
    return roster.attendance(now, logged)


def test_who_was_there_all_along_is_counted() -> None:
    everybody = tuple(ended(rank) for rank in range(4))
    assert attendance((0.0, tuple(map(status, range(4)))), (99.0, everybody)) == Attendance(4, 4)


def test_who_was_lost_is_not_though_its_process_only_went_away_later() -> None:
    others = (status(1), status(2), status(3))
    found = attendance((1.0, (lost(0), *others)), (99.0, (status(0, state="gone", ended=True), *others)))
    assert (found.expected, found.watched) == (4, 3)
    assert found.gaps == ("worker 0 was lost at iteration 12 (ValueError: odd)",)


def test_who_was_never_seen_dropped_out_or_had_too_few_iterations_is_said() -> None:
    found = attendance((1.0, (status(0), status(1))), (99.0, (ended(0), status(2, baseline_s=None, iteration=1))))
    assert (found.expected, found.watched) == (4, 1)
    assert found.gaps == (
        "worker 1 dropped out at iteration 500, and nobody saw it end",
        "worker 3 was never seen",
        "worker 2 had only 1 iteration, too few to tell",
    )


def test_a_worker_that_was_started_again_is_one_worker() -> None:
    first, second = (tuple(status(rank, 2, pid=pid + rank) for rank in range(2)) for pid in (10, 20))
    gone = tuple(status(rank, 2, pid=10 + rank, state="gone", ended=True) for rank in range(2))
    assert attendance((0.0, first), (5.0, (*gone, *second)), (99.0, second)) == Attendance(2, 2)


def test_a_process_that_no_agent_could_see_is_known_by_its_log(tmp_path: Path) -> None:
    text = "2026-01-01 Eroica stops watching this worker:\nTraceback:\n  File x\nOSError: no room\n\n"
    for name, written in (("worker-5.log", text), ("worker-6.log", "watch: not heeded\n"), ("agent-h.log", text)):
        (tmp_path / name).write_text(written)
        (tmp_path / name).chmod(0o600)
    assert failures_in(tmp_path) == ["OSError: no room"]
    assert failures_in(tmp_path / "nowhere") == []
    assert attendance(logged=("OSError: no room",)).gaps == ("one process could not be watched: OSError: no room",)


def look(word: VerdictWord = "healthy") -> Verdict:
    return plain(
        word,
        f"It is {word}.",
        iteration=IterationTimes(current_ms=100.0),
        window=VerdictWindow(kind="iterations", first_iteration=20, last_iteration=60),
        breakdown=Breakdown(iteration_ms=100.0, shares={"forward": 1.0}),
    )


LOOKED = Hints(look=look())


def final(hints: Hints, expected: int = 4, watched: int = 4, windows: dict[int, Verdict] | None = None) -> Verdict:
    return final_verdict("j", windows or {}, expected, watched, hints=hints)


def test_a_job_of_which_no_window_was_judged_is_not_called_healthy() -> None:
    never = final(Hints())
    assert (never.verdict, never.exit_code, never.breakdown) == ("undetermined", 4, None)
    assert never.summary == "No window was judged: iterations of 4 workers never got slower."
    longer = final(Hints(pace=Lost(now=70.0, before=50.0, noise=25.0)))
    assert "ended 1.4 times as long (70.0 ms) as the job's best (50.0 ms), no more than" in longer.summary
    assert "never got slower" not in longer.summary
    unclear = final(Hints(look=look("undetermined")))
    assert unclear.verdict == "undetermined" and "does not decide: It is undetermined." in unclear.summary
    told = final(LOOKED)
    assert told.verdict == "healthy" and told.breakdown == look().breakdown and told.window == look().window
    assert "no window" not in told.summary.lower()


def test_healthy_is_said_of_those_who_were_watched() -> None:
    assert final(LOOKED).summary.startswith("Healthy: iterations of 4 workers never got slower")
    some = final(LOOKED._replace(gaps=("worker 3 was never seen",)), watched=3)
    assert some.verdict == "healthy" and some.summary.startswith("Healthy: iterations of 3 of 4 workers never")
    assert some.summary.endswith("Not watched all along: worker 3 was never seen.")
    nobody = final(Hints(gaps=("worker 0 was lost at iteration 0 (E)",)), 1, 0)
    assert nobody.verdict == "undetermined" and "worker 0 was lost" in nobody.summary
    assert (nobody.coverage.workers_reported, nobody.coverage.workers_expected) == (0, 1)


def test_a_command_that_failed_is_not_called_healthy_whatever_its_windows_said() -> None:
    failure = "the command failed with status 1; worker 2 was the first to end, with status 1, at iteration 36"
    for windows in ({}, {1: final(LOOKED)}):
        failed = final(LOOKED._replace(failure=failure), windows=windows)
        assert failed.verdict == "undetermined"
        assert failed.summary.startswith(f"T{failure[1:]}. Before that: iterations of 4 workers never got slower")
    unseen = final(Hints(failure="the command failed with status 2"), 0, 0)
    assert unseen.summary.startswith("The command failed with status 2. No worker was seen")


@pytest.mark.parametrize(
    ("endings", "said"),
    [
        ((ended(0, 0, 0.1), ended(1, 1, 0.5)), "worker 1 was the first to end, with status 1, at iteration 500"),
        ((ended(0, 1, 0.1), ended(1, 0, 0.5)), "worker 0 was the first to end, with status 1, at iteration 500"),
        ((ended(0, 0, 0.5), ended(1, 0, 0.1)), "worker 0 was the first to end, at iteration 500"),
        (
            (status(0, state="gone", ended=True, ending=Ending(kind="signal", number=11)), status(1)),
            "worker 0 was the first to end, by SIGSEGV, at iteration 500",
        ),
        ((status(0), status(1)), ""),
    ],
)
def test_who_ended_first_and_with_what(endings: tuple[WorkerStatus, ...], said: str) -> None:
    deaths = Lives()
    deaths.reported(1.0, report(status(0), status(1)))
    deaths.reported(5.0, report(*endings))
    assert deaths.first_out() == said


def test_a_job_that_got_slow_after_a_healthy_window_does_not_end_healthy() -> None:
    window = final(LOOKED)
    slow = final(Hints(slowed=3.0, missed="no worker reported"), windows={2: window})
    assert slow.verdict == "undetermined"
    assert "3.0 times as long" in slow.summary and "no worker reported" in slow.summary
    assert "window 2 found nothing wrong; the window opened for it came to nothing" in slow.summary
    assert final(Hints(slowed=1.2), windows={2: window}).verdict == "healthy"


def ended_by(number: int, ago_s: float = 0.0) -> Ending:
    return Ending(kind="signal", number=number, ago_s=ago_s)


def signed_off(ago_s: float = 0.0) -> Ending:
    return Ending(kind="signed-off", ago_s=ago_s)


def vanished(ago_s: float = 0.0) -> Ending:
    return Ending(kind="unknown", ago_s=ago_s)


def life(rank: int, ending: Ending | None = None, pid: int = 0, iteration: int = 50) -> WorkerStatus:
    state = "gone" if ending else "steady"
    return status(rank, 3, pid, state=state, iteration=iteration, ended=ending is not None, ending=ending)


def report(*workers: WorkerStatus) -> AgentReport:
    return AgentReport(host="h", pid=1, workers=workers)


def story(*endings: Ending | None, later: float = 10.0) -> Lives:
    """Three workers train; at 10 s the agent reports these endings."""
    deaths = Lives()
    deaths.reported(0.0, report(*(life(rank) for rank in range(len(endings)))))
    deaths.reported(later, report(*(life(rank, ending) for rank, ending in enumerate(endings))))
    return deaths


def guilty(deaths: Lives, asked: bool = False) -> list[int]:
    return [death.worker.global_rank for death in deaths.culprits(asked)]


@pytest.mark.parametrize(
    ("endings", "ranks"),
    [
        ((ended_by(TERM), ended_by(KILL, 0.3), ended_by(TERM)), [1]),  # killed; then torchrun ended the others
        ((ended_by(TERM, 0.01), ended_by(SEGV, 0.02), ended_by(TERM, 0.01)), [1]),  # so fast that they look together
        ((signed_off(), ended_by(KILL, 0.2), signed_off(0.1)), [1]),  # the others died of the exception
        ((vanished(), vanished(0.4), vanished(0.01)), [1]),  # nobody knows how, but one went first
        ((None, ended_by(KILL, 2.0), None), [1]),
        ((None, Ending(kind="exit", number=1, ago_s=2.0), None), [1]),  # os._exit(1)
        ((ended_by(TERM), Ending(kind="signal", number=9, out_of_memory=True), ended_by(TERM)), [1]),
    ],
)
def test_who_died_of_itself_is_named(endings: tuple[Ending | None, ...], ranks: list[int]) -> None:
    assert guilty(story(*endings)) == ranks


@pytest.mark.parametrize(
    "endings",
    [
        (ended_by(TERM, 0.3), ended_by(TERM), ended_by(KILL)),  # the scheduler asked, one did not hear
        (ended_by(INT), ended_by(INT, 0.2), ended_by(INT)),
        (ended_by(KILL, 0.3), ended_by(KILL), ended_by(KILL)),  # all were killed
        (vanished(), vanished(0.02), vanished()),  # all vanished together
        (signed_off(), signed_off(3.0), signed_off()),
        (ended_by(TERM), signed_off(0.3), ended_by(TERM)),  # an exception, and torchrun ended the others
        (vanished(), signed_off(0.3), vanished()),
        (Ending(kind="exit", number=0, ago_s=1.0), None, None),  # os._exit(0)
        (Ending(kind="exit", number=143, ago_s=1.0), None, None),
        (None, None, None),
    ],
)
def test_who_was_ended_or_ended_in_order_is_not_named(endings: tuple[Ending | None, ...]) -> None:
    assert guilty(story(*endings)) == []


def test_memory_counts_even_if_all_vanished_together() -> None:
    starved = Ending(kind="signal", number=9, out_of_memory=True)
    assert guilty(story(starved, starved, starved)) == [0, 1, 2]


def test_of_a_job_that_was_asked_to_end_only_what_came_long_before_and_of_itself_is_named() -> None:
    assert guilty(story(ended_by(TERM), ended_by(KILL, 5.0), ended_by(TERM)), asked=True) == [1]
    assert guilty(story(ended_by(TERM), ended_by(KILL, 0.3), ended_by(TERM)), asked=True) == []
    assert guilty(story(vanished(), vanished(5.0), vanished()), asked=True) == []


def test_how_long_others_lived_on_is_measured_on_the_collectors_clock() -> None:
    deaths = story(None, ended_by(KILL, 0.5), None, later=10.0)
    deaths.reported(12.0, report(life(0), life(1, ended_by(KILL, 2.5)), life(2)))
    (death,) = deaths.culprits(asked=False)
    assert death.lived_on_s == pytest.approx(2.5) and death.iteration == 50


def test_a_restart_begins_a_new_generation_and_tells_who_had_died() -> None:
    deaths = story(ended_by(TERM), ended_by(KILL, 0.3), ended_by(TERM))
    before = deaths.reported(20.0, report(*(life(rank, pid=200 + rank, iteration=0) for rank in range(3))))
    assert before is not None and [death.worker.global_rank for death in before] == [1]
    assert deaths.culprits(asked=False) == () and deaths.world_size == 3
    late = deaths.reported(21.0, report(life(2, ended_by(KILL), pid=102)))
    assert late is None and deaths.culprits(asked=False) == ()  # of the former generation
    again = [life(rank, ended_by(KILL, 1.0) if rank == 2 else None, pid=200 + rank) for rank in range(3)]
    deaths.reported(30.0, report(*again))
    assert guilty(deaths) == [2]


def test_those_who_stand_still_miss_everybody_but_those_that_a_scheduler_ended() -> None:
    alone = story(None, ended_by(TERM, 5.0), None)
    assert [death.worker.global_rank for death in alone.bereaved()] == [1]
    most = story(None, ended_by(TERM, 5.0), ended_by(TERM, 5.0))
    assert most.bereaved() == ()
    assert [worker.global_rank for worker in story(None, signed_off(5.0), None).left()] == [1]


@pytest.mark.parametrize(("further", "ranks"), [(2, [1]), (5000, [])])
def test_a_death_after_which_the_others_trained_on_does_not_explain_their_standstill(
    further: int, ranks: list[int]
) -> None:
    deaths = story(None, ended_by(KILL), None)
    deaths.reported(20.0, report(life(0, iteration=50 + further), life(2, iteration=50 + further)))
    assert [death.worker.global_rank for death in deaths.bereaved()] == ranks
