"""Real scripts, captured by slices."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace as changed
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from conftest import CLOCKED, GPT, options
from made_jobs import script
from prismllm import Rehearsal
from prismllm.cli import main
from prismllm.costs import Costs, Link
from prismllm.errors import DivergenceError, InputError, ScriptError, SlicingError
from prismllm.graph import Graph, fingerprint, lay_out
from prismllm.model import RankRecord, read_record
from prismllm.rank_classes import capture_job

pytestmark = pytest.mark.jobs


def test_stages_are_classes_and_ranks_that_did_not_run_are_stood_for(column):
    _, job = column
    assert len(job.classes) == 2
    assert job.class_of == [(rank // 2) % 2 for rank in range(64)]
    ran = sorted(rank for rank_class in job.classes for rank in rank_class.ran)
    assert len(ran) < 16
    assert {0, 63} <= set(ran)  # the witness farthest away


@pytest.mark.parametrize(
    ("world", "layout", "sources"),
    [
        (4, (), {"rule"}),
        (4, ("--data", "fsdp"), {"rule"}),
        (4, ("--pp", "2", "--tp", "2"), {"rule", "real"}),
        (8, ("--pp", "2", "--tp", "2", "--data", "mean"), {"rule", "real"}),
    ],
    ids=["DDP", "FSDP2", "TP x PP", "DP x TP x PP"],
)
def test_a_sliced_capture_has_the_graph_of_a_full_one(tmp_path, world, layout, sources):
    """All in one slice, where everything is really carried out, and each alone; stages need their pipeline's others."""
    arguments = ("--layers", "2", "--batch", "2", "--microbatches", "2", "--width", "32", "--length", "16", *layout)
    clocked = {"script": (CLOCKED, GPT)}
    full, alone = (
        capture_job(options(tmp_path / f"{size}", world, *arguments, slice_size=size, **clocked), every_rank=True)
        for size in (world, 1)
    )  # fmt: skip
    for job, expected in ((full, {"real"}), (alone, sources)):
        assert {call.source for rank_class in job.classes for call in rank_class.step.calls} == expected
    groups = lay_out(full.groups, world)
    assert full.class_of == alone.class_of
    for one, other in zip(full.classes, alone.classes, strict=True):
        assert fingerprint(one.step, one.rank, groups) == fingerprint(other.step, other.rank, groups)
        assert one.peak_bytes == pytest.approx(other.peak_bytes, rel=1e-4)
    assert nodes_of(Rehearsal(full).graph) == nodes_of(Rehearsal(alone).graph)


def nodes_of(graph: Graph) -> list[object]:
    """All of a graph but for times and for where results came from."""
    arrays = (graph.members, graph.before, graph.last, graph.call_of, graph.row_of, graph.pair)
    blocks = [
        (block.rank_class, block.ranks.tolist(), [operations.tolist() for operations in block.operations])
        for block in graph.blocks
    ]
    steps = [([replace(call, source="") for call in one.step.calls], one.step.events, one.step.work)
             for one in graph.job.classes]  # fmt: skip
    return [blocks, [one.tolist() for one in arrays], graph.calls, graph.queues, steps, graph.nodes_and_edges()]


def test_another_schedule_or_layout_is_another_capture_and_predict_compares_them(tmp_path):
    """Both schedules fill the same bubble; GPipe keeps the activations of all micro-batches, 1F1B of two.

    Times are exact, but for the messages; `benchmarks/emulation.py` takes them on the real clock.
    """
    arguments = ("--layers", "2", "--batch", "4", "--microbatches", "8", "--width", "32", "--length", "32",
                 "--pace", "0.004")  # fmt: skip
    layouts = {"1f1b": ("--pp", "2"), "gpipe": ("--pp", "2", "--schedule", "gpipe"), "ddp": ("--data", "ddp")}
    jobs = {name: capture_job(options(tmp_path / name, 2, *arguments, *layout, script=(CLOCKED, GPT)))
            for name, layout in layouts.items()}  # fmt: skip
    stages = {name: [[call.op for call in jobs[name].classes[one].step.calls] for one in jobs[name].class_of]
              for name in ("1f1b", "gpipe")}  # fmt: skip
    assert stages["gpipe"][0] == ["send"] * 8 + ["recv"] * 8
    assert stages["1f1b"][0] != stages["gpipe"][0]
    assert sorted(stages["1f1b"][0]) == sorted(stages["gpipe"][0])
    seconds = {name: Rehearsal(job).predict().seconds for name, job in jobs.items()}
    least_s = 9 * 3 * 0.004  # eight micro-batches and the bubble of one, forward and twice as long backward
    for name in ("1f1b", "gpipe"):
        assert least_s < seconds[name] < 2 * least_s
        assert seconds[name] == pytest.approx(least_s + 0.004, rel=0.002)  # one more pace after the optimizer's step
    assert seconds["ddp"] == pytest.approx(7 * 0.004, rel=0.002)
    assert Rehearsal(jobs["gpipe"]).most_bytes > 1.2 * Rehearsal(jobs["1f1b"]).most_bytes
    said = CliRunner().invoke(main, ["predict", str(tmp_path / "1f1b"), "--beside", str(tmp_path / "gpipe"), "--beside",
                                     str(tmp_path / "ddp"), "--json", str(tmp_path / "all.json")]).output  # fmt: skip
    told = json.loads((tmp_path / "all.json").read_text())
    assert told["predictions"][str(tmp_path / "ddp")]["seconds"] == pytest.approx(seconds["ddp"])
    change = seconds["gpipe"] / seconds["1f1b"] - 1
    assert f"{change:+.1%} of the time" in said


def test_a_ranks_own_work_is_timed_between_its_calls_and_a_sleep_counts(tmp_path):
    """On the real clock; no load can make a sleep shorter, and the clock stands while no core is free."""
    body = "import time\ntime.sleep(0.03)\ndist.barrier()\ntime.sleep(0.06)"
    job = capture_job(script(tmp_path, body, timed=2))
    samples = [sample for rank_class in job.classes for sample in rank_class.samples_ns]
    assert len(samples) >= 2
    for before, *_, after in samples:
        assert before >= 30e6
        assert after >= 60e6


def test_what_was_not_computed_is_recorded_for_each_call(column):
    out, job = column
    first = read_record(out / "rank0.structure.json", RankRecord)
    assert {call.source for call in first.step.calls if call.op == "all_gather"} == {"rule"}
    assert {call.source for rank_class in job.classes for call in rank_class.step.calls} <= {
        "real",
        "rule",
        "recorded",
        "none",
    }


LATE = """late = [] if number == 0 else late
if late: late.pop().wait()
late += [dist.all_reduce(model.bias.data, async_op=True)]"""


@pytest.mark.parametrize(
    ("body", "error", "said"),
    [
        (LATE, ScriptError,
         r"rank \d waits at t.py:10 in iteration 1 for a call of iteration 0: all_reduce of sum .* at t.py:11\. "),
        ("dist.recv(torch.zeros(1)) if rank else dist.send(torch.zeros(1), 1)", SlicingError,
         r"rank 1 calls recv from any source at t.py:9"),
        ("dist.all_reduce(torch.zeros(3 + number))", DivergenceError,
         r"iteration 3, call 0: all_reduce of sum float32 \[6\] .* at t.py:9, where an earlier .* \[5\]"),
        ("if number == 3: dist.barrier()", DivergenceError, r"1 calls, an earlier iteration had 0; .* barrier"),
        ("raise ValueError('no data')", ScriptError, r"rank \d: t.py failed: ValueError: no data \(at t.py:9\)"),
        ("import time; time.sleep(60)", ScriptError, "did not finish within"),
        ("if number == 2: break", ScriptError, "ended before enough iterations"),
    ],
)  # fmt: skip
def test_a_script_that_cannot_be_sliced_is_named_with_rank_and_line(tmp_path, body, error, said):
    wanted = script(tmp_path, body, timeout_s=4.0)
    with pytest.raises(error, match=said):
        capture_job(wanted)


def test_ranks_that_only_seem_alike_are_found_by_their_witness(tmp_path):
    groups = "from torch.distributed.device_mesh import init_device_mesh\ninit_device_mesh('cpu', (4, 4))\n"
    body = "model(torch.ones(7 if rank == world - 1 else 2, 4))\ndist.all_reduce(torch.zeros(3))"
    wanted = script(tmp_path, body, world=16, before=groups, slice_size=4)
    with pytest.raises(DivergenceError, match=r"ranks 0 and 15 have the same places .* their operators differ"):
        capture_job(wanted)


def sleepy(folder, slow, **others):
    """16 ranks that work 20 ms, some of them 120 ms; on a clock that only sleeping moves."""
    body = f"import time\ntime.sleep(0.02 + 0.1 * (rank in {[*slow]}))\ndist.all_reduce(model.bias.data)"
    plain = script(folder, body, world=16, **others)
    return changed(plain, script=(CLOCKED, *plain.script))


@pytest.mark.parametrize("slice_size", [4, 16], ids=["some ranks run", "all ranks run"])
def test_a_rank_that_only_works_longer_is_a_class_of_its_own(tmp_path, slice_size):
    """Its calls and operators are those of all others, so only a clock can tell it apart."""
    job = capture_job(sleepy(tmp_path, (5,), slice_size=slice_size))
    prediction = Rehearsal(job).predict()
    assert prediction.seconds > 0.12
    assert [rank for rank in range(16) if job.class_of[rank] != job.class_of[0]] == [5]
    assert (prediction.risk.timed, prediction.risk.untimed, prediction.risk.unlike) == (16, 0, (5,))
    assert "all 16 ranks were timed" in str(prediction.risk)


def test_ranks_that_were_not_timed_are_a_stated_risk(tmp_path):
    wanted = sleepy(tmp_path, (5,), slice_size=4, check_s=0.0)
    risk = Rehearsal(capture_job(wanted)).predict().risk
    assert (risk.timed, risk.untimed, risk.missed) == (3, 13, 13 / 16)
    said = CliRunner().invoke(main, ["predict", str(tmp_path / "c")]).output
    assert "risk: 13 of 16 ranks were not timed; one that works longer is missed with a chance of 81 %" in said
    job = capture_job(sleepy(tmp_path, range(1, 16, 2), slice_size=4, check_s=0.0, seed=1))
    assert job.unlike
    assert "of 3 timed ranks work longer or shorter than their class" in str(Rehearsal(job).predict().risk)


EXPERTS = """
class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, received, sent):
        ctx.received, ctx.sent = received, sent
        out = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), received, sent)
        return out
    @staticmethod
    def backward(ctx, gradient):
        out = gradient.new_empty(sum(ctx.sent), gradient.shape[1])
        dist.all_to_all_single(out, gradient.contiguous(), ctx.sent, ctx.received)
        return out, None, None
torch.manual_seed(rank)
popular = torch.linspace(2, 0, world)
"""
ROUTED = """chosen = (torch.randn(64, world) + popular).argmax(1).sort().values
sent = torch.bincount(chosen, minlength=world)
received = torch.empty_like(sent)
dist.all_to_all_single(received, sent)
rows = Exchange.apply(torch.randn(64, 4, requires_grad=True), received.tolist(), sent.tolist())
Exchange.apply(model(rows), sent.tolist(), received.tolist()).sum().backward()"""


@pytest.mark.parametrize("slice_size", [1, 4], ids=["alone", "together"])
def test_a_mixture_of_experts_is_captured_with_the_sizes_that_were_seen(tmp_path, slice_size):
    """Each rank sends 64 rows to the experts that it chooses; the first expert is the most popular one."""
    wanted = script(tmp_path, ROUTED, world=4, before=EXPERTS, slice_size=slice_size, timed=3)
    job = capture_job(wanted, every_rank=True)
    for rank_class in job.classes:
        uneven = [call for call in rank_class.step.calls if call.is_uneven]
        assert [call.op for call in uneven] == ["all_to_all"] * 4
        assert len(rank_class.sizes) == len(rank_class.samples_ns) == 3 * len(rank_class.timed)
        assert all(len(sizes) == 4 for sizes in rank_class.sizes)
    seen = [size for rank_class in job.classes for sizes in rank_class.sizes for size in sizes]
    assert min(seen) == 64 * 16  # a rank sends 64 rows of 16 bytes
    assert max(seen) > 1.5 * min(seen)  # the popular expert receives more
    slow, fast = (Costs(host=Link(0, speed)) for speed in (1e5, 1e6))
    seconds = [Rehearsal(job, costs).predict().seconds for costs in (slow, fast)]
    assert 4 * 3 / 4 * min(seen) / 1e5 * 0.9 < seconds[0] - seconds[1] < 4 * 3 / 4 * max(seen) / 1e5


def test_a_directory_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="holds no capture"):
        capture_job(script(tmp_path, "pass"))
    assert (tmp_path / "c" / "thesis.txt").exists()


def test_ranks_end_with_a_command_that_is_killed(tmp_path):
    """The script hangs, so no rank would end by itself; the server ends with its last rank."""
    body = "import os, time\nopen(f'{rank}.pid', 'w').write(f'{os.getpid()} {os.getppid()}')\ntime.sleep(600)"
    path = script(tmp_path, body).script[0]
    call = "from prismllm.cli import main; main()"
    argv = [sys.executable, "-c", call, "capture", "--world", "2", "--out", "c", "--timeout", "300"]
    command = subprocess.Popen([*argv, "--", path], cwd=tmp_path)
    files = [tmp_path / f"{rank}.pid" for rank in range(2)]
    try:
        assert within(60, lambda: all(file.exists() and " " in file.read_text() for file in files))
    finally:
        command.kill()
        command.wait()
    pids = {int(pid) for file in files for pid in file.read_text().split()}
    assert len(pids) == 3
    try:
        assert within(20, lambda: not any(runs(pid) for pid in pids))
    finally:
        for pid in filter(runs, pids):
            os.kill(pid, signal.SIGKILL)


def within(seconds: float, condition) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def runs(pid: int) -> bool:
    """Return True if the process is there and no zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
