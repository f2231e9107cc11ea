"""More trainings on one GPU, healthy until iteration ONSET, then with the fault named by `--fault`.

One worker over NCCL:

speech-none    CTC on spectrograms, lengths that vary and an evaluation now and then
auroc          ResNet under Lightning; the area under the curve of each class is computed at each step
regroup        BERT in a loop of its own; each weight gets a learning rate, and a group, of its own
anomaly        a U-Net in a loop of its own; autograd's search for NaN is switched on after a spike of the loss
sampling       graph attention of PyG; a thread samples neighbors by weight, node by node, instead of uniformly
gc             Q-learning from a replay buffer of objects; garbage is collected at each step
adapter        Llama with low-rank adapters, which take the norm of the whole weight in each forward (DoRA)

Two workers that share the GPU, over gloo:

pair-none      T5, lengths that vary and an evaluation now and then
rouge          T5; worker 0 scores what is predicted (ROUGE-L, in Python)
scalars        a network of many tasks; each number of the log is averaged over workers by itself

Reads ITERS, ONSET, LONGEST_S, SEED and SMALL (1: sizes for a CPU). Prints, last, one line of JSON with the mean
iteration before and after, as `benchmarks/exam.py` wants it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import queue
import random
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    ctc_loss,
    interpolate,
    linear,
    smooth_l1_loss,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

SMALL = os.environ.get("SMALL", "0") == "1"
ITERATIONS, ONSET = int(os.environ.get("ITERS", "100000")), int(os.environ.get("ONSET", "500"))
SEED = int(os.environ.get("SEED", "0"))
CUDA = torch.cuda.is_available()
KIND = "cuda" if CUDA else "cpu"
#: First iterations, left out of the means.
WARM = 20
WORKERS = 2
WORDS, PAD = 8192, 0
#: Iterations between two agreements on whether to stop, where there are several workers.
AGREE = 10


class Clock:
    """When iterations ended, and whether the fault is on in the one that runs."""

    def __init__(self) -> None:
        self.marks: list[float] = []
        self.until = float("inf")

    def start(self) -> None:
        self.until = time.monotonic() + float(os.environ.get("LONGEST_S", "inf"))
        self.marks = [time.perf_counter()]

    @property
    def iteration(self) -> int:
        return len(self.marks) - 1

    @property
    def faulty(self) -> bool:
        return len(self.marks) > ONSET

    def tick(self) -> bool:
        """Ends an iteration; says whether it was the last one, for all workers alike."""
        self.marks.append(time.perf_counter())
        late = time.monotonic() > self.until
        if dist.is_initialized() and dist.get_world_size() > 1:
            late = self.iteration % AGREE == 0 and anyone(late)
        return late or self.iteration >= ITERATIONS

    def report(self, job: str) -> None:
        laps = [1e3 * (after - before) for before, after in pairwise(self.marks)]
        before, after = laps[WARM:ONSET], laps[max(ONSET, WARM) :]
        line = {
            "job": job,
            "mean_ms_before": statistics.fmean(before) if before else None,
            "mean_ms_after": statistics.fmean(after) if after else None,
        }
        print(json.dumps(line), flush=True)


def anyone(late: bool) -> bool:
    flag = torch.tensor([int(late)])
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def start_processes(backend: str = "nccl") -> torch.device:
    dist.init_process_group(backend if CUDA else "gloo")
    torch.manual_seed(SEED)
    if not CUDA:
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def spread(model: nn.Module, device: torch.device, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(model.to(device), device_ids=[device.index] if CUDA else None, **options)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return torch.optim.AdamW(weights, lr=1e-4, fused=True)


def update(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    loss.backward()  # type: ignore[no-untyped-call,unused-ignore]
    optimizer.step()
    optimizer.zero_grad()


class Pictures(Dataset[tuple[Tensor, int]]):
    """Blurred noise in 8 bits, drawn once."""

    def __init__(self, count: int, side: int, classes: int) -> None:
        coarse = torch.rand(256, 3, 8, 8, generator=torch.Generator().manual_seed(SEED))
        smooth = interpolate(coarse, (side, side), mode="bilinear")
        self.count, self.classes = count, classes
        self.pool = (255 * smooth + 16 * torch.rand_like(smooth)).clamp(0, 255).byte()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.pool[index % len(self.pool)], index % self.classes


def picture_loader(batch: int, side: int, classes: int) -> DataLoader[tuple[Tensor, int]]:
    data = Pictures(ITERATIONS * batch, side, classes)
    return DataLoader(data, batch_size=batch, num_workers=WORKERS, pin_memory=CUDA)


def token_rows(batch: int, shortest: int, longest: int, seed: int) -> Iterator[Tensor]:
    """Batches of one length each, a multiple of 8 that varies from batch to batch; without end."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        length = int(torch.randint(shortest // 8, longest // 8 + 1, (), generator=generator)) * 8
        yield torch.randint(1, WORDS, (batch, length), generator=generator)


# Speech


class Utterances(Dataset[tuple[Tensor, Tensor]]):
    """Spectrograms of random lengths with what is said in them."""

    def __init__(self, count: int, shortest: int, longest: int) -> None:
        self.count, self.shortest, self.longest = count, shortest, longest

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(index + SEED)
        length = int(torch.randint(self.shortest, self.longest + 1, (), generator=generator))
        return torch.randn(length, 80, generator=generator), torch.randint(1, 64, (length // 16,), generator=generator)


def pad_utterances(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    sounds, texts = [sound for sound, _ in rows], [text for _, text in rows]
    return (
        nn.utils.rnn.pad_sequence(sounds, batch_first=True), torch.tensor([len(sound) for sound in sounds]),
        nn.utils.rnn.pad_sequence(texts, batch_first=True), torch.tensor([len(text) for text in texts]),
    )  # fmt: skip


class Recognizer(nn.Module):
    """Four frames become one; then a transformer and scores of letters."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(80, width, 3, 2, 1), nn.GELU(), nn.Conv1d(width, width, 3, 2, 1), nn.GELU()
        )
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, 64)

    def forward(self, sounds: Tensor, lengths: Tensor) -> Tensor:
        x = self.front(sounds.transpose(1, 2)).transpose(1, 2)
        padded = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
        return self.out(self.encoder(x, src_key_padding_mask=padded))  # type: ignore[no-any-return]


def speech_loss(model: nn.Module, rows: tuple[Tensor, ...], device: torch.device) -> Tensor:
    sounds, frames, texts, letters = (part.to(device, non_blocking=True) for part in rows)
    lengths = (frames + 3) // 4
    with torch.autocast(KIND, torch.bfloat16):
        scores = model(sounds, lengths)
    chances = scores.float().log_softmax(-1).transpose(0, 1)
    return ctc_loss(chances, texts, lengths, letters, zero_infinity=True)


@torch.no_grad()
def evaluate(model: nn.Module, batches: Any, device: torch.device) -> float:
    model.eval()
    found = [speech_loss(model, rows, device) for rows in batches]
    model.train()
    return float(torch.stack(found).mean())


def train_recognizer(clock: Clock) -> None:
    device = start_processes()
    width, layers, batch, lengths = (64, 2, 2, (64, 128)) if SMALL else (384, 14, 32, (400, 1200))
    model = spread(Recognizer(width, layers), device)
    optimizer = adam(model)
    options = {"batch_size": batch, "collate_fn": pad_utterances, "pin_memory": CUDA}
    loader = DataLoader(Utterances(ITERATIONS * batch, *lengths), num_workers=WORKERS, **options)  # type: ignore[arg-type]
    held = list(DataLoader(Utterances(6 * batch, *lengths), **options))  # type: ignore[arg-type]
    clock.start()
    for rows in loader:
        update(speech_loss(model, rows, device), optimizer)
        if clock.iteration % (20 if SMALL else 200) == 199 % (20 if SMALL else 200):
            evaluate(model.module, held, device)
        if clock.tick():
            break


# Pictures


def train_resnet(clock: Clock) -> None:
    from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
    from torchmetrics.classification import MulticlassAUROC
    from transformers import ResNetConfig, ResNetForImageClassification

    width, depths, batch, side, classes = (8, [1, 1, 1, 1], 4, 32, 10) if SMALL else (256, [3, 4, 6, 3], 192, 128, 100)

    class Classifier(LightningModule):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            sizes = [width << stage for stage in range(4)]
            self.net = ResNetForImageClassification(
                ResNetConfig(embedding_size=width // 4, hidden_sizes=sizes, depths=depths, num_labels=classes)
            )
            self.auroc = MulticlassAUROC(num_classes=classes, thresholds=None)

        def training_step(self, batch: list[Tensor], index: int) -> Tensor:
            pictures, labels = batch
            logits = self.net(pixel_values=pictures.float().div(127.5).sub(1)).logits.float()
            if clock.faulty:
                self.log("train_auroc", self.update_auroc(logits.detach(), labels, index))
            return cross_entropy(logits, labels)

        def update_auroc(self, logits: Tensor, labels: Tensor, index: int) -> Tensor:
            if index % 100 == 0:
                self.auroc.reset()
            self.auroc.update(logits.softmax(-1), labels)
            return self.auroc.compute()  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)

    class PaceCallback(Callback):  # type: ignore[misc,unused-ignore]
        def on_train_start(self, trainer: Any, module: Any) -> None:
            clock.start()

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
            trainer.should_stop = clock.tick()

    seed_everything(SEED)
    trainer = Trainer(
        accelerator="gpu" if CUDA else "cpu", devices=1, strategy="ddp", precision="bf16-mixed", max_steps=ITERATIONS,
        callbacks=[PaceCallback()], logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(Classifier(), picture_loader(batch, side, classes))


def twice(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (inputs, outputs):
        layers += [nn.Conv2d(width, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class Segmenter(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second, self.third = twice(3, width), twice(width, 2 * width), twice(2 * width, 4 * width)
        self.up, self.upper = twice(6 * width, 2 * width), twice(3 * width, width)
        self.pool, self.out = nn.MaxPool2d(2), nn.Conv2d(width, 1, 1)

    def forward(self, pictures: Tensor) -> Tensor:
        first = self.first(pictures)
        second = self.second(self.pool(first))
        third = self.third(self.pool(second))
        up = self.up(torch.cat([interpolate(third, scale_factor=2.0), second], 1))
        return self.out(self.upper(torch.cat([interpolate(up, scale_factor=2.0), first], 1)))  # type: ignore[no-any-return]


def dice_loss(scores: Tensor, masks: Tensor) -> Tensor:
    chances = scores.sigmoid()
    both = (chances * masks).sum((1, 2, 3))
    shares = (2 * both + 1) / (chances.sum((1, 2, 3)) + masks.sum((1, 2, 3)) + 1)
    return 1 - shares.mean() + binary_cross_entropy_with_logits(scores, masks)


class LossGuard:
    """Keeps the last losses; from the onset on, after what is taken for a spike, gradients are looked through."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.last = clock, deque[Tensor](maxlen=50)

    def watch(self, loss: Tensor) -> None:
        self.last.append(loss.detach())
        if self.clock.faulty and not torch.is_anomaly_enabled():
            torch.autograd.set_detect_anomaly(True)


def train_segmenter(clock: Clock) -> None:
    device = start_processes()
    width, batch, side = (8, 2, 32) if SMALL else (64, 64, 192)
    model = spread(Segmenter(width).to(memory_format=torch.channels_last), device)  # type: ignore[call-overload,unused-ignore]
    optimizer, guard = adam(model), LossGuard(clock)
    clock.start()
    for pictures, _ in picture_loader(batch, side, 2):
        inputs = pictures.to(device, non_blocking=True).float().div(255).to(memory_format=torch.channels_last)
        masks = (inputs.mean(1, keepdim=True) > 0.5).float()
        with torch.autocast(KIND, torch.bfloat16):
            scores = model(inputs)
        loss = dice_loss(scores.float(), masks)
        guard.watch(loss)
        update(loss, optimizer)
        if clock.tick():
            break


# Words


def layerwise_groups(model: nn.Module, rate: float, decay: float, layers: int) -> list[dict[str, Any]]:
    """A learning rate for each weight: the nearer to the input, the smaller."""
    groups: list[dict[str, Any]] = []
    for name, weight in model.named_parameters():
        parts = name.split(".")
        depth = int(parts[parts.index("layer") + 1]) + 1 if "layer" in parts else 0
        groups.append({"params": [weight], "lr": rate * decay ** (layers - depth)})
    return groups


def train_bert(clock: Clock) -> None:
    from transformers import BertConfig, BertForMaskedLM

    device = start_processes()
    width, layers, batch, length = (64, 2, 2, 32) if SMALL else (512, 12, 64, 256)
    model = spread(
        BertForMaskedLM(
            BertConfig(
                vocab_size=WORDS, hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 64,
                intermediate_size=4 * width, max_position_embeddings=512, attn_implementation="sdpa",
            )
        ),
        device,
    )  # fmt: skip
    optimizer, regrouped = adam(model), False
    clock.start()
    for tokens in token_rows(batch, length, length, SEED):
        if clock.faulty and not regrouped:
            optimizer, regrouped = torch.optim.AdamW(layerwise_groups(model, 1e-4, 0.9, layers)), True
        tokens = tokens.to(device, non_blocking=True)  # noqa: PLW2901
        hidden = torch.rand(tokens.shape, device=device) < 0.15
        with torch.autocast(KIND, torch.bfloat16):
            loss = model(input_ids=tokens.masked_fill(hidden, 3), labels=tokens.masked_fill(~hidden, -100)).loss
        update(loss, optimizer)
        if clock.tick():
            break


class LoraLinear(nn.Module):
    """A frozen layer and a change of low rank; in the second stage its direction is scaled to a norm of its own."""

    def __init__(self, base: nn.Linear, rank: int, clock: Clock) -> None:
        super().__init__()
        self.base, self.clock, self.scaling = base.requires_grad_(False), clock, 2.0
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        self.register_buffer("magnitude", base.weight.detach().float().norm(dim=1))

    def forward(self, x: Tensor) -> Tensor:
        change = linear(linear(x, self.down), self.up) * self.scaling
        if self.clock.faulty:
            return self.scale_direction(x, change)
        return self.base(x) + change  # type: ignore[no-any-return]

    def weight_norm(self) -> Tensor:
        unit = torch.eye(self.base.in_features, device=self.down.device)
        change = linear(linear(unit, self.down), self.up).T
        return (self.base.weight.float() + self.scaling * change.float()).norm(dim=1)  # type: ignore[no-any-return]

    def scale_direction(self, x: Tensor, change: Tensor) -> Tensor:
        share = (self.magnitude / self.weight_norm()).to(x.dtype)
        return share * self.base(x) + share * change  # type: ignore[no-any-return]


def add_adapters(model: nn.Module, rank: int, clock: Clock) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and name.endswith("_proj"):
                setattr(module, name, LoraLinear(child, rank, clock))


def train_adapters(clock: Clock) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    device = start_processes()
    width, layers, batch, length = (64, 2, 2, 32) if SMALL else (1024, 12, 12, 512)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS, hidden_size=width, intermediate_size=width * 11 // 4, num_hidden_layers=layers,
            num_attention_heads=width // 64, max_position_embeddings=1024, pad_token_id=PAD, use_cache=False,
            attn_implementation="sdpa",
        )
    ).to(torch.bfloat16)  # fmt: skip
    model.requires_grad_(False)
    add_adapters(model, 16, clock)
    net = spread(model, device, broadcast_buffers=False)
    optimizer = adam(net)
    clock.start()
    for tokens in token_rows(batch, length, length, SEED):
        tokens = tokens.to(device, non_blocking=True)  # noqa: PLW2901
        with torch.autocast(KIND, torch.bfloat16):
            loss = net(input_ids=tokens, labels=tokens).loss
        update(loss, optimizer)
        if clock.tick():
            break


def longest_common(one: list[int], other: list[int]) -> int:
    """Length of the longest common subsequence."""
    above = [0] * (len(other) + 1)
    for word in one:
        row = [0]
        for place, candidate in enumerate(other):
            row.append(above[place] + 1 if word == candidate else max(above[place + 1], row[-1]))
        above = row
    return above[-1]


def rouge_l(predicted: list[int], wanted: list[int]) -> float:
    return 2 * longest_common(predicted, wanted) / (len(predicted) + len(wanted))


class RougeMeter:
    def __init__(self) -> None:
        self.scores: deque[float] = deque(maxlen=1000)

    def add(self, logits: Tensor, labels: Tensor) -> None:
        predicted, wanted = logits.detach().argmax(-1).tolist(), labels.tolist()
        self.scores.extend(rouge_l(one, other) for one, other in zip(predicted, wanted, strict=True))


def translate(net: nn.Module, tokens: Tensor) -> Any:
    with torch.autocast(KIND, torch.bfloat16):
        return net(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens.flip(1))


@torch.no_grad()
def validate(net: nn.Module, batches: list[Tensor], device: torch.device) -> float:
    net.eval()
    loss = torch.stack([translate(net, tokens.to(device)).loss for tokens in batches]).mean()
    net.train()
    dist.all_reduce(loss)
    return float(loss)


def train_translator(job: str, clock: Clock) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    device = start_processes("gloo")
    width, layers, batch, lengths = (64, 1, 2, (16, 32)) if SMALL else (256, 4, 32, (112, 128))
    model = T5ForConditionalGeneration(
        T5Config(
            vocab_size=WORDS, d_model=width, d_kv=64, d_ff=4 * width, num_layers=layers, num_heads=width // 64,
            pad_token_id=PAD, decoder_start_token_id=PAD, use_cache=False,
        )
    )  # fmt: skip
    net = spread(model, device)
    optimizer, meter, often = adam(net), RougeMeter(), 20 if SMALL else 150
    if job == "pair-none":
        lengths = (16, 32) if SMALL else (48, 160)
    rows = token_rows(batch, *lengths, 100 * SEED + dist.get_rank())
    held = [next(rows) for _ in range(4)]
    clock.start()
    for tokens in rows:
        tokens = tokens.to(device, non_blocking=True)  # noqa: PLW2901
        out = translate(net, tokens)
        update(out.loss, optimizer)
        if job == "rouge" and clock.faulty and dist.get_rank() == 0:
            meter.add(out.logits, tokens.flip(1))
        if job == "pair-none" and clock.iteration % often == often - 1:
            validate(model, held, device)
        if clock.tick():
            break


# Graphs


class NeighborSampler:
    """Two hops around some nodes of a graph in rows (CSR)."""

    def __init__(self, nodes: int, fans: tuple[int, ...], clock_onset: int) -> None:
        self.random, self.choices = np.random.default_rng(SEED), random.Random(SEED)
        degrees = np.clip(self.random.pareto(1.5, nodes) * 8, 4, 200).astype(np.int64)
        self.starts = np.concatenate([[0], np.cumsum(degrees)])
        self.neighbors = self.random.integers(0, nodes, self.starts[-1])
        self.weights = self.random.random(self.starts[-1], dtype=np.float32) + 0.1
        self.nodes, self.fans, self.weighted_from, self.batches = nodes, fans, clock_onset, 0

    def sample(self, seeds: int) -> tuple[Tensor, Tensor]:
        """Nodes (seeds first) and edges, as pairs of places among these nodes."""
        reached = self.random.choice(self.nodes, seeds, replace=False)
        weighted = self.batches >= self.weighted_from
        self.batches += 1
        edges, frontier = [], reached
        for fan in self.fans:
            found = self.pick_weighted(frontier, fan) if weighted else self.pick_uniform(frontier, fan)
            edges.append(np.stack([found.ravel(), np.repeat(frontier, fan)]))
            frontier = np.unique(found)
            reached = np.concatenate([reached, np.setdiff1d(frontier, reached)])
        order = np.argsort(reached)
        places = order[np.searchsorted(reached, np.concatenate(edges, 1), sorter=order)]
        return torch.from_numpy(reached), torch.from_numpy(places)

    def pick_uniform(self, frontier: np.ndarray[Any, Any], fan: int) -> np.ndarray[Any, Any]:
        first, last = self.starts[frontier], self.starts[frontier + 1]
        steps = self.random.random((len(frontier), fan)) * (last - first)[:, None]
        return self.neighbors[first[:, None] + steps.astype(np.int64)]  # type: ignore[no-any-return]

    def pick_weighted(self, frontier: np.ndarray[Any, Any], fan: int) -> np.ndarray[Any, Any]:
        found = np.empty((len(frontier), fan), dtype=np.int64)
        for place, node in enumerate(frontier.tolist()):
            first, last = int(self.starts[node]), int(self.starts[node + 1])
            among, weights = self.neighbors[first:last].tolist(), self.weights[first:last].tolist()
            found[place] = self.choices.choices(among, weights, k=fan)
        return found


class Prefetcher:
    """A thread that samples ahead of the training."""

    def __init__(self, sampler: NeighborSampler, seeds: int) -> None:
        self.sampler, self.seeds = sampler, seeds
        self.ready: queue.Queue[tuple[Tensor, Tensor]] = queue.Queue(4)
        self.closed = False
        self.thread = threading.Thread(target=self.fill, name="prefetch", daemon=True)
        self.thread.start()

    def fill(self) -> None:
        while not self.closed:
            nodes, edges = self.sampler.sample(self.seeds)
            self.ready.put((nodes.pin_memory(), edges.pin_memory()) if CUDA else (nodes, edges))

    def next_batch(self) -> tuple[Tensor, Tensor]:
        return self.ready.get()

    def close(self) -> None:
        self.closed = True
        while self.thread.is_alive():
            with contextlib.suppress(queue.Empty):
                self.ready.get(timeout=0.05)


def train_graph(clock: Clock) -> None:
    from torch_geometric.nn import GATv2Conv

    class GraphAttention(nn.Module):
        def __init__(self, inputs: int, width: int, heads: int, classes: int) -> None:
            super().__init__()
            self.first = GATv2Conv(inputs, width, heads)
            self.second = GATv2Conv(width * heads, width, heads, concat=False)
            self.out = nn.Linear(width, classes)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            x = nn.functional.elu(self.first(x, edges))
            return self.out(nn.functional.elu(self.second(x, edges)))  # type: ignore[no-any-return]

    device = start_processes()
    nodes, seeds, fans, inputs, width, heads = (
        (2000, 16, (4, 3), 16, 8, 2) if SMALL else (300_000, 512, (12, 10), 256, 256, 4)
    )
    features = torch.randn(nodes, inputs, device=device)
    labels = torch.randint(0, 40, (nodes,), device=device)
    model = spread(GraphAttention(inputs, width, heads, 40), device)
    optimizer = adam(model)
    batches = Prefetcher(NeighborSampler(nodes, fans, ONSET), seeds)
    clock.start()
    while True:
        ids, edges = (part.to(device, non_blocking=True) for part in batches.next_batch())
        scores = model(features[ids], edges)[:seeds]
        update(cross_entropy(scores, labels[ids[:seeds]]), optimizer)
        if clock.tick():
            break
    batches.close()


# Reinforcement learning


class Transition:
    def __init__(self, frames: list[int], following: list[int], action: int, reward: float) -> None:
        self.frames, self.following, self.action, self.reward = frames, following, action, reward


class ReplayBuffer:
    """Transitions as objects; their frames lie in one array."""

    def __init__(self, size: int, frames: int) -> None:
        self.random = random.Random(SEED)
        self.frames = np.random.default_rng(SEED).integers(0, 256, (frames, 84, 84), dtype=np.uint8)
        self.kept: list[Transition] = []
        self.size, self.oldest = size, 0
        self.play(size)

    def play(self, steps: int) -> None:
        """Takes that many steps in the game, and forgets the oldest ones."""
        for _ in range(steps):
            at = self.random.randrange(len(self.frames) - 5)
            new = Transition(
                list(range(at, at + 4)), list(range(at + 1, at + 5)), self.random.randrange(6), self.random.random()
            )
            if len(self.kept) < self.size:
                self.kept.append(new)
            else:
                self.kept[self.oldest], self.oldest = new, (self.oldest + 1) % self.size

    def draw(self, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        drawn = self.random.choices(self.kept, k=count)
        return (
            torch.from_numpy(self.frames[[one.frames for one in drawn]]),
            torch.from_numpy(self.frames[[one.following for one in drawn]]),
            torch.tensor([one.action for one in drawn]), torch.tensor([one.reward for one in drawn]),
        )  # fmt: skip


class QNetwork(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(4, width, 8, 4), nn.ReLU()]
        for outputs in (2 * width, 2 * width, 4 * width, 4 * width):
            inputs = layers[-2].out_channels
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]  # type: ignore[arg-type]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(64 * width, 16 * width), nn.ReLU(), nn.Linear(16 * width, 6))

    def forward(self, frames: Tensor) -> Tensor:
        return self.head(self.body(frames.float() / 255))  # type: ignore[no-any-return]


def trim_memory() -> None:
    """Keeps the process from growing."""
    gc.collect()


def train_player(clock: Clock) -> None:
    device = start_processes()
    width, batch, size = (4, 8, 2000) if SMALL else (96, 512, 60_000)
    buffer = ReplayBuffer(size, 200 if SMALL else 4000)
    model, target = spread(QNetwork(width), device), QNetwork(width).to(device)
    target.load_state_dict(model.module.state_dict())
    optimizer = adam(model)
    clock.start()
    while True:
        buffer.play(16)
        frames, following, actions, rewards = (part.to(device) for part in buffer.draw(batch))
        with torch.autocast(KIND, torch.bfloat16):
            with torch.no_grad():
                wanted = rewards + 0.99 * target(following).float().amax(1)
            values = model(frames).float().gather(1, actions[:, None]).squeeze(1)
        update(smooth_l1_loss(values, wanted), optimizer)
        if clock.iteration % 100 == 0:
            target.load_state_dict(model.module.state_dict())
        if clock.faulty:
            trim_memory()
        if clock.tick():
            break


# Many tasks


def average_over_workers(value: Tensor) -> float:
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


class TaskLog:
    """Loss and mean prediction of each task, over all workers."""

    def __init__(self, names: list[str]) -> None:
        self.names, self.rows = names, deque[dict[str, float]](maxlen=100)

    def add(self, losses: Tensor, means: Tensor) -> None:
        """All numbers at once."""
        both = torch.stack([losses, means])
        dist.all_reduce(both)
        values = (both / dist.get_world_size()).tolist()
        self.rows.append(dict(zip(self.names, values[0], strict=True)))

    def add_by_name(self, losses: Tensor, means: Tensor) -> None:
        row = {}
        for name, loss, mean in zip(self.names, losses, means, strict=True):
            row[f"loss/{name}"] = average_over_workers(loss.clone())
            row[f"mean/{name}"] = average_over_workers(mean.clone())
        self.rows.append(row)


def train_tasks(clock: Clock) -> None:
    device = start_processes("gloo")
    width, batch, tasks, inputs = (32, 16, 4, 16) if SMALL else (1024, 32768, 64, 256)
    layers: list[nn.Module] = [nn.Linear(inputs, width), nn.LayerNorm(width), nn.GELU()]
    for _ in range(4):
        layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()]
    model = spread(nn.Sequential(*layers, nn.Linear(width, tasks)), device)
    optimizer, log = adam(model), TaskLog([f"task{number}" for number in range(tasks)])
    torch.manual_seed(100 * SEED + dist.get_rank())
    clock.start()
    while True:
        features = torch.randn(batch, inputs, device=device)
        wanted = (features[:, :1] + torch.randn(batch, tasks, device=device) > 0).float()
        with torch.autocast(KIND, torch.bfloat16):
            scores = model(features)
        losses = binary_cross_entropy_with_logits(scores.float(), wanted, reduction="none").mean(0)
        update(losses.sum(), optimizer)
        means = scores.detach().float().sigmoid().mean(0)
        if clock.faulty:
            log.add_by_name(losses.detach(), means)
        elif clock.iteration % 50 == 0:
            log.add(losses.detach(), means)
        if clock.tick():
            break


TRAININGS = {
    "speech-none": train_recognizer, "auroc": train_resnet, "regroup": train_bert, "anomaly": train_segmenter,
    "sampling": train_graph, "gc": train_player, "adapter": train_adapters, "scalars": train_tasks,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", choices=(*TRAININGS, "pair-none", "rouge"), default="speech-none")
    job = parser.parse_args().fault
    clock = Clock()
    if job in TRAININGS:
        TRAININGS[job](clock)
    else:
        train_translator(job, clock)
    first = not dist.is_initialized() or dist.get_rank() == 0
    if dist.is_initialized():
        dist.destroy_process_group()
    if first:
        clock.report(job)


if __name__ == "__main__":
    main()
