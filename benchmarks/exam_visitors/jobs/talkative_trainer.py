"""A trainer written by hand, with callbacks; from its start on, one lets the model write after each step."""

import json
import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ITERS = int(os.environ.get("ITERS", "270"))
ONSET = int(os.environ.get("ONSET", "130"))
SEED = int(os.environ.get("SEED", "0"))


class Writer(nn.Module):
    def __init__(self, letters=64, width=32):
        super().__init__()
        self.table = nn.Embedding(letters, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, letters)

    def forward(self, letters, state=None):
        time.sleep(0.014 + 0.0012 * letters.shape[1])
        h, state = self.rnn(self.table(letters), state)
        return self.head(h), state


class Callback:
    def on_step_end(self, trainer):
        pass


class WriteSample(Callback):
    """A sentence of the model's own, letter by letter, for the log."""

    def __init__(self, seed, length=14):
        self.length, self.sentences, self.draw = length, [], random.Random(seed)

    @torch.no_grad()
    def on_step_end(self, trainer):
        letters, state = torch.tensor([[self.draw.randrange(64)]]), None
        written = []
        for _ in range(self.length):
            scores, state = trainer.model.module(letters, state)
            letters = torch.multinomial(scores[:, -1].softmax(-1), 1)
            written.append(int(letters))
        self.sentences = [*self.sentences[-9:], written]


class MeanLoss(Callback):
    def __init__(self):
        self.mean = 0.0

    def on_step_end(self, trainer):
        self.mean = 0.95 * self.mean + 0.05 * trainer.loss.item()


class Trainer:
    def __init__(self, model, seed, callbacks):
        self.model, self.callbacks = model, callbacks
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.generator, self.draw = torch.Generator().manual_seed(seed), random.Random(seed)
        self.loss, self.took = None, []

    def training_step(self):
        letters = torch.randint(64, (4, 49), generator=self.generator)
        scores, _ = self.model(letters[:, :-1])
        self.loss = nn.functional.cross_entropy(scores.flatten(0, 1), letters[:, 1:].flatten())
        self.loss.backward()
        time.sleep(0.075 * self.draw.lognormvariate(0, 0.35))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def train(self):
        for _ in range(ITERS):
            began = time.perf_counter()
            self.training_step()
            for callback in self.callbacks:
                callback.on_step_end(self)
            self.took.append(time.perf_counter() - began)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(Writer())
    trainer = Trainer(model, SEED + rank, [MeanLoss(), WriteSample(SEED + rank)])
    trainer.train()
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        mean = lambda part: 1e3 * sum(part) / max(1, len(part))  # noqa: E731
        before, after = mean(trainer.took[min(10, ONSET // 2) : ONSET]), mean(trainer.took[ONSET:])
        print(json.dumps({"job": "talkative_trainer", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
