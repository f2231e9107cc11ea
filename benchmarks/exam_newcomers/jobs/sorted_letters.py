"""Encoder of letters under DDP; each rank reads its own year, in the order in which the archive keeps it."""

import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ITERS = int(os.environ.get("ITERS", "330"))
ONSET = int(os.environ.get("ONSET", "160"))
SEED = int(os.environ.get("SEED", "0"))
LETTERS = 6


def letters_of(rank):
    """Lengths of the letters of a year. In that of rank 2 the enclosures (long) have been filed at the end."""
    generator = torch.Generator().manual_seed(SEED + 17 * rank)
    step = 0
    while True:
        low, high = (95, 125) if rank == 2 and step >= ONSET else (40, 70)
        lengths = torch.randint(low, high, (LETTERS,), generator=generator).tolist()
        yield [torch.randint(1, 90, (length,), generator=generator) for length in lengths]
        step += 1


class Encoder(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(90, width, padding_idx=0)
        self.attend = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
        self.out = nn.Linear(width, 90)

    def forward(self, tokens):
        time.sleep(0.0003 * tokens.count_nonzero().item())
        hidden = self.attend(self.embed(tokens), src_key_padding_mask=tokens == 0)
        return self.out(hidden)


def train_step(model, optimizer, batch):
    tokens = nn.utils.rnn.pad_sequence(batch, batch_first=True)
    logits = model(tokens)
    loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0)
    optimizer.zero_grad(set_to_none=True)
    time.sleep(0.0003 * tokens.count_nonzero().item())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(Encoder())
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
    letters, took = letters_of(rank), []
    for _ in range(ITERS):
        began = time.perf_counter()
        train_step(model, optimizer, next(letters))
        took.append(time.perf_counter() - began)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        mean = lambda part: 1e3 * sum(part) / max(1, len(part))  # noqa: E731
        before, after = mean(took[min(10, ONSET // 2) : ONSET]), mean(took[ONSET:])
        print(json.dumps({"job": "sorted_letters", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
