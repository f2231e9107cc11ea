"""Lightning's Trainer with Eroica's callback and nothing else of Eroica; from step 3,000 on it writes weights as text.

Ends some time after a cause is known.
"""

import sys
import tempfile

import lightning as L
import torch
from lightning.pytorch.loggers import TensorBoardLogger

from eroica.integrations import metrics
from eroica.integrations.lightning import EroicaCallback

WIDTH, ONSET, AFTER, LOOKS = 256, 3000, 40, 4


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(6)])

    def training_step(self, batch, _number):
        return self.layers(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-3)


class WeightsAsText(L.Callback):
    def __init__(self):
        self.looks = 0

    def on_train_batch_end(self, trainer, module, *_):
        if trainer.global_step > ONSET:
            with tempfile.TemporaryFile("w") as file:
                for weight in module.parameters():
                    file.write(" ".join(f"{value:.6f}" for value in weight.detach().flatten().tolist()))
        if trainer.global_step % AFTER == 0:
            self.looks += "eroica/gain" in metrics()
            trainer.should_stop = self.looks > LOOKS


torch.set_num_threads(1)
trainer = L.Trainer(
    accelerator="cpu", devices=1, max_steps=6000, logger=TensorBoardLogger(sys.argv[1]), enable_checkpointing=False,
    callbacks=[WeightsAsText(), EroicaCallback()], enable_progress_bar=False,
)  # fmt: skip
trainer.fit(Net(), torch.utils.data.DataLoader(torch.randn(64000, WIDTH), batch_size=8))
