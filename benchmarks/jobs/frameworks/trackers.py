"""Hugging Face's Trainer with Eroica's callback, reporting to TensorBoard and MLflow; ends some time after a verdict.

From step 150 on, a callback of rank 0 writes all weights as text after each step.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from eroica.integrations import metrics
from eroica.integrations.transformers import EroicaCallback

WIDTH, ONSET, AFTER, LOOKS = 256, 150, 40, 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(6)])

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": (self.layers(x) - labels).square().mean()}


class WeightsAsText(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.is_world_process_zero and state.global_step > ONSET:
            with tempfile.TemporaryFile("w") as file:
                for weight in model.parameters():
                    file.write(" ".join(f"{value:.6f}" for value in weight.detach().flatten().tolist()))


class UntilTold(TrainerCallback):
    """Ends the training a few looks after the first in which a cause is known."""

    def __init__(self) -> None:
        self.looks = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % AFTER == 0:
            self.looks += "eroica/gain" in metrics()
            enough = torch.tensor(float(self.looks))
            dist.all_reduce(enough, op=dist.ReduceOp.MAX)  # all stop at the same step
            control.should_training_stop = bool(enough > LOOKS)


def main() -> None:
    torch.set_num_threads(1)
    data = [{"x": torch.randn(WIDTH), "labels": torch.zeros(WIDTH)} for _ in range(64)] * 1000
    arguments = TrainingArguments(
        output_dir=sys.argv[1], max_steps=4000, per_device_train_batch_size=8, logging_steps=20, save_strategy="no",
        use_cpu=True, ddp_backend="gloo", report_to=["tensorboard", "mlflow"], disable_tqdm=True,
        run_name=os.environ.get("EROICA_JOB", "training"),
    )  # fmt: skip
    trainer = Trainer(model=Net(), args=arguments, train_dataset=data, callbacks=[WeightsAsText(), UntilTold()])
    trainer.add_callback(EroicaCallback(trainer))
    trainer.train()


if __name__ == "__main__":
    main()
