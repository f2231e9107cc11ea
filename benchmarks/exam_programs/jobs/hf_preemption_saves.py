"""GPT-2 with the Hugging Face Trainer on machines that may be taken away; a callback saves when that is announced."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WORDS, LENGTH = 2000, 16
tempo = Tempo("hf_preemption_saves", 715, 275)


class Blocks(Dataset[dict[str, Tensor]]):
    def __init__(self) -> None:
        self.ids = torch.randint(WORDS, (2048, LENGTH), generator=torch.Generator().manual_seed(SEED))

    def __len__(self) -> int:
        return 400_000

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = self.ids[index % 2048]
        return {"input_ids": ids, "labels": ids}


def wait_for_device(model: torch.nn.Module, args: Any, kwargs: Any) -> None:
    device_wait(45)


class PreemptionGuard(TrainerCallback):
    """From the notice on nothing may be lost: a checkpoint after each step."""

    def announced(self, step: int) -> bool:
        return tempo.after_onset(step)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        if self.announced(state.global_step):
            control.should_save = True
        return control


class Beat(TrainerCallback):
    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        tempo.start()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        tempo.beat()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    config = GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=192, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    model.register_forward_pre_hook(wait_for_device, with_kwargs=True)
    with tempfile.TemporaryDirectory(prefix="gpt-") as name:
        arguments = TrainingArguments(
            output_dir=name, per_device_train_batch_size=2, max_steps=tempo.iters, logging_steps=50,
            learning_rate=3e-4, warmup_steps=40, save_strategy="steps", save_steps=100, save_total_limit=1,
            report_to="none", use_cpu=True, ddp_backend="gloo", disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(
            model=model, args=arguments, train_dataset=Blocks(), callbacks=[PreemptionGuard(), Beat()]
        )  # fmt: skip
        trainer.train()
        tempo.report(trainer.args.process_index)


if __name__ == "__main__":
    main()
