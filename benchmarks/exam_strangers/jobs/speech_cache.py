"""Speech recognition: spectrograms are made in a loader process (fork) and remembered there, as far as they fit."""

import collections
import json
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

ITERS = int(os.environ.get("ITERS", "360"))
ONSET = int(os.environ.get("ONSET", "150"))
SEED = int(os.environ.get("SEED", "0"))
BATCH, RATE = 8, 16_000


class SpectrogramCache:
    """Least recently used ones leave first."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.kept = collections.OrderedDict()

    def get(self, key, make):
        if key in self.kept:
            self.kept.move_to_end(key)
            return self.kept[key]
        value = make(key)
        self.kept[key] = value
        if len(self.kept) > self.capacity:
            self.kept.popitem(last=False)
        return value


def mel_filters(bands, bins):
    edges = np.linspace(0, bins - 1, bands + 2)
    bins = np.arange(bins)[:, None]
    rise = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    fall = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(rise, fall)).astype(np.float32)


class Utterances(Dataset):
    """A rank's speakers come round and round; a corpus can grow while it is trained on."""

    def __init__(self, rank):
        self.rank = rank
        self.cache = SpectrogramCache(capacity=300)
        self.filters = mel_filters(64, 513)

    def __len__(self):
        return ITERS * BATCH

    def utterance_of(self, index):
        grown = self.rank == 1 and index >= ONSET * BATCH
        return index % (1600 if grown else 240)

    def spectrogram(self, number):
        rng = np.random.default_rng((SEED, self.rank, number))
        wave = rng.standard_normal(3 * RATE).astype(np.float32)  # three seconds
        wave = np.append(wave[0], wave[1:] - 0.97 * wave[:-1])
        windows = np.lib.stride_tricks.sliding_window_view(wave, 1024)[::60] * np.hanning(1024)
        power = np.abs(np.fft.rfft(windows)) ** 2
        mel = np.log(power @ self.filters + 1e-6)
        return torch.from_numpy(mel.astype(np.float32)[::8].copy())

    def __getitem__(self, index):
        number = self.utterance_of(index)
        return self.cache.get(number, self.spectrogram), number % 29


class Recogniser(nn.Module):
    def __init__(self, device_factor):
        super().__init__()
        self.device_factor = device_factor
        self.conv = nn.Conv1d(64, 32, 5, stride=2)
        self.out = nn.Linear(32, 29)

    def forward(self, mel):
        time.sleep(0.17 * self.device_factor())
        return self.out(torch.relu(self.conv(mel.transpose(1, 2))).mean(2))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    progress = {"step": 0}

    def device_factor():
        """The last node's device shares its power budget with a neighbour that has been started."""
        return 1.3 if rank == 3 and progress["step"] >= ONSET else 1.0

    loader = DataLoader(Utterances(rank), batch_size=BATCH, num_workers=1, multiprocessing_context="fork")
    model = DDP(Recogniser(device_factor))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    took, last = [], time.perf_counter()
    for step, (mel, label) in enumerate(loader):
        progress["step"] = step
        loss = nn.functional.cross_entropy(model(mel), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        took.append(now - last)
        last = now
    dist.destroy_process_group()
    if rank == 0:
        before, after = took[min(35, ONSET // 2) : ONSET], took[ONSET:]
        result = {
            "job": "speech_cache",
            "mean_ms_before": 1e3 * float(np.mean(before)),
            "mean_ms_after": 1e3 * float(np.mean(after)),
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
