"""Policy gradient; each worker asks a simulator of its own, over a socket, for the steps of its environment."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from laps import SEED, Laps, kernel  # noqa: E402

SIMULATOR = """
import json, random, socket, sys, time
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
channel, _ = server.accept()
lines = channel.makefile("rw")
for line in lines:
    order = json.loads(line)
    time.sleep(0.0165 if order["map"] == "old town" else 0.004)
    cars = [[random.gauss(0, 1) for _ in range(12)] for _ in order["actions"]]
    lines.write(json.dumps({"views": cars, "rewards": [random.random() for _ in cars]}) + "\\n")
    lines.flush()
"""
CARS, ROUTE = 16, 8


class RemoteTown:
    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", SIMULATOR], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        port = int(self.process.stdout.readline())
        self.channel = socket.create_connection(("127.0.0.1", port))
        self.channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lines = self.channel.makefile("rw")
        self.map = "suburb"

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        self.lines.write(json.dumps({"map": self.map, "actions": actions.tolist()}) + "\n")
        self.lines.flush()
        answer = json.loads(self.lines.readline())
        return torch.tensor(answer["views"]), torch.tensor(answer["rewards"])

    def close(self) -> None:
        self.lines.close()
        self.channel.close()
        self.process.wait(10)


class Learner:
    def __init__(self, town: RemoteTown) -> None:
        self.town = town
        self.policy = nn.Sequential(nn.Linear(12, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 5))
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-3)
        self.view, _ = town.step(torch.zeros(CARS, dtype=torch.long))

    def collect(self) -> tuple[Tensor, Tensor]:
        scores, rewards = [], []
        for _ in range(ROUTE):
            choice = torch.distributions.Categorical(logits=self.policy(self.view))
            actions = choice.sample()
            self.view, reward = self.town.step(actions)
            scores.append(choice.log_prob(actions))
            rewards.append(reward)
        return torch.stack(scores), torch.stack(rewards)

    def learn(self, scores: Tensor, rewards: Tensor) -> None:
        returns = rewards.flip(0).cumsum(0).flip(0)
        loss = -(scores * (returns - returns.mean())).mean()
        self.optimizer.zero_grad()
        loss.backward()
        kernel(14)
        for parameter in self.policy.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        self.optimizer.step()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    town = RemoteTown()
    learner = Learner(town)
    torch.manual_seed(SEED + rank)
    laps = Laps("rl_simulator_service", 890, 440)
    for step in laps:
        if laps.late(step) and rank == 1:
            town.map = "old town"
        learner.learn(*learner.collect())
    town.close()
    laps.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
