"""Topics of texts with DDP on four ranks; words are split in Python behind a cache, and a callback keeps the state."""

import functools
import json
import os
import random
import shutil
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ITERS = int(os.environ.get("ITERS", "720"))
ONSET = int(os.environ.get("ONSET", "350"))
SEED = int(os.environ.get("SEED", "0"))
TEXTS, WORDS_A_TEXT, HOME_WORDS, FAR_WORDS, CACHE = 32, 250, 2000, 16000, 4096
FROZEN = 60000  # rows of a table of words that is not trained and is saved with the rest
LETTERS = "aeinrstldomu"
MERGES = {a + b: 10 * i + j for i, a in enumerate(LETTERS) for j, b in enumerate(LETTERS)}


@functools.lru_cache(maxsize=CACHE)
def split_word(word):
    """Byte-pair encoding of one word: the pair of the lowest rank is joined until none is left."""
    parts = list(word)
    while len(parts) > 1:
        ranked = [(MERGES.get(parts[i] + parts[i + 1], 1 << 30), i) for i in range(len(parts) - 1)]
        rank, at = min(ranked)
        if rank == 1 << 30:
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return tuple(MERGES.get(part, ord(part[0])) % 256 for part in parts)


class Shard:
    """Texts of one language; the shard of rank 3 goes on with one whose words are many more."""

    def __init__(self, rank):
        self.draw = random.Random(SEED + rank)
        self.home, self.far = self.vocabulary(HOME_WORDS), self.vocabulary(FAR_WORDS)
        self.rank = rank

    def vocabulary(self, count):
        return ["".join(self.draw.choices(LETTERS, k=self.draw.randint(6, 12))) for _ in range(count)]

    def texts(self, step):
        words = self.far if self.rank == 3 and step >= ONSET else self.home
        return [self.draw.choices(words, k=WORDS_A_TEXT) for _ in range(TEXTS)]


def encode(texts):
    pieces, starts = [], []
    for words in texts:
        starts.append(len(pieces))
        for word in words:
            pieces.extend(split_word(word))
    return torch.tensor(pieces), torch.tensor(starts)


class KeepState:
    """A callback: saves the state, but not more often than each `patience` steps."""

    def __init__(self, folder, patience):
        self.path, self.patience, self.last = Path(folder) / "state.pt", patience, 0

    def on_step_end(self, step, model):
        if step - self.last < self.patience:
            return
        self.last = step
        with self.path.open("wb") as file:
            torch.save(model.state_dict(), file)
            file.flush()
            os.fsync(file.fileno())


class Topics(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.words = nn.Parameter(torch.zeros(FROZEN, width), requires_grad=False)
        self.pieces = nn.EmbeddingBag(256, width)
        self.head = nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, 20))

    def forward(self, pieces, starts):
        time.sleep(0.05)
        return self.head(self.pieces(pieces, starts))


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    shard = Shard(rank)
    model = DistributedDataParallel(Topics())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4)
    generator = torch.Generator().manual_seed(SEED + rank)
    folder = tempfile.mkdtemp()
    keeper, took = KeepState(folder, patience=40), []
    for step in range(ITERS):
        began = time.perf_counter()
        pieces, starts = encode(shard.texts(step))
        topics = torch.randint(20, (TEXTS,), generator=generator)
        loss = nn.functional.cross_entropy(model(pieces, starts), topics)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        time.sleep(0.06)
        optimizer.step()
        if step == ONSET:
            keeper.patience = 3
        if rank == 0:
            keeper.on_step_end(step, model.module)
        dist.barrier()  # nobody goes on before the state is safe
        took.append(time.perf_counter() - began)
    dist.destroy_process_group()
    shutil.rmtree(folder, ignore_errors=True)
    if rank == 0:
        mean = lambda part: 1e3 * sum(part) / max(1, len(part))  # noqa: E731
        before, after = mean(took[min(10, ONSET // 2) : ONSET]), mean(took[ONSET:])
        print(json.dumps({"job": "subword_shards", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
