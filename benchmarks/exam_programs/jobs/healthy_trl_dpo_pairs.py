"""Preferences with TRL's DPOTrainer: answers differ in length, evaluation now and then, checkpoints, warm-up."""

from __future__ import annotations

import copy
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback
from trl import DPOConfig, DPOTrainer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WORDS, LONGEST = 220, 48
tempo = Tempo("healthy_trl_dpo_pairs", 950, None)


def tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{i}": i for i in range(WORDS - 2)} | {"<unk>": WORDS - 2, "<end>": WORDS - 1}
    inner = Tokenizer(WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="<end>", pad_token="<end>")


def preferences(count: int, seed: int) -> Dataset:
    draw = random.Random(seed)

    def words(least: int, most: int) -> str:
        return " ".join(f"w{draw.randrange(WORDS - 2)}" for _ in range(draw.randint(least, most)))

    rows = [(words(6, 14), " " + words(6, 30), " " + words(6, 30)) for _ in range(count)]
    return Dataset.from_list([dict(zip(("prompt", "chosen", "rejected"), row, strict=True)) for row in rows])


def wait_for_device(model: torch.nn.Module, args: Any, kwargs: Any) -> None:
    device_wait((38 if model.training else 14) + 0.3 * kwargs["input_ids"].shape[1])


class Beat(TrainerCallback):
    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        tempo.start()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        tempo.beat()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    config = GPT2Config(
        vocab_size=WORDS, n_positions=LONGEST, n_embd=48, n_layer=2, n_head=4, bos_token_id=WORDS - 1,
        eos_token_id=WORDS - 1,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    reference = copy.deepcopy(model)
    model.register_forward_pre_hook(wait_for_device, with_kwargs=True)
    with tempfile.TemporaryDirectory(prefix="dpo-") as name:
        arguments = DPOConfig(
            output_dir=name, per_device_train_batch_size=4, per_device_eval_batch_size=4, max_steps=tempo.iters,
            eval_strategy="steps", eval_steps=90, save_strategy="steps", save_steps=180, save_total_limit=1,
            logging_steps=30, learning_rate=2e-4, warmup_steps=60, report_to="none", use_cpu=True, bf16=False,
            gradient_checkpointing=False, ddp_backend="gloo", disable_tqdm=True, max_length=LONGEST,
        )  # fmt: skip
        trainer = DPOTrainer(
            model=model, ref_model=reference, args=arguments, train_dataset=preferences(4000, SEED),
            eval_dataset=preferences(32, SEED + 1), processing_class=tokenizer(), callbacks=[Beat()],
        )  # fmt: skip
        trainer.train()
        trainer.accelerator.wait_for_everyone()
        tempo.report(int(os.environ["RANK"]))


if __name__ == "__main__":
    main()
