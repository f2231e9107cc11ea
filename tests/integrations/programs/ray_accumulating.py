"""Ray Train on this machine with a loop that steps once for two batches; says what its worker 0 counted.

An epoch has 41 batches: its last step has one of them.
"""

import contextlib
import json
import sys
import time
from pathlib import Path

import ray
import ray.train
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_data_loader, prepare_model
from torch.utils.data import DataLoader


def train_loop(config):
    model = prepare_model(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = prepare_data_loader(DataLoader(torch.randn(41 * 2 * 2, 8), 2))
    steps = batches = 0
    for _ in range(4):
        for number, batch in enumerate(loader, 1):
            last = number % 2 == 0 or number == len(loader)
            with contextlib.nullcontext() if last else model.no_sync():
                time.sleep(0.05)
                loss = model(batch).square().mean()
                loss.backward()
            batches += 1
            if last:
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
        ray.train.report({"loss": loss.item()})
    if ray.train.get_context().get_world_rank() == 0:
        Path(config["made"]).write_text(json.dumps({"job": "ray", "steps": steps, "batches": batches}))


made = Path("made.json").absolute()
ray.init(address="local", num_cpus=3, include_dashboard=False)  # not the cluster of a test beside this one
TorchTrainer(
    train_loop,
    train_loop_config={"made": str(made)},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=str(made.parent), name="ray"),
    torch_config=TorchConfig(backend="gloo"),
).fit()
ray.shutdown()
sys.stdout.write(made.read_text() + "\n")
