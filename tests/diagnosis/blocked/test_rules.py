"""Each rule on made-up jobs of 1 to 1000 workers: who is named, with which cause and function, and who only waits."""

from __future__ import annotations

import pytest

from eroica.diagnosis.blocked import diagnose_blockage
from eroica.model.look import Ending
from eroica.model.verdict import Finding, Verdict
from eroica.settings import Settings
from support import standstill as made
from support.standstill import Standstill

SIZES = [4, 64, 1000]


def verdict_on(job: Standstill, settings: Settings = Settings()) -> Verdict:  # noqa: B008 (frozen)
    verdict = diagnose_blockage(job.blockage(), "demo", settings)
    assert verdict is not None
    return verdict


def only_cause(verdict: Verdict) -> Finding:
    causes = [finding for finding in verdict.findings if finding.role == "cause"]
    assert len(causes) == 1, verdict.summary
    return causes[0]


def others(size: int, *ranks: int) -> tuple[int, ...]:
    return tuple(rank for rank in range(size) if rank not in ranks)


def all_but(size: int, *ranks: int, hosts: int = 1) -> Standstill:
    job = Standstill(size, hosts=hosts)
    job.wait(others(size, *ranks))
    return job


def assert_names(verdict: Verdict, cause: str, ranks: tuple[int, ...], function: str, size: int) -> Finding:
    assert verdict.verdict == "blocked"
    assert verdict.window is not None
    assert verdict.window.kind == "blocked"
    found = only_cause(verdict)
    assert (found.cause, found.workers, found.function.name) == (cause, ranks, function)
    assert found.gain is None
    assert found.next_step
    assert 0 < found.confidence < 1
    symptoms = [finding for finding in verdict.findings if finding.role == "symptom"]
    assert [finding.workers for finding in symptoms] == [others(size, *ranks)] * (size > 1)
    assert found.explains == tuple(finding.order for finding in symptoms)
    assert all(finding.cause == cause for finding in symptoms)
    return found


@pytest.mark.parametrize("size", SIZES)
def test_a_prefetch_thread_on_a_full_queue_is_named_and_not_the_loop_that_waits_for_it(size: int) -> None:
    job = all_but(size, 2)
    job.sit(2, made.EMPTY_QUEUE)
    job.add_thread(2, "prefetch", made.FULL_QUEUE)
    found = assert_names(verdict_on(job), "blocked-in-user-code", (2,), "feed", size)
    assert found.scope == "some"
    summary = verdict_on(job).summary
    assert "next_batch (train.py:88)" in summary
    assert "Queue.put at feed (loader.py:41)" in summary
    assert f"{size - 1} workers have waited for it in gloo:all_reduce for 14 s" in summary


@pytest.mark.parametrize("size", SIZES)
def test_in_a_deadlock_of_two_locks_the_training_threads_frame_is_named(size: int) -> None:
    job = all_but(size, 1)
    job.sit(1, made.OWN_LOCK)
    job.add_thread(1, "flusher", made.THREAD_LOCK)
    found = assert_names(verdict_on(job), "blocked-in-user-code", (1,), "count", size)
    assert any("flush (statistics.py:52)" in text for text in found.evidence)
    assert "same order" in found.next_step


@pytest.mark.parametrize("size", SIZES)
def test_a_thread_that_keeps_the_interpreter_lock_is_named(size: int) -> None:
    job = all_but(size, 0)
    job.hold_interpreter_lock(0)
    assert_names(verdict_on(job), "held-interpreter-lock", (0,), "lookup", size)


def test_another_thread_than_the_training_thread_may_keep_the_interpreter_lock() -> None:
    job = all_but(4, 0)
    job.sit(0, made.OWN_LOCK)
    job.mute([0])
    job.add_thread(0, "driver", ("poll (job/driver.py:7)",), holds=True)
    found = assert_names(verdict_on(job), "held-interpreter-lock", (0,), "poll", 4)
    assert any("count (statistics.py:33)" in text for text in found.evidence)


def test_a_worker_that_answers_does_not_hold_the_interpreter_lock() -> None:
    job = all_but(4, 0)
    job.hold_interpreter_lock(0)
    job.seats[0].answers = True
    assert_names(verdict_on(job), "blocked-in-user-code", (0,), "lookup", 4)


def test_without_an_answering_thread_only_a_sleeping_owner_holds_the_interpreter_lock() -> None:
    silent = Settings(answering_thread=False)
    job = all_but(4, 0)
    job.hold_interpreter_lock(0)
    assert only_cause(verdict_on(job, silent)).cause == "held-interpreter-lock"
    job.sit(0, made.ENDLESS_LOOP, state="R", channel="0")
    assert only_cause(verdict_on(job, silent)).cause == "blocked-in-user-code"


def test_a_collective_that_keeps_the_interpreter_lock_only_waits() -> None:
    job = Standstill(4)
    job.wait((0, 1))
    job.hold_interpreter_lock(3, made.ALL_REDUCE, channel="futex_do_wait")
    job.sit(2, made.STORAGE_READ, channel="wait_woken")
    assert only_cause(verdict_on(job)).workers == (2,)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (Ending(kind="signal", number=9), "killed by SIGKILL"),
        (Ending(kind="signal", number=9, out_of_memory=True), "memory limit"),
        (Ending(kind="exit", number=3), "exited with status 3"),
        (Ending(), "vanished"),
        (Ending(kind="signal", number=11), "SIGSEGV"),
        (Ending(kind="signal", number=200), "signal 200"),
    ],
)
def test_a_dead_worker_is_named_with_the_manner_of_its_death(size: int, ending: Ending, words: str) -> None:
    job = all_but(size, 2)
    job.die(2, ending)
    verdict = verdict_on(job)
    found = only_cause(verdict)
    assert (found.cause, found.workers) == ("dead-worker", (2,))
    assert words in verdict.summary
    assert words in " ".join(found.evidence)


def test_later_deaths_are_evidence_and_not_causes() -> None:
    job = all_but(8, 2, 3, 5, hosts=2)
    job.die(5, Ending(kind="signal", number=9, out_of_memory=True))
    job.die(2, Ending(kind="signal", number=6))
    job.die(3, Ending(kind="signal", number=6))
    found = only_cause(verdict_on(job))
    assert found.workers == (5,)
    assert "Later: worker 2" in " ".join(found.evidence)


def test_survivors_that_sit_elsewhere_because_of_a_death_are_no_causes() -> None:
    job = all_but(4, 2, 3)
    job.die(2)
    job.sit(3, made.STORAGE_READ, channel="wait_woken")
    assert only_cause(verdict_on(job)).workers == (2,)


def test_all_dead_workers_of_a_host_that_vanished_are_named() -> None:
    job = all_but(8, 4, 5, 6, 7, hosts=2)
    for rank in (5, 4, 6, 7):
        job.die(rank, Ending())
    found = only_cause(verdict_on(job))
    assert found.workers == (4, 5, 6, 7)
    assert found.hosts == ("node-1",)


@pytest.mark.parametrize(("state", "word"), [("T", "kill -CONT 1002"), ("t", "debugger")])
def test_a_stopped_worker_is_named_and_how_to_continue_it(state: str, word: str) -> None:
    job = all_but(4, 2)
    job.stop(2, state)
    found = assert_names(verdict_on(job), "dead-worker", (2,), "step", 4)
    assert word in found.next_step + " ".join(found.evidence)


@pytest.mark.parametrize("channel", ["wait_woken", "nfs_wait_bit_killable", "folio_wait_bit_common", "fuse_request"])
def test_storage_is_called_storage(channel: str) -> None:
    job = all_but(4, 3)
    job.sit(3, made.STORAGE_READ, channel=channel)
    verdict = verdict_on(job)
    found = assert_names(verdict, "blocked-in-user-code", (3,), "_fetch_block", 4)
    assert "storage or the network" in verdict.summary
    assert "timeout" in found.next_step


@pytest.mark.parametrize("size", SIZES)
def test_all_workers_in_the_same_storage_are_one_cause_of_all(size: int) -> None:
    job = Standstill(size)
    for rank in range(size):
        job.sit(rank, made.STORAGE_READ, channel="wait_woken")
    found = only_cause(verdict_on(job))
    assert (found.scope, found.workers, found.function.name) == ("all", tuple(range(size)), "_fetch_block")


def test_an_endless_loop_is_named_and_said_to_run() -> None:
    job = all_but(4, 1)
    moved = (*made.ENDLESS_LOOP[:-1], "tokenize (job/text.py:19)")
    job.sit(1, made.ENDLESS_LOOP, state="R", channel="0", later=moved)
    job.burn(1)
    found = assert_names(verdict_on(job), "blocked-in-user-code", (1,), "tokenize", 4)
    assert "running" in verdict_on(job).summary
    assert any("100 % of a core" in text for text in found.evidence)


def test_a_loader_child_that_is_stuck_is_named() -> None:
    job = all_but(4, 1)
    job.sit(1, made.LOADER_WAIT, channel="poll_schedule_timeout")
    job.add_child(1, made.LOADER_CHILD[:3])
    job.add_child(1, made.LOADER_CHILD)
    found = assert_names(verdict_on(job), "blocked-in-user-code", (1,), "Frames.__getitem__", 4)
    assert any("child 500101" in text for text in found.evidence)


@pytest.mark.parametrize(("dead", "words"), [(0, "none is to be seen"), (2, "none is alive")])
def test_a_loader_without_living_children_is_said_to_have_none(dead: int, words: str) -> None:
    job = all_but(4, 1)
    job.sit(1, made.LOADER_WAIT, channel="poll_schedule_timeout")
    for _ in range(dead):
        job.add_child(1, state="Z")
    assert words in verdict_on(job).summary


def test_a_stopped_loader_child_is_told() -> None:
    job = all_but(4, 1)
    job.sit(1, made.LOADER_WAIT, channel="poll_schedule_timeout")
    job.add_child(1, made.LOADER_CHILD, state="T")
    assert "which is stopped" in verdict_on(job).summary


@pytest.mark.parametrize("size", SIZES)
def test_a_skipped_collective_makes_a_circle_and_the_minority_is_named(size: int) -> None:
    job = Standstill(size)
    job.add_group("5", range(size), "agreement", entered=7)
    job.wait(others(size, 2), group="5", elements=1)
    job.wait([2], stack=made.BACKWARD)
    found = assert_names(verdict_on(job), "desynchronized-collective", (2,), "step", size)
    text = " ".join(found.evidence)
    assert "number 8 of group agreement" in text
    assert "number 12 of group default_pg" in text


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("operation", "elements"), [("gloo:barrier", 0), ("gloo:all_reduce", 17)])
def test_another_operation_or_size_at_the_same_number_is_named(size: int, operation: str, elements: int) -> None:
    job = all_but(size, 2)
    job.wait([2], operation, stack=made.BARRIER, elements=elements)
    assert_names(verdict_on(job), "desynchronized-collective", (2,), "save", size)


def test_a_collective_that_one_has_completed_as_another_one_is_a_mismatch_too() -> None:
    job = all_but(4, 2)
    job.finish([2], "gloo:broadcast", 12)
    job.sit(2, made.STORAGE_READ)
    assert only_cause(verdict_on(job)).cause == "desynchronized-collective"


def test_uneven_all_gathers_are_no_mismatch() -> None:
    job = Standstill(4)
    for rank in range(4):
        job.wait([rank], "gloo:all_gather", elements=rank)
    assert only_cause(verdict_on(job)).cause == "slow-link"


def test_on_a_tie_both_sides_are_listed_with_less_confidence() -> None:
    job = Standstill(4)
    job.wait((0, 1))
    job.wait((2, 3), "gloo:barrier", stack=made.BARRIER)
    found = only_cause(verdict_on(job))
    assert found.workers == (0, 1, 2, 3)
    assert found.scope == "some"
    assert found.confidence < 0.7
    clear = all_but(4, 3)
    clear.wait([3], "gloo:barrier", stack=made.BARRIER)
    assert found.confidence < only_cause(verdict_on(clear)).confidence


def test_in_a_circle_who_certainly_sits_in_a_queue_is_the_origin() -> None:
    job = Standstill(4)
    job.add_group("1", range(4), "side", entered=3)
    job.wait([2], group="1", stack=made.EMPTY_QUEUE)
    job.wait(others(4, 2))
    found = only_cause(verdict_on(job))
    assert (found.cause, found.workers) == ("blocked-in-user-code", (2,))


@pytest.mark.parametrize("size", SIZES)
def test_a_worker_that_left_the_loop_is_desynchronized(size: int) -> None:
    job = all_but(size, 1)
    job.leave(1)
    found = only_cause(verdict_on(job))
    assert (found.cause, found.workers) == ("desynchronized-collective", (1,))
    assert "ended its program" in verdict_on(job).summary


def test_a_worker_at_the_end_of_its_program_is_desynchronized() -> None:
    job = all_but(4, 1)
    job.sit(1, made.PROGRAM_END)
    assert_names(verdict_on(job), "desynchronized-collective", (1,), "_shutdown", 4)


@pytest.mark.parametrize("size", SIZES)
def test_a_collective_that_all_have_entered_points_at_the_transport(size: int) -> None:
    job = Standstill(size, hosts=4)
    job.wait(range(size))
    found = only_cause(verdict_on(job))
    assert (found.cause, found.scope) == ("slow-link", "all")
    assert found.confidence < 0.7


def test_a_host_that_takes_part_in_all_stuck_groups_is_named() -> None:
    job = Standstill(6, hosts=3)
    for name, ranks in (("a", (0, 2)), ("b", (1, 2)), ("c", (3, 4))):
        job.add_group(name, ranks)
        job.wait(ranks, group=name)
    found = only_cause(verdict_on(job))
    assert (found.cause, found.hosts, found.workers) == ("slow-link", ("node-1",), (2, 3))


def test_a_host_that_alone_has_not_left_the_collective_is_named() -> None:
    job = Standstill(4, hosts=2)
    job.finish((0, 1), "gloo:all_reduce", 12)
    job.wait((2, 3))
    job.wait((0, 1))
    found = only_cause(verdict_on(job))
    assert (found.cause, found.hosts) == ("slow-link", ("node-1",))


def test_groups_of_a_mesh_collapse_into_one_symptom() -> None:
    job = Standstill(64)
    for start in range(0, 64, 8):
        job.add_group(f"dp{start}", range(start, start + 8), "mesh_dp", entered=4)
        job.wait([rank for rank in range(start, start + 8) if rank != 9], group=f"dp{start}")
        if start != 8:
            job.wait(range(start, start + 8), "gloo:barrier", stack=made.BARRIER)
    job.sit(9, made.OWN_LOCK)
    verdict = verdict_on(job)
    assert verdict.cause is not None
    assert (verdict.cause.cause, verdict.cause.workers) == ("blocked-in-user-code", (9,))
    assert len([finding for finding in verdict.findings if finding.role == "symptom"]) <= 2


def test_a_chain_of_groups_leads_to_its_end() -> None:
    job = Standstill(6)
    for rank in range(5):
        job.add_group(f"pair{rank}", (rank, rank + 1), "pipe")
    for rank in range(5):
        job.wait([rank], group=f"pair{rank}")
    job.sit(5, made.OWN_LOCK)
    assert_names(verdict_on(job), "blocked-in-user-code", (5,), "count", 6)


def test_nccl_receives_lead_to_their_sender() -> None:
    job = Standstill(4, device="cuda")
    for rank in range(3):
        job.wait([rank], f"nccl:recv {rank}<-{rank + 1}", stack=made.RECEIVE)
        entry = job.seats[rank].open.pop()
        job.seats[rank].open.append(type(entry)(name=entry.name, group="0", sequence=1, is_p2p=True))
        job.seats[rank].entered["0"] = 11
    job.sit(3, made.OWN_LOCK)
    assert_names(verdict_on(job), "blocked-in-user-code", (3,), "count", 4)


@pytest.mark.parametrize("size", SIZES)
def test_without_flight_recorders_who_is_not_in_communication_is_the_origin(size: int) -> None:
    job = Standstill(size)
    job.mute(range(size))
    for rank in range(size):
        job.sit(rank, made.BACKWARD if rank % 2 else made.ALL_REDUCE)
    job.sit(2, made.STORAGE_READ, channel="wait_woken")
    verdict = verdict_on(job)
    found = only_cause(verdict)
    assert (found.cause, found.workers) == ("blocked-in-user-code", (2,))
    assert found.confidence < 0.7
    assert any("no Flight Recorder" in note for note in verdict.coverage.notes)


def test_backward_that_burns_a_core_without_flight_recorder_is_no_wait() -> None:
    job = Standstill(4)
    job.mute(range(4))
    for rank in range(4):
        job.sit(rank, made.BACKWARD)
    job.burn(3)
    assert only_cause(verdict_on(job)).workers == (3,)


def test_a_worker_that_could_not_answer_but_waits_by_its_stack_is_not_accused() -> None:
    job = Standstill(4)
    job.wait((0, 1))
    job.mute([2])
    job.sit(2, made.ALL_REDUCE)
    job.sit(3, made.OWN_LOCK)
    assert only_cause(verdict_on(job)).workers == (3,)


def test_a_pipeline_under_gloo_names_the_stage_in_user_code() -> None:
    job = Standstill(4)
    for rank in range(3):
        job.sit(rank, made.RECEIVE)
    job.sit(3, made.STORAGE_READ, channel="wait_woken")
    verdict = verdict_on(job)
    assert only_cause(verdict).workers == (3,)
    assert "no trace of their peer" in " ".join(verdict.findings[1].evidence)


@pytest.mark.parametrize(("device", "state"), [("cpu", "S"), ("cuda", "R")])
def test_a_wait_without_a_frame_of_its_own_is_not_accused_where_another_worker_sits_in_a_queue(
    device: str, state: str
) -> None:
    job = Standstill(4, device=device)
    for rank in range(3):  # work.wait() of an isend, loss.item() behind NCCL
        job.sit(rank, made.WORK_WAIT, state=state, channel="futex_do_wait" if state == "S" else "0")
    job.sit(3, made.EMPTY_QUEUE)
    assert only_cause(verdict_on(job)).workers == (3,)


def test_a_thread_that_sleeps_or_waits_for_clients_elsewhere_is_not_what_a_queue_waits_for() -> None:
    job = all_but(4, 3)
    job.sit(3, made.EMPTY_QUEUE)
    job.add_thread(3, "heartbeat", (*made.FULL_QUEUE[:3], "beat (job/monitor.py:10)"), channel="hrtimer_nanosleep")
    health = (*made.FULL_QUEUE[:3], "serve (job/health.py:8)", "socket.accept (socket.py:295)")
    job.add_thread(3, "health", health, channel="inet_csk_accept")
    assert_names(verdict_on(job), "blocked-in-user-code", (3,), "next_batch", 4)


def test_a_debugger_at_its_prompt_is_not_called_storage() -> None:
    job = all_but(4, 3)
    prompt = ("Bdb.dispatch_line (bdb.py:90)", "Pdb.interaction (pdb.py:400)", "Cmd.cmdloop (cmd.py:126)")
    job.sit(3, (*made.NATIVE_CALL, *prompt), channel="wait_woken")
    assert_names(verdict_on(job), "blocked-in-user-code", (3,), "lookup", 4)
    assert "storage" not in verdict_on(job).summary


def test_if_all_stages_receive_the_verdict_is_undetermined_and_says_why() -> None:
    job = Standstill(4)
    for rank in range(4):
        job.sit(rank, made.RECEIVE)
    verdict = verdict_on(job)
    assert verdict.verdict == "undetermined"
    assert "no trace of their peer" in verdict.summary


def test_without_flight_recorders_other_functions_are_taken_for_other_collectives() -> None:
    job = Standstill(4)
    job.mute(range(4))
    for rank in range(4):
        job.sit(rank, made.BARRIER if rank == 1 else made.ALL_REDUCE)
    found = only_cause(verdict_on(job))
    assert (found.cause, found.workers) == ("desynchronized-collective", (1,))
    assert found.confidence <= 0.5


def test_two_workers_at_different_places_are_two_causes() -> None:
    job = all_but(8, 2, 5)
    job.sit(2, made.OWN_LOCK)
    job.sit(5, made.STORAGE_READ, channel="wait_woken")
    verdict = verdict_on(job)
    causes = [finding for finding in verdict.findings if finding.role == "cause"]
    assert [(finding.workers, finding.function.name) for finding in causes] == [((2,), "count"), ((5,), "_fetch_block")]
    assert all(finding.explains == (3,) for finding in causes)


def test_a_worker_in_communication_that_no_recorder_holds_is_desynchronized() -> None:
    job = all_but(4, 2)
    job.sit(2, (*made.BARRIER[:-1], "new_group (torch/distributed/distributed_c10d.py:5800)"))
    found = assert_names(verdict_on(job), "desynchronized-collective", (2,), "save", 4)
    assert found.confidence <= 0.6


def test_the_wait_of_ddp_before_forward_is_communication_and_a_layer_inside_it_is_not() -> None:
    ddp = (
        *made.BACKWARD[:3],
        "Module._call_impl (torch/nn/modules/module.py:1789)",
        "DistributedDataParallel.forward (torch/nn/parallel/distributed.py:1886)",
    )
    job = Standstill(4)
    job.mute(range(4))
    for rank in range(4):
        job.sit(rank, (*ddp, "DistributedDataParallel._pre_forward (torch/nn/parallel/distributed.py:1775)"))
    job.sit(3, (*ddp, "Linear.forward (torch/nn/modules/linear.py:125)"))
    assert only_cause(verdict_on(job)).workers == (3,)
