"""What holds for every blocked job: progress, missing hosts, hostile names, order, size."""

from __future__ import annotations

import time

import msgspec
import pytest

from eroica.diagnosis.blocked import diagnose_blockage
from eroica.diagnosis.blocked.waiting import Waiting
from eroica.model.look import Blockage, WorkerLook
from eroica.model.verdict import Verdict
from eroica.settings import Settings
from support import standstill as made
from support.standstill import Standstill


def blocked_job(size: int = 4, hosts: int = 1) -> Standstill:
    job = Standstill(size, hosts=hosts)
    job.wait(rank for rank in range(size) if rank != 2)
    job.sit(2, made.EMPTY_QUEUE)
    job.add_thread(2, "prefetch", made.FULL_QUEUE)
    return job


def verdict_on(job: Standstill, order: int = 1) -> Verdict | None:
    return diagnose_blockage(job.blockage(order=order), "demo", Settings())


@pytest.mark.parametrize("progress", [{"events": 1}, {"iteration": 1}, {"completed": 1}])
def test_progress_of_one_worker_is_no_blockage(progress: dict[str, int]) -> None:
    job = blocked_job()
    job.move(2, **progress)
    assert verdict_on(job) is None


def test_a_slow_evaluation_is_no_blockage() -> None:
    job = blocked_job()
    job.sit(2, (*made.ENDLESS_LOOP, "a (job/text.py:3)"), later=(*made.ENDLESS_LOOP, "b (job/text.py:4)"))
    job.burn(2)
    assert verdict_on(job) is None


def test_a_long_checkpoint_that_writes_is_no_blockage_and_one_whose_storage_stands_still_is() -> None:
    for written, blocked in ((500_000_000, False), (0, True)):
        job = blocked_job()
        job.move(2, io_bytes=written)
        assert (verdict_on(job) is not None) is blocked


def test_data_that_moves_inside_communication_is_no_progress() -> None:
    job = blocked_job()
    job.move(0, io_bytes=500_000_000)
    assert verdict_on(job) is not None


def test_a_polling_loop_that_uses_no_core_is_one() -> None:
    job = blocked_job()
    job.sit(2, (*made.ENDLESS_LOOP, "a (job/text.py:3)"), later=(*made.ENDLESS_LOOP, "b (job/text.py:4)"))
    assert verdict_on(job) is not None


def test_a_spinning_collective_is_no_progress() -> None:
    job = blocked_job()
    job.burn(0)
    assert verdict_on(job) is not None


def test_without_any_look_the_verdict_is_undetermined() -> None:
    verdict = diagnose_blockage(Blockage(look_id=1, reason="silent", world_size=4), "demo", Settings())
    assert verdict is not None
    assert (verdict.verdict, verdict.findings) == ("undetermined", ())
    assert verdict.coverage.missing == (0, 1, 2, 3)
    assert "no agent" in verdict.summary


def test_a_worker_that_all_wait_for_and_nobody_saw_is_named_but_undetermined() -> None:
    job = Standstill(6, hosts=3)
    job.wait((0, 1, 4, 5))
    job.hide([2, 3])
    verdict = verdict_on(job)
    assert verdict is not None
    assert verdict.verdict == "undetermined"
    assert verdict.cause is not None
    assert (verdict.cause.cause, verdict.cause.workers) == ("unknown", (2, 3))
    assert [(one.cause, one.workers, one.met) for one in verdict.considered] == [
        ("unknown", (2, 3), verdict.cause.evidence)
    ]
    assert verdict.coverage.missing == (2, 3)


def test_a_missing_host_takes_confidence_away_but_not_the_answer() -> None:
    job = blocked_job(8, hosts=4)
    whole = verdict_on(job)
    job.hide([6, 7])
    part = verdict_on(job)
    assert whole is not None and whole.cause is not None
    assert part is not None and part.cause is not None
    assert part.cause.workers == (2,)
    assert part.cause.confidence < whole.cause.confidence
    assert part.coverage.missing == (6, 7)


def test_a_stack_that_nobody_could_read_is_said_to_be_unread() -> None:
    job = blocked_job()
    job.sit(2, ())
    verdict = verdict_on(job)
    assert verdict is not None
    assert verdict.verdict == "undetermined"
    assert "could not be read" in verdict.summary


def test_a_worker_seen_once_counts_with_that_look() -> None:
    job = blocked_job()
    job.look_once(2)
    verdict = verdict_on(job)
    assert verdict is not None and verdict.cause is not None
    assert verdict.cause.workers == (2,)
    assert "looked at only once: worker 2" in verdict.coverage.notes


def test_the_order_of_hosts_and_workers_changes_nothing() -> None:
    job = blocked_job(24, hosts=6)
    job.sit(5, made.OWN_LOCK)
    job.add_thread(2, "other", made.THREAD_LOCK)
    assert verdict_on(job) == verdict_on(job, order=-1)


HOSTILE = [
    "",
    "(",
    "x" * 1_000_000,
    "((((" * 50_000 + ":1)",
    "a (" * 30_000,
    "\x1b[2J\x1b]0;t\x07 (a\u202eb.py:1)",
    "{s} {} %s (x.py:99999999999999999999)",
    "[bold red]x[/] (y.py:1)",
    "\ud800 (z.py:1)",
]


@pytest.mark.parametrize("frame", HOSTILE)
def test_no_name_from_the_job_breaks_or_slows_the_diagnosis(frame: str) -> None:
    job = blocked_job()
    job.sit(2, (frame, frame, frame))
    job.add_thread(2, frame[:1000], (frame,))
    job.wait([0], frame[:1000], group="0", sequence=12)
    job.notes["node-0"] = (frame[:1000],)
    began = time.perf_counter()
    verdict = verdict_on(job)
    assert time.perf_counter() - began < 5
    assert verdict is not None
    assert len(verdict.summary) < 3000
    assert all(character.isprintable() for character in verdict.summary)


def test_absurd_numbers_are_survived() -> None:
    job = blocked_job()
    record = job.blockage()
    look = record.looks[0].second[0]
    worker = msgspec.structs.replace(look.worker, global_rank=10**12, world_size=2**60)
    odd: WorkerLook = msgspec.structs.replace(look, worker=worker, silent_s=-5.0, iteration=-1)
    host = msgspec.structs.replace(record.looks[0], second=(*record.looks[0].second, odd))
    verdict = diagnose_blockage(msgspec.structs.replace(record, looks=(host,)), "demo", Settings())
    assert verdict is not None
    assert verdict.coverage.workers_reported <= verdict.coverage.workers_expected


def test_the_verdict_survives_its_json_form() -> None:
    verdict = verdict_on(blocked_job())
    assert verdict is not None
    assert Verdict.from_json(verdict.to_json()) == verdict


@pytest.mark.parametrize("shape", ["one", "circle", "scattered"])
def test_ten_thousand_workers_take_less_than_two_seconds(shape: str) -> None:
    job = Standstill(10_000, hosts=1250)
    if shape == "one":
        job.wait(rank for rank in range(10_000) if rank != 2)
    elif shape == "circle":
        job.add_group("5", range(10_000), "agreement")
        job.wait((rank for rank in range(10_000) if rank != 2), group="5")
        job.wait([2], stack=made.BACKWARD)
    else:
        for rank in range(10_000):
            job.wait([rank], sequence=12 + rank)
    record = job.blockage()
    began = time.process_time()
    verdict = diagnose_blockage(record, "demo", Settings())
    took_s = time.process_time() - began
    assert verdict is not None
    assert verdict.cause is not None
    assert took_s < 2, f"{took_s:.2f} s"  # 0.3 to 0.5 s


def test_a_long_chain_that_waits_for_a_circle_is_no_part_of_it() -> None:
    onward = {0: [1], 1: [0], **{node: [node - 1] for node in range(2, 5000)}}
    back: dict[int, list[int]] = {}
    for node, (other,) in onward.items():
        back.setdefault(other, []).append(node)
    assert Waiting(meetings=(), onward=onward, back=back).circle() == {0, 1}
    ended = {**onward, 1: [0, -1]}
    assert Waiting(meetings=(), onward=ended, back={**back, -1: [1]}).circle() == frozenset()
