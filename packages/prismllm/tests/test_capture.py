"""Real scripts, captured by slices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conftest import options
from prismllm import Rehearsal
from prismllm.capture import CaptureOptions
from prismllm.errors import DivergenceError, InputError, ScriptError, SlicingError
from prismllm.graph import fingerprint, lay_out
from prismllm.kinds import capture_job
from prismllm.model import RankRecord, read_record

pytestmark = pytest.mark.jobs

HEAD = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(8):
    model(torch.ones(2, 4)).sum().backward()
"""
TAIL = """
    optimizer.step()
    optimizer.zero_grad()
"""


def script(folder, body: str, world: int = 2, before: str = "", **others) -> CaptureOptions:
    path = folder / "t.py"
    head, loop = HEAD.split("for number")
    path.write_text(head + before + "for number" + loop + "".join(f"    {line}\n" for line in body.splitlines()) + TAIL)
    chosen = {"slice_size": world, "timed": 1, "timeout_s": 20.0} | others
    return CaptureOptions((str(path),), world, folder / "c", **chosen)


def test_stages_are_kinds_and_ranks_that_did_not_run_are_stood_for(column):
    _, job = column
    assert len(job.kinds) == 2
    assert job.kind_of == [(rank // 2) % 2 for rank in range(64)]
    ran = sorted(rank for kind in job.kinds for rank in kind.ran)
    assert len(ran) < 12
    assert {0, 63} <= set(ran)  # the witness farthest away


def test_a_sliced_capture_has_the_graph_of_a_full_one(tmp_path, shop):
    """DDP on four ranks: all in one slice, where everything is really carried out, and each alone."""
    arguments = ("--layers", "2", "--batch", "2", "--width", "32", "--length", "16")
    full = capture_job(options(tmp_path / "full", 4, *arguments), everybody=True, shop=shop)
    alone = capture_job(options(tmp_path / "alone", 4, *arguments, slice_size=1), everybody=True, shop=shop)
    for job, source in ((full, "real"), (alone, "rule")):
        assert {call.source for kind in job.kinds for call in kind.step.calls} == {source}
    layout = lay_out(full.groups, 4)
    for one, other in zip(full.kinds, alone.kinds, strict=True):
        assert fingerprint(one.step, one.rank, layout) == fingerprint(other.step, other.rank, layout)
        assert one.peak_bytes == pytest.approx(other.peak_bytes, rel=1e-4)
    assert Rehearsal(full).graph.nodes_and_edges() == Rehearsal(alone).graph.nodes_and_edges()


def test_what_was_not_computed_is_recorded_for_each_call(column):
    out, job = column
    first = read_record(out / "rank0.structure.json", RankRecord)
    assert {call.source for call in first.step.calls if call.op == "all_gather"} == {"rule"}
    assert {call.source for kind in job.kinds for call in kind.step.calls} <= {"real", "rule", "recorded", "none"}


@pytest.mark.parametrize(
    ("body", "error", "said"),
    [
        ("dist.recv(torch.zeros(1)) if rank else dist.send(torch.zeros(1), 1)", SlicingError,
         r"rank 1 calls recv from any source at t.py:9"),
        ("dist.all_reduce(torch.zeros(3 + number))", DivergenceError,
         r"iteration 3, call 0: all_reduce of sum float32 \[6\] .* at t.py:9, where an earlier .* \[5\]"),
        ("if number == 3: dist.barrier()", DivergenceError, r"1 calls, an earlier iteration had 0; .* barrier"),
        ("raise ValueError('no data')", ScriptError, "t.py failed: ValueError: no data"),
        ("import time; time.sleep(60)", ScriptError, "did not finish within"),
        ("if number == 2: break", ScriptError, "ended before enough iterations"),
    ],
)  # fmt: skip
def test_a_script_that_cannot_be_sliced_is_named_with_rank_and_line(tmp_path, body, error, said, shop):
    wanted = script(tmp_path, body, timeout_s=4.0)
    with pytest.raises(error, match=said):
        capture_job(wanted, shop=shop)


def test_ranks_that_only_seem_alike_are_found_by_their_witness(tmp_path, shop):
    groups = "from torch.distributed.device_mesh import init_device_mesh\ninit_device_mesh('cpu', (4, 4))\n"
    body = "model(torch.ones(7 if rank == world - 1 else 2, 4))\ndist.all_reduce(torch.zeros(3))"
    wanted = script(tmp_path, body, world=16, before=groups, slice_size=4)
    with pytest.raises(DivergenceError, match=r"ranks 0 and 15 have the same places .* their operators differ"):
        capture_job(wanted, shop=shop)


def test_control_flow_that_reads_zeros_is_an_error_and_printing_them_is_not(tmp_path, shop):
    body = (
        "message = torch.zeros(40_000)\n"
        "dist.send(message, 1) if rank == 0 else None\n"
        "dist.recv(message, 0) if rank == 1 else None\n"
        "print(f'{(message * 2).mean().item() + 1:.3f}')\n"
    )
    capture_job(replace(script(tmp_path, body, slice_size=1), is_strict=True), everybody=True, shop=shop)
    with pytest.raises(Exception, match=r"rank 1 decides at t.py:13 by a value .*received at t.py:11"):
        capture_job(
            replace(script(tmp_path, body + "if message.sum() > 0: pass", slice_size=1), is_strict=True),
            everybody=True,
            shop=shop,
        )


def test_a_directory_with_something_else_is_left_alone(tmp_path, shop):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="holds no capture"):
        capture_job(script(tmp_path, "pass"), shop=shop)
    assert (tmp_path / "c" / "thesis.txt").exists()
