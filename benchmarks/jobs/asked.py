"""A training whose worker is asked for the counters of its collectives far more often than Eroica asks, in turns.

Run by `benchmarks/overhead.py --reading`: blocks of iterations with questions and without are interleaved, so that
their drift cancels. The recorder is full before anything is timed. Writes CPU times of blocks, and of an answer.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from eroica.worker import answering

ASKER = """
import os, select, sys
fifo = os.open(sys.argv[1] + ".ask", os.O_WRONLY)
told = os.open(sys.argv[1] + ".told", os.O_RDONLY | os.O_NONBLOCK)
on = False
while True:
    if select.select([0], [], [], 1 / float(sys.argv[2]) if on else None)[0]:
        letter = os.read(0, 1)
        if not letter:
            break
        on = letter == b"1"
    if on:
        os.write(fifo, b"3")
        try:
            os.read(told, 65_536)
        except BlockingIOError:
            pass
"""


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
    guest = answering.Answering(directory, answer, tells=True)
    assert guest.start()
    words = [sys.executable, "-c", ASKER, str(directory / str(os.getpid())), str(options.hz)]
    asker = subprocess.Popen(words, stdin=subprocess.PIPE, bufsize=0)
    assert asker.stdin is not None
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(4, 32, 128)

    def iterate() -> float:
        """CPU time of the whole process for each iteration of a block: other work on the machine does not count."""
        begin, used, count = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - begin < options.block_s:
            model(batch).square().mean().backward()
            dist.all_reduce(small)
            optimizer.step()
            optimizer.zero_grad()
            count += 1
        return (time.process_time() - used) / count

    iterate()
    pairs, asked = [], []
    for number in range(options.pairs):
        times = {}
        for state in (True, False) if number % 2 else (False, True):
            before = len(spent)
            asker.stdin.write(b"1" if state else b"0")
            times[state] = iterate()
            if state:
                asked.append((len(spent) - before) / options.block_s)
        pairs.append([times[True], times[False]])
    asker.stdin.close()
    asker.wait()
    guest.stop()
    answers = [one for one in spent if one > 5_000]
    options.out.write_text(json.dumps({"pairs": pairs, "asked_hz": sum(asked) / len(asked), "answer_ns": answers}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
