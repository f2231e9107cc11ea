"""Trainings in several frameworks on one GPU, healthy until iteration ONSET, then with the fault named by `--fault`.

hf-none            Llama under the Trainer of Hugging Face, lengths that vary and an evaluation now and then
hf-weights         GPT-2 under that Trainer; a callback copies weights to the host and describes them there
hf-padding         Llama under that Trainer; the collator pads to the greatest length there is
lightning-gallery  a denoiser under Lightning; a callback writes a sheet of pictures
ddp-mining         a detector in a loop of its own; the loss mines hard negatives picture by picture
ddp-clipping       a vision transformer in a loop of its own; gradients are clipped unit by unit
accelerate-grain   a ConvNeXt under Accelerate; the augmentation in the main process adds film grain

Reads ITERS, ONSET, LONGEST_S, SEED and SMALL (1: sizes for a CPU). Prints, last, one line of JSON with the mean
iteration before and after, as `benchmarks/exam.py` wants it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import tempfile
import time
import zlib
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, interpolate, mse_loss, smooth_l1_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, get_worker_info
from transformers.trainer_callback import TrainerCallback

SMALL = os.environ.get("SMALL", "0") == "1"
ITERATIONS, ONSET = int(os.environ.get("ITERS", "100000")), int(os.environ.get("ONSET", "500"))
SEED = int(os.environ.get("SEED", "0"))
CUDA = torch.cuda.is_available()
KIND, BACKEND = ("cuda", "nccl") if CUDA else ("cpu", "gloo")
#: First iterations, left out of the means.
WARM = 20
WORKERS = 2
WORDS, PAD = 8192, 0


class Clock:
    """When iterations ended, and whether the fault is on in the one that runs."""

    def __init__(self) -> None:
        self.marks: list[float] = []
        self.until = float("inf")

    def start(self) -> None:
        self.until = time.monotonic() + float(os.environ.get("LONGEST_S", "inf"))
        self.marks = [time.perf_counter()]

    @property
    def faulty(self) -> bool:
        return len(self.marks) > ONSET

    def tick(self) -> bool:
        """Ends an iteration; says whether it was the last one for want of time."""
        self.marks.append(time.perf_counter())
        return time.monotonic() > self.until

    def report(self, job: str) -> None:
        laps = [1e3 * (after - before) for before, after in pairwise(self.marks)]
        before, after = laps[WARM:ONSET], laps[max(ONSET, WARM) :]
        line = {
            "job": job,
            "mean_ms_before": statistics.fmean(before) if before else None,
            "mean_ms_after": statistics.fmean(after) if after else None,
        }
        print(json.dumps(line), flush=True)


# Hugging Face


class Sequences(Dataset[Tensor]):
    """Token sequences of random lengths, the same at each start."""

    def __init__(self, count: int, shortest: int, longest: int) -> None:
        self.count, self.shortest, self.longest = count, shortest, longest

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        generator = torch.Generator().manual_seed(index + SEED)
        length = int(torch.randint(self.shortest, self.longest + 1, (), generator=generator))
        return torch.randint(1, WORDS, (length,), generator=generator)


def pad_rows(rows: list[Tensor], length: int) -> dict[str, Tensor]:
    tokens = torch.full((len(rows), length), PAD)
    for place, row in enumerate(rows):
        tokens[place, : len(row)] = row
    kept = tokens != PAD
    return {"input_ids": tokens, "attention_mask": kept.long(), "labels": tokens.masked_fill(~kept, -100)}


class PaddingCollator:
    """Pads to the longest row at hand, rounded up; from the onset on, where `limit` says so, to `limit`.

    The loader's workers are processes of their own and take turns, so each knows which iteration its batch is for.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit, self.batches = limit, 0

    def __call__(self, rows: list[Tensor]) -> dict[str, Tensor]:
        worker = get_worker_info()
        iteration = self.batches * worker.num_workers + worker.id if worker else self.batches
        self.batches += 1
        if self.limit and iteration >= ONSET:
            return pad_rows(rows, self.limit)
        return pad_rows(rows, -(-max(len(row) for row in rows) // 64) * 64)


class Pace(TrainerCallback):  # type: ignore[misc,unused-ignore]
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.clock.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.clock.tick():
            control.should_training_stop = True


def host_copy(weight: Tensor) -> Tensor:
    return weight.detach().float().cpu()


def describe_weight(weight: Tensor) -> dict[str, float]:
    return {"norm": float(weight.norm()), "largest": float(weight.max())}


class WeightJournal(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """A line a step about the attention's weights."""

    def __init__(self, clock: Clock, path: Path) -> None:
        self.clock, self.path = clock, path

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if self.clock.faulty:
            self.write_line(state.global_step, others["model"])

    def write_line(self, step: int, model: nn.Module) -> None:
        line: dict[str, Any] = {"step": step}
        for name, weight in model.named_parameters():
            if name.endswith("c_attn.weight"):
                line[name] = describe_weight(host_copy(weight))
        with self.path.open("a") as journal:
            journal.write(json.dumps(line) + "\n")


def train_hugging_face(job: str, clock: Clock, place: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    callbacks: list[TrainerCallback] = []
    collator, lengths, batch, often = PaddingCollator(), (64, 256), 32, {}
    if job == "hf-weights":
        lengths, batch = (512, 512), 12
        layers, width = (2, 64) if SMALL else (12, 768)
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=WORDS, n_positions=512, n_embd=width, n_layer=layers, n_head=width // 64,
                bos_token_id=1, eos_token_id=1,
            )
        )  # fmt: skip
        callbacks.append(WeightJournal(clock, place / "weights.jsonl"))
    else:
        layers, width = (2, 64) if SMALL else (12, 640)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=WORDS, hidden_size=width, intermediate_size=width * 14 // 5, num_hidden_layers=layers,
                num_attention_heads=width // 64, max_position_embeddings=1024, pad_token_id=PAD,
                attn_implementation="sdpa",
            )
        )  # fmt: skip
    if job == "hf-padding":
        collator = PaddingCollator(768)
    if job == "hf-none":
        lengths, often = (32, 384), {"eval_strategy": "steps", "eval_steps": 30 if SMALL else 250}
    batch = 2 if SMALL else batch
    options = TrainingArguments(
        output_dir=str(place), max_steps=ITERATIONS, per_device_train_batch_size=batch, learning_rate=1e-4,
        per_device_eval_batch_size=batch, lr_scheduler_type="constant", bf16=True, use_cpu=not CUDA,
        optim="adamw_torch_fused", logging_steps=50, save_strategy="no", report_to="none", disable_tqdm=True,
        dataloader_num_workers=WORKERS, dataloader_pin_memory=CUDA, remove_unused_columns=False, seed=SEED,
        ddp_backend=BACKEND, ddp_find_unused_parameters=False, prediction_loss_only=True, **often,
    )  # fmt: skip
    Trainer(
        model=model, args=options, data_collator=collator, callbacks=[*callbacks, Pace(clock)],
        train_dataset=Sequences(ITERATIONS * batch, *lengths), eval_dataset=Sequences(8 * batch, *lengths),
    ).train()  # fmt: skip


# Pictures


class Pictures(Dataset[tuple[Tensor, int]]):
    """Blurred noise in 8 bits, drawn once."""

    def __init__(self, count: int, side: int) -> None:
        coarse = torch.rand(256, 3, 8, 8, generator=torch.Generator().manual_seed(SEED))
        smooth = interpolate(coarse, (side, side), mode="bilinear")
        self.count, self.pool = count, (255 * smooth + 16 * torch.rand_like(smooth)).clamp(0, 255).byte()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.pool[index % len(self.pool)], index % 100


def picture_loader(batch: int, side: int) -> DataLoader[tuple[Tensor, int]]:
    return DataLoader(Pictures(ITERATIONS * batch, side), batch_size=batch, num_workers=WORKERS, pin_memory=CUDA)


def encode_png(pixels: np.ndarray[Any, Any]) -> bytes:
    """A picture, height by width by three, as a PNG file."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows, 6)),
        (b"IEND", b""),
    ]
    packed = (struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
              for kind, data in chunks)  # fmt: skip
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


class Gallery:
    """Sheets of what went in and what came out, the last eight of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write_sheet(self, step: int, noisy: Tensor, clean: Tensor) -> None:
        both = torch.cat([noisy[:8], clean[:8]]).float().clamp(0, 1).mul(255).byte()
        count, _, height, width = both.shape
        columns = count // 2
        sheet = both.view(2, columns, 3, height, width).permute(0, 3, 1, 4, 2).reshape(2 * height, columns * width, 3)
        (self.folder / f"sheet-{step % 8}.png").write_bytes(encode_png(sheet.cpu().numpy()))


def twice(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (inputs, outputs):
        layers += [nn.Conv2d(width, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.GELU()]
    return nn.Sequential(*layers)


class Denoiser(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second, self.third = twice(3, width), twice(width, 2 * width), twice(2 * width, 4 * width)
        self.up, self.upper = twice(6 * width, 2 * width), twice(3 * width, width)
        self.pool, self.out = nn.MaxPool2d(2), nn.Conv2d(width, 3, 1)

    def forward(self, pictures: Tensor) -> Tensor:
        first = self.first(pictures)
        second = self.second(self.pool(first))
        third = self.third(self.pool(second))
        up = self.up(torch.cat([interpolate(third, scale_factor=2.0), second], 1))
        return self.out(self.upper(torch.cat([interpolate(up, scale_factor=2.0), first], 1)))  # type: ignore[no-any-return]


def train_lightning(clock: Clock, place: Path) -> None:
    from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything

    gallery = Gallery(place)

    class Painter(LightningModule):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.net = Denoiser(8 if SMALL else 64)

        def training_step(self, batch: list[Tensor], _index: int) -> dict[str, Tensor]:
            clean = batch[0].float() / 255
            noisy = clean + 0.2 * torch.randn_like(clean)
            painted = self.net(noisy)
            return {"loss": mse_loss(painted.float(), clean), "noisy": noisy, "painted": painted.detach()}

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-4, fused=True)

    class GalleryCallback(Callback):  # type: ignore[misc,unused-ignore]
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
            if clock.faulty:
                gallery.write_sheet(index, outputs["noisy"], outputs["painted"])

    class PaceCallback(Callback):  # type: ignore[misc,unused-ignore]
        def on_train_start(self, trainer: Any, module: Any) -> None:
            clock.start()

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
            trainer.should_stop = clock.tick()

    seed_everything(SEED)
    trainer = Trainer(
        accelerator="gpu" if CUDA else "cpu", devices=1, strategy="ddp", precision="bf16-mixed", max_steps=ITERATIONS,
        callbacks=[GalleryCallback(), PaceCallback()], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(Painter(), picture_loader(*(2, 64) if SMALL else (48, 128)))


# Loops of their own


def start_processes() -> torch.device:
    dist.init_process_group(BACKEND)
    torch.manual_seed(SEED)
    if not CUDA:
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def spread(model: nn.Module, device: torch.device) -> DistributedDataParallel:
    return DistributedDataParallel(model.to(device), device_ids=[device.index] if CUDA else None)


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        same = inputs == outputs and stride == 1
        self.short = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.short(x))


class Detector(nn.Module):
    """Scores and boxes for three anchors at each place of two levels."""

    def __init__(self, width: int, depths: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2))
        self.stages, inputs = nn.ModuleList(), width
        for stage, depth in enumerate(depths):
            outputs = width << stage
            blocks = [Residual(inputs if block == 0 else outputs, outputs, 2 if stage and not block else 1)
                      for block in range(depth)]  # fmt: skip
            self.stages.append(nn.Sequential(*blocks))
            inputs = outputs
        self.heads = nn.ModuleList(nn.Conv2d(width << stage, 15, 3, padding=1) for stage in (2, 3))

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        x, levels = self.stem(pictures), []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        found = [head(level).flatten(2).transpose(1, 2) for head, level in zip(self.heads, levels[2:], strict=True)]
        both = torch.cat(found, 1).reshape(len(pictures), -1, 5).float()
        return both[..., 0], both[..., 1:]


class BoxLoss:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def __call__(self, scores: Tensor, boxes: Tensor, marks: Tensor, wanted: Tensor) -> Tensor:
        losses = binary_cross_entropy_with_logits(scores, marks.float(), reduction="none")
        misses = smooth_l1_loss(boxes, wanted, reduction="none").sum(-1)
        if self.clock.faulty:
            return torch.stack([self.mine_negatives(*rows) for rows in zip(losses, misses, marks, strict=True)]).mean()
        return (losses.sum() + (misses * marks).sum()) / marks.sum().clamp(min=1)

    def mine_negatives(self, losses: Tensor, misses: Tensor, marks: Tensor) -> Tensor:
        """The loss of one picture: its objects and, for each, the three worst places without one."""
        objects = marks.nonzero().squeeze(1)
        empty = losses[~marks]
        count = min(3 * max(len(objects), 1), len(empty))
        least = empty.detach().topk(count).values[-1].item()
        hard = empty[empty >= least]
        return (losses[objects].sum() + misses[objects].sum() + hard.sum()) / max(marks.sum().item(), 1)


def train_detector(clock: Clock) -> None:
    device = start_processes()
    width, depths, batch, side = (8, (1, 1, 1, 1), 4, 64) if SMALL else (96, (3, 4, 6, 3), 64, 256)
    model = spread(Detector(width, depths).to(memory_format=torch.channels_last), device)  # type: ignore[call-overload,unused-ignore]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    loss_of = BoxLoss(clock)
    places = 3 * ((side // 16) ** 2 + (side // 32) ** 2)
    clock.start()
    for pictures, _ in picture_loader(batch, side):
        inputs = pictures.to(device, non_blocking=True).float().div(255).to(memory_format=torch.channels_last)
        marks = torch.rand(batch, places, device=device) < 0.02
        wanted = torch.randn(batch, places, 4, device=device)
        with torch.autocast(KIND, torch.bfloat16):
            scores, boxes = model(inputs)
        loss_of(scores, boxes, marks, wanted).backward()  # type: ignore[no-untyped-call,unused-ignore]
        optimizer.step()
        optimizer.zero_grad()
        if clock.tick():
            break


def unit_norm(x: Tensor) -> Tensor:
    return x.flatten(1).norm(dim=1).view(-1, *[1] * (x.ndim - 1)) if x.ndim > 1 else x.norm()  # type: ignore[no-any-return,unused-ignore]


def clip_unit(weight: Tensor, gradient: Tensor, share: float) -> None:
    limit = unit_norm(weight.detach()).clamp(min=1e-3) * share
    norm = unit_norm(gradient)
    clipped = gradient * (limit / norm.clamp(min=1e-6))
    gradient.copy_(torch.where(norm > limit, clipped, gradient))


def clip_adaptively(weights: Iterable[nn.Parameter], share: float = 0.02) -> None:
    """Each unit's gradient, at most that share of its weights."""
    for weight in weights:
        if weight.grad is not None:
            clip_unit(weight, weight.grad, share)


def train_transformer(clock: Clock) -> None:
    from transformers import ViTConfig, ViTForImageClassification

    device = start_processes()
    width, layers, batch, side = (64, 4, 2, 64) if SMALL else (384, 24, 96, 160)
    model = spread(
        ViTForImageClassification(
            ViTConfig(
                hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 64, num_labels=100,
                intermediate_size=4 * width, image_size=side, patch_size=16, attn_implementation="sdpa",
            )
        ),
        device,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    clock.start()
    for pictures, labels in picture_loader(batch, side):
        inputs = pictures.to(device, non_blocking=True).float().div(127.5).sub(1)
        with torch.autocast(KIND, torch.bfloat16):
            loss = model(pixel_values=inputs, labels=labels.to(device, non_blocking=True)).loss
        loss.backward()
        if clock.faulty:
            clip_adaptively(model.parameters())
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if clock.tick():
            break


class Augment:
    """Mirrored pictures around zero, with film grain from the onset on."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.random = clock, np.random.default_rng(SEED)

    def __call__(self, pictures: Tensor) -> Tensor:
        values = pictures.numpy().astype(np.float32) / np.float32(255)
        mirrored = self.random.random(len(values)) < 0.5
        values[mirrored] = values[mirrored, :, :, ::-1]
        if self.clock.faulty:
            for place, picture in enumerate(values):
                values[place] = self.film_grain(picture)
        return torch.from_numpy(values - np.float32(0.5))

    def film_grain(self, picture: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        curve = np.power(picture, np.float32(self.random.uniform(0.7, 1.4)))
        grain = self.random.standard_normal(picture.shape, dtype=np.float32)
        return np.clip(curve + np.float32(0.08) * grain * np.sqrt(curve), 0, 1)  # type: ignore[no-any-return]


def train_convnext(clock: Clock) -> None:
    from accelerate import Accelerator
    from accelerate.utils import set_seed
    from transformers import ConvNextConfig, ConvNextForImageClassification

    accelerator = Accelerator(mixed_precision="bf16", cpu=not CUDA)
    set_seed(SEED)
    depths, width, batch, side = ([1, 1, 1, 1], 8, 2, 64) if SMALL else ([3, 3, 9, 3], 96, 64, 128)
    whole = ConvNextForImageClassification(
        ConvNextConfig(depths=depths, hidden_sizes=[width << stage for stage in range(4)], num_labels=100)
    )
    model, optimizer = accelerator.prepare(whole, torch.optim.AdamW(whole.parameters(), lr=1e-4, fused=True))
    augment = Augment(clock)
    clock.start()
    for pictures, labels in picture_loader(batch, side):
        inputs = augment(pictures).to(accelerator.device)
        loss = model(pixel_values=inputs, labels=labels.to(accelerator.device)).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if clock.tick():
            break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    jobs = (
        "hf-none",
        "hf-weights",
        "hf-padding",
        "lightning-gallery",
        "ddp-mining",
        "ddp-clipping",
        "accelerate-grain",
    )
    parser.add_argument("--fault", choices=jobs, default="hf-none")
    job = parser.parse_args().fault
    clock = Clock()
    with tempfile.TemporaryDirectory() as name:
        if job.startswith("hf-"):
            train_hugging_face(job, clock, Path(name))
        elif job == "lightning-gallery":
            train_lightning(clock, Path(name))
        elif job == "ddp-mining":
            train_detector(clock)
        elif job == "ddp-clipping":
            train_transformer(clock)
        else:
            train_convnext(clock)
    if dist.is_initialized():
        dist.destroy_process_group()
    clock.report(job)


if __name__ == "__main__":
    main()
