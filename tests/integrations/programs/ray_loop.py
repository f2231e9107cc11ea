"""A tiny training by Ray Train, in a Ray that runs already; each worker writes what it was told of its job."""

import json
import sys
import time
from pathlib import Path

import ray
import ray.train
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model

from eroica.integrations.ray import metrics, watched

STEPS, STEP_S = 600, 0.03


def train_loop(config):
    model = prepare_model(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(STEP_S)
    known = metrics()
    ray.train.report({"loss": loss.item(), **known})
    rank = ray.train.get_context().get_world_rank()
    Path(config["out"], f"{rank}.json").write_text(json.dumps(known))


out, address, run = sys.argv[1:]
variables = {"EROICA_RUN_DIR": run, "OMP_NUM_THREADS": "1"}
ray.init(address=address, runtime_env={"env_vars": variables})
TorchTrainer(
    watched(train_loop, job_end_grace_s=3.0, baseline_window=False),
    train_loop_config={"out": out},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=out, name="ray"),
    torch_config=TorchConfig(backend="gloo"),
).fit()
