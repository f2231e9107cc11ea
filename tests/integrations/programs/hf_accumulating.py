"""Hugging Face's Trainer steps once for two batches and evaluates after each epoch; one process says what it counted.

An epoch has 41 batches: its last step has one of them.
"""

import json
import sys
import time

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x, labels):
        return {"loss": (self.layer(x) - labels).square().mean()}


class Batches(TrainerCallback):
    count = 0

    def on_substep_end(self, *_args, **_more):
        self.count += 1
        time.sleep(0.05)

    on_step_end = on_substep_end


def samples(count):
    return [{"x": torch.ones(4), "labels": torch.zeros(4)}] * count


arguments = TrainingArguments(
    output_dir="out", num_train_epochs=4, per_device_train_batch_size=2, gradient_accumulation_steps=2,
    eval_strategy="epoch", save_strategy="no", use_cpu=True, ddp_backend="gloo", report_to="none", disable_tqdm=True,
)  # fmt: skip
batches = Batches()
trainer = Trainer(
    model=Net(), args=arguments, train_dataset=samples(41 * 2 * 2), eval_dataset=samples(12), callbacks=[batches]
)
trainer.train()
if trainer.is_world_process_zero():
    made = {"job": "hf", "steps": trainer.state.global_step, "batches": batches.count}
    sys.stdout.write(json.dumps(made) + "\n")
