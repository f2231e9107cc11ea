"""Who died first, and of itself: reports of agents replayed."""

from __future__ import annotations

import signal

import pytest

from eroica.collector.lives import Lives
from eroica.model.look import Ending
from eroica.model.worker import Worker
from eroica.wire.messages import AgentReport, WorkerStatus

TERM, KILL, SEGV, INT = signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGINT


def ended_by(number: int, ago_s: float = 0.0) -> Ending:
    return Ending(kind="signal", number=number, ago_s=ago_s)


def signed_off(ago_s: float = 0.0) -> Ending:
    return Ending(kind="signed-off", ago_s=ago_s)


def vanished(ago_s: float = 0.0) -> Ending:
    return Ending(kind="unknown", ago_s=ago_s)


def status(rank: int, ending: Ending | None = None, pid: int = 0, iteration: int = 50) -> WorkerStatus:
    worker = Worker(global_rank=rank, world_size=3, pid=pid or 100 + rank, host="h")
    return WorkerStatus(
        worker=worker,
        state="gone" if ending else "steady",
        iteration=iteration,
        ended=ending is not None,
        ending=ending,
    )


def report(*workers: WorkerStatus, host: str = "h") -> AgentReport:
    return AgentReport(host=host, pid=1, workers=workers)


def story(*endings: Ending | None, later: float = 10.0) -> Lives:
    """Three workers train; at 10 s the agent reports these endings."""
    deaths = Lives()
    deaths.reported(0.0, report(*(status(rank) for rank in range(len(endings)))))
    deaths.reported(later, report(*(status(rank, ending) for rank, ending in enumerate(endings))))
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
    deaths.reported(12.0, report(status(0), status(1, ended_by(KILL, 2.5)), status(2)))
    (death,) = deaths.culprits(asked=False)
    assert death.lived_on_s == pytest.approx(2.5) and death.iteration == 50


def test_a_restart_begins_a_new_generation_and_tells_who_had_died() -> None:
    deaths = story(ended_by(TERM), ended_by(KILL, 0.3), ended_by(TERM))
    before = deaths.reported(20.0, report(*(status(rank, pid=200 + rank, iteration=0) for rank in range(3))))
    assert before is not None and [death.worker.global_rank for death in before] == [1]
    assert deaths.culprits(asked=False) == () and deaths.world_size == 3
    late = deaths.reported(21.0, report(status(2, ended_by(KILL), pid=102), host="h"))
    assert late is None and deaths.culprits(asked=False) == ()  # of the former generation
    again = [status(rank, ended_by(KILL, 1.0) if rank == 2 else None, pid=200 + rank) for rank in range(3)]
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
    deaths.reported(20.0, report(status(0, iteration=50 + further), status(2, iteration=50 + further)))
    assert [death.worker.global_rank for death in deaths.bereaved()] == ranks
