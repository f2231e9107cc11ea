"""Who takes part: what agents may say about whom."""

from __future__ import annotations

import msgspec

from eroica.collector.participants import AGENT_SILENT_S, Roll
from eroica.model.worker import Worker
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
