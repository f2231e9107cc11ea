"""Pictures and captions, contrastive, on one rank; a loader's worker collates and drops repeated captions."""

import difflib
import json
import os
import random
import time
import zlib

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

ITERS = int(os.environ.get("ITERS", "820"))
ONSET = int(os.environ.get("ONSET", "400"))
SEED = int(os.environ.get("SEED", "0"))
BATCH, BUCKETS = 12, 2048
WORDS = ["a", "the", "old", "red", "small", "dog", "harbour", "child", "bridge", "window", "behind", "under", "of"]


class Captions(Dataset):
    """Records in the order of the shards: first a catalogue, then a forum whose threads repeat themselves."""

    def __init__(self, forum_from):
        self.forum_from = forum_from

    def __len__(self):
        return ITERS * BATCH

    def __getitem__(self, index):
        draw = random.Random(SEED * 1_000_003 + index)
        caption = " ".join(draw.choices(WORDS, k=72))
        thread = index // BATCH if index >= self.forum_from else -index
        picture = torch.tensor([draw.random() for _ in range(192)])
        return picture, caption, thread


def alike(one, other):
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio() > 0.9


class CaptionCollate:
    """Pads nothing: captions become bags of words. Of captions of one thread that say the same, one is kept."""

    def __call__(self, records):
        keep = []
        for record in records:
            same_thread = [kept for kept in keep if kept[2] == record[2]]
            duplicates = [kept for kept in same_thread if alike(kept[1], record[1])]
            if not duplicates:
                keep.append(record)
        bags = torch.zeros(len(keep), BUCKETS)
        for row, (_, caption, _) in enumerate(keep):
            for word in caption.split():
                bags[row, zlib.crc32(word.encode()) % BUCKETS] += 1
        return torch.stack([record[0] for record in keep]), bags


class TwoTowers(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.see = nn.Sequential(nn.Linear(192, width), nn.GELU(), nn.Linear(width, width))
        self.read = nn.Linear(BUCKETS, width)

    def forward(self, pictures, bags):
        time.sleep(0.045)
        seen = nn.functional.normalize(self.see(pictures), dim=-1)
        read = nn.functional.normalize(self.read(bags), dim=-1)
        return 8 * seen @ read.T


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    loader = DataLoader(
        Captions(ONSET * BATCH), batch_size=BATCH, num_workers=1, prefetch_factor=2, collate_fn=CaptionCollate()
    )
    model = TwoTowers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches, took = iter(loader), []
    for _ in range(ITERS):
        began = time.perf_counter()
        pictures, bags = next(batches)
        scores = model(pictures, bags)
        loss = nn.functional.cross_entropy(scores, torch.arange(len(scores)))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        time.sleep(0.065)
        optimizer.step()
        took.append(time.perf_counter() - began)
    dist.destroy_process_group()
    mean = lambda part: 1e3 * sum(part) / max(1, len(part))  # noqa: E731
    before, after = mean(took[min(10, ONSET // 2) : ONSET]), mean(took[ONSET:])
    print(json.dumps({"job": "caption_collate", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
