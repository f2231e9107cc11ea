"""Q-learning with DDP; each worker draws from its own replay memory, transitions with large errors more often."""

from __future__ import annotations

import math
import random
import sys
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

STATES, WIDTH, ACTIONS, BATCH = 512, 24, 6, 32


@dataclass(slots=True)
class Transition:
    state: int
    action: int
    reward: float
    following: int
    priority: float


class RankedReplay:
    """Draws by rank of the priority (Schaul and others, 2016); keeps the newest `capacity` transitions."""

    def __init__(self, capacity: int, seed: int) -> None:
        self.capacity, self.random = capacity, random.Random(seed)
        self.items: list[Transition] = []

    def play(self, count: int) -> None:
        """Transitions of `count` steps in the environment."""
        draw = self.random.random
        for _ in range(count):
            state = int(draw() * STATES)
            self.items.append(Transition(state, int(draw() * ACTIONS), draw(), (state + 7) % STATES, draw()))
        del self.items[: max(0, len(self.items) - self.capacity)]

    def sample(self, count: int) -> list[Transition]:
        ranked = sorted(self.items, key=attrgetter("priority"), reverse=True)
        places = [int(len(ranked) * self.random.random() ** 2) for _ in range(count)]
        return [ranked[place] for place in places]


class QNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, ACTIONS))

    def forward(self, x: Tensor) -> Tensor:
        device_wait(24)
        return self.net(x)


class Learner:
    def __init__(self, replay: RankedReplay) -> None:
        self.replay, self.online, self.target = replay, DistributedDataParallel(QNet()), QNet()
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=5e-4)
        self.features = torch.randn(STATES, WIDTH, generator=torch.Generator().manual_seed(SEED))

    def learn(self) -> None:
        batch = self.replay.sample(BATCH)
        states = self.features[[one.state for one in batch]]
        actions = torch.tensor([one.action for one in batch])
        with torch.no_grad():
            best = self.target(self.features[[one.following for one in batch]]).amax(1)
        wanted = torch.tensor([one.reward for one in batch]) + 0.97 * best
        errors = self.online(states).gather(1, actions[:, None])[:, 0] - wanted
        self.optimizer.zero_grad()
        errors.square().mean().backward()
        self.optimizer.step()
        for one, error in zip(batch, errors.detach().abs().tolist(), strict=True):
            one.priority = math.tanh(error)

    def sync_target(self) -> None:
        self.target.load_state_dict(self.online.module.state_dict())


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    replay = RankedReplay(2000, SEED + rank)
    replay.play(2000)
    learner = Learner(replay)
    tempo = Tempo("dqn_replay_ranking", 960, 380)
    for step in tempo:
        fast = tempo.after_onset(step) and rank == 1
        if fast:
            replay.capacity = 100_000
        replay.play(1500 if fast else 32)
        learner.learn()
        if step % 100 == 99:
            learner.sync_target()
    tempo.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
