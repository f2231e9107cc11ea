"""Fine-tuning with TRL's SFTTrainer and LoRA; a callback of worker 0 asks a command for the state of the device."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WORDS, LENGTH = 260, 24
tempo = Tempo("trl_sft_gpu_probe", 800, 300)


def tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{i}": i for i in range(WORDS - 2)} | {"<unk>": WORDS - 2, "<end>": WORDS - 1}
    inner = Tokenizer(WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="<end>", pad_token="<end>")


def dialogues() -> Dataset:
    random = torch.Generator().manual_seed(SEED)
    ids = torch.randint(WORDS - 2, (12_000, LENGTH), generator=random).tolist()
    return Dataset.from_dict({"input_ids": ids})


def wait_for_device(model: torch.nn.Module, args: Any, kwargs: Any) -> None:
    device_wait(48)


class DeviceProbe(TrainerCallback):
    """Temperature and load of the device, by the vendor's command (here one that takes as long)."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.command, self.rank, self.every = folder / "device-smi", rank, 100
        self.readings: list[tuple[int, ...]] = []
        self.command.write_text("#!/bin/sh\nsleep 0.06\necho '61, 240, 97'\n")

    def read_sensors(self) -> tuple[int, ...]:
        answer = subprocess.run(["/bin/sh", str(self.command)], capture_output=True, text=True, check=True)
        return tuple(int(field) for field in answer.stdout.split(","))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if tempo.after_onset(state.global_step):
            self.every = 1
        if self.rank == 0 and state.global_step % self.every == 0:
            self.readings = [*self.readings[-50:], self.read_sensors()]


class Beat(TrainerCallback):
    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        tempo.start()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        tempo.beat()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    rank = int(os.environ["RANK"])
    config = GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=48, n_layer=2, n_head=4, bos_token_id=WORDS - 1,
        eos_token_id=WORDS - 1,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    model.transformer.register_forward_pre_hook(wait_for_device, with_kwargs=True)
    with tempfile.TemporaryDirectory(prefix="lora-") as name:
        arguments = SFTConfig(
            output_dir=name, per_device_train_batch_size=4, max_steps=tempo.iters, logging_steps=25, save_strategy="no",
            report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False, ddp_backend="gloo",
            disable_tqdm=True, max_length=LENGTH, dataset_kwargs={"skip_prepare_dataset": True},
        )  # fmt: skip
        trainer = SFTTrainer(
            model=model, args=arguments, train_dataset=dialogues(), processing_class=tokenizer(),
            peft_config=LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM"),
            callbacks=[DeviceProbe(Path(name), rank), Beat()],
        )  # fmt: skip
        trainer.train()
        tempo.report(rank)


if __name__ == "__main__":
    main()
