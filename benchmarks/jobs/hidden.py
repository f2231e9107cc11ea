# ruff: noqa: D101, D102
"""A paced training in which one rank gets slow on the way; which rank, and how, is drawn (`benchmarks/hidden_rank.py`).

All that it is told is a number, DRAW: every rank draws the same plan from it. All ranks run the same functions; those
of the rank with the fault take longer from some iteration on (ONSET, if it is set, not the one drawn). Where an
accelerator would compute, an operator waits (`board::attend` and others are a sleep in C), so that eight ranks need
about one core. Rank 0 prints lines of JSON with the mean iteration before and after; it ends the job LONGEST seconds
after its first iteration.
"""

from __future__ import annotations

import gc
import io
import json
import logging
import multiprocessing
import os
import random
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

#: Kinds of fault; `hidden_rank.TRUE` says which causes are true of each.
KINDS = (
    "loader", "loader-process", "decoding", "storage-read", "compute", "uneven-work", "python", "backward-hook",
    "collections", "checkpoint", "logging", "contention", "copies",
)  # fmt: skip
#: Kinds whose loader is in the training's own process, and in one of its own.
INSIDE, OUTSIDE = ("loader", "decoding"), ("loader-process",)
BATCH, LENGTH, WIDTH, VOCABULARY, BLOCKS = 8, 16, 48, 256, 2
#: Shares of the waiting: forward, backward, optimizer.
FORWARD, BACKWARD, OPTIMIZER = 0.3, 0.6, 0.1
#: About what an iteration takes beside its waiting, s.
BESIDE_S = 0.012
#: State is saved once in so many iterations, and cycles are collected.
SAVED_EVERY, COLLECTED_EVERY = 4, 1
#: Iterations of the job's start, and of the fault's, that no mean holds.
SKIPPED = 20
PRINTED_EVERY = 25
#: A core is shared with no more.
MOST_STRANGERS = 24
#: Ranks look so often whether the job ends.
LOOKED_EVERY = 10


@dataclass(frozen=True)
class Plan:
    """What is drawn.

    Attributes:
        layout: "ddp" or "fsdp2".
        ranks: World size.
        rank: Who has the fault.
        fault: One of `KINDS`.
        slowdown: Mean iteration with it, as a multiple of that before.
        iteration_s: Healthy iteration, about.
        onset: First iteration with the fault.
        loader_processes: Of each rank.
    """

    layout: str
    ranks: int
    rank: int
    fault: str
    slowdown: float
    iteration_s: float
    onset: int
    loader_processes: int


def draw(seed: int) -> Plan:
    """The plan of one run."""
    chance = random.Random(f"hidden rank {seed}")
    layout, ranks = chance.choice(("ddp", "fsdp2")), chance.randint(4, 8)
    rank, fault = chance.randrange(ranks), chance.choice(KINDS)
    slowdown, iteration_s = round(chance.uniform(1.3, 3.0), 2), round(chance.uniform(0.06, 0.12), 4)
    onset, loaders = round(chance.uniform(20.0, 25.0) / iteration_s), chance.randint(0, 1)
    loaders = 0 if fault in INSIDE else 1 if fault in OUTSIDE else loaders
    return Plan(layout, ranks, rank, fault, slowdown, iteration_s, onset, loaders)


BOARD = torch.library.Library("board", "DEF")
for _name in ("attend", "attend_backward", "mix", "mix_backward", "update"):
    BOARD.define(f"{_name}(float seconds) -> ()")
    BOARD.impl(_name, time.sleep, "CompositeExplicitAutograd")


class Board:
    """How long the stand-in for an accelerator takes."""

    def __init__(self, waiting_s: float) -> None:
        self.waiting_s, self.factor = waiting_s, 1.0

    def forward_s(self, rows: int) -> float:
        """Of each of a block's two operators, on so many rows."""
        return self.waiting_s * FORWARD / (2 * BLOCKS) * self.factor * rows / BATCH

    def optimizer_s(self) -> float:
        return self.waiting_s * OPTIMIZER * self.factor


class Kernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, ahead: Any, back: Any, seconds: float) -> Tensor:
        ctx.back, ctx.seconds = back, seconds * BACKWARD / FORWARD
        ahead(seconds)
        return states.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        ctx.back(ctx.seconds)
        return gradient, None, None, None


class Descent(torch.optim.SGD):
    """Updates on the stand-in, too: a slower one takes longer over them, more data does not."""

    def __init__(self, model: nn.Module, board: Board) -> None:
        super().__init__(model.parameters(), lr=0.05)
        self.board = board

    def step(self, closure: Any = None) -> Any:
        torch.ops.board.update(self.board.optimizer_s())
        return super().step(closure)


class Block(nn.Module):
    def __init__(self, board: Board) -> None:
        super().__init__()
        self.board = board
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.up, self.down = nn.Linear(WIDTH, 96, bias=False), nn.Linear(96, WIDTH, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        seconds = self.board.forward_s(states.shape[0])
        hidden = self.up(self.norm(states))
        hidden = Kernel.apply(hidden, torch.ops.board.attend, torch.ops.board.attend_backward, seconds)
        hidden = self.down(nn.functional.gelu(hidden))
        return states + Kernel.apply(hidden, torch.ops.board.mix, torch.ops.board.mix_backward, seconds)


class Rescaler:
    """Keeps the gradient of the last states within bounds."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def rescale(self, gradient: Tensor) -> Tensor:
        keep_busy(self.seconds)
        return gradient * min(1.0, 10.0 / (float(gradient.abs().max()) + 1e-6))


class Writer(nn.Module):
    def __init__(self, board: Board, rescaler: Rescaler) -> None:
        super().__init__()
        self.rescaler = rescaler
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(board) for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.embedding(tokens)
        for block in self.blocks:
            states = block(states)
        if states.requires_grad:
            states.register_hook(self.rescaler.rescale)
        return self.head(states)


def keep_busy(seconds: float) -> int:
    """Count words in Python for so long."""
    if not seconds:
        return 0
    until, words, line = time.perf_counter() + seconds, 0, "so many words as there are in a line of text"
    while time.perf_counter() < until:
        words += len(line.split())
    return words


def quickest(work: Callable[[], object]) -> float:
    """Seconds that it takes, the least of four times: others may have the core in the others."""
    found = []
    for _ in range(4):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


#: A server of blocks, one for each rank: a request says which block, and how long the server's disk takes.
SERVER = """
import socket, struct, sys, time
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
caller = listener.accept()[0]
while request := caller.recv(16, socket.MSG_WAITALL):
    time.sleep(struct.unpack("<dq", request)[0])
    caller.sendall(bytes(4096))
"""


class Archive:
    """Blocks of a server, read over a socket."""

    def __init__(self) -> None:
        self.server = subprocess.Popen([sys.executable, "-I", "-S", "-c", SERVER], stdout=subprocess.PIPE)
        assert self.server.stdout is not None
        self.port, self.line = int(self.server.stdout.readline()), None

    def fetch(self, index: int, seconds: float) -> bytes:
        if self.line is None:
            self.line = socket.create_connection(("127.0.0.1", self.port))
        self.line.sendall(struct.pack("<dq", seconds, index))
        return self.line.recv(4096, socket.MSG_WAITALL)


class Samples(Dataset):
    """Lines of text; reading one takes `delay` seconds more."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self.first, self.fault = rank * 1_000_003, plan.fault
        self.delay = multiprocessing.RawValue("d", 0.0)
        self.archive = Archive() if plan.fault == "storage-read" else None

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Tensor:
        return self.read_sample(self.first + index)

    def read_sample(self, index: int) -> Tensor:
        seconds = self.delay.value
        if self.archive is not None:
            self.archive.fetch(index, seconds)
        elif self.fault == "decoding":
            self.decode(seconds)
        elif seconds:
            time.sleep(seconds)
        return torch.arange(index, index + LENGTH + 1) * 31 % VOCABULARY

    def decode(self, seconds: float) -> None:
        keep_busy(seconds)


class Share(io.RawIOBase):
    """A file on storage that takes so many seconds for each byte."""

    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__()
        self.file, self.seconds, self.bytes = path.open("wb"), seconds, 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        count = self.file.write(data)
        self.bytes += count
        if self.seconds:
            time.sleep(self.seconds * count)
        return count

    def close(self) -> None:
        self.file.close()
        super().close()


class Keeper:
    """Saves a rank's own parameters."""

    def __init__(self, path: Path) -> None:
        self.path, self.seconds, self.bytes = path, 0.0, 1

    def save_state(self, model: nn.Module) -> None:
        state = {name: getattr(one, "_local_tensor", one).detach() for name, one in model.named_parameters()}
        with Share(self.path, self.seconds / self.bytes) as file:
            torch.save(state, file)
        self.bytes = file.bytes


class LineHandler(logging.Handler):
    """Sends lines to a service, which takes a while to answer."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.file, self.seconds = path.open("w"), 0.0

    def emit(self, record: logging.LogRecord) -> None:
        self.file.write(self.format(record) + "\n")
        if self.seconds:
            time.sleep(self.seconds)


class Census:
    """Words of each batch."""

    def __init__(self) -> None:
        self.seconds, self.words = 0.0, 0

    def count_words(self, tokens: Tensor) -> None:
        self.words += tokens.numel() + keep_busy(self.seconds)


class Cache:
    """Remembers samples as objects, and collects cycles now and then."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        gc.collect()
        gc.freeze()

    def remember(self, count: int) -> None:
        self.kept += [{"sample": [number], "next": {}} for number in range(count)]

    def tidy(self) -> None:
        gc.collect()

    def grow_until(self, seconds: float) -> None:
        """Until a collection takes so long."""
        self.remember(40_000)
        for _ in range(3):
            wanted = int(len(self.kept) * seconds / quickest(gc.collect))
            self.remember(max(0, wanted - len(self.kept)))
            del self.kept[wanted:]


class Averages:
    """Copies of the weights of the last steps."""

    def __init__(self) -> None:
        self.weights, self.copies = torch.randn(1 << 19), 1
        self.kept: list[Tensor] = []

    def keep_weights(self) -> None:
        self.kept = [self.weights.clone() for _ in range(self.copies)]

    def copy_for(self, seconds: float) -> None:
        """So many copies as take so long."""
        self.copies = 20
        self.copies = max(2, round(20 * seconds / quickest(self.keep_weights)))


class Training:
    """One rank's."""

    def __init__(self, plan: Plan, place: Path) -> None:
        self.plan, self.rank, self.laps = plan, dist.get_rank(), [0.0]
        self.board, self.rescaler = Board(plan.iteration_s - BESIDE_S), Rescaler()
        torch.manual_seed(0)
        model = Writer(self.board, self.rescaler)
        self.model = shard(model) if plan.layout == "fsdp2" else DistributedDataParallel(model)
        self.optimizer = Descent(self.model, self.board)
        self.samples = Samples(plan, self.rank)
        self.loader = DataLoader(self.samples, batch_size=BATCH, num_workers=plan.loader_processes)
        self.keeper, self.census = Keeper(place / f"state-{self.rank}.pt"), Census()
        self.handler = LineHandler(place / f"log-{self.rank}.txt")
        self.log = logging.getLogger("training")
        self.log.setLevel(logging.INFO)
        self.log.propagate = False
        self.log.addHandler(self.handler)
        self.averages, self.rows, self.strangers = Averages(), BATCH, None
        self.cache = Cache()

    def step(self, number: int, tokens: Tensor) -> None:
        if self.rows != BATCH:
            tokens = tokens[torch.arange(self.rows) % BATCH]
        self.optimizer.zero_grad()
        scores = self.model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        self.log.info("step %d loss %.3f", number, float(loss.detach()))
        self.census.count_words(tokens)
        self.averages.keep_weights()
        if number % SAVED_EVERY == 0:
            self.keeper.save_state(self.model)
        if number % COLLECTED_EVERY == 0:
            self.cache.tidy()

    def begin(self) -> None:
        """The fault, as large as drawn, against the iterations until now."""
        usual = statistics.median(self.laps[SKIPPED:])
        more, fault = (self.plan.slowdown - 1) * usual, self.plan.fault
        if fault in ("loader", "decoding", "storage-read", "loader-process"):
            beside = self.plan.loader_processes
            self.samples.delay.value = (more + usual if beside else more) / BATCH
        elif fault == "compute":
            self.board.factor = 1 + more / self.board.waiting_s
        elif fault == "uneven-work":
            self.rows = round(BATCH * (1 + more / (self.board.waiting_s * (FORWARD + BACKWARD))))
        elif fault == "python":
            self.census.seconds = more
        elif fault == "backward-hook":
            self.rescaler.seconds = more
        elif fault == "collections":
            self.cache.grow_until(more * COLLECTED_EVERY)
        elif fault == "checkpoint":
            self.keeper.seconds = more * SAVED_EVERY
        elif fault == "logging":
            self.handler.seconds = more
        elif fault == "contention":
            self.share_core(more / (usual * self.cpu()))
        elif fault == "copies":
            self.averages.copy_for(more)

    def share_core(self, turns: float) -> None:
        """One core only, on which programs of somebody else compute: so many turns of theirs for each of ours."""
        sys.path.append(str(Path(__file__).parents[1]))
        from injected.hosts import Strangers, set_affinity

        core = max(os.sched_getaffinity(0))
        set_affinity({core})
        self.strangers = Strangers()
        for _ in range(min(MOST_STRANGERS, max(2, round(turns)))):
            self.strangers.start(core)

    def report(self) -> None:
        onset, laps = self.plan.onset, [1e3 * one for one in self.laps]
        after = laps[onset + SKIPPED :]
        line = {
            "job": "hidden", "iters": len(laps), "mean_ms_before": round(statistics.fmean(laps[SKIPPED:onset]), 2),
            "mean_ms_after": round(statistics.fmean(after), 2) if after else None,
            "cpu": round(self.cpu(), 3),
        }  # fmt: skip
        print(json.dumps(line), flush=True)

    def cpu(self) -> float:
        """Cores that this process has used since its first iteration."""
        return (time.process_time() - self.cpu_at) / (time.perf_counter() - self.began)

    def run(self, longest_s: float) -> None:
        store = dist.distributed_c10d._get_default_store()
        last, batches = None, iter(self.loader)
        self.began, self.cpu_at = time.perf_counter(), time.process_time()
        self.laps, mark = [], self.began
        number = 0
        while last is None or number < last:
            if number == self.plan.onset and self.rank == self.plan.rank:
                self.begin()
            self.step(number, next(batches))
            now = time.perf_counter()
            self.laps.append(now - mark)
            mark, number = now, number + 1
            if number % LOOKED_EVERY == 0 and last is None:
                last = self.end_of(store, number, now - self.began > longest_s)
            if self.rank == 0 and number > self.plan.onset + SKIPPED and number % PRINTED_EVERY == 0:
                self.report()

    def end_of(self, store: Any, number: int, is_late: bool) -> int | None:
        """The iteration before which all ranks end, once rank 0 has said so."""
        if self.rank == 0 and is_late:
            store.set("last", str(number + 2 * LOOKED_EVERY))
        return int(store.get("last")) if store.check(["last"]) else None

    def close(self) -> None:
        if self.strangers is not None:
            self.strangers.end()
        if self.samples.archive is not None:
            self.samples.archive.server.kill()


def shard(model: Writer) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    plan = draw(int(os.environ["DRAW"]))
    plan = replace(plan, onset=int(os.environ.get("ONSET", plan.onset)))
    with tempfile.TemporaryDirectory() as name:
        training = Training(plan, Path(name))
        try:
            training.run(float(os.environ.get("LONGEST", "92")))
        finally:
            training.close()
        if training.rank == 0:
            training.report()
        training.loader = None
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
