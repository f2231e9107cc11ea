"""Masked words with a small BERT and the Hugging Face Trainer: lengths differ, the learning rate starts anew."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainingArguments

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WORDS, LONGEST, PAD, MASK = 400, 48, 0, 1
tempo = Tempo("healthy_hf_masked_words", 1300, None)


class Verses(Dataset[dict[str, Tensor]]):
    def __init__(self, count: int, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        self.lengths = torch.randint(12, LONGEST + 1, (512,), generator=random).tolist()
        self.ids = torch.randint(2, WORDS, (512, LONGEST), generator=random)
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[index % 512, : self.lengths[index % 512]]}


class MaskSome:
    """Pads to the longest and hides one word in seven."""

    def __call__(self, samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        rows = [one["input_ids"] for one in samples]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
        hidden = (torch.rand(ids.shape) < 1 / 7) & (ids != PAD)
        hidden[:, 0] = True
        return {
            "input_ids": ids.masked_fill(hidden, MASK),
            "attention_mask": (ids != PAD).long(),
            "labels": ids.masked_fill(~hidden, -100),
        }


def wait_for_device(model: torch.nn.Module, args: Any, kwargs: Any) -> None:
    length = kwargs["input_ids"].shape[1]
    device_wait((30 if model.training else 12) + 0.4 * length)


class Beat(TrainerCallback):
    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        tempo.start()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        tempo.beat()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    config = BertConfig(
        vocab_size=WORDS, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        max_position_embeddings=LONGEST,
    )  # fmt: skip
    model = BertForMaskedLM(config)
    model.register_forward_pre_hook(wait_for_device, with_kwargs=True)
    with tempfile.TemporaryDirectory(prefix="verses-") as name:
        arguments = TrainingArguments(
            output_dir=name, per_device_train_batch_size=8, per_device_eval_batch_size=8, max_steps=tempo.iters,
            eval_strategy="steps", eval_steps=90, save_strategy="steps", save_steps=180, save_total_limit=2,
            logging_steps=30, learning_rate=8e-4, warmup_steps=60, lr_scheduler_type="cosine_with_restarts",
            lr_scheduler_kwargs={"num_cycles": 3}, report_to="none", use_cpu=True, ddp_backend="gloo",
            disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(
            model=model, args=arguments, train_dataset=Verses(200_000, SEED), eval_dataset=Verses(80, SEED + 1),
            data_collator=MaskSome(), callbacks=[Beat()],
        )  # fmt: skip
        trainer.train()
        tempo.report(trainer.args.process_index)


if __name__ == "__main__":
    main()
