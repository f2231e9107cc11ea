from __future__ import annotations

import socket
from pathlib import Path

import pytest

import members
from test_service import ask_overview, serving

torch = pytest.importorskip("torch")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _same(a, b) -> bool:
    return a.contiguous().view(torch.uint8).numpy().tobytes() == b.contiguous().view(torch.uint8).numpy().tobytes()


def compare(rank: int, size: int, folder: str, port: int) -> list:
    """Every operation on groups of 2 to `size` members, with gloo and with c4p."""
    import torch.distributed as dist

    import c4p.torch  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    different = []
    for count in range(2, size + 1):
        gloo = dist.new_group(list(range(count)), backend="gloo")
        ours = dist.new_group(list(range(count)), backend="c4p")
        if rank >= count:
            continue
        for kind in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64):
            for elements in (1, 7, 4096, 300_001, 1 << 20):
                for name in ("SUM", "AVG", "MAX"):
                    if name == "AVG" and kind == torch.int64:
                        continue
                    torch.manual_seed(rank * 1000 + elements)
                    a = (torch.randn(elements) * 10).to(kind)
                    b = a.clone()
                    dist.all_reduce(a, getattr(dist.ReduceOp, name), group=gloo)
                    dist.all_reduce(b, getattr(dist.ReduceOp, name), group=ours)
                    if not _same(a, b):
                        different.append((count, kind, elements, name))
        one = torch.randn(count * 3000)
        pair = [torch.empty(3000), torch.empty(3000)]
        whole = [torch.empty(count * one.numel()), torch.empty(count * one.numel())]
        lists = [[torch.empty_like(one) for _ in range(count)] for _ in range(2)]
        for index, group in enumerate((gloo, ours)):
            dist.reduce_scatter_single(pair[index], one, group=group)
            dist.all_gather_single(whole[index], one, group=group)
            dist.all_gather(lists[index], one, group=group)
        root = torch.full((5, 4), float(rank)).t()  # not contiguous
        dist.broadcast(root, 1, group=ours)
        dist.barrier(group=ours)
        if not (_same(*pair) and _same(*whole) and all(map(_same, *lists)) and (root == 1).all()):
            different.append((count, "others"))
    dist.destroy_process_group()
    return different


def test_results_are_gloos_bit_for_bit_with_two_to_five_members() -> None:
    assert members.run(compare, 5, _free_port(), timeout_s=100) == [[]] * 5


def spans(rank: int, size: int, folder: str, port: int) -> list:
    """What a profiler sees of two operations."""
    import torch.distributed as dist

    import c4p.torch  # noqa: F401

    dist.init_process_group("c4p", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    with torch.profiler.profile() as seen:
        dist.all_reduce(torch.ones(3))
        dist.barrier()
    dist.destroy_process_group()
    return sorted({event.name for event in seen.events() if event.name.startswith("c4p:")})


def test_a_profiler_sees_the_operations_as_it_sees_gloos() -> None:
    assert members.run(spans, 2, _free_port(), timeout_s=60) == [["c4p:all_reduce", "c4p:barrier"]] * 2


def refusals(rank: int, size: int, folder: str, port: int) -> list:
    """Report how reductions that torch lacks fail, and the sum of an operation after them."""
    import torch.distributed as dist

    import c4p.torch  # noqa: F401

    dist.init_process_group("c4p", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    said = []
    for kind in (torch.float8_e4m3fn, torch.uint16):
        try:
            dist.all_reduce(torch.zeros(3, dtype=kind))
        except ValueError as error:
            said.append(str(error).partition(":")[0])
    one = torch.ones(3)
    dist.all_reduce(one)
    dist.destroy_process_group()
    return [*said, one.tolist()]


def test_what_torch_cannot_reduce_is_refused_and_the_group_goes_on() -> None:
    expected = ["torch has no SUM of torch.float8_e4m3fn", "torch has no SUM of torch.uint16", [2.0] * 3]
    assert members.run(refusals, 2, _free_port(), timeout_s=60) == [expected] * 2


def train(rank: int, size: int, folder: str, port: int) -> tuple:
    """Five steps of DDP, with c4p and with gloo: the parameters' bytes."""
    import torch.distributed as dist

    import c4p.torch  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group("c4p", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    gloo = dist.new_group(backend="gloo")
    weights = []
    for group in (None, gloo):
        torch.manual_seed(rank)  # DDP makes them equal
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 8))
        ddp = torch.nn.parallel.DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.02)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for step in range(5):
            torch.manual_seed(100 * step + rank)
            ddp(torch.randn(16, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        weights.append(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    objects: list = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    refused = ""
    try:
        dist.send(torch.zeros(1), (rank + 1) % size)
    except Exception as error:
        refused = str(error)
    whole = dist.get_backend(), objects[rank], "new_group" in refused
    dist.destroy_process_group()
    return weights[0] == weights[1], *whole


def test_ddp_over_c4p_trains_to_the_same_bits_as_over_gloo() -> None:
    answers = members.run(train, 3, _free_port(), timeout_s=100)
    assert answers == [(True, "c4p", {"rank": rank}, True) for rank in range(3)]


def one_leaves(rank: int, size: int, folder: str, port: int) -> str:
    import datetime

    import torch.distributed as dist

    import c4p.torch  # noqa: F401

    limit = datetime.timedelta(seconds=30)
    dist.init_process_group("c4p", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, timeout=limit)
    dist.all_reduce(torch.ones(3))
    try:
        dist.barrier() if rank == 1 else dist.all_reduce(torch.ones(5))
    except RuntimeError as error:
        return str(error)
    return "no error"


def test_a_member_that_calls_another_operation_is_told_through_torch() -> None:
    for told in members.run(one_leaves, 2, _free_port(), timeout_s=100):
        assert "same operations in the same order" in told


def two_groups(rank: int, size: int, folder: str, port: int, planner: str) -> tuple[str, str]:
    """Names at the planner of two groups of one job."""
    import os

    import torch.distributed as dist

    import c4p.torch  # noqa: F401

    os.environ |= {"C4P_JOB": "train", "C4P_PLANNER": planner}
    dist.init_process_group("c4p", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    second = dist.new_group(backend="c4p")
    dist.all_reduce(torch.ones(3), group=second)
    names = {group.c4p.job for group in (dist.group.WORLD, second)}
    dist.barrier()
    jobs = ask_overview(planner)["jobs"]
    dist.barrier()
    dist.destroy_process_group()
    return sorted(names), sorted(jobs)


def test_two_groups_of_one_job_have_two_names_at_the_planner(tmp_path: Path) -> None:
    port = _free_port()
    with serving(tmp_path / "state.sqlite", port):
        answers = members.run(two_groups, 2, _free_port(), f"http://127.0.0.1:{port}")
        assert ask_overview(f"http://127.0.0.1:{port}")["jobs"] == {}
    assert answers[0] == answers[1]
    names, jobs = answers[0]
    assert names == jobs
    assert len(names) == 2
    assert all(name.startswith("train/") for name in names)


def test_an_operation_on_no_tensors_is_done_at_once() -> None:
    import datetime

    from c4p.torch import ProcessGroupC4P

    alone = ProcessGroupC4P(None, 0, 1, datetime.timedelta(seconds=5))
    for work in (alone.allreduce_coalesced([]), alone.all_gather_single_coalesced([], [])):
        assert work.is_completed()
        assert work.get_future().value() == []


def test_variables_give_options() -> None:
    from c4p.errors import BadRequest
    from c4p.torch import options_from

    options = options_from({"C4P_SOCKETS": "8", "C4P_ADDRESS": "10.0.0.1"}, 5.0)
    assert (options.sockets, options.address, options.timeout_s) == (8, "10.0.0.1", 5.0)
    assert options_from({"C4P_JOB": "train"}, 5.0, "3").job == "train/3"
    assert options_from({"C4P_JOB": "train"}, 5.0).job == "train"
    assert options_from({}, 5.0, "3").job == ""
    with pytest.raises(BadRequest, match="C4P_SOCKETS='x'"):
        options_from({"C4P_SOCKETS": "x"}, 5.0)
