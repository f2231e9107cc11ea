"""The loss of one data-parallel member under torchft, TrainMover and torchrun, on one model in one command.

    python -m venv /tmp/torchft && /tmp/torchft/bin/pip install torchft      # torch of the same version as here
    python benchmarks/torchft_loss.py --torchft /tmp/torchft/bin/python --out docs/figures/torchft.jsonl

The interpreter given needs `trainmover` too. Four members, each with the whole model of examples/train.py, compute
paced by sleeping, gloo where it is not TrainMover; one member is killed (SIGKILL by pid). One record a loss:

- "torchft": four replica groups of one rank, lighthouse with the values of torchft's README; the benchmark starts a
  replacement at once. "torchft, short time-outs": heartbeats and joins time out after 1 s. "torchft, spare": a fifth
  group and `WorldSizeMode.FIXED_WITH_SPARES`, short time-outs. "torchft, ddp": torchft's own DistributedDataParallel
  in place of one `Manager.allreduce` of all gradients: its survivors raise, so their number is what is recorded.
- "trainmover, standby" and "trainmover, alone": the replacement is a warm standby, or a process that the supervisor
  starts.
- "restart under torchrun": pause.py's.

`pause_s`: the longest time between two iterations that each brought the job further than before, less a normal one.
`stood_s`: the same between any two iterations, those done again included. `back_s`: from the kill to the end of the
first iteration whose gradient the replacement is part of. `fewer`: iterations with less than four members' gradients.
`join_s`: what the iteration took beyond normal in which torchft's replacement got its state. `again`: iterations that
TrainMover did again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

N_MEMBERS = 4
README = ("--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000")
SHORT = (*README[:-1], "1000", "--heartbeat_timeout_ms", "1000")


def replica(given: argparse.Namespace) -> None:
    """One replica group of one rank, as in torchft's train_ddp.py; runs until it is killed."""
    import numpy
    import torch
    import torch.distributed as dist
    import torchft
    from torchft.manager import WorldSizeMode

    sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
    from train import Stage, Text, run_iteration

    torch.set_num_threads(1)
    torch.manual_seed(1)
    stage = Stage(given.width, given.layers, 1, first=True, last=True)
    plain = torch.optim.AdamW(stage.parameters(), lr=1e-3, foreach=False)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)

    def load(state: dict) -> None:
        stage.load_state_dict(state["model"])
        plain.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=lambda: {"model": stage.state_dict(), "optimizer": plain.state_dict()},
        min_replica_size=N_MEMBERS if given.spares else 1,
        world_size_mode=WorldSizeMode.FIXED_WITH_SPARES if given.spares else WorldSizeMode.DYNAMIC,
        timeout=timedelta(seconds=30),
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        hostname="localhost",
        replica_id=f"replica_{given.replica}",
    )
    optimizer = torchft.Optimizer(manager, plain)
    wrapped = torchft.DistributedDataParallel(manager, stage) if given.ddp else stage
    torch.manual_seed(100 + given.replica)
    random.seed(given.replica)
    numpy.random.seed(given.replica)
    loader = torch.utils.data.DataLoader(Text(1024, 16, seed=given.replica), 2, shuffle=True)
    ended = time.time()
    while True:
        for _, batch in loader:
            optimizer.zero_grad()
            time.sleep(given.pace)
            loss = run_iteration(wrapped, batch, None, 0, 1, ())
            if not given.ddp:
                gradients = [one.grad for one in stage.parameters()]
                flat = torch.cat([one.flatten() for one in gradients])
                manager.allreduce(flat).wait()
                for one, part in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
                    one.copy_(part.view_as(one))
            step = manager.current_step()
            optimizer.step()
            if manager.current_step() > step:
                now = time.time()
                line = {"step": step, "loss": loss.item().hex(), "took_s": now - ended, "at": now, "pid": os.getpid()}
                line |= {"members": manager.num_participants(), "taking_part": manager.is_participating()}
                ended = now
                with (given.out / f"losses-{given.replica}.jsonl").open("a") as file:
                    file.write(json.dumps(line) + "\n")


def longest_s(records: list[dict], begin: float, end: float, *, further: bool) -> float:
    """The longest time between two iterations that ends within [begin, end]; `further`: only those of a new step."""
    longest, best, last = 0.0, -1, None
    for one in records:
        if further and one["step"] <= best:
            continue
        best = max(best, one["step"])
        if last is not None and begin < one["at"] <= end:
            longest = max(longest, one["at"] - last)
        last = one["at"]
    return longest


def found(records: list[dict], begin: float, end: float) -> dict[str, float]:
    """`pause_s`, `stood_s` and the normal iteration, of a loss at `begin`."""
    normal_s = statistics.median(one["took_s"] for one in [one for one in records if one["at"] <= begin][-9:])
    ways = {"pause_s": True, "stood_s": False}
    gaps = {name: longest_s(records, begin, end, further=way) - normal_s for name, way in ways.items()}
    return {**gaps, "normal_s": normal_s}


class Groups:
    """torchft's lighthouse and its replica groups."""

    def __init__(self, given: argparse.Namespace, folder: Path, lighthouse: tuple[str, ...], *more: str) -> None:
        self.folder, self.python = folder, given.torchft
        self.more = ["--width", str(given.width), "--layers", str(given.layers), "--pace", str(given.pace), *more]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.lighthouse = self.start(
            [str(Path(given.torchft).parent / "torchft_lighthouse"), *lighthouse, "--bind", self.address]
        )

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Run beside; output goes to one log."""
        from tests.conftest import environment

        variables = environment(TORCHFT_LIGHTHOUSE=f"http://{self.address}")
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(command, env=variables, stdout=log, stderr=log)

    def replica(self, number: int) -> None:
        """Start the replica group of this number, the first time or anew."""
        command = [self.python, str(Path(__file__)), "--replica", str(number), "--out", str(self.folder), *self.more]
        self.processes[number] = self.start(command)

    def lines(self, number: int) -> list[dict]:
        """What the process that has this number now has committed."""
        path = self.folder / f"losses-{number}.jsonl"
        whole = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
        return [one for one in map(json.loads, whole) if one["pid"] == self.processes[number].pid]

    def until(self, ready: Callable[[], bool], timeout_s: float = 120) -> None:
        """Wait; with the log if it does not come about."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            assert time.monotonic() < deadline, (self.folder / "log").read_text()[-5000:]
            time.sleep(0.05)

    def end(self) -> None:
        """Kill everything that was started."""
        for process in (*self.processes.values(), self.lighthouse):
            process.kill()
            process.wait()


@contextlib.contextmanager
def groups(given: argparse.Namespace, lighthouse: tuple[str, ...], n_groups: int, *more: str) -> Iterator[Groups]:
    """Groups under way, each of which has committed ten iterations of the whole job."""
    folder = Path(tempfile.mkdtemp(prefix="torchft-loss-"))
    job = Groups(given, folder, lighthouse, *more)
    try:
        for number in range(n_groups):
            job.replica(number)
        job.until(lambda: all(whole(job.lines(number)[-10:]) for number in range(n_groups)))
        yield job
    finally:
        job.end()


def whole(records: list[dict]) -> bool:
    """Ten iterations, each with the gradients of all members."""
    return len(records) >= 10 and all(one["members"] == N_MEMBERS for one in records)


def by_torchft(
    given: argparse.Namespace, lighthouse: tuple[str, ...], n_groups: int, write: Callable, what: str
) -> None:
    """Kill one replica after another and start each anew at once."""
    spares = ("--spares",) if n_groups > N_MEMBERS else ()
    with groups(given, lighthouse, n_groups, *spares) as job:
        for run in range(given.runs):
            number, begin = 1 + run % (N_MEMBERS - 1), time.time()
            job.processes[number].kill()
            job.processes[number].wait()
            job.replica(number)
            job.until(lambda number=number: any(one["taking_part"] for one in job.lines(number)))
            mine = job.lines(number)
            first = next(one for one in mine if one["taking_part"])
            time.sleep(8 * given.pace)
            records = job.lines(0)
            fewer = [one for one in records if one["at"] > begin and one["members"] < N_MEMBERS]
            joined = next(one for one in records if one["step"] == mine[0]["step"])
            values = found(records, begin, next(one["at"] for one in records if one["step"] == first["step"]))
            values |= {"back_s": first["at"] - begin, "fewer": len(fewer)}
            write(what, {**values, "join_s": joined["took_s"] - values["normal_s"]})
            time.sleep(10 * given.pace)


def by_ddp(given: argparse.Namespace, write: Callable) -> None:
    """Kill one replica under torchft's DistributedDataParallel; how many survivors raise within 15 s."""
    with groups(given, SHORT, N_MEMBERS, "--ddp") as job:
        begin = time.time()
        job.processes[1].kill()
        time.sleep(15)
        ends = [one for one in (job.folder / "log").read_text().splitlines() if one.startswith("AssertionError")]
        further = sum(one["at"] > begin + 1 for one in job.lines(0))
        write("torchft, ddp", {"survivors_raised": len(ends), "steps_after": further})


def ours(given: argparse.Namespace, write: Callable, what: str, *, standby: bool) -> None:
    """Kill one rank after another of one job."""
    from tests.jobs import running_job

    from benchmarks.pause import lines

    folder = Path(tempfile.mkdtemp(prefix="trainmover-loss-"))
    arguments = [*shape(given), "--iterations", "100000"]
    with running_job(folder, N_MEMBERS, *arguments, pace_s=given.pace, timeouts='{"heartbeat_timeout_s": 20}') as job:
        job.until_step(10, 120)
        for run in range(given.runs):
            if standby:
                job.standby(f"spare-{run}")
                job.until_ready(timeout_s=120)
            time.sleep(10 * given.pace)
            number, before = 1 + run % (N_MEMBERS - 1), job.status()
            old, begin = job.pid_of(number), time.time()
            os.kill(old, signal.SIGKILL)
            job.until(lambda now, before=before: now["generation"] > before["generation"] and not now["under_way"], 120)
            step = max(one["step"] for one in lines(job.out) if one["at"] <= begin)
            job.until_step(step + 4, 120)
            records = lines(job.out)
            back = next(one["at"] for one in lines(job.out, number) if one["at"] > begin and one["pid"] != old)
            end = next(one["at"] for one in records if one["at"] > begin and one["step"] > step + 2)
            again = sum(one["step"] <= step for one in records if one["at"] > begin)
            write(what, {**found(records, begin, end), "back_s": back - begin, "fewer": 0, "again": again})


def shape(given: argparse.Namespace) -> list[str]:
    """The arguments of examples/train.py."""
    arguments = ["--dp", str(N_MEMBERS), "--pp", "1", "--tp", "1", "--width", str(given.width)]
    return [*arguments, "--layers", str(given.layers), "--length", "16", "--batch", "2"]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--torchft", default=sys.executable, help="the interpreter that has torchft and trainmover")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--pace", type=float, default=0.2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--parts", default="torchft,short,spare,ddp,standby,alone,restart")
    parser.add_argument("--out", type=Path, required=True)
    for name in ("--spares", "--ddp"):
        parser.add_argument(name, action="store_true", help="of a replica")
    parser.add_argument("--replica", type=int, help="be one of torchft's replica groups; --out is its folder")
    return parser.parse_args()


def main() -> None:
    given = options()
    if given.replica is not None:
        replica(given)
    from benchmarks.pause import restart

    program = "import torch; from importlib.metadata import version; print(version('torchft'), torch.__version__)"
    told = subprocess.run([given.torchft, "-c", program], capture_output=True, text=True, check=False).stdout.split()
    versions = dict(zip(("torchft", "torch"), told, strict=False))

    def write(what: str, values: dict) -> None:
        rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in values.items()}
        record = {"what": what, "ranks": N_MEMBERS, "width": given.width, "layers": given.layers, "pace_s": given.pace}
        record |= {**versions, "load": round(os.getloadavg()[0], 1), **rounded}
        print(json.dumps(record), flush=True)
        with given.out.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def restarts() -> None:
        for _ in range(given.runs):
            restart((N_MEMBERS, 1, 1), shape(given), given.pace, write)

    parts = {
        "torchft": lambda: by_torchft(given, README, N_MEMBERS, write, "torchft"),
        "short": lambda: by_torchft(given, SHORT, N_MEMBERS, write, "torchft, short time-outs"),
        "spare": lambda: by_torchft(given, SHORT, N_MEMBERS + 1, write, "torchft, spare"),
        "ddp": lambda: by_ddp(given, write),
        "standby": lambda: ours(given, write, "trainmover, standby", standby=True),
        "alone": lambda: ours(given, write, "trainmover, alone", standby=False),
        "restart": restarts,
    }
    for part in given.parts.split(","):
        parts[part]()


if __name__ == "__main__":
    main()
