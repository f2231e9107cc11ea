"""Some ranks run for real in the time of the whole job."""

from __future__ import annotations

import numpy as np
import pytest

from made_jobs import call, group, pipeline, rank_class, script, step
from prismllm import Rehearsal
from prismllm.assistant import Message, VirtualJob
from prismllm.emulation import emulate
from prismllm.errors import DivergenceError, InputError, UnsentValueError
from prismllm.graph import Job
from prismllm.rank_classes import capture_job
from prismllm.rehearsal import read_changes
from prismllm.replay import replay
from prismllm.whatif import Hang, Slow


def play(stage: VirtualJob, ranks: list[int], own_s: dict[int, float]) -> dict[int, float]:
    """What sandbox ranks would tell that do what they did when captured; what they waited in one iteration."""
    waited = dict.fromkeys(ranks, 0.0)
    todo = {}
    for rank in ranks:
        what = stage.graph.job.classes[stage.graph.job.class_of[rank]].step
        said = []
        for at, event in enumerate(what.events):
            own = own_s.get(rank, 1.0) * what.segments_ns[at] / 1e9
            one = what.calls[event if event >= 0 else -1 - event]
            what_is = "launch" if event >= 0 else "wait"
            place = event if event >= 0 else -1 - event
            said.append(Message(rank, what_is, place, own, f"{one.op} {one.signature} at x.py:1"))
        said.append(Message(rank, "step", 0, own_s.get(rank, 1.0) * what.segments_ns[-1] / 1e9))
        todo[rank] = said
    blocked: set[int] = set()
    while any(todo.values()):
        moved = False
        for rank in ranks:
            while todo[rank] and rank not in blocked:
                said = todo[rank].pop(0)
                if said.what == "wait":
                    blocked.add(rank)
                moved = True
                for answer in stage.tell(said):
                    waited[answer[0]] += answer[1]
                    if np.isfinite(answer[1]):
                        blocked.discard(answer[0])
        if not moved:
            break
    return waited


@pytest.mark.parametrize("ranks", [[0], [5, 6], [0, 3, 7, 11]])
@pytest.mark.parametrize("changes", [[], [Slow(2, 4.0)]])
def test_an_emulation_takes_as_long_as_the_replay_whoever_runs(ranks, changes):
    rehearsal = Rehearsal(pipeline(4, 3))
    stage = VirtualJob(rehearsal.graph, rehearsal.costs, ranks, changes)
    for _ in range(3):
        play(stage, ranks, {})
    expected = rehearsal.predict(*changes).seconds
    assert stage.seconds[-1] == pytest.approx(expected, rel=1e-9)


def test_a_sandbox_rank_that_is_slow_slows_the_virtual_ones():
    rehearsal = Rehearsal(pipeline(4, 3))
    stage = VirtualJob(rehearsal.graph, rehearsal.costs, [5])
    for _ in range(3):
        play(stage, [5], {5: 3.0})
    assert stage.seconds[-1] == pytest.approx(rehearsal.predict("slow rank=5 by=3").seconds, rel=1e-9)


def test_whoever_needs_a_virtual_rank_that_hangs_waits_for_ever():
    rehearsal = Rehearsal(pipeline(4, 3))
    stage = VirtualJob(rehearsal.graph, rehearsal.costs, [5, 6], [Hang(4, 0)])  # 4 never sends to 5
    waited = play(stage, [5, 6], {})
    assert waited == {5: float("inf"), 6: float("inf")}
    assert stage.sandboxes[5].stuck_at == 0


def test_a_sandbox_rank_that_makes_another_call_than_captured_is_named():
    what = step(1, call("all_reduce", 0), 0, ("wait", 0), 0)
    rehearsal = Rehearsal(Job(2, [group(0, 1)], [rank_class(0, what)], [0, 0], 8, []))
    stage = VirtualJob(rehearsal.graph, rehearsal.costs, [1])
    with pytest.raises(DivergenceError, match=r"rank 1 makes broadcast x at u.py:4 as call 0 .* all_reduce .* t.py:1"):
        stage.tell(Message(1, "launch", 0, 0.001, "broadcast x at u.py:4"))
    answers = stage.tell(Message(1, "launch", 0, 0.001, "all_reduce float32 [250] at t.py:1"))
    assert answers == []


SENT = """message = torch.zeros(40_000)
dist.send(message, 1) if rank == 0 else None
dist.recv(message, 0) if rank == 1 else None
"""


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("if message.sum() > 0: pass", r"rank 1 decides at t.py:12 by a value .*received at t.py:11"),
        (
            "lowest = message.numpy().min()",
            r"rank 1 copies at t.py:12, to where nobody can follow it, a value .*t.py:11",
        ),
        ("import math\nassert not math.isnan(message.sum().item())", r"rank 1 decides at t.py:13 by a value .*t.py:11"),
        ("message.copy_(torch.ones(40_000))\nif message.sum() > 0: pass", ""),
        ("print(message.mean().item())", ""),
    ],
    ids=["if", "numpy", "isnan", "written over", "shown"],
)
def test_control_flow_that_reads_zeros_in_an_emulation_is_an_error_unless_relaxed(tmp_path, body, said):
    """The message is too large to be recorded, so rank 1 gets zeros; rank 0 is played."""
    wanted = script(tmp_path, SENT + body, slice_size=1)
    rehearsal = Rehearsal(capture_job(wanted, every_rank=True))
    if said:
        with pytest.raises(UnsentValueError, match=said):
            emulate(rehearsal, wanted.out, [1], iterations=1, timeout_s=20.0)
    result = emulate(rehearsal, wanted.out, [1], iterations=1, timeout_s=20.0, is_strict=not said)
    assert result.sources() == {"zeros": 1}


@pytest.mark.jobs
@pytest.mark.parametrize("slow", [12, 37], ids=["a played rank is slow", "a running rank is slow"])
def test_two_ranks_of_64_run_in_the_time_of_the_whole_job(column, rehearsal, slow):
    """Each iteration as long as the replay of all 64 says; on the real clock, `benchmarks/emulation.py` compares it."""
    out, job = column
    change = [f"slow rank={slow} by=2"]
    result = emulate(rehearsal, out, [37, 39], change, iterations=3, timeout_s=60.0)
    _, seconds = replay(rehearsal.graph, rehearsal.costs, read_changes(change))
    assert result.seconds == pytest.approx(seconds, rel=1e-6)
    assert result.seconds[-1] == pytest.approx(rehearsal.predict(*change).seconds, rel=1e-6)
    assert result.seconds[-1] > 1.2 * rehearsal.predict().seconds
    for rank, record in result.records.items():
        assert record.peak_bytes == pytest.approx(job.classes[job.class_of[rank]].peak_bytes, rel=0.02)
    assert set(result.sources()) <= {"rule", "real", "recorded", "none"}


@pytest.mark.jobs
def test_a_running_rank_that_needs_one_that_hangs_is_stuck_and_no_other_rank_can_run(column, rehearsal):
    out, _ = column
    stuck = emulate(rehearsal, out, [37], ["hang rank=36 op=4"], iterations=2, timeout_s=60.0)
    assert set(stuck.stuck) == {37}
    with pytest.raises(InputError, match="name ranks between 0 and 63"):
        emulate(rehearsal, out, [64])
