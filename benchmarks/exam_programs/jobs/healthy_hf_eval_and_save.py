"""Summaries with a small T5 and the Hugging Face Trainer: lengths differ, evaluation and checkpoints, warm-up."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import T5Config, T5ForConditionalGeneration, Trainer, TrainerCallback, TrainingArguments

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WORDS = 300
tempo = Tempo("healthy_hf_eval_and_save", 820, None)


class Articles(Dataset[dict[str, Tensor]]):
    def __init__(self, count: int, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        self.lengths = torch.randint(16, 56, (512,), generator=random).tolist()
        self.ids = torch.randint(3, WORDS, (512, 56), generator=random)
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = self.ids[index % 512, : self.lengths[index % 512]]
        return {"input_ids": ids, "labels": ids[:10]}


def pad_to_longest(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    pad = torch.nn.utils.rnn.pad_sequence
    ids = pad([one["input_ids"] for one in samples], batch_first=True)
    return {
        "input_ids": ids, "attention_mask": (ids != 0).long(),
        "labels": pad([one["labels"] for one in samples], batch_first=True, padding_value=-100),
    }  # fmt: skip


def wait_for_device(model: torch.nn.Module, args: Any, kwargs: Any) -> None:
    device_wait((40 if model.training else 15) + 0.25 * kwargs["input_ids"].shape[1])


class Beat(TrainerCallback):
    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        tempo.start()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        tempo.beat()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = T5ForConditionalGeneration(
        T5Config(
            vocab_size=WORDS, d_model=48, d_kv=12, d_ff=96, num_layers=1, num_decoder_layers=1, num_heads=4,
            decoder_start_token_id=0,
        )
    )  # fmt: skip
    model.register_forward_pre_hook(wait_for_device, with_kwargs=True)
    with tempfile.TemporaryDirectory(prefix="t5-") as name:
        arguments = TrainingArguments(
            output_dir=name, per_device_train_batch_size=6, per_device_eval_batch_size=8, max_steps=tempo.iters,
            eval_strategy="steps", eval_steps=75, save_strategy="steps", save_steps=150, save_total_limit=1,
            logging_steps=25, learning_rate=1e-3, warmup_steps=100, lr_scheduler_type="cosine", report_to="none",
            use_cpu=True, ddp_backend="gloo", disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(
            model=model, args=arguments, train_dataset=Articles(100_000, SEED), eval_dataset=Articles(64, SEED + 1),
            data_collator=pad_to_longest, callbacks=[Beat()],
        )  # fmt: skip
        trainer.train()
        tempo.report(trainer.args.process_index)


if __name__ == "__main__":
    main()
