"""Windows over trainings in random patterns of threads: no signal, no output, every iteration counted.

Each run is one training under `eroica run`, or alone with hooks and an agent that orders one window after another, as
fast as they end. Its threads, their turns and the windows' lengths are drawn from the run's number, so a run can be
repeated.

    python benchmarks/harmless.py --windows 200 [--first 0] [--json FILE]

The results are appended to benchmarks/results/harmless.jsonl, and `--write-docs` draws docs/results/harmless.md.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from eroica.wire.beat import DONE, MISSED, ORDER_FAILED, RESULT_NAMES, SKIPPED, WINDOW, BeatReader, Order
from eroica.wire.places import places, private_directory
from eroica.worker import bootstrap_directory

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "harmless.jsonl"
PAGE = HERE.parent / "docs" / "results" / "harmless.md"
SETTLED = (DONE, MISSED, SKIPPED, ORDER_FAILED)
PROGRAM = """
import asyncio, concurrent.futures as cf, os, random, sys, threading, time
import torch
torch.set_num_threads(1)
draw = random.Random(int(sys.argv[1])); kind = sys.argv[2]; count = int(sys.argv[3]); pause = time.sleep
loader = lambda: iter(torch.utils.data.DataLoader(torch.ones(100_000, 8), batch_size=4))
def a_training():
    model = torch.nn.Linear(8, 8); optimizer = torch.optim.SGD(model.parameters(), 1e-3); batches = loader()
    naps = draw.choice((0.0, 0.001, 0.003))
    def step():
        optimizer.zero_grad(); model(next(batches)).sum().backward(); optimizer.step(); pause(naps)
    return step
step, lock = a_training(), threading.Lock()
def run(*works):
    threads = [threading.Thread(target=work) for work in works]
    [one.start() for one in threads]; [one.join() for one in threads]
def turns(longest):
    left = count
    while left > 0:
        some = min(left, draw.randint(1, longest)); left -= some
        yield some
def steps(some, step=step):
    for _ in range(some): step()
def main(): steps(count)
def one(): run(lambda: steps(count))
def threads():
    for some in turns(90): run(lambda: steps(some))
def mixed():
    for some in turns(90): steps(some) if draw.random() < 0.5 else run(lambda: steps(some))
def pools():
    executors = [cf.ThreadPoolExecutor(1) for _ in range(draw.randint(2, 8))]
    for some in turns(draw.choice((1, 7, 60, 200))): draw.choice(executors).submit(steps, some).result()
def to_thread():
    async def train():
        for some in turns(3): await asyncio.to_thread(steps, some)
    asyncio.run(train())
def at_once(): run(*[lambda step=a_training(): steps(count, step) for _ in range(draw.randint(2, 4))])
def in_common():
    def locked():
        for _ in range(count // 3):
            with lock: step()
    run(locked, locked, locked)
def helper(): run(main, lambda step=a_training(): steps(count // 13, step))
def forks():
    def children():
        for _ in range(5):
            child = os.fork()
            if not child: os._exit(0)
            os.waitpid(child, 0); pause(0.1)
    run(children, main)
globals()[kind]()
print("ended", flush=True)
if draw.random() < 0.3: os._exit(0)
"""
KINDS = ("main", "one", "threads", "mixed", "pools", "to_thread", "at_once", "in_common", "helper", "forks")


class Agent:
    """Orders windows, and nothing else: it holds the lock, so that no other agent is started."""

    def __init__(self, root: Path, draw: random.Random) -> None:
        import fcntl

        self.root, self.draw = root, draw
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("EROICA_")} | {
            "PYTHONPATH": str(bootstrap_directory()), "PYTHONWARNINGS": "ignore::DeprecationWarning", "EROICA_JOB": "x",
            "EROICA_RUNTIME_DIR": str(root), "EROICA_RUN_DIR": str(root / "run"), "EROICA_SCRATCH_DIR": str(root / "s"),
        }  # fmt: skip
        self.runtime = private_directory(places(self.environment).runtime)
        self.lock = os.open(self.runtime / "agent.lock", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.worker: BeatReader | None = None
        self.given = 0
        self.iteration = 0
        self.wrong = ""
        self.outcomes: collections.Counter[str] = collections.Counter()

    def look(self) -> None:
        """Take a look at the worker, and order the next window."""
        if self.worker is None:
            for path in self.runtime.glob("*.beat"):
                self.worker = BeatReader.open(path)
            return
        beat, result = self.worker.beat(), self.worker.result()
        if beat is None:
            return
        if beat.iteration < self.iteration:
            self.wrong = f"iteration {beat.iteration} after {self.iteration}"
        self.iteration = beat.iteration
        if result.status in SETTLED and result.window_id == self.given and self.given:
            words = result.note.partition(":")[0] or "captured"
            self.outcomes[words if result.status != DONE else RESULT_NAMES[DONE]] += 1
        elif self.given:
            return
        self.given += 1
        first = beat.iteration + self.draw.randint(2, 9)
        directory = self.root / "s" / str(self.given)
        directory.mkdir(parents=True, exist_ok=True)
        self.worker.give(
            Order(self.given, WINDOW, 0, first, first + self.draw.choice((2, 5, 20, 60)), 0, 0, str(directory))
        )

    def end(self) -> None:
        """Judge the durations, and let go."""
        if self.worker is not None:
            durations = self.worker.durations(40, self.iteration)
            if durations and not 0 < min(durations) <= max(durations) < 60e9:
                self.wrong = f"durations of {min(durations)} to {max(durations)} ns"
            self.worker.close()
        os.close(self.lock)


def trial(number: int) -> dict[str, object]:
    """Run one training."""
    draw = random.Random(number)
    kind = KINDS[number % len(KINDS)]
    count = draw.choice((300, 600, 1000))
    with tempfile.TemporaryDirectory() as place:
        agent = Agent(Path(place), draw)
        (Path(place) / "train.py").write_text(PROGRAM)
        command = [sys.executable, str(Path(place) / "train.py"), str(number), kind, str(count)]
        process = subprocess.Popen(
            command, env=agent.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        end = time.monotonic() + 300
        while process.poll() is None and time.monotonic() < end:
            agent.look()
            time.sleep(0.002)
        if process.poll() is None:
            process.kill()
            agent.wrong = "no end within 300 s"
        out, err = process.communicate()
        agent.end()
        logs = [path.read_text()[-300:] for path in Path(place).glob("run/log/*.log")]
    said = err if err else out.removeprefix("ended\n")
    return {
        "number": number, "kind": kind, "status": process.returncode, "said": said[-300:], "wrong": agent.wrong,
        "log": "".join(logs), "iterations": agent.iteration, "windows": sum(agent.outcomes.values()),
        "outcomes": dict(agent.outcomes),
    }  # fmt: skip


def page(results: list[dict[str, object]]) -> str:
    """The results as Markdown."""
    outcomes: collections.Counter[str] = collections.Counter()
    rows = []
    for kind in KINDS:
        ours = [one for one in results if one["kind"] == kind]
        counts = collections.Counter[str]()
        for one in ours:
            counts.update(one["outcomes"])  # type: ignore[arg-type]
        outcomes.update(counts)
        bad = sum(bool(one["status"] or one["said"] or one["wrong"] or one["log"]) for one in ours)
        rows.append(f"| {kind} | {len(ours)} | {sum(counts.values())} | {counts['done']} | {bad} |")
    reasons = "\n".join(f"| {words} | {count} |" for words, count in outcomes.most_common())
    return (
        "# Results: windows over threads\n\n"
        "`python benchmarks/harmless.py --windows N`: trainings in random patterns of threads, one window after another"
        " over each. A run is bad if it ends by a signal or with another status than 0, if it writes a word that it"
        " does not write alone, if a failure of ours is in its log, if an iteration number goes back, or if a duration"
        " is not positive.\n\n"
        f"{sum(outcomes.values())} windows over {len(results)} trainings, PyTorch 2.13 on CPUs.\n\n"
        "| threads | trainings | windows | captured | bad |\n|---|---|---|---|---|\n" + "\n".join(rows) + "\n\n"
        "| outcome of a window | times |\n|---|---|\n" + reasons + "\n"
    )


def main() -> int:
    """Run trainings until there were enough windows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--write-docs", action="store_true")
    options = parser.parse_args()
    if options.write_docs:
        PAGE.write_text(page([json.loads(line) for line in options.json.read_text().splitlines()]))
        return 0
    windows, number, bad = 0, options.first, 0
    while windows < options.windows:
        one = trial(number)
        windows += int(str(one["windows"]))
        bad += bool(one["status"] or one["said"] or one["wrong"] or one["log"])
        with options.json.open("a") as file:
            file.write(json.dumps(one) + "\n")
        print(one, flush=True)
        number += 1
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
