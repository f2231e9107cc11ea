"""Every collective beside gloo's, then DDP, FSDP2, tensor parallel and a pipeline. Prints "ok NAME" per part."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import trainmover
from trainmover.errors import UnsupportedError

dist.init_process_group("trainmover")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
OURS = dist.group.WORLD
GLOO = dist.new_group(backend="gloo")
torch.manual_seed(RANK)
torch.set_num_threads(1)


def say(name: str) -> None:
    dist.barrier()
    if RANK == 0:
        print("ok", name, flush=True)


def same(one: object, other: object) -> None:
    if isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    else:
        assert one == other, (one, other)


def both(function, *tensors: torch.Tensor) -> None:
    """The function once on our group, once on gloo's, with copies of the tensors; all must end alike."""
    ours, theirs = copy.deepcopy(list(tensors)), copy.deepcopy(list(tensors))
    function(OURS, *ours)
    function(GLOO, *theirs)
    for one, other in zip(ours, theirs, strict=True):
        same(one, other)


def numbers(n: int, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.randint(0, 2, (n,)).bool()
    return torch.randint(-4, 5, (n,)).to(dtype)


for n in (1, 7, 1000, 100_003):
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8):
        for name in ("SUM", "MAX", "MIN"):
            both(
                lambda g, t, name=name: dist.all_reduce(t, op=getattr(dist.ReduceOp, name), group=g), numbers(n, dtype)
            )
    both(lambda g, t: dist.all_reduce(t, op=dist.ReduceOp.PRODUCT, group=g), numbers(n, torch.float64))
    both(lambda g, t: dist.all_reduce(t, op=dist.ReduceOp.BOR, group=g), numbers(n, torch.int32))
    both(lambda g, t: dist.broadcast(t, 2, group=g), numbers(n, torch.float32))
    both(
        lambda g, t, n=n: dist.all_gather_into_tensor(t, torch.full((n,), float(RANK)), group=g),
        torch.zeros(SIZE * n),
    )
    both(lambda g, t, s: dist.reduce_scatter_tensor(t, s, group=g), torch.zeros(n), numbers(n * SIZE, torch.float32))
    both(lambda g, t, s: dist.all_to_all_single(t, s, group=g), torch.zeros(SIZE * n), numbers(n * SIZE, torch.float32))
average = torch.full((50_000,), float(RANK))
dist.all_reduce(average, op=dist.ReduceOp.AVG)
same(average, torch.full((50_000,), (SIZE - 1) / 2))
strided = torch.arange(20.0).view(4, 5).t()
both(lambda g, t: dist.all_reduce(t, group=g), strided)
odd = torch.empty(100)[::2].fill_(RANK)
dist.all_reduce(odd)
same(odd, torch.full((50,), SIZE * (SIZE - 1) / 2))
wave = torch.full((9,), complex(RANK, 1))
dist.all_reduce(wave)
same(wave, torch.full((9,), complex(SIZE * (SIZE - 1) / 2, SIZE)))
for name, tensor in (("MIN", wave), ("AVG", torch.ones(3).long()), ("BAND", average)):  # refused on each rank, at once
    try:
        dist.reduce(tensor, 0, op=getattr(dist.ReduceOp, name))
    except UnsupportedError as error:
        assert f"reduce operation {name} of {tensor.dtype}" in str(error), error
    else:
        raise AssertionError(name)
say("reductions")

lists = [torch.zeros(5) for _ in range(SIZE)]
dist.all_gather(lists, torch.full((5,), float(RANK)))
same(torch.stack(lists)[:, 0], torch.arange(float(SIZE)))
objects: list[object] = [None] * SIZE
dist.all_gather_object(objects, {"rank": "x" * RANK})
same([len(one["rank"]) for one in objects], list(range(SIZE)))
box = [RANK]
dist.broadcast_object_list(box, 1)
same(box, [1])
got = torch.zeros(3)
dist.scatter(got, [torch.full((3,), float(i)) for i in range(SIZE)] if RANK == 1 else None, src=1)
same(got, torch.full((3,), float(RANK)))
rows = [torch.zeros(3) for _ in range(SIZE)] if RANK == 2 else None
dist.gather(got, rows, dst=2)
if rows is not None:
    same(torch.stack(rows)[:, 0], torch.arange(float(SIZE)))
total = torch.full((4,), 2.0)
dist.reduce(total, 3)
same(total[0].item(), 2.0 * SIZE if RANK == 3 else 2.0)
piece = torch.zeros(2)
dist.reduce_scatter(piece, [torch.full((2,), float(i)) for i in range(SIZE)])
same(piece, torch.full((2,), float(RANK * SIZE)))
outs = [torch.zeros(2) for _ in range(SIZE)]
dist.all_to_all(outs, [torch.full((2,), float(10 * RANK + i)) for i in range(SIZE)])
same(torch.stack(outs)[:, 0], torch.tensor([float(10 * i + RANK) for i in range(SIZE)]))
uneven = torch.zeros(sum(range(1, SIZE + 1)))
dist.all_to_all_single(
    uneven, torch.full(((RANK + 1) * SIZE,), float(RANK)), list(range(1, SIZE + 1)), [RANK + 1] * SIZE
)
same(uneven, torch.cat([torch.full((i + 1,), float(i)) for i in range(SIZE)]))
work = dist.all_reduce(ones := torch.ones(1 << 16), async_op=True)
work.wait()
same(ones[-1].item(), float(SIZE))
say("others")

right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
first, second = torch.full((1 << 20,), float(RANK)), torch.full((3,), float(-RANK))
a, b = torch.zeros(1 << 20), torch.zeros(3)
for request in dist.batch_isend_irecv(
    [
        dist.P2POp(dist.isend, first, right, tag=1),
        dist.P2POp(dist.isend, second, right, tag=2),
        dist.P2POp(dist.irecv, b, left, tag=2),
        dist.P2POp(dist.irecv, a, left, tag=1),
    ]
):
    request.wait()
same((a[-1].item(), b[0].item()), (float(left), float(-left)))
try:
    dist.recv(b)
except trainmover.TrainmoverError as error:
    assert "name the source rank" in str(error)
else:
    raise AssertionError
say("sends")

with torch.profiler.profile() as seen:
    dist.all_reduce(torch.ones(3))
    if RANK < 2:
        (dist.send if RANK == 0 else dist.recv)(torch.ones(3), 1 - RANK)
names = {event.name for event in seen.events()}
wanted = {"trainmover:all_reduce"} | ({"trainmover:send" if RANK == 0 else "trainmover:recv"} if RANK < 2 else set())
assert wanted <= names, names
say("spans")


def trained(backend_group: object, wrap) -> list[float]:
    torch.manual_seed(0)
    model = wrap(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)), backend_group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(RANK)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = (model(torch.randn(8, 64)) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


ours = trained(OURS, lambda m, g: DistributedDataParallel(m, process_group=g, bucket_cap_mb=0.05))
same(
    torch.tensor(ours),
    torch.tensor(trained(GLOO, lambda m, g: DistributedDataParallel(m, process_group=g, bucket_cap_mb=0.05))),
)
say("ddp")

mesh = init_device_mesh("cpu", (SIZE,))
sharded = trained(mesh, lambda m, g: fully_shard(m, mesh=g))
same(torch.tensor(sharded), torch.tensor(ours))
say("fsdp2")

grid = init_device_mesh("cpu", (2, SIZE // 2), mesh_dim_names=("dp", "tp"))
torch.manual_seed(0)
plain = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
split = parallelize_module(copy.deepcopy(plain), grid["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
torch.manual_seed(5)
given = torch.randn(3, 16)
(expected := plain(given)).sum().backward()
(value := split(given)).sum().backward()
same(value, expected)
same(split[2].weight.grad.full_tensor(), plain[2].weight.grad)
say("tp")

torch.manual_seed(0)
layers = [nn.Linear(16, 16) for _ in range(SIZE)]
stage = PipelineStage(layers[RANK], RANK, SIZE, torch.device("cpu"))
schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=lambda out, target: ((out - target) ** 2).mean())
torch.manual_seed(7)
x, target = torch.randn(8, 16), torch.randn(8, 16)
if RANK == 0:
    schedule.step(x)
elif RANK == SIZE - 1:
    losses: list[torch.Tensor] = []
    schedule.step(target=target, losses=losses)
    value = x
    for layer in layers:
        value = layer(value)
    same(torch.stack(losses).mean(), ((value - target) ** 2).mean())
else:
    schedule.step()
say("pipeline")
dist.destroy_process_group()
