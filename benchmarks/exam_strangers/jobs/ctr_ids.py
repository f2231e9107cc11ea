"""Click-through rate on hashed categories: logistic regression under FTRL-proximal, one reduction a step."""

import functools
import json
import os
import random
import time
import unicodedata

import torch
import torch.distributed as dist

ITERS = int(os.environ.get("ITERS", "13000"))
ONSET = int(os.environ.get("ONSET", "5000"))
SEED = int(os.environ.get("SEED", "0"))
BATCH = 64
BUCKETS = 1 << 14
FIELDS = ("site", "app", "device", "os", "browser", "city", "hour", "slot", "creative", "referrer")
ALPHA, BETA, L1, L2 = 0.1, 1.0, 0.5, 1.0


@functools.lru_cache(maxsize=250_000)
def bucket_of(field, value):
    """Place of a category in the weight vector (FNV-1a, as in serving). Hashing is slow, so it is remembered."""
    text = unicodedata.normalize("NFKC", f"{field}={value}").casefold()
    state = 0xCBF29CE484222325
    for byte in text.encode():
        state = ((state ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return state % BUCKETS


class Log:
    """Impressions as the ad server writes them down."""

    def __init__(self, rank):
        self.random = random.Random(SEED * 100 + rank)
        self.rows = [
            ([f"{name}-{self.random.randrange(60)}" for name in FIELDS], float(self.random.random() < 0.1))
            for _ in range(4000)
        ]
        self.session = rank << 40

    def read(self, count, with_sessions):
        start = self.random.randrange(len(self.rows) - count)
        chunk = self.rows[start : start + count]
        if not with_sessions:
            return chunk
        # the new ad server appends the session to everything that may be a link
        named = []
        for values, click in chunk:
            self.session += 1
            tail = f"?sid={self.session:x}"
            named.append(([*values[:3], *[value + tail for value in values[3:]]], click))
        return named


def vectorise(rows):
    places = []
    for values, _ in rows:
        single = [bucket_of(field, value) for field, value in zip(FIELDS, values, strict=True)]
        crossed = [bucket_of("device x " + FIELDS[i], values[2] + "&" + values[i]) for i in range(6, len(FIELDS))]
        places.append(single + crossed)
    return torch.tensor(places), torch.tensor([click for _, click in rows])


class FTRL:
    """Keeps z and n of each bucket; weights are made from them when they are needed."""

    def __init__(self):
        self.z = torch.zeros(BUCKETS)
        self.n = torch.zeros(BUCKETS)

    def weights(self):
        shrunk = torch.sign(self.z) * L1 - self.z
        return torch.where(self.z.abs() <= L1, 0.0, shrunk / ((BETA + self.n.sqrt()) / ALPHA + L2))

    def update(self, gradient, weights):
        sigma = ((self.n + gradient**2).sqrt() - self.n.sqrt()) / ALPHA
        self.z += gradient - sigma * weights
        self.n += gradient**2


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    log, rule = Log(rank), FTRL()
    took, loss_sum = [], 0.0
    for step in range(ITERS):
        began = time.perf_counter()
        places, clicks = vectorise(log.read(BATCH, with_sessions=step >= ONSET))
        weights = rule.weights()
        predicted = torch.sigmoid(weights[places].sum(1))
        time.sleep(0.002)  # the embedding lookup on the device
        gradient = torch.zeros(BUCKETS)
        error = ((predicted - clicks) / BATCH)[:, None].expand_as(places)
        gradient.scatter_add_(0, places.reshape(-1), error.reshape(-1))
        dist.all_reduce(gradient)
        rule.update(gradient / world, weights)
        loss_sum += float(torch.nn.functional.binary_cross_entropy(predicted.clamp(1e-6, 1 - 1e-6), clicks))
        took.append(time.perf_counter() - began)
        if rank == 0 and step % 1000 == 999:
            print(f"step {step + 1} loss {loss_sum / (step + 1):.4f}", flush=True)
    dist.destroy_process_group()
    if rank == 0:
        before, after = took[min(20, ONSET // 2) : ONSET], took[ONSET:]
        line = {
            "job": "ctr_ids",
            "mean_ms_before": 1e3 * sum(before) / len(before),
            "mean_ms_after": 1e3 * sum(after) / len(after),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
