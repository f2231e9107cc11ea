"""Translation with buckets of lengths: each batch holds as many tokens as any other, in few long or many short rows."""

import json
import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ITERS = int(os.environ.get("ITERS", "2200"))
ONSET = int(os.environ.get("ONSET", "500"))  # only where the two means are split
SEED = int(os.environ.get("SEED", "0"))
VOCABULARY, DIM, TOKENS = 500, 32, 1024
BUCKETS = (8, 16, 32, 64, 128)


class BucketSampler:
    """All ranks take the same bucket in a step: their batches are alike, those of the next step are not."""

    def __init__(self, rank, seed):
        self.shared = random.Random(seed)
        self.own = random.Random(seed * 10 + rank + 1)

    def __iter__(self):
        while True:
            width = self.shared.choice(BUCKETS)
            rows = TOKENS // width
            lengths = [self.own.randint(width // 2 + 1, width) for _ in range(rows)]
            yield width, lengths


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, DIM, padding_idx=0)
        self.encoder = nn.TransformerEncoderLayer(DIM, 2, 64, batch_first=True, dropout=0.0)
        self.out = nn.Linear(DIM, VOCABULARY)

    def forward(self, tokens):
        width = tokens.shape[1]
        # attention grows with the square of the length, the rest with the number of tokens
        time.sleep(0.025 + 0.020 * width / max(BUCKETS))
        return self.out(self.encoder(self.embed(tokens), src_key_padding_mask=tokens == 0))


def make_batch(width, lengths, generator):
    tokens = torch.randint(1, VOCABULARY, (len(lengths), width), generator=generator)
    for row, length in enumerate(lengths):
        tokens[row, length:] = 0
    return tokens


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = DDP(Translator())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    generator = torch.Generator().manual_seed(SEED * 10 + rank)
    durations = []
    for step, (width, lengths) in enumerate(BucketSampler(rank, SEED)):
        if step == ITERS:
            break
        tick = time.perf_counter()
        tokens = make_batch(width, lengths, generator)
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        durations.append(time.perf_counter() - tick)
        if rank == 0 and step % 200 == 0:
            print(f"step {step}: {len(lengths)} x {width}, loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()
    if rank == 0:
        warm = min(10, ONSET // 2)
        before = sum(durations[warm:ONSET]) / (ONSET - warm)
        after = sum(durations[ONSET:]) / len(durations[ONSET:])
        print(json.dumps({"job": "token_buckets", "mean_ms_before": before * 1e3, "mean_ms_after": after * 1e3}))


if __name__ == "__main__":
    main()
