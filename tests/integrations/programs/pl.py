"""Lightning's Trainer steps once for two batches and validates after each epoch; one process says what it counted.

An epoch has 41 batches: its last step has one of them. With a tracker as argument one worker takes 20 steps, and
Eroica's callback reports to it; "broken" is one that is down.
"""

import json
import pickle
import sys
import time

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger
from torch.utils.data import DataLoader


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.batches = 0

    def training_step(self, batch, _number):
        self.batches += 1
        time.sleep(0.05)
        return self.layer(batch).square().mean()

    def validation_step(self, batch, _number):
        self.layer(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Broken(CSVLogger):
    def log_metrics(self, metrics, step=None):
        if any(name.startswith("eroica/") for name in metrics):
            raise RuntimeError("the tracker is down")


LOGGERS = {
    "tensorboard": lambda: [CSVLogger("out", name="csv"), TensorBoardLogger("out")],
    "wandb": lambda: [WandbLogger(save_dir="out", offline=True)],
    "mlflow": lambda: [MLFlowLogger("ours")],
    "broken": lambda: [Broken("out")],
}
how = {"devices": 2, "strategy": "ddp", "max_epochs": 4, "logger": False}
if len(sys.argv) > 1:
    import eroica.integrations.news
    from eroica.integrations.lightning import EroicaCallback

    eroica.integrations.news.EVERY_S = 0.05
    callback = pickle.loads(pickle.dumps(EroicaCallback()))
    how = {"devices": 1, "max_steps": 20, "logger": LOGGERS[sys.argv[1]](), "callbacks": [callback]}
net = Net()
trainer = L.Trainer(
    accelerator="cpu", accumulate_grad_batches=2, enable_checkpointing=False, enable_progress_bar=False,
    log_every_n_steps=1, **how,
)  # fmt: skip
trainer.fit(net, DataLoader(torch.ones(41 * 2 * 2, 4), batch_size=2), DataLoader(torch.ones(12, 4), batch_size=2))
if trainer.is_global_zero:
    sys.stdout.write(json.dumps({"job": "pl", "steps": trainer.global_step, "batches": net.batches}) + "\n")
