"""A tiny training by Lightning's Trainer that logs to TensorBoard and CSV, W&B, MLflow, or to one that is down."""

import json
import pickle
import sys
import time

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger

import eroica.integrations.news
from eroica.integrations.lightning import EroicaCallback

eroica.integrations.news.EVERY_S = 0.05


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def training_step(self, batch, _number):
        time.sleep(0.05)
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Broken(CSVLogger):
    def log_metrics(self, metrics, step=None):
        if any(name.startswith("eroica/") for name in metrics):
            raise RuntimeError("the tracker is down")


loggers = {
    "tensorboard": lambda: [CSVLogger("out", name="csv"), TensorBoardLogger("out")],
    "wandb": lambda: [WandbLogger(save_dir="out", offline=True)],
    "mlflow": lambda: [MLFlowLogger("ours")],
    "broken": lambda: [Broken("out")],
}[sys.argv[1]]()
callback = pickle.loads(pickle.dumps(EroicaCallback()))
trainer = L.Trainer(
    accelerator="cpu", devices=1, max_steps=20, logger=loggers, callbacks=[callback], enable_checkpointing=False,
    enable_progress_bar=False, log_every_n_steps=1,
)  # fmt: skip
trainer.fit(Net(), torch.utils.data.DataLoader(torch.ones(64, 4), batch_size=2))
sys.stdout.write(json.dumps({"job": "pl", "steps": trainer.global_step}) + "\n")
