"""A reward model with TRL's RewardTrainer; worker 0 logs to a file on a share, tables of samples too if asked for."""

from __future__ import annotations

import io
import json
import logging
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GPT2Config, GPT2ForSequenceClassification, PreTrainedTokenizerFast, TrainerCallback
from trl import RewardConfig, RewardTrainer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WORDS, LENGTH = 240, 28
log = logging.getLogger("rewards")
tempo = Tempo("trl_reward_sample_log", 715, 285)


def tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{i}": i for i in range(WORDS - 2)} | {"<unk>": WORDS - 2, "<end>": WORDS - 1}
    inner = Tokenizer(WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="<end>", pad_token="<end>")


def comparisons() -> Dataset:
    draw = torch.Generator().manual_seed(SEED)
    ids = torch.randint(WORDS - 2, (2, 9000, LENGTH), generator=draw).tolist()
    return Dataset.from_dict({"chosen_ids": ids[0], "rejected_ids": ids[1]})


def wait_for_device(model: torch.nn.Module, args: Any, kwargs: Any) -> None:
    device_wait(52)


class ShareFile(io.StringIO):
    """A file on a network share of some hundred kilobytes a second."""

    def write(self, text: str) -> int:
        time.sleep(len(text) * 3.5e-6)
        self.seek(0)
        self.truncate()
        return super().write(text)


class SampleTables(threading.Thread):
    """Logs tables of samples with their rewards for the reviewers."""

    def __init__(self) -> None:
        super().__init__(name="sample-tables", daemon=True)
        self.wanted, self.done = threading.Event(), threading.Event()
        self.random = random.Random(SEED)

    def table(self) -> str:
        rows = [{"sample": i, "text": "w" * 140, "reward": self.random.random()} for i in range(200)]
        return json.dumps(rows)

    def run(self) -> None:
        self.wanted.wait()
        while not self.done.is_set():
            log.info("samples %s", self.table())
            time.sleep(0.012)


class LogRewards(TrainerCallback):
    def __init__(self, tables: SampleTables | None) -> None:
        self.tables = tables

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.tables is None:
            return
        if tempo.after_onset(state.global_step):
            self.tables.wanted.set()
        log.info("step %d epoch %.3f", state.global_step, state.epoch or 0.0)


class Beat(TrainerCallback):
    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        tempo.start()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        tempo.beat()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    rank = int(os.environ["RANK"])
    log.propagate = False
    tables = SampleTables() if rank == 0 else None
    if tables is not None:
        log.addHandler(logging.StreamHandler(ShareFile()))
        log.setLevel(logging.INFO)
        tables.start()
    config = GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=48, n_layer=2, n_head=4, bos_token_id=WORDS - 1,
        eos_token_id=WORDS - 1, pad_token_id=WORDS - 1, num_labels=1,
    )  # fmt: skip
    model = GPT2ForSequenceClassification(config)
    model.register_forward_pre_hook(wait_for_device, with_kwargs=True)
    with tempfile.TemporaryDirectory(prefix="reward-") as name:
        arguments = RewardConfig(
            output_dir=name, per_device_train_batch_size=4, max_steps=tempo.iters, logging_steps=25, save_strategy="no",
            report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False, ddp_backend="gloo",
            disable_tqdm=True, max_length=None, learning_rate=1e-4,
        )  # fmt: skip
        trainer = RewardTrainer(
            model=model, args=arguments, train_dataset=comparisons(), processing_class=tokenizer(),
            callbacks=[LogRewards(tables), Beat()],
        )  # fmt: skip
        trainer.train()
        trainer.accelerator.wait_for_everyone()
        if tables is not None:
            tables.done.set()
            tables.wanted.set()
            tables.join(5)
        tempo.report(rank)


if __name__ == "__main__":
    main()
