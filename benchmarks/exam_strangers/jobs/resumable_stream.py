"""Language model on a stream that can be resumed: sources are mixed, shuffled in a buffer, packed to one length."""

import copy
import json
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ITERS = int(os.environ.get("ITERS", "1300"))
ONSET = int(os.environ.get("ONSET", "520"))
SEED = int(os.environ.get("SEED", "0"))
BATCH, LENGTH, VOCABULARY = 4, 128, 1000


class Source:
    """Endless documents of one crawl, from a generator of its own."""

    def __init__(self, seed):
        self.generator = np.random.Generator(np.random.MT19937(seed))
        self.read = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.read += 1
        length = int(self.generator.integers(20, 60))
        return self.generator.integers(0, VOCABULARY, length).tolist()

    def state_dict(self):
        return {"rng": self.generator.bit_generator.state, "read": self.read}


class ShuffledMixture:
    """Draws a source, puts its document into the buffer and takes another one out."""

    def __init__(self, sources, size, seed):
        self.sources = sources
        self.generator = np.random.default_rng(seed)
        self.buffer = [next(sources[i % len(sources)]) for i in range(size)]

    def __iter__(self):
        while True:
            at = int(self.generator.integers(len(self.buffer)))
            document = self.buffer[at]
            self.buffer[at] = next(self.sources[int(self.generator.integers(len(self.sources)))])
            yield document

    def state_dict(self):
        return {
            "sources": [source.state_dict() for source in self.sources],
            "rng": self.generator.bit_generator.state,
            "buffer": self.buffer,
        }


class ResumableLoader:
    """Batches; every so often the state of the whole stream is put aside for the next checkpoint."""

    def __init__(self, stream, snapshot_every):
        self.stream, self.snapshot_every = stream, snapshot_every
        self.snapshot = None

    def __iter__(self):
        pending, number = [], 0
        for document in self.stream:
            pending += document
            if len(pending) >= BATCH * (LENGTH + 1):
                batch = torch.tensor(pending[: BATCH * (LENGTH + 1)]).view(BATCH, LENGTH + 1)
                pending = pending[BATCH * (LENGTH + 1) :]
                number += 1
                if number % self.snapshot_every == 0:
                    self.snapshot = copy.deepcopy({**self.stream.state_dict(), "pending": pending, "number": number})
                yield batch


class Bigram(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.out = nn.Linear(32, VOCABULARY)

    def forward(self, tokens):
        time.sleep(0.03)
        return self.out(torch.tanh(self.embed(tokens)))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    sources = [Source(SEED * 1000 + rank * 100 + i) for i in range(24)]
    loader = ResumableLoader(ShuffledMixture(sources, 4000, SEED * 10 + rank), snapshot_every=250)
    model = DDP(Bigram())
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    took, last = [], time.perf_counter()
    for step, batch in enumerate(loader):
        if step == ONSET:
            loader.snapshot_every = 1  # no sample may be seen twice after a crash
        logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        time.sleep(0.015)
        optimizer.step()
        optimizer.zero_grad()
        now = time.perf_counter()
        took.append(now - last)
        last = now
        if step + 1 == ITERS:
            break
    dist.destroy_process_group()
    if rank == 0:
        result = {
            "job": "resumable_stream",
            "mean_ms_before": 1e3 * float(np.mean(took[min(10, ONSET // 2) : ONSET])),
            "mean_ms_after": 1e3 * float(np.mean(took[ONSET + 1 :])),
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
