"""A tiny training by Hugging Face's Trainer that reports to the trackers it is told, or to one that is down."""

import sys
import time

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import eroica.integrations.news
from eroica.integrations.transformers import EroicaCallback

eroica.integrations.news.EVERY_S = 0.05


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x, labels):
        return {"loss": (self.layer(x) - labels).square().mean()}


class Slow(TrainerCallback):
    def on_step_end(self, *_args, **_more):
        time.sleep(0.05)


class Down(TrainerCallback):
    """A tracker that fails where it hears of Eroica."""

    __module__ = "transformers.integrations.down"
    tried = 0

    def on_log(self, _args, _state, _control, logs=None, **_more):
        if any(name.startswith("eroica/") for name in logs):
            self.tried += 1
            raise RuntimeError("the tracker is down")


data = [{"x": torch.ones(4), "labels": torch.zeros(4)}] * 40
arguments = TrainingArguments(
    output_dir="out", max_steps=20, per_device_train_batch_size=2, logging_steps=5, save_strategy="no", use_cpu=True,
    report_to=sys.argv[2].split(","), disable_tqdm=True,
)  # fmt: skip
trainer = Trainer(model=Net(), args=arguments, train_dataset=data, callbacks=[Slow()])
trainer.add_callback(EroicaCallback(trainer))
down = Down()
if sys.argv[1] == "broken":
    trainer.add_callback(down)
trainer.train()
told = [entry for entry in trainer.state.log_history if "eroica/iteration_ms" in entry]
sys.stdout.write(f"steps {trainer.state.global_step} told {len(told)} tried {down.tried}\n")
