"""A training whose worker is asked for the counters of its collectives far more often than Eroica asks, in turns.

Run by `benchmarks/overhead.py --reading`: blocks of iterations with questions and without are interleaved, so that
their drift cancels. The recorder is full before anything is timed. Writes block times, and CPU time of an answer.
"""

import argparse
import contextlib
import json
import os
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from eroica.worker import answering


def main() -> None:  # noqa: PLR0915 - one story
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--block-s", type=float, default=0.25)
    parser.add_argument("--hz", type=float, default=400.0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    small = torch.ones(8)
    for _ in range(2500):  # the recorder keeps 2000
        dist.all_reduce(small)
    answering._PAUSE_S = 0.2 / options.hz
    spent = []

    def answer(run, *arguments):
        begin = time.thread_time_ns()
        run(*arguments)
        spent.append(time.thread_time_ns() - begin)

    directory = Path(tempfile.mkdtemp())
    guest = answering.Answering(directory, answer)
    assert guest.start()
    on = threading.Event()
    over = threading.Event()

    def ask() -> None:
        fifo = os.open(directory / f"{os.getpid()}.ask", os.O_WRONLY)
        told = os.open(directory / f"{os.getpid()}.told", os.O_RDONLY | os.O_NONBLOCK)
        while not over.is_set():
            on.wait(0.1)
            if on.is_set():
                os.write(fifo, b"3")
                time.sleep(1 / options.hz)
                with contextlib.suppress(BlockingIOError):
                    os.read(told, 65_536)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(4, 32, 128)

    def iterate() -> float:
        """Mean iteration of a block."""
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < options.block_s:
            model(batch).square().mean().backward()
            dist.all_reduce(small)
            optimizer.step()
            optimizer.zero_grad()
            count += 1
        return (time.perf_counter() - begin) / count

    iterate()
    pairs, asked = [], []
    for number in range(options.pairs):
        times = {}
        for state in (True, False) if number % 2 else (False, True):
            before = len(spent)
            (on.set if state else on.clear)()
            times[state] = iterate()
            if state:
                asked.append((len(spent) - before) / options.block_s)
        pairs.append([times[True], times[False]])
    over.set()
    guest.stop()
    answers = [one for one in spent if one > 5_000]
    options.out.write_text(json.dumps({"pairs": pairs, "asked_hz": sum(asked) / len(asked), "answer_ns": answers}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
