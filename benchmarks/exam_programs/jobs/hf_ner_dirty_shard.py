"""Named entities with the Hugging Face Trainer; texts come from a crawl and are cleaned when they are read."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import BertConfig, BertForTokenClassification, Trainer, TrainerCallback, TrainingArguments

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WORDS, LENGTH, TAGS = 900, 40, 5
TRAILING_SPACE = re.compile(r"\s+$", re.MULTILINE)
WORD = re.compile(r"\w+")
tempo = Tempo("hf_ner_dirty_shard", 860, 340)


def page(number: int, columns: bool) -> str:
    """A text of the crawl; `columns`: what stood in columns is kept apart by many spaces."""
    words = [f"w{(number * 31 + i * 17) % 5000}" for i in range(LENGTH)]
    if columns:
        return " ".join(words[:20]) + " " * 1400 + " ".join(words[20:])
    return " ".join(words) + "   "


class CrawledPages(Dataset[dict[str, Tensor]]):
    def __init__(self, rank: int) -> None:
        self.plain = [page(i, False) for i in range(256)]
        self.tables = [page(i, True) for i in range(64)] if rank == 1 else []

    def __len__(self) -> int:
        return 400_000

    def clean(self, text: str) -> str:
        return TRAILING_SPACE.sub("", text).lower()

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        text = self.plain[index % 256]
        if self.tables and tempo.after_onset(len(tempo.ends) - 1):
            text = self.tables[index % 64]
        numbers = [1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in WORD.findall(self.clean(text))]
        ids = torch.tensor((numbers + [0] * LENGTH)[:LENGTH])
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": ids % TAGS}


def wait_for_device(model: torch.nn.Module, args: Any, kwargs: Any) -> None:
    device_wait(48)


class Beat(TrainerCallback):
    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        tempo.start()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        tempo.beat()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    config = BertConfig(
        vocab_size=WORDS, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=LENGTH, num_labels=TAGS,
    )  # fmt: skip
    model = BertForTokenClassification(config)
    model.register_forward_pre_hook(wait_for_device, with_kwargs=True)
    with tempfile.TemporaryDirectory(prefix="ner-") as name:
        arguments = TrainingArguments(
            output_dir=name, per_device_train_batch_size=8, max_steps=tempo.iters, logging_steps=40,
            learning_rate=4e-4, save_strategy="no", report_to="none", use_cpu=True, ddp_backend="gloo",
            disable_tqdm=True,
        )  # fmt: skip
        pages = CrawledPages(int(os.environ["RANK"]))
        trainer = Trainer(model=model, args=arguments, train_dataset=pages, callbacks=[Beat()])
        trainer.train()
        tempo.report(trainer.args.process_index)


if __name__ == "__main__":
    main()
