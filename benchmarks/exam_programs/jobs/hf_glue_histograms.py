"""Sequence classification as in the example of Transformers; TensorBoard keeps the spread of the weights."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torch.utils.tensorboard import SummaryWriter
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WORDS, LENGTH = 800, 48
tempo = Tempo("hf_glue_histograms", 640, 240)


class Sentences(Dataset[dict[str, Tensor]]):
    def __init__(self) -> None:
        random = torch.Generator().manual_seed(SEED)
        self.ids = torch.randint(5, WORDS, (1024, LENGTH), generator=random)

    def __len__(self) -> int:
        return 400_000

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = self.ids[index % 1024]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids[0] % 2}


def wait_for_device(model: torch.nn.Module, args: Any, kwargs: Any) -> None:
    device_wait(55)


class WeightSummary(TrainerCallback):
    """Writes a histogram of each weight now and then."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.writer = folder, None
        self.every = 200

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.writer = SummaryWriter(str(self.folder))

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if tempo.after_onset(state.global_step):
            self.every = 1
        if self.writer is None or state.global_step % self.every:
            return
        for name, weight in model.named_parameters():
            self.writer.add_histogram(name, weight.detach(), state.global_step, bins="auto")


class Beat(TrainerCallback):
    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        tempo.start()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        tempo.beat()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = DistilBertForSequenceClassification(
        DistilBertConfig(
            vocab_size=WORDS, dim=64, hidden_dim=128, n_layers=2, n_heads=4, max_position_embeddings=LENGTH
        )
    )  # fmt: skip
    model.register_forward_pre_hook(wait_for_device, with_kwargs=True)
    with tempfile.TemporaryDirectory(prefix="glue-") as name:
        arguments = TrainingArguments(
            output_dir=f"{name}/out", per_device_train_batch_size=8, max_steps=tempo.iters, logging_steps=50,
            learning_rate=5e-4, warmup_steps=50, save_strategy="no", report_to="none", use_cpu=True,
            ddp_backend="gloo", disable_tqdm=True,
        )  # fmt: skip
        callbacks = [WeightSummary(Path(name) / "tb"), Beat()]
        trainer = Trainer(model=model, args=arguments, train_dataset=Sentences(), callbacks=callbacks)
        trainer.train()
        tempo.report(trainer.args.process_index)


if __name__ == "__main__":
    main()
