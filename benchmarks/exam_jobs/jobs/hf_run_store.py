"""BERT from a config with the Hugging Face Trainer; a callback keeps numbers of the run in SQLite."""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainingArguments

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from stepclock import StepClock  # noqa: E402

LENGTH, VOCABULARY = 32, 500
clock = StepClock("hf_run_store", iters=300, onset=150)


class Lines(Dataset[dict[str, torch.Tensor]]):
    def __init__(self) -> None:
        self.ids = torch.randint(5, VOCABULARY, (512, LENGTH), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return 200_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = self.ids[index % 512]
        return {"input_ids": ids.masked_fill(ids % 7 == 0, 4), "labels": ids}


class RunStore(TrainerCallback):
    """Norm of the weights of the attention, one row each."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path)
        self.connection.execute("CREATE TABLE norms (step INTEGER, name TEXT, kind TEXT, value REAL)")
        self.connection.execute("CREATE INDEX by_name ON norms (name, step)")
        self.connection.commit()

    def add_row(self, step: int, name: str, kind: str, value: float) -> None:
        self.connection.execute("INSERT INTO norms VALUES (?, ?, ?, ?)", (step, name, kind, value))
        self.connection.commit()

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not clock.late(state.global_step):
            return
        for name, weight in model.named_parameters():
            if "attention.self" not in name:
                continue
            self.add_row(state.global_step, name, "weight", weight.detach().norm().item())


class Ticker(TrainerCallback):
    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        clock.tick()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        clock.tick()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(20)
    model = BertForMaskedLM(
        BertConfig(
            vocab_size=VOCABULARY, hidden_size=96, num_hidden_layers=2, num_attention_heads=4, intermediate_size=192,
            max_position_embeddings=LENGTH,
        )
    )  # fmt: skip
    folder = Path(tempfile.mkdtemp(prefix="run-"))
    arguments = TrainingArguments(
        output_dir=str(folder / "out"), per_device_train_batch_size=4, max_steps=clock.iters, logging_steps=100,
        save_strategy="no", report_to="none", use_cpu=True, ddp_backend="gloo", disable_tqdm=True,
    )  # fmt: skip
    callbacks = [RunStore(folder / "run.sqlite"), Ticker()]
    trainer = Trainer(model=model, args=arguments, train_dataset=Lines(), callbacks=callbacks)
    trainer.train()
    clock.report(trainer.args.process_index)


if __name__ == "__main__":
    main()
