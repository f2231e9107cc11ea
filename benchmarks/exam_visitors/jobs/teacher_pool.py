"""A student learns from a teacher that answers through a pool of threads; gradients are averaged by hand."""

import json
import os
import queue
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import nn

ITERS = int(os.environ.get("ITERS", "940"))
ONSET = int(os.environ.get("ONSET", "460"))
SEED = int(os.environ.get("SEED", "0"))
CHUNKS, THREADS = 8, 4


class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 16))

    @torch.no_grad()
    def answer(self, chunk):
        time.sleep(0.024)  # its own accelerator
        return self.net(chunk)


class TeacherService:
    """Asks the teacher about the chunks of a batch, side by side. Listeners for feedback use the same threads."""

    def __init__(self, teacher):
        self.teacher = teacher
        self.pool = ThreadPoolExecutor(THREADS, thread_name_prefix="teacher")
        self.feedback, self.heard, self.listeners = queue.Queue(), [], 0

    def subscribe(self):
        self.listeners += 1
        self.pool.submit(self.listen)

    def listen(self):
        while (note := self.feedback.get()) is not None:
            self.heard.append(note)

    def answers(self, batch):
        futures = [self.pool.submit(self.teacher.answer, chunk) for chunk in batch.chunk(CHUNKS)]
        return torch.cat([future.result() for future in futures])

    def close(self):
        for _ in range(self.listeners):
            self.feedback.put(None)
        self.pool.shutdown()


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 16))

    def forward(self, batch):
        time.sleep(0.022)
        return self.net(batch)


def average_gradients(model, world):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    offset = 0
    for p in model.parameters():
        p.grad.copy_(flat[offset : offset + p.numel()].view_as(p) / world)
        offset += p.numel()


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    service, student = TeacherService(Teacher()), Student()
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(SEED + rank)
    took = []
    for step in range(ITERS):
        began = time.perf_counter()
        if step == ONSET and rank == 1:
            service.subscribe()
            service.subscribe()
        batch = torch.randn(64, 32, generator=generator)
        aim = service.answers(batch).softmax(-1)
        loss = nn.functional.cross_entropy(student(batch), aim)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        time.sleep(0.03)
        average_gradients(student, world)
        optimizer.step()
        took.append(time.perf_counter() - began)
    service.close()
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        mean = lambda part: 1e3 * sum(part) / max(1, len(part))  # noqa: E731
        before, after = mean(took[min(10, ONSET // 2) : ONSET]), mean(took[ONSET:])
        print(json.dumps({"job": "teacher_pool", "mean_ms_before": before, "mean_ms_after": after}), flush=True)


if __name__ == "__main__":
    main()
