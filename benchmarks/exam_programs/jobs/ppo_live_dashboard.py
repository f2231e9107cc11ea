"""Policy gradients with clipping; a thread can draw the returns of all episodes so far while the training goes on."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

WIDTH, ACTIONS, STEPS = 32, 5, 64


class LiveDashboard(threading.Thread):
    """Smooths the returns with a bell curve, in plain Python, and draws them again and again while somebody looks."""

    def __init__(self) -> None:
        super().__init__(name="live-dashboard", daemon=True)
        self.returns: deque[float] = deque([0.0] * 5000, maxlen=5000)
        self.opened = threading.Event()
        self.bell = [2.718 ** (-(((i - 40) / 16) ** 2)) for i in range(81)]
        self.curve: list[float] = []

    def smooth(self, values: list[float]) -> list[float]:
        total, bell = sum(self.bell), self.bell
        out = []
        for at in range(len(values) - len(bell)):
            weighted = 0.0
            for place, weight in enumerate(bell):
                weighted += weight * values[at + place]
            out.append(weighted / total)
        return out

    def run(self) -> None:
        while True:
            self.opened.wait()
            self.curve = self.smooth(list(self.returns))
            time.sleep(0.008)


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh())
        self.actor, self.critic = nn.Linear(64, ACTIONS), nn.Linear(64, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(x)
        device_wait(12)
        return self.actor(hidden).log_softmax(-1), self.critic(hidden)[:, 0]


class Agent:
    def __init__(self, seed: int) -> None:
        self.model = DistributedDataParallel(ActorCritic())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-4)
        self.random = torch.Generator().manual_seed(seed)

    def rollout(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        states = torch.randn(STEPS, WIDTH, generator=self.random)
        with torch.no_grad():
            logp, _ = self.model.module(states)
            actions = torch.multinomial(logp.exp(), 1, generator=self.random)
        rewards = (states[:, 0] > 0).float() * (actions[:, 0] == 1).float()
        return states, actions, logp.gather(1, actions)[:, 0], rewards

    def update(self, states: Tensor, actions: Tensor, old: Tensor, rewards: Tensor) -> None:
        for _ in range(3):
            logp, value = self.model(states)
            advantage = rewards - value.detach()
            ratio = (logp.gather(1, actions)[:, 0] - old).exp()
            policy = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            self.optimizer.zero_grad()
            (policy + 0.5 * (rewards - value).square().mean()).backward()
            self.optimizer.step()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    agent, dashboard = Agent(SEED + rank), LiveDashboard()
    dashboard.start()
    tempo = Tempo("ppo_live_dashboard", 910, 350)
    for step in tempo:
        if tempo.after_onset(step) and rank == 1:
            dashboard.opened.set()
        states, actions, old, rewards = agent.rollout()
        agent.update(states, actions, old, rewards)
        dashboard.returns.append(rewards.sum().item())
    dashboard.opened.clear()
    tempo.report(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
