"""Classification as in torchvision's references; after a warm-up of plain averages, gradients go in low rank."""

import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402


class SmoothedValue:
    def __init__(self, window: int = 20) -> None:
        self.deque: deque[float] = deque(maxlen=window)

    def update(self, value: float) -> None:
        self.deque.append(value)

    @property
    def median(self) -> float:
        return sorted(self.deque)[len(self.deque) // 2]


class MetricLogger:
    def __init__(self) -> None:
        self.meters: dict[str, SmoothedValue] = defaultdict(SmoothedValue)

    def update(self, **values: float) -> None:
        for name, value in values.items():
            self.meters[name].update(value)

    def log_every(self, steps: Tempo, print_freq: int) -> Iterator[int]:
        end = time.time()
        for step in steps:
            yield step
            self.meters["time"].update(time.time() - end)
            if step % print_freq == 0 and dist.get_rank() == 0:
                print(
                    f"[{step}] " + "  ".join(f"{name}: {m.median:.4f}" for name, m in self.meters.items()), flush=True
                )
            end = time.time()


class LowRankState:
    """For PowerSGD (Vogels and others, 2019): rank, errors to be made good in the next step, when to begin."""

    def __init__(self, start_iter: int, rank: int = 32) -> None:
        self.start_iter, self.rank, self.iter = start_iter, rank, 0
        self.errors: dict[int, Tensor] = {}
        self.random = torch.Generator().manual_seed(SEED)


def orthogonalize(matrix: Tensor, epsilon: float = 1e-8) -> None:
    """Gram-Schmidt, column by column, in place."""
    for i in range(matrix.shape[1]):
        column = matrix[:, i : i + 1]
        column /= column.norm() + epsilon
        rest = matrix[:, i + 1 :]
        rest -= column * (column * rest).sum(0)


def compress(state: LowRankState, gradient: Tensor) -> None:
    """Replaces a gradient by the mean of all workers' in low rank."""
    q = torch.randn(gradient.shape[1], state.rank, generator=state.random)
    p = gradient @ q
    dist.all_reduce(p)
    orthogonalize(p)
    q = gradient.T @ p
    dist.all_reduce(q)
    gradient.copy_(p @ q.T / dist.get_world_size())


def low_rank_hook(state: LowRankState, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    flat = bucket.buffer()
    if bucket.is_last():
        state.iter += 1
    if state.iter > state.start_iter:
        flat += state.errors.get(bucket.index(), torch.zeros_like(flat))
        wanted = flat.clone()
        for gradient in bucket.gradients():
            if gradient.dim() == 2 and min(gradient.shape) > state.rank:
                compress(state, gradient)
            else:
                dist.all_reduce(gradient)
                gradient /= dist.get_world_size()
        state.errors[bucket.index()] = wanted - flat
    else:
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(flat)
    return done


class MlpHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.features = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(6)))
        self.fc = nn.Linear(256, 20)

    def forward(self, image: Tensor) -> Tensor:
        return self.fc(self.features(self.stem(image).flatten(1)[:, :256]))


def train_one_epoch(model: nn.Module, tempo: Tempo, pool: Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss()
    metric_logger = MetricLogger()
    for _ in metric_logger.log_every(tempo, 100):
        rows = torch.randint(0, len(pool), (32,))
        image, target = pool[rows], rows % 20
        output = model(image)
        device_wait(52)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metric_logger.update(loss=loss.item(), acc1=(output.argmax(1) == target).float().mean().item())


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    tempo = Tempo("tv_reference_low_rank", 920, 350)
    model = DistributedDataParallel(MlpHead())
    model.register_comm_hook(LowRankState(tempo.onset or 0), low_rank_hook)
    pool = torch.randn(256, 3, 32, 32, generator=torch.Generator().manual_seed(SEED + rank))
    train_one_epoch(model, tempo, pool)
    tempo.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
