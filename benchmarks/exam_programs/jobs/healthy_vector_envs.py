"""Actor and critic with several environments a worker; episodes end at different times, the agent is tried at times."""

from __future__ import annotations

import math
import random
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

ENVS, HORIZON, ACTIONS, SEEN = 6, 8, 2, 4


class Pole:
    """A pole on a cart; an episode ends when it falls or after 200 steps."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.reset()

    def reset(self) -> list[float]:
        self.x, self.v, self.angle, self.spin = (self.random.uniform(-0.05, 0.05) for _ in range(4))
        self.steps = 0
        return self.state()

    def state(self) -> list[float]:
        return [self.x, self.v, self.angle, self.spin]

    def step(self, action: int) -> tuple[list[float], float, bool]:
        force = 10.0 if action else -10.0
        pushed = (force + 0.05 * self.spin**2 * math.sin(self.angle)) / 1.1
        turned = (9.8 * math.sin(self.angle) - math.cos(self.angle) * pushed) / (
            0.5 * (4 / 3 - 0.1 * math.cos(self.angle) ** 2 / 1.1)
        )
        self.x, self.v = self.x + 0.02 * self.v, self.v + 0.02 * (pushed - 0.05 * turned * math.cos(self.angle) / 1.1)
        self.angle, self.spin = self.angle + 0.02 * self.spin, self.spin + 0.02 * turned
        self.steps += 1
        done = abs(self.x) > 2.4 or abs(self.angle) > 0.21 or self.steps >= 200
        return (self.reset() if done else self.state()), 1.0, done


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SEEN, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
        self.actor, self.critic = nn.Linear(48, ACTIONS), nn.Linear(48, 1)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(states)
        return self.actor(hidden).log_softmax(-1), self.critic(hidden)[..., 0]


class Worker:
    def __init__(self, model: nn.Module, seed: int) -> None:
        self.model, self.envs = model, [Pole(seed * 100 + i) for i in range(ENVS)]
        self.states = torch.tensor([env.state() for env in self.envs])
        self.episodes = 0

    @torch.no_grad()
    def rollout(self) -> tuple[Tensor, Tensor, Tensor]:
        states, actions, rewards, going = [], [], [], []
        for _ in range(HORIZON):
            logp, _ = self.model(self.states)
            device_wait(3)
            chosen = torch.multinomial(logp.exp(), 1)[:, 0]
            results = [env.step(action) for env, action in zip(self.envs, chosen.tolist(), strict=True)]
            self.episodes += sum(done for _, _, done in results)
            states.append(self.states)
            actions.append(chosen)
            rewards.append(torch.tensor([reward for _, reward, _ in results]))
            going.append(torch.tensor([not done for _, _, done in results]).float())
            self.states = torch.tensor([state for state, _, _ in results])
        returns, following = [], self.model(self.states)[1]
        for reward, goes_on in zip(reversed(rewards), reversed(going), strict=True):
            following = reward + 0.98 * following * goes_on
            returns.append(following)
        return torch.stack(states), torch.stack(actions), torch.stack(returns[::-1])


@torch.no_grad()
def try_out(model: nn.Module, seed: int) -> float:
    """Mean length of three episodes, with the best action each time."""
    lengths = []
    for episode in range(3):
        env, done, steps = Pole(seed + episode), False, 0
        state = env.state()
        while not done and steps < 120:
            device_wait(1)
            state, _, done = env.step(int(model(torch.tensor(state))[0].argmax()))
            steps += 1
        lengths.append(steps)
    return sum(lengths) / len(lengths)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED + rank)
    model = DistributedDataParallel(ActorCritic())
    optimizer = torch.optim.RMSprop(model.parameters(), lr=7e-4, alpha=0.99)
    worker = Worker(model.module, SEED + rank + 1)
    scores: list[float] = []
    tempo = Tempo("healthy_vector_envs", 1150, None)
    with tempfile.TemporaryDirectory(prefix="poles-") as name:
        for step in tempo:
            states, actions, returns = worker.rollout()
            logp, value = model(states)
            device_wait(40 + 6 * torch.rand(()).item())
            advantage = returns - value.detach()
            policy = -(logp.gather(2, actions[..., None])[..., 0] * advantage).mean()
            entropy = -(logp.exp() * logp).sum(-1).mean()
            loss = policy + 0.5 * (returns - value).square().mean() - 0.01 * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            if step % 120 == 119:
                scores.append(try_out(model.module, SEED + step))
                if rank == 0:
                    torch.save({"model": model.module.state_dict(), "scores": scores}, Path(name, "agent.pt"))
    tempo.report(rank)
    dist.barrier()
    del model, optimizer, worker
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
