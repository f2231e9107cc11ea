"""`eroica status` in words."""

from __future__ import annotations

from pathlib import Path

from eroica.cli.status import _text
from eroica.model.look import Ending
from eroica.model.worker import Worker
from eroica.wire.messages import JobStatus, OrderResult, WindowLine, WorkerStatus


def status(rank: int, **more: object) -> WorkerStatus:
    worker = Worker(global_rank=rank, pid=100 + rank, host="node-1")
    return WorkerStatus(**{"worker": worker, "state": "steady", "iteration": 212, "current_s": 0.018, **more})


def test_silent_ended_and_failed_workers_and_blocked_verdicts_are_shown() -> None:
    killed = Ending(kind="signal", number=9)
    job = JobStatus(
        job="j",
        phase="blocked",
        message="standing still at iteration 212: worker 1 waits for a lock",
        workers=(
            status(0),
            status(1, silent=True, silence="no event for 12.0 s, limit 10.0 s"),
            status(2, ended=True, state="gone", ending=killed),
            status(3, ended=True, state="gone", ending=Ending(kind="signal", number=9, out_of_memory=True)),
            status(4, ended=True, state="finished", ending=Ending(kind="signed-off")),
            status(5, state="failed", result=OrderResult(note="ValueError: odd")),
        ),
        windows=(
            WindowLine(
                window_id=1, purpose="blocked", phase="passed", first_iteration=90, verdict="blocked", summary="x"
            ),
            WindowLine(window_id=2, purpose="blocked", phase="looking", first_iteration=212, last_iteration=212),
        ),
        notes=("worker 1 stood still for 12 s",),
    )
    assert _text(job, Path("/run")).splitlines()[2:] == [
        "  worker 1      node-1 pid 101: steady, SILENT (no event for 12.0 s, limit 10.0 s), 18.0 ms",
        "  worker 2      node-1 pid 102: ENDED by signal 9 at iteration 212",
        "  worker 3      node-1 pid 103: KILLED for want of memory at iteration 212",
        "  worker 4      node-1 pid 104: ended in order at iteration 212",
        "  worker 5      node-1 pid 105: not watched any more, Eroica failed in it: ValueError: odd, 18.0 ms",
        "  worker 0      node-1 pid 100: steady, 18.0 ms",
        "  window 1 (blocked, iteration 90): done, it went on by itself. blocked: x",
        "  window 2 (blocked, iteration 212): looking at stacks.",
        "  note: worker 1 stood still for 12 s",
    ]


def test_of_a_thousand_workers_the_odd_ones_are_shown() -> None:
    workers = (*(status(rank) for rank in range(999)), status(999, silent=True))
    text = _text(JobStatus(job="j", phase="", message="", workers=workers), Path("/run"))
    assert "worker 999" in text and "and 960 more workers" in text and len(text.splitlines()) == 43
