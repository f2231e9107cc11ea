"""Who takes part: what agents may say about whom."""

from __future__ import annotations

import msgspec

from eroica.collector.participants import AGENT_SILENT_S, Roll, SameIterations, counting, difference, source_for_all
from eroica.model.worker import Worker
from eroica.wire.beat import ANNOUNCED, BACKWARD, BATCHES, EXCHANGES, NO_SOURCE, OPTIMIZER
from eroica.wire.messages import AgentReport, WorkerStatus


def report(pid: int, *ranks: int, host: str = "node") -> AgentReport:
    workers = tuple(
        WorkerStatus(worker=Worker(global_rank=rank, pid=100 + rank, host=host, world_size=4), state="steady")
        for rank in ranks
    )
    return AgentReport(host=host, pid=pid, workers=workers)


def ranks(roll: Roll) -> set[int]:
    return {status.worker.global_rank for status in roll.living}


def test_two_hosts_of_one_name_do_not_push_each_other_out() -> None:
    notes: list[str] = []
    roll = Roll(notes.append)
    for second in range(10):
        roll.reported(second, report(7, 0, 1))
        roll.reported(second + 0.5, report(8, 2, 3))
        if second:
            assert ranks(roll) == {2, 3}
    assert any("EROICA_HOST" in note for note in notes)
    later = 9.5 + AGENT_SILENT_S + 1
    roll.reported(later, report(7, 0, 1))
    assert ranks(roll) == {0, 1}


def test_an_agent_that_was_started_again_is_listened_to() -> None:
    roll = Roll(lambda _: None)
    for pid in range(1, 20):
        roll.reported(float(pid), report(pid, 0))
        assert ranks(roll) == {0} and roll.agent_pid("node") == pid


def test_windows_wait_for_an_agent_that_looks_for_home_as_long_as_it_reports() -> None:
    roll, looking = Roll(lambda _: None), msgspec.structs.replace(report(7, 0), waiting=True)
    roll.reported(0.0, looking)
    roll.reported(0.0, report(8, 1, host="other"))
    assert roll.waiting(1.0) and not roll.waiting(AGENT_SILENT_S + 1.0)
    roll.reported(1.0, report(7, 0))
    assert not roll.waiting(1.0)
    assert roll.host_count == 2 and roll.knows("other") and not roll.knows("third")


def worker(rank: int, source: int, *also: int, iteration: int = 500, state: str = "steady") -> WorkerStatus:
    known = 0 if state == "learning" else sum(1 << one for one in {source, *also})
    who = Worker(global_rank=rank, pid=rank + 1, host="h", world_size=3)
    return WorkerStatus(worker=who, state=state, iteration=iteration, source=source, known=known)


LEARNER = worker(0, OPTIMIZER, BACKWARD, EXCHANGES)
ACTORS = [worker(1, EXCHANGES), worker(2, EXCHANGES)]


def test_a_learner_and_its_actors_count_exchanges_once_they_have_differed_for_a_while() -> None:
    same = SameIterations()
    assert [same.tick(now, [LEARNER, *ACTORS]) for now in (0.0, 9.0)] == ["", ""] and not same.count_by
    assert same.tick(10.0, [LEARNER, *ACTORS]) == "" and same.count_by == EXCHANGES
    assert same.tick(11.0, [worker(0, EXCHANGES, OPTIMIZER), *ACTORS]) == "" and not same.count_by


def test_the_best_source_that_all_have_is_ordered_and_none_while_somebody_learns_or_announces() -> None:
    assert source_for_all([LEARNER, worker(1, BACKWARD, EXCHANGES)]) == EXCHANGES
    assert source_for_all([worker(0, BACKWARD, OPTIMIZER), worker(1, OPTIMIZER)]) == OPTIMIZER
    assert source_for_all([worker(0, OPTIMIZER), worker(1, OPTIMIZER, EXCHANGES)]) == NO_SOURCE
    assert source_for_all([LEARNER, worker(1, ANNOUNCED, EXCHANGES)]) == NO_SOURCE
    assert source_for_all([LEARNER, worker(1, OPTIMIZER, state="learning")]) == NO_SOURCE
    assert source_for_all([LEARNER, *ACTORS, worker(3, NO_SOURCE, state="learning")]) == EXCHANGES


def test_workers_with_nothing_in_common_are_told_of_once() -> None:
    same, living = SameIterations(), [worker(0, OPTIMIZER), worker(1, BATCHES)]
    told = [same.tick(float(now), living) for now in range(0, 40, 10)]
    assert told[1].startswith("workers count different things as iterations (worker 0: steps of optimizers; worker 1: ")
    assert "eroica.step()" in told[1] and told[2:] == ["", ""]


def test_iterations_that_drift_apart_are_told_and_those_of_two_reports_are_not() -> None:
    assert not difference([worker(0, EXCHANGES, iteration=1000), worker(1, EXCHANGES, iteration=750)])
    drifted = difference([worker(0, EXCHANGES, iteration=1500), worker(1, EXCHANGES, iteration=500)])
    assert "worker 0 is at 1500, worker 1 at 500" in drifted


def test_a_process_in_which_nothing_repeats_keeps_no_baseline_window_waiting() -> None:
    idle, steps = worker(1, NO_SOURCE, state="learning"), worker(2, OPTIMIZER, state="learning")
    assert counting([LEARNER, idle, steps]) == [LEARNER, steps]
