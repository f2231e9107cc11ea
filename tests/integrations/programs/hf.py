"""Hugging Face's Trainer steps once for two batches and evaluates after each epoch; one process says what it counted.

An epoch has 41 batches: its last step has one of them. With trackers as arguments it takes 20 steps, and Eroica's
callback reports to them; "broken" is a tracker that is down.
"""

import json
import os
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


class Down(TrainerCallback):
    """A tracker that fails where it hears of Eroica."""

    __module__ = "transformers.integrations.down"
    tried = 0

    def on_log(self, _args, _state, _control, logs=None, **_more):
        if any(name.startswith("eroica/") for name in logs):
            self.tried += 1
            raise RuntimeError("the tracker is down")


def samples(count):
    return [{"x": torch.ones(4), "labels": torch.zeros(4)}] * count


trackers = sys.argv[1:]
arguments = TrainingArguments(
    output_dir="out", num_train_epochs=4, max_steps=20 if trackers else -1, per_device_train_batch_size=2,
    gradient_accumulation_steps=2, eval_strategy="epoch", save_strategy="no", use_cpu=True,
    ddp_backend="gloo" if "RANK" in os.environ else None, logging_steps=5, disable_tqdm=True,
    report_to=[name for name in trackers if name != "broken"],
)  # fmt: skip
batches, down = Batches(), Down()
trainer = Trainer(
    model=Net(), args=arguments, train_dataset=samples(41 * 2 * 2), eval_dataset=samples(12), callbacks=[batches]
)
if trackers:
    import eroica.integrations.news
    from eroica.integrations.transformers import EroicaCallback

    eroica.integrations.news.EVERY_S = 0.05
    trainer.add_callback(EroicaCallback(trainer))
if "broken" in trackers:
    trainer.add_callback(down)
trainer.train()
if trainer.is_world_process_zero():
    told = sum("eroica/iteration_ms" in entry for entry in trainer.state.log_history)
    made = {"job": "hf", "steps": trainer.state.global_step, "batches": batches.count}
    sys.stdout.write(json.dumps({**made, "told": told, "tried": down.tried}) + "\n")
