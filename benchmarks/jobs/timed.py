"""A training job that times itself; run by `benchmarks/window.py` with and without Eroica. It knows nothing of Eroica.

Shapes: `model` is a small transformer whose operators take tens of microseconds and more; `tiny` is bound by the launch
of operators that do next to nothing (the worst case of any tracer); `calls` is bound by Python calls, about 3 million a
second. On a GPU (`--device cuda`) every iteration ends with reading the loss, so that its time is the device's too.
With `--profile-at N` it profiles itself as the PyTorch documentation says, with stacks, and exports a Chrome trace.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile


def leaf(number: int) -> int:
    return number + 1


def many_calls(count: int) -> int:
    total = 0
    for _ in range(count):
        total = leaf(total)
    return total


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=["model", "tiny", "calls"], required=True)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--profile-at", type=int, default=0)
    parser.add_argument("--profile-iterations", type=int, default=0)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    width, length = (256, 64) if options.shape == "model" else (64, 16)
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=options.shape == "model")
    data = torch.utils.data.TensorDataset(torch.randn(20_000, length, width))
    loader = iter(torch.utils.data.DataLoader(data, batch_size=4))
    on_device = [ProfilerActivity.CUDA] if options.device == "cuda" else []
    profiler = profile(activities=[ProfilerActivity.CPU, *on_device], with_stack=True)
    durations, memory, stall = [], [], 0.0
    began = before = time.monotonic()
    while before - began < options.seconds:
        done = len(durations)
        if options.profile_at and done == options.profile_at:
            begin = time.monotonic()
            profiler.start()
            stall += time.monotonic() - begin
        (batch,) = next(loader)
        if options.shape == "calls":
            many_calls(150_000)
        loss = model(batch.to(options.device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if on_device:
            loss.item()
        if options.profile_at and done == options.profile_at + options.profile_iterations - 1:
            begin = time.monotonic()
            profiler.stop()
            with tempfile.TemporaryDirectory() as directory:
                profiler.export_chrome_trace(f"{directory}/trace.json")
            stall += time.monotonic() - begin
        now = time.monotonic()
        durations.append(now - before)
        before = now
        memory.append(resident_bytes())
    options.out.write_text(json.dumps({"durations": durations, "memory": memory, "stall": stall}))


if __name__ == "__main__":
    main()
