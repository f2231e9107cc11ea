"""PPO: an iteration is a rollout and four updates; episodes end at any time; a longer test drive every 60. Healthy."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from laps import SEED, Laps, kernel  # noqa: E402

ENVS, STEPS = 12, 10


class Pendulums:
    """Balanced poles; those that fall are set up again, which takes a moment."""

    def __init__(self, count: int, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.state = torch.zeros(count, 4)

    def step(self, pushes: Tensor) -> tuple[Tensor, Tensor]:
        noise = 0.2 * torch.randn(self.state.shape, generator=self.random)
        self.state = 0.98 * self.state + noise
        self.state[:, 0] += 0.1 * (pushes.float() - 1)
        fallen = self.state[:, 0].abs() > 1.2
        kernel(2.5 + 0.4 * min(int(fallen.sum()), 4))
        self.state[fallen] = 0.0
        return self.state, 1.0 - fallen.float()


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.actor, self.critic = nn.Linear(64, 3), nn.Linear(64, 1)

    def forward(self, view: Tensor) -> tuple[Tensor, Tensor]:
        x = self.trunk(view)
        return self.actor(x), self.critic(x).squeeze(-1)


@torch.no_grad()
def rollout(model: ActorCritic, world: Pendulums, steps: int) -> tuple[Tensor, ...]:
    rows = []
    view = world.state
    for _ in range(steps):
        logits, value = model(view)
        choice = torch.distributions.Categorical(logits=logits)
        action = choice.sample()
        following, reward = world.step(action)
        rows.append((view, action, choice.log_prob(action), reward, value))
        view = following
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


def ppo_loss(model: ActorCritic, batch: tuple[Tensor, ...]) -> Tensor:
    view, action, old, reward, value = batch
    returns = reward.flip(0).cumsum(0).flip(0) / STEPS
    gain = returns - value
    logits, guess = model(view)
    ratio = (torch.distributions.Categorical(logits=logits).log_prob(action) - old).exp()
    clipped = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
    return (guess - returns).pow(2).mean() - clipped.mean()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    torch.manual_seed(SEED + rank)
    world, test = Pendulums(ENVS, SEED + rank), Pendulums(ENVS, 99)
    laps = Laps("healthy_ppo_rounds", 1600, None)
    for step in laps:
        batch = rollout(model, world, STEPS)
        for _ in range(4):
            loss = ppo_loss(model, batch)
            optimizer.zero_grad()
            loss.backward()
            kernel(3)
            vector = nn.utils.parameters_to_vector([p.grad for p in model.parameters()])
            dist.all_reduce(vector)
            nn.utils.vector_to_parameters(vector / dist.get_world_size(), [p.grad for p in model.parameters()])
            optimizer.step()
        if step % 60 == 59:
            rollout(model, test, 2 * STEPS)
    laps.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
