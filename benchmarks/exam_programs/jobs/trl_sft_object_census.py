"""Fine-tuning with TRL's SFTTrainer; somebody hunts a leak of memory on one worker and counts all objects."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WORDS, LENGTH = 300, 32
tempo = Tempo("trl_sft_object_census", 470, 240)


def tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{i}": i for i in range(WORDS - 2)} | {"<unk>": WORDS - 2, "<end>": WORDS - 1}
    inner = Tokenizer(WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="<end>", pad_token="<end>")


def instructions() -> Dataset:
    random = torch.Generator().manual_seed(SEED)
    ids = torch.randint(WORDS - 2, (6400, LENGTH), generator=random).tolist()
    return Dataset.from_dict({"input_ids": ids})


def wait_for_device(model: torch.nn.Module, args: Any, kwargs: Any) -> None:
    device_wait(60)


class ObjectCensus(TrainerCallback):
    """Which kinds of objects become more? Counted on the worker whose memory grew in the last run."""

    def __init__(self, rank: int) -> None:
        self.watched = rank == 1
        self.before: Counter[type] = Counter()
        self.grown: Counter[type] = Counter()

    def count_objects(self) -> Counter[type]:
        return Counter(map(type, gc.get_objects()))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.watched or not tempo.after_onset(state.global_step):
            return
        now = self.count_objects()
        self.grown.update({kind: n - self.before[kind] for kind, n in now.items() if n > self.before[kind]})
        self.before = now


class Beat(TrainerCallback):
    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        tempo.start()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        tempo.beat()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    rank = int(os.environ["RANK"])
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=WORDS, n_positions=LENGTH, n_embd=48, n_layer=2, n_head=4, bos_token_id=WORDS - 1,
            eos_token_id=WORDS - 1,
        )
    )  # fmt: skip
    model.register_forward_pre_hook(wait_for_device, with_kwargs=True)
    with tempfile.TemporaryDirectory(prefix="sft-") as name:
        arguments = SFTConfig(
            output_dir=name, per_device_train_batch_size=4, max_steps=tempo.iters, logging_steps=20, save_strategy="no",
            report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False, ddp_backend="gloo",
            disable_tqdm=True, max_length=LENGTH, dataset_kwargs={"skip_prepare_dataset": True},
        )  # fmt: skip
        trainer = SFTTrainer(
            model=model, args=arguments, train_dataset=instructions(), processing_class=tokenizer(),
            callbacks=[ObjectCensus(rank), Beat()],
        )  # fmt: skip
        trainer.train()
        tempo.report(rank)


if __name__ == "__main__":
    main()
