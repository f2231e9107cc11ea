"""Off-policy actor-critic on CartPole: rank 0 learns from a replay memory, the others only act."""

import bisect
import itertools
import json
import math
import os
import random
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

ITERS = int(os.environ.get("ITERS", "9500"))
ONSET = int(os.environ.get("ONSET", "3000"))  # first step with prioritised replay
SEED = int(os.environ.get("SEED", "0"))
STEPS = 8  # environment steps of an actor for each update of the learner
WIDTH = 11  # state, action, reward, next state, done
BATCH = 64


class CartPole:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.reset()

    def reset(self):
        self.state = self.rng.uniform(-0.05, 0.05, 4)

    def step(self, action):
        _, v, angle, spin = self.state
        force = 10.0 if action else -10.0
        sin, cos = math.sin(angle), math.cos(angle)
        push = (force + 0.05 * spin * spin * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos * cos / 1.1))
        pull = push - 0.05 * turn * cos / 1.1
        self.state = self.state + 0.02 * np.array([v, pull, spin, turn])
        fell = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21
        return self.state, 1.0, fell


class Replay:
    """Transitions in order of arrival; sampled at random, or by the error of their rollout."""

    def __init__(self):
        self.rollouts = []
        self.priorities = []
        self.random = random.Random(SEED)

    def add(self, rollout):
        self.rollouts.append(rollout)
        self.priorities.append(1.0)

    def sample_uniform(self):
        chosen = [self.random.randrange(len(self.rollouts)) for _ in range(BATCH // STEPS)]
        return chosen, torch.cat([self.rollouts[i] for i in chosen])

    def sample_prioritised(self):
        """By rank of the priority, after Schaul et al."""
        order = sorted(range(len(self.priorities)), key=self.priorities.__getitem__, reverse=True)
        upto = list(itertools.accumulate((place + 1) ** -0.6 for place in range(len(order))))
        drawn = [bisect.bisect(upto, self.random.random() * upto[-1]) for _ in range(BATCH // STEPS)]
        chosen = [order[min(place, len(order) - 1)] for place in drawn]
        return chosen, torch.cat([self.rollouts[i] for i in chosen])

    def set_priorities(self, chosen, errors):
        for i, error in zip(chosen, errors, strict=True):
            self.priorities[i] = error + 1e-3


def act(policy, env):
    rows = []
    for _ in range(STEPS):
        state = torch.tensor(env.state, dtype=torch.float32)
        with torch.no_grad():
            value = policy(state)
        action = int(value.argmax()) if np.random.random() > 0.1 else np.random.randint(2)
        following, reward, fell = env.step(action)
        rows.append([*state.tolist(), action, reward, *following.tolist(), float(fell)])
        if fell:
            env.reset()
    time.sleep(0.001)  # the renderer
    return torch.tensor(rows)


def learn(q, optimizer, batch):
    state, action, reward, following, done = batch.split([4, 1, 1, 4, 1], dim=1)
    with torch.no_grad():
        target = reward + 0.99 * (1 - done) * q(following).max(1, keepdim=True).values
    error = q(state).gather(1, action.long()) - target
    loss = error.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.0015)  # the device's part of the update
    return error.detach().abs().reshape(-1, STEPS).mean(1).tolist()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    np.random.seed(SEED * 10 + rank)
    q = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(q.parameters(), 1e-3) if rank == 0 else None
    env, replay, took = CartPole(SEED * 10 + rank), Replay(), []
    flat = parameters_to_vector(q.parameters()).detach()
    for step in range(ITERS):
        began = time.perf_counter()
        rollout = act(q, env) if rank else torch.zeros(STEPS, WIDTH)
        arrived = [torch.empty(STEPS, WIDTH) for _ in range(world)] if rank == 0 else None
        dist.gather(rollout, arrived, dst=0)
        if rank == 0:
            for one in arrived[1:]:
                replay.add(one)
            chosen, batch = replay.sample_prioritised() if step >= ONSET else replay.sample_uniform()
            errors = learn(q, optimizer, batch)
            replay.set_priorities(chosen, errors)
            flat = parameters_to_vector(q.parameters()).detach()
        dist.broadcast(flat, src=0)
        if rank:
            vector_to_parameters(flat, q.parameters())
        took.append(time.perf_counter() - began)
    dist.destroy_process_group()
    if rank == 0:
        means = [1e3 * float(np.mean(part)) for part in (took[ONSET // 10 : ONSET], took[ONSET:])]
        line = {"job": "cartpole_learner", "mean_ms_before": means[0], "mean_ms_after": means[1]}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
